//! Nodes that are added to a graph by hand. One that allocates more than the tenant may have is
//! refused at once.

use crate::cuda::c::*;
use crate::cuda::graph::needs::card_of;
use crate::cuda::row;
use crate::cuda::tenant::{Place, Tenant};
use crate::guard::{Inside, catch_panic};
use crate::real::Like;

/// An allocation that no graph of this tenant could ever run is refused where it is added, as
/// the driver refuses one that no card could hold.
fn is_too_large(given: &CUDA_MEM_ALLOC_NODE_PARAMS_v1) -> bool {
    let Some(_inside) = Inside::enter() else {
        return false;
    };
    let too_large = catch_panic(|| {
        let tenant = Tenant::current()?;
        let bytes = given.bytesize as u64;
        let Place::Listed(index) = tenant.place(card_of(given)?) else {
            return Some(true);
        };
        let is_over = bytes > tenant.link.control().device(index).limit_bytes();
        if is_over {
            tenant.link.note_refusal(index, bytes);
        }
        Some(is_over)
    });
    too_large.flatten().unwrap_or(false)
}

/// `cuGraphAddMemAllocNode`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn alloc_node<R: Like<row::cuGraphAddMemAllocNode>>(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    count: usize,
    given: *mut CUDA_MEM_ALLOC_NODE_PARAMS_v1,
) -> CUresult {
    // SAFETY: null or the program's struct.
    if unsafe { given.as_ref() }.is_some_and(is_too_large) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    // SAFETY: the program's own arguments.
    unsafe { R::call((node, graph, before, count, given)) }
}

/// True if a node that is about to be added is an allocation that is too large.
///
/// # Safety
/// `given` is null or the program's struct.
unsafe fn is_too_large_node(given: *const CUgraphNodeParams) -> bool {
    // SAFETY: as the caller says.
    let Some(params) = (unsafe { given.as_ref() }) else {
        return false;
    };
    if params.r#type != CU_GRAPH_NODE_TYPE_MEM_ALLOC {
        return false;
    }
    let alloc: *const CUDA_MEM_ALLOC_NODE_PARAMS_v1 = (&raw const params.reserved1).cast();
    // SAFETY: the union holds this struct for this type. Its second version is laid out the
    // same.
    is_too_large(unsafe { &*alloc })
}

/// `cuGraphAddNode` of CUDA 12.2.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn node<R: Like<row::cuGraphAddNode>>(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    count: usize,
    given: *mut CUgraphNodeParams,
) -> CUresult {
    // SAFETY: null or the program's struct.
    if unsafe { is_too_large_node(given) } {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    // SAFETY: the program's own arguments.
    unsafe { R::call((node, graph, before, count, given)) }
}

/// `cuGraphAddNode_v2` and later: edges have data.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn node_v2<R: Like<row::cuGraphAddNode_v2>>(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    given: *mut CUgraphNodeParams,
) -> CUresult {
    // SAFETY: null or the program's struct.
    if unsafe { is_too_large_node(given) } {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    // SAFETY: the program's own arguments.
    unsafe { R::call((node, graph, before, edges, count, given)) }
}
