//! Structs that describe copies.

use std::ffi::c_void;

use super::memory::CUmemLocation_v1;
use super::{
    CUarray, CUcontext, CUdeviceptr_v1, CUdeviceptr_v2, CUmemcpy3DOperandType,
    CUmemcpySrcAccessOrder, CUmemorytype,
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
    CUextent3D_v1 { width: usize, height: usize, depth: usize, }
    CUmemcpyAttributes_v1 {
        srcAccessOrder: CUmemcpySrcAccessOrder,
        srcLocHint: CUmemLocation_v1,
        dstLocHint: CUmemLocation_v1,
        flags: u32,
    }
    CUmemcpy3DOperand_v1 {
        r#type: CUmemcpy3DOperandType,
        /// A union of two records: a pointer with its lengths, or an array with an offset.
        op: [u64; 4],
    }
    CUDA_MEMCPY3D_BATCH_OP_v1 {
        src: CUmemcpy3DOperand_v1,
        dst: CUmemcpy3DOperand_v1,
        extent: CUextent3D_v1,
        srcAccessOrder: CUmemcpySrcAccessOrder,
        flags: u32,
    }
}
