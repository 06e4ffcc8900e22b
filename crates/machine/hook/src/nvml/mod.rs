//! The NVML half: the function behind each exported `nvml…` name.
//!
//! A name leads through [`TARGETS`] to the real function, to a hook, or to a refusal; [`table`] has
//! one line for each function that is not simply forwarded. Hooks answer from the shared pages, as
//! the CUDA half does, and leave out the figures of others; they take no memory. Without an arbiter
//! every name leads to the real library.
//!
//! Read [`table`], then [`view`] (the source of answers), [`pids`] (the numbers of processes here)
//! and [`lists`] (the way NVML hands lists over), then the hooks: [`start`], [`devices`],
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
use std::sync::atomic::AtomicPtr;

use sublet_abi::DeviceIndex;
use sublet_driver_api::nvml::*;

use crate::guard::{Inside, catch_panic};
use crate::link;
use crate::real::Row;
use crate::trampoline::{Targets, settle};
use lists::Asking;
use real::REAL;
use view::{AnswerSource, View};

/// Places of functions in the library's table.
pub mod row {
    #![allow(
        missing_docs,
        non_camel_case_types,
        non_upper_case_globals,
        reason = "generated: the library's own names"
    )]
    include!(concat!(env!("OUT_DIR"), "/nvml_rows.rs"));
}

/// Current target of each exported name: at first the resolver; see [`crate::trampoline`].
pub static TARGETS: Targets<{ row::COUNT }> =
    [const { AtomicPtr::new(resolve as *mut c_void) }; row::COUNT];

crate::lazy_resolver! {
    /// Finds out where a name leads, remembers it, and goes there.
    fn resolve => decide
}

extern "C" fn decide(index: usize) -> *const c_void {
    let otherwise = real::function_not_found as *const c_void;
    settle(&TARGETS, index, otherwise, || match table::kind(index) {
        _ if !link::is_hooking() => REAL.address(index),
        table::Kind::Forward => REAL.address(index),
        table::Kind::Deny => start::denied as *const c_void,
        table::Kind::Hook(hook) => hook,
    })
}

/// A hook: `real` asks the library as the program asked us, `hook` answers for a tenant.
fn seeing(
    real: impl FnOnce() -> nvmlReturn_t,
    hook: impl FnOnce(&View) -> nvmlReturn_t,
) -> nvmlReturn_t {
    let Some(_inside) = Inside::enter() else {
        return real();
    };
    match catch_panic(view::current) {
        Some(AnswerSource::Tenant(view)) => {
            catch_panic(|| hook(view)).unwrap_or(NVML_ERROR_UNKNOWN)
        }
        // Without a library that is the answer, as it is without an arbiter too.
        Some(AnswerSource::Forbidden) if REAL.exists(row::nvmlInit_v2) => NVML_ERROR_NO_PERMISSION,
        Some(AnswerSource::Forbidden) => NVML_ERROR_LIBRARY_NOT_FOUND,
        Some(AnswerSource::Everything) | None => real(),
    }
}

/// The same for a question about one device. Another device than the tenant's is none.
fn seeing_own(
    device: nvmlDevice_t,
    real: impl FnOnce() -> nvmlReturn_t,
    hook: impl FnOnce(&View, DeviceIndex) -> nvmlReturn_t,
) -> nvmlReturn_t {
    seeing(real, |view| match devices::place(view, device) {
        Ok(place) => hook(view, place),
        Err(error) => error,
    })
}

/// The library's own function, asked by a struct that its answer goes into.
type Library<'a, T> = dyn Fn(*mut T) -> nvmlReturn_t + 'a;

/// The same, asked by such a struct for a list: `list` makes it, or returns another answer.
///
/// # Safety
/// The struct is null or can be used for as long as the call.
unsafe fn seeing_asked<T, R>(
    device: nvmlDevice_t,
    asked: *mut T,
    list: impl FnOnce(
        &View,
        DeviceIndex,
        &mut T,
        &Library<'_, T>,
    ) -> Result<Vec<T::Element>, nvmlReturn_t>,
) -> nvmlReturn_t
where
    T: Asking,
    R: Row<Arguments = (nvmlDevice_t, *mut T), Result = nvmlReturn_t>,
{
    // SAFETY: as the caller says, whoever's struct it is.
    let real = |asked: *mut T| unsafe { R::call((device, asked)) };
    let answer = |view: &View, place| {
        // SAFETY: as the caller says.
        let asked = unsafe { lists::asked(asked) }?;
        let list = list(view, place, asked, &real)?;
        // SAFETY: as the caller says.
        Ok(unsafe { lists::answer_asked(&list, asked) })
    };
    seeing_own(
        device,
        || real(asked),
        |view, place| answer(view, place).unwrap_or_else(|instead| instead),
    )
}
