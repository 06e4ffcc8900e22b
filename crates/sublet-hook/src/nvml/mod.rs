//! The NVML half: what stands behind each exported `nvml…` name.
//!
//! A name leads through [`TARGETS`] to the real function, to a hook, or to a refusal; [`table`]
//! says which, one line for each function that is not simply forwarded. Hooks answer from the
//! shared pages what the CUDA half answers too, and leave out what belongs to others; they take
//! no memory. Without an arbiter every name leads to the real library.
//!
//! Read [`table`], then [`view`] (where answers come from), [`pids`] (how a process is called
//! here) and [`lists`] (how NVML hands lists over), then the hooks: [`start`], [`devices`],
//! [`memory`], [`processes`], [`samples`].

pub mod devices;
pub mod lists;
pub mod memory;
pub mod pids;
pub mod processes;
pub mod real;
pub mod samples;
pub mod start;
pub mod table;
pub mod view;

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use sublet_driver_api::nvml::*;

use crate::guard::{Inside, calm};
use crate::link;
use view::{Seen, View};

/// Places of functions in the library's table.
pub mod row {
    #![allow(
        missing_docs,
        non_upper_case_globals,
        reason = "generated: the library's own names"
    )]
    include!(concat!(env!("OUT_DIR"), "/nvml_rows.rs"));
}

/// Where each exported name leads now. The resolver first; see [`crate::trampoline`].
pub static TARGETS: [AtomicPtr<c_void>; row::COUNT] =
    [const { AtomicPtr::new(resolve as *mut c_void) }; row::COUNT];

crate::lazy_resolver! {
    /// Finds out where a name leads, remembers it, and goes there.
    fn resolve => decide
}

extern "C" fn decide(index: usize) -> *const c_void {
    let target = calm(|| match table::kind(index) {
        _ if !is_hooking() => real::address(index),
        table::Kind::Forward => real::address(index),
        table::Kind::Deny => start::denied as *const c_void,
        table::Kind::Hook(hook) => hook,
    });
    let target = target.unwrap_or(real::function_not_found as *const c_void);
    if let Some(place) = TARGETS.get(index) {
        place.store(target.cast_mut(), Ordering::Release);
    }
    target
}

/// True if the environment named an arbiter when the first name was used.
fn is_hooking() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static HOOKING: AtomicU8 = AtomicU8::new(UNKNOWN);
    if HOOKING.load(Ordering::Relaxed) == UNKNOWN {
        let found = if link::is_wanted() { YES } else { NO };
        HOOKING.store(found, Ordering::Relaxed);
    }
    HOOKING.load(Ordering::Relaxed) == YES
}

/// A hook: `real` asks the library as the program asked us, `hook` answers for a tenant.
fn seeing(
    real: impl FnOnce() -> nvmlReturn_t,
    hook: impl FnOnce(&View) -> nvmlReturn_t,
) -> nvmlReturn_t {
    let Some(_inside) = Inside::enter() else {
        return real();
    };
    match calm(view::current) {
        Some(Seen::Tenant(view)) => calm(|| hook(view)).unwrap_or(NVML_ERROR_UNKNOWN),
        // Without a library that is the answer, as it is without an arbiter too.
        Some(Seen::Forbidden) if real::exists(row::nvmlInit_v2) => NVML_ERROR_NO_PERMISSION,
        Some(Seen::Forbidden) => NVML_ERROR_LIBRARY_NOT_FOUND,
        Some(Seen::Everything) | None => real(),
    }
}
