//! Starting and ending, versions, names of errors and of processes: functions that concern no
//! single card.

use std::ffi::{CStr, c_char, c_void};

use sublet_driver_api::nvml::{NVML_ERROR_NOT_FOUND, NVML_ERROR_NOT_SUPPORTED, nvmlReturn_t};

use super::exported::{Exported, functions};
use super::library;
use super::pointer::{In, Out, Text};
use crate::FunctionPointer;
use crate::product::{CUDA_VERSION, DRIVER};

/// The only function that does not return a code.
pub(super) const ALWAYS: &[Exported] = &[Exported {
    symbol: "nvmlErrorString",
    entry: FunctionPointer(error_string as *const ()),
    params: &["nvmlReturn_t"],
}];

functions! {
    fn nvmlInit() {
        library::start()
    }

    fn nvmlInit_v2() {
        library::start()
    }

    /// The flags say that no card, or none at once, is needed; here none costs anything.
    fn nvmlInitWithFlags(_flags: u32) {
        library::start()
    }

    fn nvmlShutdown() {
        library::stop()
    }

    /// Private tables of the driver, without public documentation.
    fn nvmlInternalGetExportTable(_table: Out<In<c_void>>, _id: In<c_void>) {
        Err(NVML_ERROR_NOT_SUPPORTED)
    }

    fn nvmlSystemGetDriverVersion(version: Text, length: u32) {
        library::machine()?;
        version.write(length, DRIVER)
    }

    fn nvmlSystemGetCudaDriverVersion(version: Out<i32>) {
        version.write(CUDA_VERSION)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) {
        version.write(CUDA_VERSION)
    }

    /// The name of the process: the first word of its command line, cut to fit.
    fn nvmlSystemGetProcessName(pid: u32, name: Text, length: u32) {
        library::machine()?;
        let file = |part| std::fs::read(format!("/proc/{pid}/{part}"));
        let line = file("cmdline").map_err(|_| NVML_ERROR_NOT_FOUND)?;
        let mut first = line.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
        if first.is_empty() {
            // Threads of the kernel and the dead have no command line.
            first = file("comm").map_err(|_| NVML_ERROR_NOT_FOUND)?;
        }
        name.write_start(length, String::from_utf8_lossy(&first).trim_end())
    }
}

/// `nvmlErrorString`: the text stays for ever and is not the caller's.
extern "C" fn error_string(code: nvmlReturn_t) -> *const c_char {
    text_of(code).as_ptr()
}

/// The real library's words, by code.
fn text_of(code: nvmlReturn_t) -> &'static CStr {
    const TEXTS: [&CStr; 31] = [
        c"Success",
        c"Uninitialized",
        c"Invalid Argument",
        c"Not Supported",
        c"Insufficient Permissions",
        c"Already Initialized",
        c"Not Found",
        c"Insufficient Size",
        c"Insufficient External Power",
        c"Driver Not Loaded",
        c"Timeout",
        c"Interrupt Request Issue",
        c"NVML Shared Library Not Found",
        c"Function Not Found",
        c"Corrupted infoROM",
        c"GPU is lost",
        c"GPU requires reset",
        c"GPU access blocked by the operating system",
        c"Driver/library version mismatch",
        c"In use by another client",
        c"Insufficient Memory",
        c"No data",
        c"The requested vgpu operation is not available on target device, because ECC is enabled",
        c"Insufficient Resources",
        c"Requested frequency not supported",
        c"Argument version mismatch",
        c"Deprecated",
        c"Not ready",
        c"GPU not found",
        c"Invalid state",
        c"Reset type not supported",
    ];
    TEXTS
        .get(code.0 as usize)
        .copied()
        .unwrap_or(c"Unknown Error")
}

#[cfg(test)]
mod tests {
    use sublet_driver_api::nvml::{
        NVML_ERROR_ARGUMENT_VERSION_MISMATCH, NVML_ERROR_OPERATING_SYSTEM,
        NVML_ERROR_RESET_TYPE_NOT_SUPPORTED, NVML_ERROR_UNKNOWN, nvmlReturn_t,
    };

    #[test]
    fn codes_have_the_real_words() {
        let check = |code: nvmlReturn_t, text: &str| {
            assert_eq!(super::text_of(code).to_str(), Ok(text));
        };
        check(nvmlReturn_t(0), "Success");
        check(
            NVML_ERROR_OPERATING_SYSTEM,
            "GPU access blocked by the operating system",
        );
        check(
            NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            "Argument version mismatch",
        );
        check(
            NVML_ERROR_RESET_TYPE_NOT_SUPPORTED,
            "Reset type not supported",
        );
        check(NVML_ERROR_UNKNOWN, "Unknown Error");
    }
}
