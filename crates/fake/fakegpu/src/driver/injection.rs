//! `CUDA_INJECTION64_PATH`: a library that the driver loads into the program in `cuInit`, as tools
//! want it.

use std::ffi::{CString, c_int};
use std::mem::transmute;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// The variable that names the library's file.
const VARIABLE: &str = "CUDA_INJECTION64_PATH";

/// Loads the library, and calls its function `InitializeInjection`; in a process once. That
/// function may call the driver. A file that cannot be loaded changes nothing.
pub(crate) fn inject() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::AcqRel) {
        return;
    }
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else {
        return;
    };
    let Ok(path) = CString::new(path.into_vec()) else {
        return;
    };
    // SAFETY: a terminated path. The library's constructors are the program's choice.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return;
    }
    // SAFETY: an open library and a terminated name.
    let begin = unsafe { libc::dlsym(library, c"InitializeInjection".as_ptr()) };
    if begin.is_null() {
        return;
    }
    // SAFETY: not null, and this is the type of a function of that name (CUPTI).
    let begin: unsafe extern "C" fn() -> c_int = unsafe { transmute(begin) };
    // SAFETY: it takes nothing, and the driver's state is not locked.
    unsafe { begin() };
}
