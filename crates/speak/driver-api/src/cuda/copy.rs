//! Structs that describe copies, and values that a stream waits for or writes.

use std::ffi::c_void;

use super::memory::CUmemLocation_v1;
use super::{
    CUarray, CUcontext, CUdeviceptr_v1, CUdeviceptr_v2, CUmemcpy3DOperandType,
    CUmemcpySrcAccessOrder, CUmemorytype, CUstreamBatchMemOpType,
};
use crate::as_in_c::structs;

structs! {
    CUDA_MEMCPY2D_v1 {
        srcXInBytes: u32,
        srcY: u32,
        srcMemoryType: CUmemorytype,
        srcHost: *const c_void,
        srcDevice: CUdeviceptr_v1,
        srcArray: CUarray,
        srcPitch: u32,
        dstXInBytes: u32,
        dstY: u32,
        dstMemoryType: CUmemorytype,
        dstHost: *mut c_void,
        dstDevice: CUdeviceptr_v1,
        dstArray: CUarray,
        dstPitch: u32,
        WidthInBytes: u32,
        Height: u32,
    }
    CUDA_MEMCPY2D_v2 {
        srcXInBytes: usize,
        srcY: usize,
        srcMemoryType: CUmemorytype,
        srcHost: *const c_void,
        srcDevice: CUdeviceptr_v2,
        srcArray: CUarray,
        srcPitch: usize,
        dstXInBytes: usize,
        dstY: usize,
        dstMemoryType: CUmemorytype,
        dstHost: *mut c_void,
        dstDevice: CUdeviceptr_v2,
        dstArray: CUarray,
        dstPitch: usize,
        WidthInBytes: usize,
        Height: usize,
    }
    CUDA_MEMCPY3D_v1 {
        srcXInBytes: u32,
        srcY: u32,
        srcZ: u32,
        srcLOD: u32,
        srcMemoryType: CUmemorytype,
        srcHost: *const c_void,
        srcDevice: CUdeviceptr_v1,
        srcArray: CUarray,
        reserved0: *mut c_void,
        srcPitch: u32,
        srcHeight: u32,
        dstXInBytes: u32,
        dstY: u32,
        dstZ: u32,
        dstLOD: u32,
        dstMemoryType: CUmemorytype,
        dstHost: *mut c_void,
        dstDevice: CUdeviceptr_v1,
        dstArray: CUarray,
        reserved1: *mut c_void,
        dstPitch: u32,
        dstHeight: u32,
        WidthInBytes: u32,
        Height: u32,
        Depth: u32,
    }
    CUDA_MEMCPY3D_v2 {
        srcXInBytes: usize,
        srcY: usize,
        srcZ: usize,
        srcLOD: usize,
        srcMemoryType: CUmemorytype,
        srcHost: *const c_void,
        srcDevice: CUdeviceptr_v2,
        srcArray: CUarray,
        reserved0: *mut c_void,
        srcPitch: usize,
        srcHeight: usize,
        dstXInBytes: usize,
        dstY: usize,
        dstZ: usize,
        dstLOD: usize,
        dstMemoryType: CUmemorytype,
        dstHost: *mut c_void,
        dstDevice: CUdeviceptr_v2,
        dstArray: CUarray,
        reserved1: *mut c_void,
        dstPitch: usize,
        dstHeight: usize,
        WidthInBytes: usize,
        Height: usize,
        Depth: usize,
    }
    CUDA_MEMCPY3D_PEER_v1 {
        srcXInBytes: usize,
        srcY: usize,
        srcZ: usize,
        srcLOD: usize,
        srcMemoryType: CUmemorytype,
        srcHost: *const c_void,
        srcDevice: CUdeviceptr_v2,
        srcArray: CUarray,
        srcContext: CUcontext,
        srcPitch: usize,
        srcHeight: usize,
        dstXInBytes: usize,
        dstY: usize,
        dstZ: usize,
        dstLOD: usize,
        dstMemoryType: CUmemorytype,
        dstHost: *mut c_void,
        dstDevice: CUdeviceptr_v2,
        dstArray: CUarray,
        dstContext: CUcontext,
        dstPitch: usize,
        dstHeight: usize,
        WidthInBytes: usize,
        Height: usize,
        Depth: usize,
    }
    CUoffset3D_v1 { x: usize, y: usize, z: usize, }
    CUextent3D_v1 { width: usize, height: usize, depth: usize, }
    CUmemcpyAttributes_v1 {
        srcAccessOrder: CUmemcpySrcAccessOrder,
        srcLocHint: CUmemLocation_v1,
        dstLocHint: CUmemLocation_v1,
        flags: u32,
    }
    CUmemcpy3DOperand_v1 {
        r#type: CUmemcpy3DOperandType,
        /// A [`CUmemcpy3DOperand_ptr`] or a [`CUmemcpy3DOperand_array`].
        op: [u64; 4],
    }
    CUmemcpy3DOperand_ptr = "CUmemcpy3DOperand_v1.op.ptr" {
        ptr: CUdeviceptr_v2,
        rowLength: usize,
        layerHeight: usize,
        locHint: CUmemLocation_v1,
    }
    CUmemcpy3DOperand_array = "CUmemcpy3DOperand_v1.op.array" {
        array: CUarray,
        offset: CUoffset3D_v1,
    }
    CUDA_MEMCPY3D_BATCH_OP_v1 {
        src: CUmemcpy3DOperand_v1,
        dst: CUmemcpy3DOperand_v1,
        extent: CUextent3D_v1,
        srcAccessOrder: CUmemcpySrcAccessOrder,
        flags: u32,
    }
    /// A union; its first four bytes are a `CUstreamBatchMemOpType`.
    CUstreamBatchMemOpParams_v1 { pad: [u64; 6], }
    CUstreamMemOpWaitValueParams = "CUstreamBatchMemOpParams_v1.waitValue" {
        operation: CUstreamBatchMemOpType,
        address: CUdeviceptr_v2,
        value64: u64,
        flags: u32,
        alias: CUdeviceptr_v2,
    }
    CUstreamMemOpWriteValueParams = "CUstreamBatchMemOpParams_v1.writeValue" {
        operation: CUstreamBatchMemOpType,
        address: CUdeviceptr_v2,
        value64: u64,
        flags: u32,
        alias: CUdeviceptr_v2,
    }
}
