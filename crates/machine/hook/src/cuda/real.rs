//! The driver's own functions, by row.
//!
//! A function that the driver lacks answers `CUDA_ERROR_NOT_SUPPORTED`. Without any driver each
//! call answers `CUDA_ERROR_STUB_LIBRARY`; the text of that error names the files that were tried.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use sublet_driver_api::CUDA;

use super::c::*;
use super::row;
use crate::driver;
use crate::real::{Code, Real, StandIns, real_function};

/// The real functions.
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

macro_rules! real_functions {
    ($($symbol:ident)*) => { $(row::prototype!($symbol real_function);)* };
}

real_functions! {
    cuArray3DCreate_v2 cuArrayDestroy cuArrayGetMemoryRequirements cuCtxFromGreenCtx cuCtxGetCurrent cuCtxGetDevice
    cuCtxGetLimit cuCtxPopCurrent_v2 cuCtxPushCurrent_v2 cuDeviceGetAttribute cuDeviceGetCount
    cuDeviceGetDefaultMemPool cuDeviceGetGraphMemAttribute cuDeviceGetMemPool cuDeviceGetUuid
    cuDeviceGetUuid_v2 cuDeviceGraphMemTrim cuDevicePrimaryCtxGetState cuDriverGetVersion
    cuEventCreate cuEventDestroy_v2 cuEventElapsedTime cuEventQuery cuEventRecord
    cuEventSynchronize cuGetProcAddress
    cuGraphChildGraphNodeGetGraph cuGraphExecDestroy cuGraphGetNodes cuGraphMemAllocNodeGetParams
    cuGraphNodeGetType cuGraphUpload cuMemFreeAsync cuMemFree_v2 cuMemGetAddressRange_v2
    cuFuncIsLoaded cuMemGetInfo_v2 cuModuleGetLoadingMode cuMemPoolGetAttribute cuMemPoolTrimTo cuMipmappedArrayCreate
    cuMipmappedArrayDestroy cuMipmappedArrayGetMemoryRequirements cuStreamGetCtx cuStreamGetDevice
    cuStreamIsCapturing cuStreamQuery cuThreadExchangeStreamCaptureMode
}
