//! The fake machine's `libcuda.so.1`: exports every function that a header of CUDA
//! declares. Each is one jump to where `sublet_fakegpu` has it; arguments and result
//! pass through untouched, so no signature is repeated here.
#![expect(
    unsafe_code,
    reason = "exported names and jumps are not expressible without it"
)]

use std::sync::atomic::{AtomicPtr, Ordering};

use sublet_fakegpu::cuda;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the fake driver is for Linux on x86-64 only");

/// Address of each function, by its number in the table of `sublet_driver_api`.
static TARGETS: [AtomicPtr<()>; N_FUNCTIONS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; N_FUNCTIONS];

macro_rules! export {
    ($name:ident, $index:literal) => {
        // SAFETY: the name is a driver's, which this library stands in for; the jump
        // leaves registers and stack as the caller set them.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            core::arch::naked_asm!(
                "jmp qword ptr [rip + {targets} + {offset}]",
                targets = sym TARGETS,
                offset = const $index * 8,
            )
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// Runs when the library is loaded, before anybody can call it.
// SAFETY: the loader calls what it finds in this section, with arguments that a C function
// without parameters ignores.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn fill() {
        for (index, place) in TARGETS.iter().enumerate() {
            place.store(cuda::target(index).0.cast_mut(), Ordering::Relaxed);
        }
    }
    fill
};
