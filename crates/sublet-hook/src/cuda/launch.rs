//! Launches, on their way through the gate.
//!
//! One piece of code for every function that makes the GPU work, whatever its arguments: it
//! reads the gate's word, and while that is zero jumps on to the real function. No stack, no
//! lock, no write, no allocation; two loads more than without us.

use std::arch::naked_asm;

use super::real::REAL;
use crate::gate;

/// Reached through [`TARGETS`](super::TARGETS) with the row in `r11`. `rax` is free: no function
/// of the driver is variadic, so nobody passes a count in it.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn gated() {
    naked_asm!(
        "mov rax, qword ptr [rip + {word}]",
        "cmp dword ptr [rax], 0",
        "jne {closed}",
        "lea rax, [rip + {real}]",
        "jmp qword ptr [rax + 8 * r11]",
        word = sym gate::WORD,
        closed = sym closed,
        real = sym REAL,
    )
}

crate::lazy_resolver! {
    /// The gate is closed: waits, then goes to the real function.
    fn closed => wait
}

extern "C" fn wait(index: usize) -> *const std::ffi::c_void {
    gate::wait();
    REAL.address(index)
}
