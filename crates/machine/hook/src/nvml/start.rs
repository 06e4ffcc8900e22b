//! The beginning, and functions that are refused.
//!
//! `nvmlInit` meets the arbiter, so that no later call waits for it, and refuses a program that
//! may not run without one. Functions that change a card, or the machine, would change it for
//! other tenants too: they are denied, whatever their arguments.

use std::ffi::{c_char, c_void};

use sublet_abi::Mode;
use sublet_driver_api::nvml::*;

use super::real::REAL;
use super::view::{self, AnswerSource};
use super::{row, seeing};
use crate::guard::{Inside, catch_panic};
use crate::real::Like;

/// `nvmlInit`, `nvmlInit_v2`.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn init<R: Like<row::nvmlInit>>() -> nvmlReturn_t {
    // SAFETY: takes nothing.
    let real = || unsafe { R::call(()) };
    seeing(real, |_| real())
}

/// `nvmlInitWithFlags`.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn init_with_flags<R: Like<row::nvmlInitWithFlags>>(
    flags: u32,
) -> nvmlReturn_t {
    // SAFETY: the caller's arguments are passed on.
    let real = || unsafe { R::call((flags,)) };
    seeing(real, |_| real())
}

/// `nvmlErrorString`: a program that was refused for want of an arbiter can read which one.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn error_string<R: Like<row::nvmlErrorString>>(
    error: nvmlReturn_t,
) -> *const c_char {
    let refused = error == NVML_ERROR_NO_PERMISSION
        && matches!(catch_panic(view::current), Some(AnswerSource::Forbidden));
    if refused && let Some(reason) = view::reason() {
        return reason.as_ptr();
    }
    // SAFETY: the caller's own argument.
    unsafe { R::call((error,)) }
}

/// `nvmlInternalGetExportTable`: tables of functions that no header declares. `nvidia-smi` takes
/// some of its figures from there, on newer drivers its list of processes too. These functions
/// answer for the whole card, and their types are not known, so they cannot be hooked. A tenant in
/// strict mode gets no table. In compat mode `nvidia-smi` gets the tables, and shows more than the
/// tenant's part. To be checked on a real card: the list that `nvidia-smi` shows, and whether it
/// still works without the tables.
///
/// # Safety
/// As NVIDIA's own programs use it.
pub unsafe extern "C" fn export_table<R: Like<row::nvmlInternalGetExportTable>>(
    table: *mut *const c_void,
    id: *const c_void,
) -> nvmlReturn_t {
    // SAFETY: the caller's arguments are passed on.
    let real = || unsafe { R::call((table, id)) };
    seeing(real, |view| match view.control().mode() {
        Mode::Compat => real(),
        Mode::Strict => NVML_ERROR_NOT_SUPPORTED,
    })
}

crate::lazy_resolver! {
    /// Stands for every denied function. Goes on to the real function when nothing is denied:
    /// without an arbiter, and for calls of the library itself. `r11` holds the function's row.
    pub(super) fn denied => judge
}

extern "C" fn judge(index: usize) -> *const c_void {
    let Some(_inside) = Inside::enter() else {
        return REAL.address(index);
    };
    match catch_panic(view::current) {
        Some(AnswerSource::Everything) | None => REAL.address(index),
        Some(AnswerSource::Tenant(_) | AnswerSource::Forbidden) if REAL.exists(index) => {
            no_permission as *const c_void
        }
        // Without a library, or with one that lacks the function, that is the answer.
        Some(AnswerSource::Tenant(_) | AnswerSource::Forbidden) => REAL.address(index),
    }
}

extern "C" fn no_permission() -> nvmlReturn_t {
    NVML_ERROR_NO_PERMISSION
}
