//! Exports every function of libnvidia-ml.so.1.
//!
//! A program that asks for the management library gets this file. It contains no logic: each
//! function is a jump through the table of `sublet-hook`, which has the code and its tests.
#![expect(unsafe_code, reason = "exports functions under the library's names")]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the interposer is written for x86-64 Linux");

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// By this name the search for the real library knows a copy of ours.
#[unsafe(no_mangle)]
pub static sublet_interposer: u8 = 1;

/// The loader calls this before anybody can call the rest.
extern "C" fn at_loading() {
    sublet_hook::settings::look();
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOADING: extern "C" fn() = at_loading;
