//! `cuInit`: the process meets its arbiter, and the driver learns the terms of the job.
//!
//! The driver reads `CUDA_VISIBLE_DEVICES` here and never again. So the variable lists the tenant's
//! devices while the driver looks, and afterwards it has the program's own value again: many
//! programs read it back, and expect their own words. Nobody reads MPS's variables back, and the
//! driver may read them later too: they keep what is told here.

use std::cell::Cell;
use std::ffi::{OsStr, OsString, c_uint};

use super::c::*;
use super::real::REAL;
use super::{locked, row};
use crate::guard::{Inside, catch_panic};
use crate::link::{Link, LinkState};
use crate::mps;
use crate::process;
use crate::real::Like;
use crate::settings;
use crate::visible;

/// Variables that name a library of the program's which the driver loads in `cuInit`, and calls.
const LOADED: [&str; 2] = ["CUDA_INJECTION64_PATH", "CUDBG_INJECTION_PATH"];

/// State of the first `cuInit`.
#[derive(Debug, Default)]
pub struct Start {
    is_done: bool,
}

/// `cuInit`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn init<R: Like<row::cuInit>>(flags: c_uint) -> CUresult {
    // SAFETY: the program's own argument.
    let real = || unsafe { R::call((flags,)) };
    // The arbiter answers while the driver is loaded. Not inside: what a driver's constructor calls
    // is no less the program's than what it calls in `cuInit`.
    let _ = catch_panic(|| process::current().greet());
    let _ = REAL.address(R::INDEX);
    let Some(inside) = Inside::enter() else {
        return real();
    };
    let Some(process) = catch_panic(|| {
        let process = process::current();
        process.state();
        process
    }) else {
        return real();
    };
    let link = match process.state() {
        LinkState::Forbidden(_) => return CUDA_ERROR_NOT_PERMITTED,
        LinkState::Off | LinkState::Unmanaged(_) => return real(),
        LinkState::Managed(link) => link,
    };
    // A library that the driver loads now may take memory, look functions up and call this one
    // again. Taken for the driver's own calls, these would go past the limit.
    let _inside = (!loads_a_library()).then_some(inside);
    let Some(_starting) = Starting::enter() else {
        return real();
    };
    let mut start = locked(&process.accounts.start);
    let told = (!start.is_done)
        .then(|| catch_panic(|| Told::new(link)))
        .flatten();
    let result = real();
    drop(told);
    start.is_done |= result == CUDA_SUCCESS;
    result
}

fn loads_a_library() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|path| !path.is_empty());
    LOADED.into_iter().any(is_set)
}

thread_local! {
    // Constant and without a destructor, as in `guard`.
    static STARTING: Cell<bool> = const { Cell::new(false) };
}

/// This thread has the lock of the first `cuInit`, until this is dropped.
struct Starting(());

impl Starting {
    fn enter() -> Option<Self> {
        let entered = STARTING.try_with(|starting| !starting.replace(true));
        entered.unwrap_or(false).then_some(Self(()))
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        let _ = STARTING.try_with(|starting| starting.set(false));
    }
}

/// While it lives, the variable names the tenant's devices.
struct Told {
    own: Option<OsString>,
}

impl Told {
    fn new(link: &Link) -> Self {
        let own = std::env::var_os(visible::VARIABLE);
        set(visible::VARIABLE, Some(devices(link, own.as_deref())));
        if let Some(percent) = link.control().mps_percent() {
            let terms = mps::terms(percent, settings::told().directory());
            terms.into_iter().for_each(|(name, value)| set(name, value));
        }
        Self { own }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        set(visible::VARIABLE, self.own.take());
    }
}

/// The tenant's devices, as far as the program chose them.
fn devices(link: &Link, own: Option<&OsStr>) -> OsString {
    let tenant: Vec<_> = link
        .control()
        .devices()
        .map(|(_, device)| device.uuid())
        .collect();
    // What is not text names no device.
    let choice = own.map(|own| own.to_str().unwrap_or_default());
    visible::choose(&tenant, choice).into()
}

fn set(name: &str, value: Option<OsString>) {
    // SAFETY: a program that reads its environment in another thread while it calls cuInit for
    // the first time races with this, as with any library that sets a variable. Neither the
    // driver nor the CUDA runtime does.
    unsafe {
        match value {
            Some(value) => std::env::set_var(name, value),
            None => std::env::remove_var(name),
        }
    }
}
