//! The driver's own functions, by row.
//!
//! A function that the driver lacks answers `CUDA_ERROR_NOT_SUPPORTED`. Without any driver each
//! call answers `CUDA_ERROR_STUB_LIBRARY`, whose text says what was looked for and where.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use sublet_driver_api::CUDA;

use super::c::*;
use super::row;
use crate::driver;
use crate::real::{Code, Real, StandIns};

/// Where each real function is.
pub static REAL: Real<{ row::COUNT }> = Real::new(
    driver::CUDA,
    &CUDA,
    StandIns {
        no_function: Code(not_supported as *const c_void),
        no_library: Code(no_driver as *const c_void),
        special: &[
            (row::cuGetErrorString, Code(explain as *const c_void)),
            (row::cuGetErrorName, Code(name_of as *const c_void)),
        ],
    },
);

/// The real function of a row, with its type.
///
/// # Safety
/// `F` is the type of a C function as the row declares it.
pub unsafe fn function<F: Copy>(index: usize) -> F {
    // SAFETY: as the caller says.
    unsafe { REAL.function(index) }
}

pub(super) extern "C" fn not_supported() -> CUresult {
    CUDA_ERROR_NOT_SUPPORTED
}

extern "C" fn no_driver() -> CUresult {
    CUDA_ERROR_STUB_LIBRARY
}

/// # Safety
/// `text` is null or can be written.
unsafe extern "C" fn explain(error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: as the caller says.
    unsafe { tell(error, text, REAL.why_not()) }
}

/// # Safety
/// `text` is null or can be written.
unsafe extern "C" fn name_of(error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: as the caller says.
    unsafe { tell(error, text, c"CUDA_ERROR_STUB_LIBRARY") }
}

unsafe fn tell(error: CUresult, text: *mut *const c_char, told: &'static CStr) -> CUresult {
    if text.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let known = error == CUDA_ERROR_STUB_LIBRARY;
    let told = if known { told.as_ptr() } else { ptr::null() };
    // SAFETY: not null, and the caller says it can be written.
    unsafe { text.write(told) };
    if known {
        CUDA_SUCCESS
    } else {
        CUDA_ERROR_INVALID_VALUE
    }
}

crate::real::real_functions! {
    CUresult;
    cuArray3DCreate_v2(array: *mut CUarray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR_v2);
    cuArrayDestroy(array: CUarray);
    cuArrayGetMemoryRequirements(
        needs: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS_v1, array: CUarray, device: CUdevice
    );
    cuCtxGetCurrent(context: *mut CUcontext);
    cuCtxGetDevice(device: *mut CUdevice);
    cuCtxGetLimit(value: *mut usize, limit: CUlimit);
    cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuCtxPushCurrent_v2(context: CUcontext);
    cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    cuDeviceGetGraphMemAttribute(device: CUdevice, attribute: CUgraphMem_attribute, value: *mut c_void);
    cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    cuDeviceGetUuid(uuid: *mut [u8; 16], device: CUdevice);
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: CUdevice);
    cuDeviceGraphMemTrim(device: CUdevice);
    cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int);
    cuDriverGetVersion(version: *mut c_int);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(event: CUevent);
    cuEventQuery(event: CUevent);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: *mut CUgraph);
    cuGraphExecDestroy(exec: CUgraphExec);
    cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
    cuGraphMemAllocNodeGetParams(node: CUgraphNode, params: *mut CUDA_MEM_ALLOC_NODE_PARAMS_v1);
    cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType);
    cuGraphUpload(exec: CUgraphExec, stream: CUstream);
    cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    cuMemFree_v2(address: CUdeviceptr);
    cuMemGetAddressRange_v2(first: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
    cuMemPoolTrimTo(pool: CUmemoryPool, bytes: usize);
    cuMipmappedArrayCreate(
        array: *mut CUmipmappedArray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR_v2, levels: c_uint
    );
    cuMipmappedArrayDestroy(array: CUmipmappedArray);
    cuMipmappedArrayGetMemoryRequirements(
        needs: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS_v1, array: CUmipmappedArray, device: CUdevice
    );
    cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    cuStreamGetDevice(stream: CUstream, device: *mut CUdevice);
    cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
}
