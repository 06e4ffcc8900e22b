//! Exports every function of libcuda.so.1, but for some of the debugger's (`sublet-driver-api`,
//! `CUDA_UNDECLARED`).
//!
//! A library with the driver's name must have all of its functions: a program that is linked
//! against it does not start otherwise. Each is a jump through a table; `sublet_hook::cuda` decides
//! its target, and nothing is decided here.
#![expect(unsafe_code, reason = "exports functions under the driver's names")]

use sublet_hook::cuda::{Export, TARGETS, register};

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// By this name our libraries know each other, whatever file they are in.
#[unsafe(no_mangle)]
pub static sublet_interposer: u8 = 1;

/// A program may call this when it has done so many units more of its work: mini-batches,
/// requests. In C, `void sublet_progress(uint64_t units)`; found by `dlsym`, since it is only there
/// where Sublet is.
#[unsafe(no_mangle)]
pub extern "C" fn sublet_progress(units: u64) {
    let _ = sublet_hook::guard::catch_panic(|| sublet_hook::progress::tell(units));
}

/// The loader calls this before anybody can call the rest.
extern "C" fn at_loading() {
    register(&EXPORTS);
    sublet_hook::settings::look();
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOADING: extern "C" fn() = at_loading;
