//! Functions that libcuda exports and no header declares ([`CUDA_UNDECLARED`]). Programs find them
//! by `dlsym` alone, and reach the driver's own, with an arbiter or without. Nothing here calls
//! them: their types are not known, and the jump needs none.

use std::ffi::c_void;
use std::sync::atomic::AtomicPtr;

use sublet_driver_api::CUDA_UNDECLARED;

use super::real::{self, REAL};
use crate::trampoline::{Targets, settle};

/// Current target of each exported name: at first the resolver; see [`crate::trampoline`].
pub static TARGETS: Targets<{ CUDA_UNDECLARED.len() }> =
    [const { AtomicPtr::new(resolve as *mut c_void) }; CUDA_UNDECLARED.len()];

crate::lazy_resolver! {
    /// Finds the driver's function, remembers it, and goes there.
    pub fn resolve => decide
}

extern "C" fn decide(index: usize) -> *const c_void {
    let otherwise = real::not_supported as *const c_void;
    settle(&TARGETS, index, otherwise, || {
        REAL.outside_table(CUDA_UNDECLARED[index])
    })
}
