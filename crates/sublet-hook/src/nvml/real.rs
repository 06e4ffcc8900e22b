//! The real library's functions, by row.
//!
//! Without a real library each call answers `NVML_ERROR_LIBRARY_NOT_FOUND`, as NVIDIA's own stub
//! does, and `nvmlErrorString` says what was looked for and where; a function that an older
//! library lacks answers `NVML_ERROR_FUNCTION_NOT_FOUND`.

use std::ffi::{CStr, c_char, c_void};

use sublet_driver_api::NVML;
use sublet_driver_api::nvml::*;

use super::row;
use crate::driver;
use crate::real::{Arguments, Code, Real, StandIns};

/// Where each real function is.
pub static REAL: Real<{ row::COUNT }> = Real::new(
    driver::NVML,
    &NVML,
    StandIns {
        no_function: Code(function_not_found as *const c_void),
        no_library: Code(library_not_found as *const c_void),
        // The one function that does not return a result.
        special: &[(row::nvmlErrorString, Code(explain as *const c_void))],
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

/// Calls the real function of a row.
///
/// # Safety
/// It has these parameters, and may be called with these arguments.
pub unsafe fn call<const ROW: usize, A: Arguments<nvmlReturn_t>>(arguments: A) -> nvmlReturn_t {
    // SAFETY: as the caller says, and all but one have this result.
    unsafe { REAL.call(ROW, arguments) }
}

pub(super) extern "C" fn function_not_found() -> nvmlReturn_t {
    NVML_ERROR_FUNCTION_NOT_FOUND
}

extern "C" fn library_not_found() -> nvmlReturn_t {
    NVML_ERROR_LIBRARY_NOT_FOUND
}

extern "C" fn explain(error: nvmlReturn_t) -> *const c_char {
    let text: &CStr = if error == NVML_ERROR_LIBRARY_NOT_FOUND {
        REAL.why_not()
    } else {
        c"Unknown Error"
    };
    text.as_ptr()
}

crate::real::real_functions! {
    nvmlReturn_t;
    nvmlDeviceGetAccountingPids(device: nvmlDevice_t, count: *mut u32, pids: *mut u32);
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig: nvmlDevice_t, device: *mut nvmlDevice_t);
    nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut nvmlDevice_t);
    nvmlDeviceGetProcessUtilization(
        device: nvmlDevice_t, samples: *mut nvmlProcessUtilizationSample_t, count: *mut u32, since: u64
    );
    nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: *mut c_char, length: u32);
}
