//! Structs that describe graphs and their nodes.
//!
//! A newer header may make a node's struct longer: `CUgraphNodeParams` has room for that, and the
//! struct of an older program ends in zeros.

use std::ffi::c_void;

use super::memory::{CUmemAccessDesc_v1, CUmemPoolProps_v1};
use super::{
    CUcontext, CUdeviceptr_v2, CUfunction, CUgraph, CUgraphChildGraphNodeOwnership,
    CUgraphInstantiateResult, CUgraphNode, CUgraphNodeType, CUkernel, CUstream,
};
use crate::as_in_c::structs;

/// Name of this struct in prototypes. It has had one layout so far.
pub type CUDA_MEM_ALLOC_NODE_PARAMS = CUDA_MEM_ALLOC_NODE_PARAMS_v1;

structs! {
    CUDA_KERNEL_NODE_PARAMS_v2 {
        func: CUfunction,
        gridDimX: u32,
        gridDimY: u32,
        gridDimZ: u32,
        blockDimX: u32,
        blockDimY: u32,
        blockDimZ: u32,
        sharedMemBytes: u32,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
        kern: CUkernel,
        ctx: CUcontext,
    }
    CUDA_MEM_ALLOC_NODE_PARAMS_v1 {
        poolProps: CUmemPoolProps_v1,
        accessDescs: *const CUmemAccessDesc_v1,
        accessDescCount: usize,
        bytesize: usize,
        dptr: CUdeviceptr_v2,
    }
    CUDA_MEM_FREE_NODE_PARAMS { dptr: CUdeviceptr_v2, }
    CUDA_CHILD_GRAPH_NODE_PARAMS {
        graph: CUgraph,
        ownership: CUgraphChildGraphNodeOwnership,
    }
    CUgraphNodeParams {
        r#type: CUgraphNodeType,
        reserved0: [i32; 3],
        /// A union of the nodes' structs, some of them in this module; which one, says `type`.
        reserved1: [u64; 29],
        reserved2: i64,
    }
    CUgraphEdgeData {
        from_port: u8,
        to_port: u8,
        r#type: u8,
        reserved: [u8; 5],
    }
    CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: u64,
        hUploadStream: CUstream,
        hErrNode_out: CUgraphNode,
        result_out: CUgraphInstantiateResult,
    }
}
