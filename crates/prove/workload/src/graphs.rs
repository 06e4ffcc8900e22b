//! Memory that a graph allocates and does not free, so that it outlives the graph. The graph is
//! made from nodes (in a line, after branches, or in a graph within the graph), or recorded from a
//! stream.

use std::ptr;

use sublet_driver_api::cuda::graph::{
    CUDA_CHILD_GRAPH_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS_v1, CUgraphNodeParams,
};
use sublet_driver_api::cuda::{
    CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE, CU_GRAPH_NODE_TYPE_GRAPH,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUdeviceptr, CUgraph, CUgraphExec, CUgraphNode,
};

use crate::driver::Context;
use crate::location::device_pool;
use crate::path::Path;
use crate::report::Failure;
use crate::stream::Stream;

/// Makes a graph in the way that `path` names, and runs it; returns the address of its memory.
pub(crate) fn allocate(
    context: &Context<'_>,
    stream: &Stream<'_>,
    path: Path,
    size: usize,
) -> Result<CUdeviceptr, Failure> {
    if path == Path::Capture {
        let (graph, address) = recorded(context, stream, size)?;
        run(context, stream, graph)?;
        return Ok(address);
    }
    let mut graph = CUgraph::default();
    // SAFETY: the pointer is to a live value.
    unsafe { context.raw().cuGraphCreate(&raw mut graph, 0)? };
    let filled = match path {
        Path::Branches => fill_branches(context, graph, size),
        Path::Nested => nest(context, graph, size),
        _ => add_allocation(context, graph, &[], size).map(|(_, address)| address),
    };
    match filled {
        Ok(address) => run(context, stream, graph).map(|()| address),
        Err(failure) => {
            // SAFETY: the graph is ours.
            unsafe { context.raw().cuGraphDestroy(graph)? };
            Err(failure)
        }
    }
}

/// Adds a node that allocates; returns the node and the address.
fn add_allocation(
    context: &Context<'_>,
    graph: CUgraph,
    after: &[CUgraphNode],
    size: usize,
) -> Result<(CUgraphNode, CUdeviceptr), Failure> {
    let mut wanted = CUDA_MEM_ALLOC_NODE_PARAMS_v1 {
        poolProps: device_pool(context),
        bytesize: size,
        ..CUDA_MEM_ALLOC_NODE_PARAMS_v1::default()
    };
    let mut node = CUgraphNode::default();
    let (at, list) = (&raw mut node, after.as_ptr());
    // SAFETY: the graph is live, the pointers are to live values, the list is as long as stated.
    unsafe {
        let raw = context.raw();
        raw.cuGraphAddMemAllocNode(at, graph, list, after.len(), &raw mut wanted)?;
    }
    Ok((node, wanted.dptr))
}

/// Two branches that meet: the first allocates and frees, and the allocation after both can use
/// that memory again.
fn fill_branches(
    context: &Context<'_>,
    graph: CUgraph,
    size: usize,
) -> Result<CUdeviceptr, Failure> {
    let raw = context.raw();
    let (first, early) = add_allocation(context, graph, &[], size)?;
    let [mut freed, mut beside] = [CUgraphNode::default(); 2];
    // SAFETY: the graph is live, the pointers are to live values, lists are as long as stated.
    unsafe {
        raw.cuGraphAddMemFreeNode(&raw mut freed, graph, &raw const first, 1, early)?;
        raw.cuGraphAddEmptyNode(&raw mut beside, graph, ptr::null(), 0)?;
    }
    add_allocation(context, graph, &[freed, beside], size).map(|(_, late)| late)
}

/// Makes a graph and moves it into this one: a graph with memory can only be moved, not copied.
fn nest(context: &Context<'_>, graph: CUgraph, size: usize) -> Result<CUdeviceptr, Failure> {
    let raw = context.raw();
    let (mut child, mut node) = (CUgraph::default(), CUgraphNode::default());
    // SAFETY: the pointer is to a live value.
    unsafe { raw.cuGraphCreate(&raw mut child, 0)? };
    let moved = add_allocation(context, child, &[], size).and_then(|(_, address)| {
        let mut given = CUgraphNodeParams {
            r#type: CU_GRAPH_NODE_TYPE_GRAPH,
            ..CUgraphNodeParams::default()
        };
        let params: *mut CUDA_CHILD_GRAPH_NODE_PARAMS = (&raw mut given.reserved1).cast();
        // SAFETY: the union has room for each of its structs; a null list goes with a length of
        // zero.
        unsafe {
            params.write(CUDA_CHILD_GRAPH_NODE_PARAMS {
                graph: child,
                ownership: CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE,
            });
            let (list, edges) = (ptr::null(), ptr::null());
            raw.cuGraphAddNode_v2(&raw mut node, graph, list, edges, 0, &raw mut given)?;
        }
        Ok(address)
    });
    if moved.is_err() {
        // SAFETY: the failed call did not take it, so it is still ours.
        unsafe { raw.cuGraphDestroy(child)? };
    }
    moved
}

/// Records a `cuMemAllocAsync` from a stream into a graph.
fn recorded(
    context: &Context<'_>,
    stream: &Stream<'_>,
    size: usize,
) -> Result<(CUgraph, CUdeviceptr), Failure> {
    let raw = context.raw();
    let (mut graph, mut address) = (CUgraph::default(), 0);
    // SAFETY: the stream is ours and not recorded yet; the pointers are to live values. A recording
    // that was begun is ended, even if a failure has made it invalid.
    let (taken, ended) = unsafe {
        raw.cuStreamBeginCapture_v2(stream.handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let taken = raw.cuMemAllocAsync(&raw mut address, size, stream.handle());
        let ended = raw.cuStreamEndCapture(stream.handle(), &raw mut graph);
        (taken, ended)
    };
    if let (Err(_), Ok(())) = (&taken, &ended) {
        // SAFETY: the graph is ours.
        unsafe { raw.cuGraphDestroy(graph)? };
    }
    taken.and(ended).map(|()| (graph, address))
}

/// Launches a graph once and destroys it. The memory that it allocated remains.
fn run(context: &Context<'_>, stream: &Stream<'_>, graph: CUgraph) -> Result<(), Failure> {
    let raw = context.raw();
    let mut executable = CUgraphExec::default();
    // SAFETY: graph and stream are live, the pointer is to a live value.
    let launched = unsafe {
        raw.cuGraphInstantiateWithFlags(&raw mut executable, graph, 0)
            .and_then(|()| raw.cuGraphLaunch(executable, stream.handle()))
    };
    let ran = launched.and_then(|()| stream.synchronize());
    // SAFETY: both are ours, and the stream has come past the launch.
    unsafe {
        if !executable.is_null() {
            raw.cuGraphExecDestroy(executable)?;
        }
        raw.cuGraphDestroy(graph)?;
    }
    ran
}
