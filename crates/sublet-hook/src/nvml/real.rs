//! The real library's functions, by row.
//!
//! Found when they are first used, and kept. Without a real library each call answers
//! `NVML_ERROR_LIBRARY_NOT_FOUND`, as NVIDIA's own stub does, and `nvmlErrorString` says what
//! was looked for and where; a function that an older library lacks answers
//! `NVML_ERROR_FUNCTION_NOT_FOUND`.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use sublet_driver_api::NVML;
use sublet_driver_api::nvml::*;

use super::row;
use crate::driver::{self, Library, NotFound, Places};

/// Where each real function is; null until it is asked for.
static REAL: [AtomicPtr<c_void>; row::COUNT] =
    [const { AtomicPtr::new(ptr::null_mut()) }; row::COUNT];

/// What was found, once it was looked for.
struct Found {
    library: Result<Library, NotFound>,
    /// What `nvmlErrorString` says without a library.
    text: CString,
}

/// The real function of a row, or one that says what is missing.
pub fn address(index: usize) -> *const c_void {
    let Some(place) = REAL.get(index) else {
        return function_not_found as *const c_void;
    };
    let known = place.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let found = match &found().library {
        Ok(library) => CString::new(NVML[index].symbol)
            .ok()
            .and_then(|name| library.symbol(&name))
            .map(|symbol| symbol.as_ptr().cast_const()),
        Err(_) => None,
    };
    let address = found.unwrap_or_else(|| match index {
        // The one function that does not return a result.
        row::nvmlErrorString => explain as *const c_void,
        _ if found_library() => function_not_found as *const c_void,
        _ => library_not_found as *const c_void,
    });
    place.store(address.cast_mut(), Ordering::Release);
    address
}

/// True if there is a real library.
fn found_library() -> bool {
    found().library.is_ok()
}

/// True if there is a real library, and it has the function.
pub fn exists(index: usize) -> bool {
    let address = address(index);
    ![
        function_not_found as *const c_void,
        library_not_found as *const c_void,
        explain as *const c_void,
    ]
    .contains(&address)
}

/// The real function of a row, with its type.
///
/// # Safety
/// `F` is the type of a C function as the row declares it.
pub unsafe fn function<F: Copy>(index: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
    let address = address(index);
    // SAFETY: same size, and the caller vouches for the type.
    unsafe { std::mem::transmute_copy(&address) }
}

pub(super) extern "C" fn function_not_found() -> nvmlReturn_t {
    NVML_ERROR_FUNCTION_NOT_FOUND
}

extern "C" fn library_not_found() -> nvmlReturn_t {
    NVML_ERROR_LIBRARY_NOT_FOUND
}

extern "C" fn explain(error: nvmlReturn_t) -> *const c_char {
    let text: &CStr = if error == NVML_ERROR_LIBRARY_NOT_FOUND {
        &found().text
    } else {
        c"Unknown Error"
    };
    text.as_ptr()
}

/// Looks for the library once. Not under a lock: its constructors may call our functions, and
/// two threads that both look find the same.
fn found() -> &'static Found {
    static FOUND: AtomicPtr<Found> = AtomicPtr::new(ptr::null_mut());
    let known = FOUND.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: stored below from a box that is never freed.
        return unsafe { &*known };
    }
    let library = driver::open(driver::NVML, &Places::of_process(driver::NVML));
    let text = match &library {
        Ok(_) => CString::default(),
        Err(why) => CString::new(why.to_string()).unwrap_or_default(),
    };
    let mine = Box::into_raw(Box::new(Found { library, text }));
    let winner = FOUND.compare_exchange(ptr::null_mut(), mine, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: either is a box that is never freed.
    unsafe { &*winner.map_or_else(|other| other, |_| mine) }
}

/// Functions of the library that hooks call for themselves.
macro_rules! real_functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// The library's own.
        ///
        /// # Safety
        /// As NVIDIA documents.
        #[allow(non_snake_case, reason = "the library's own name")]
        pub unsafe fn $name($($argument: $type),*) -> nvmlReturn_t {
            // SAFETY: the type is the row's, as NVIDIA's header declares it; the rest is as the
            // caller says.
            unsafe {
                let function: unsafe extern "C" fn($($type),*) -> nvmlReturn_t =
                    function(row::$name);
                function($($argument),*)
            }
        }
    )*};
}

real_functions! {
    nvmlDeviceGetAccountingPids(device: nvmlDevice_t, count: *mut u32, pids: *mut u32);
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig: nvmlDevice_t, device: *mut nvmlDevice_t);
    nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut nvmlDevice_t);
    nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: *mut c_char, length: u32);
}
