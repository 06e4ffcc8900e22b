//! `cuInit`: the process meets its arbiter, and the driver learns its visible devices.
//!
//! The driver reads `CUDA_VISIBLE_DEVICES` here and never again. So the variable lists the tenant's
//! devices while the driver looks, and afterwards it has the program's own value again: many
//! programs read it back, and expect their own words.

use std::ffi::c_uint;

use super::c::*;
use super::{locked, row};
use crate::guard::{Inside, catch_panic};
use crate::link::{Link, LinkState};
use crate::process;
use crate::real::Like;
use crate::visible;

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
    let Some(_inside) = Inside::enter() else {
        // SAFETY: the program's own argument.
        return unsafe { R::call((flags,)) };
    };
    let Some(process) = catch_panic(|| {
        let process = process::current();
        process.state();
        process
    }) else {
        // SAFETY: the program's own argument.
        return unsafe { R::call((flags,)) };
    };
    let link = match process.state() {
        LinkState::Forbidden(_) => return CUDA_ERROR_NOT_PERMITTED,
        LinkState::Off | LinkState::Unmanaged(_) => {
            // SAFETY: the program's own argument.
            return unsafe { R::call((flags,)) };
        }
        LinkState::Managed(link) => link,
    };
    let mut start = locked(&process.accounts.start);
    let told = (!start.is_done)
        .then(|| catch_panic(|| Told::new(link)))
        .flatten();
    // SAFETY: the program's own argument.
    let result = unsafe { R::call((flags,)) };
    drop(told);
    start.is_done |= result == CUDA_SUCCESS;
    result
}

/// While it lives, the variable names the tenant's devices.
struct Told {
    own: Option<std::ffi::OsString>,
}

impl Told {
    fn new(link: &Link) -> Self {
        let own = std::env::var_os(visible::VARIABLE);
        let tenant: Vec<_> = link
            .control()
            .devices()
            .map(|(_, device)| device.uuid())
            .collect();
        // What is not text names no device.
        let choice = own.as_deref().map(|own| own.to_str().unwrap_or_default());
        let told = visible::choose(&tenant, choice);
        // SAFETY: a program that reads its environment in another thread while it calls cuInit
        // for the first time races with this, as with any library that sets a variable.
        // Neither the driver nor the CUDA runtime does.
        unsafe { std::env::set_var(visible::VARIABLE, told) };
        Self { own }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe {
            match &self.own {
                Some(own) => std::env::set_var(visible::VARIABLE, own),
                None => std::env::remove_var(visible::VARIABLE),
            }
        }
    }
}
