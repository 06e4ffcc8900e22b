//! The real library's functions, by row.
//!
//! Without a real library each call answers `NVML_ERROR_LIBRARY_NOT_FOUND`, as NVIDIA's own stub
//! does, and `nvmlErrorString` lists the files that were tried. A function that an older library
//! lacks answers `NVML_ERROR_FUNCTION_NOT_FOUND`.

use std::ffi::{CStr, c_char, c_void};

use sublet_driver_api::NVML;
use sublet_driver_api::nvml::*;

use super::row;
use crate::driver;
use crate::real::{Code, Real, StandIns, real_function};

/// The real functions.
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

macro_rules! real_functions {
    ($($symbol:ident)*) => { $(row::prototype!($symbol real_function);)* };
}

real_functions! {
    nvmlDeviceGetAccountingPids
    nvmlDeviceGetCount_v2
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle
    nvmlDeviceGetHandleByUUID
    nvmlDeviceGetProcessUtilization
    nvmlDeviceGetUUID
}
