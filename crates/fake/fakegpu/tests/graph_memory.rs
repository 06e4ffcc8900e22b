//! Memory of graphs: the parameters that its nodes return, when it is taken, and calls that graphs
//! with memory refuse, as NVIDIA documents.
#![expect(unsafe_code, reason = "calls the driver as C does")]

mod own_process;

use std::ffi::c_void;

use own_process::{begin, context, end, instantiate, memory, stream, with_machine};
use sublet_driver_api::cuda::graph::{
    CUDA_CHILD_GRAPH_NODE_PARAMS, CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS_v1,
    CUgraphNodeParams,
};
use sublet_driver_api::cuda::memory::{CUmemLocation_v1, CUmemPoolProps_v1};
use sublet_driver_api::cuda::{
    CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_INVALID,
    CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE, CU_GRAPH_NODE_TYPE_GRAPH, CU_MEM_ALLOCATION_TYPE_PINNED,
    CU_MEM_LOCATION_TYPE_DEVICE, CUgraph, CUgraphChildGraphNodeOwnership,
};

const MIB: usize = 1 << 20;
const SPEC: &str = "1x1GiB,context=24MiB";

/// MiB of the card that programs can still have.
fn free() -> usize {
    memory().0 / MIB
}

/// Captures an allocation in a stream. Returns the graph, and the address.
fn captured(size: usize) -> (u64, u64) {
    let (stream, mut address) = (stream(), 0_u64);
    begin(stream, 0);
    ok!(cuMemAllocAsync, &raw mut address => *mut u64, size => usize, stream => u64);
    let (code, graph) = end(stream);
    assert_eq!(code, 0);
    (graph, address)
}

fn nodes_of(graph: u64) -> Vec<u64> {
    let mut count = 0_usize;
    ok!(cuGraphGetNodes, graph => u64, std::ptr::null_mut() => *mut u64, &raw mut count => *mut usize);
    let mut nodes = vec![0_u64; count];
    ok!(cuGraphGetNodes, graph => u64, nodes.as_mut_ptr() => *mut u64, &raw mut count => *mut usize);
    nodes
}

fn empty_graph() -> u64 {
    let mut graph = 0_u64;
    ok!(cuGraphCreate, &raw mut graph => *mut u64, 0 => u32);
    graph
}

/// A node that allocates: the code, its handle and address.
fn allocate(graph: u64, size: usize) -> (u32, u64, u64) {
    let mut given = CUDA_MEM_ALLOC_NODE_PARAMS_v1 {
        poolProps: CUmemPoolProps_v1 {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            location: CUmemLocation_v1 {
                r#type: CU_MEM_LOCATION_TYPE_DEVICE,
                id: 0,
            },
            ..CUmemPoolProps_v1::default()
        },
        bytesize: size,
        ..CUDA_MEM_ALLOC_NODE_PARAMS_v1::default()
    };
    let mut node = 0_u64;
    let code = cu!(cuGraphAddMemAllocNode, &raw mut node => *mut u64, graph => u64, std::ptr::null() => *const u64, 0 => usize, &raw mut given => *mut CUDA_MEM_ALLOC_NODE_PARAMS_v1);
    (code, node, given.dptr)
}

/// Adds a graph to another one by the struct that names its future owner.
fn nest(child: u64, graph: u64, ownership: CUgraphChildGraphNodeOwnership) -> (u32, u64) {
    let params = CUDA_CHILD_GRAPH_NODE_PARAMS {
        graph: CUgraph(child as usize),
        ownership,
    };
    let mut given = CUgraphNodeParams {
        r#type: CU_GRAPH_NODE_TYPE_GRAPH,
        ..CUgraphNodeParams::default()
    };
    // SAFETY: the union has room for each of its structs.
    unsafe {
        let at = (&raw mut given.reserved1).cast::<CUDA_CHILD_GRAPH_NODE_PARAMS>();
        at.write(params);
    }
    let mut node = 0_u64;
    let code = cu!(cuGraphAddNode_v2, &raw mut node => *mut u64, graph => u64, std::ptr::null() => *const u64, std::ptr::null() => *const c_void, 0 => usize, &raw mut given => *mut CUgraphNodeParams);
    (code, node)
}

#[test]
fn a_recorded_allocation_tells_what_it_was_given() {
    with_machine(
        "a_recorded_allocation_tells_what_it_was_given",
        SPEC,
        || {
            context();
            let (graph, address) = captured(100 * MIB);
            let [node] = nodes_of(graph)[..] else {
                panic!("one node");
            };
            let (mut kind, mut told) = (0_u32, CUDA_MEM_ALLOC_NODE_PARAMS_v1::default());
            ok!(cuGraphNodeGetType, node => u64, &raw mut kind => *mut u32);
            ok!(cuGraphMemAllocNodeGetParams, node => u64, &raw mut told => *mut CUDA_MEM_ALLOC_NODE_PARAMS_v1);
            assert_eq!((kind, told.dptr, told.bytesize), (10, address, 100 * MIB));
            let place = told.poolProps.location;
            assert_eq!((place.r#type, place.id), (CU_MEM_LOCATION_TYPE_DEVICE, 0));
        },
    );
}

#[test]
fn memory_is_taken_by_an_upload_as_by_a_launch() {
    with_machine("memory_is_taken_by_an_upload_as_by_a_launch", SPEC, || {
        context();
        let (stream, (graph, _)) = (stream(), captured(600 * MIB));
        let exec = instantiate(graph);
        assert_eq!(free(), 1000);
        ok!(cuGraphUpload, exec => u64, stream => u64);
        assert_eq!(free(), 400);
        ok!(cuGraphLaunch, exec => u64, stream => u64);
        assert_eq!(free(), 400, "it was there already");
        let (other, _) = captured(600 * MIB);
        let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
            flags: 2,
            ..CUDA_GRAPH_INSTANTIATE_PARAMS::default()
        };
        let mut made = 7_u64;
        let mut make = || cu!(cuGraphInstantiateWithParams, &raw mut made => *mut u64, other => u64, &raw mut params => *mut CUDA_GRAPH_INSTANTIATE_PARAMS);
        assert_eq!(make(), 2, "it has no room");
    });
}

#[test]
fn a_graph_with_memory_is_not_copied() {
    with_machine("a_graph_with_memory_is_not_copied", SPEC, || {
        context();
        let (stream, (graph, _)) = (stream(), captured(MIB));
        let copied = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE;
        assert_eq!(nest(graph, empty_graph(), copied).0, 801);
        // Nor is it recorded as a part of another graph.
        let exec = instantiate(graph);
        begin(stream, 0);
        assert_eq!(cu!(cuGraphLaunch, exec => u64, stream => u64), 900);
        assert_eq!(end(stream).0, 901);
    });
}

#[test]
fn a_graph_with_memory_is_moved_into_another_and_is_that_ones_then() {
    const NAME: &str = "a_graph_with_memory_is_moved_into_another_and_is_that_ones_then";
    with_machine(NAME, SPEC, || {
        context();
        let stream = stream();
        let (inner, middle, outer) = (empty_graph(), empty_graph(), empty_graph());
        assert_eq!(allocate(inner, 100 * MIB).0, 0);
        assert_eq!(allocate(middle, 50 * MIB).0, 0);
        let to = |child, graph| nest(child, graph, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE);
        assert_eq!(
            nest(inner, middle, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_INVALID).0,
            1
        );
        let (code, node) = to(inner, middle);
        assert_eq!(code, 0);
        let mut told = 0_u64;
        ok!(cuGraphChildGraphNodeGetGraph, node => u64, &raw mut told => *mut u64);
        assert_eq!(told, inner);
        assert_eq!(
            (
                to(inner, outer).0,
                to(middle, middle).0,
                to(middle, inner).0
            ),
            (1, 1, 1)
        );
        assert_eq!(to(middle, outer).0, 0);
        // What it may not do any more.
        let mut exec = 0_u64;
        assert_eq!(
            cu!(cuGraphInstantiateWithFlags, &raw mut exec => *mut u64, inner => u64, 0 => u64),
            801
        );
        assert_eq!(cu!(cuGraphDestroy, inner => u64), 1);
        assert_eq!(allocate(inner, MIB).0, 801);
        let exec = instantiate(outer);
        ok!(cuGraphUpload, exec => u64, stream => u64);
        assert_eq!(free(), 850, "all of it");
        ok!(cuGraphExecDestroy, exec => u64);
        ok!(cuDeviceGraphMemTrim, 0 => i32);
        assert_eq!(free(), 1000);
        ok!(cuGraphDestroy, outer => u64);
        assert_eq!(
            cu!(cuGraphDestroy, inner => u64),
            1,
            "it went with the other"
        );
    });
}
