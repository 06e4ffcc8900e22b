//! The way from an exported name to the code behind it.
//!
//! Every exported function is two instructions: its index into a scratch register, and a jump
//! through a table of targets. In the beginning each target is the resolver that
//! [`lazy_resolver!`](crate::lazy_resolver) makes: it saves every register that can hold an
//! argument, asks Rust for the function behind the index, and jumps there as if nothing had
//! been in between. So a function costs nothing until it is used, and afterwards one indirect
//! jump, whatever its signature.
//!
//! The index stays in `r11` all the way: code that serves many functions at one address (the
//! launch gate) knows by it for which it was called. The System V ABI gives `r11` to nobody,
//! and the loader's own lazy binding uses it in the same way.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the interposer is written for x86-64 Linux");

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::guard::catch_panic;

/// Current target of each exported name: at first the resolver.
pub type Targets<const ROWS: usize> = [AtomicPtr<c_void>; ROWS];

/// Finds the target of a name, and remembers it. `otherwise` takes its place if the search
/// panicked.
pub fn settle<const ROWS: usize>(
    targets: &Targets<ROWS>,
    index: usize,
    otherwise: *const c_void,
    find: impl FnOnce() -> *const c_void,
) -> *const c_void {
    let target = catch_panic(find).unwrap_or(otherwise);
    if let Some(place) = targets.get(index) {
        place.store(target.cast_mut(), Ordering::Release);
    }
    target
}

/// Defines a naked function `$name` that calls `$decide(index) -> address` and jumps there.
///
/// `$decide` is `extern "C" fn(usize) -> *const c_void`. The caller's arguments are untouched,
/// those in registers and those on the stack.
#[macro_export]
macro_rules! lazy_resolver {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident => $decide:path) => {
        $(#[$attribute])*
        #[doc = ""]
        #[doc = "# Safety"]
        #[doc = "Jumped to with the index in `r11` and the real function's arguments."]
        #[unsafe(naked)]
        $visibility unsafe extern "C" fn $name() {
            // Seven integer registers and eight vector registers can hold arguments; `al`
            // counts the latter for variadic functions. r11 is kept for the target.
            ::core::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 192",
                "and rsp, -16",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "mov [rsp + 48], r11",
                "movaps [rsp + 64], xmm0",
                "movaps [rsp + 80], xmm1",
                "movaps [rsp + 96], xmm2",
                "movaps [rsp + 112], xmm3",
                "movaps [rsp + 128], xmm4",
                "movaps [rsp + 144], xmm5",
                "movaps [rsp + 160], xmm6",
                "movaps [rsp + 176], xmm7",
                "mov rdi, r11",
                "call {decide}",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "mov rcx, [rsp + 24]",
                "mov r8, [rsp + 32]",
                "mov r9, [rsp + 40]",
                "mov r11, [rsp + 48]",
                "movaps xmm0, [rsp + 64]",
                "movaps xmm1, [rsp + 80]",
                "movaps xmm2, [rsp + 96]",
                "movaps xmm3, [rsp + 112]",
                "movaps xmm4, [rsp + 128]",
                "movaps xmm5, [rsp + 144]",
                "movaps xmm6, [rsp + 160]",
                "movaps xmm7, [rsp + 176]",
                "leave",
                "jmp rax",
                decide = sym $decide,
            )
        }
    };
}

/// Defines an exported function that jumps through `$targets[$index]`.
#[macro_export]
macro_rules! trampoline {
    ($symbol:ident, $index:literal, $targets:path) => {
        #[doc = concat!("`", stringify!($symbol), "`, by way of the table of targets.")]
        #[doc = ""]
        #[doc = "# Safety"]
        #[doc = "As the driver documents; called with the arguments of the real function."]
        #[allow(non_snake_case, reason = "the driver's own name")]
        #[allow(unreachable_pub, reason = "reached by the loader")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol() {
            ::core::arch::naked_asm!(
                "mov r11d, {index}",
                "jmp qword ptr [rip + {targets} + {offset}]",
                index = const $index,
                offset = const $index * 8,
                targets = sym $targets,
            )
        }
    };
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

    use super::{Targets, settle};

    static TARGETS: Targets<3> = [const { AtomicPtr::new(resolver as *mut c_void) }; 3];
    static RESOLVED: AtomicUsize = AtomicUsize::new(0);

    lazy_resolver!(fn resolver => decide);

    trampoline!(sublet_test_integers, 1, TARGETS);
    trampoline!(sublet_test_floats, 2, TARGETS);

    type Integers = extern "C" fn(u8, u16, u32, u64, i64, i32, u64, u64, *const u8, u64) -> u64;
    type Floats = extern "C" fn(f64, u32, f32, f64, f32, f64, f64, f64, f64, f64) -> f64;

    extern "C" fn integers(
        a: u8,
        b: u16,
        c: u32,
        d: u64,
        e: i64,
        f: i32,
        g: u64,
        h: u64,
        i: *const u8,
        j: u64,
    ) -> u64 {
        let low = u64::from(a) + u64::from(b) + u64::from(c) + d;
        let signed = e + i64::from(f);
        low * 3 + signed.unsigned_abs() * 5 + g * 7 + h * 11 + i.addr() as u64 * 13 + j * 17
    }

    extern "C" fn floats(
        a: f64,
        n: u32,
        b: f32,
        c: f64,
        d: f32,
        e: f64,
        f: f64,
        g: f64,
        h: f64,
        on_stack: f64,
    ) -> f64 {
        a + f64::from(n) * 3.0
            + f64::from(b) * 5.0
            + c * 7.0
            + f64::from(d) * 11.0
            + e * 13.0
            + f * 17.0
            + g * 19.0
            + h * 23.0
            + on_stack * 29.0
    }

    extern "C" fn decide(index: usize) -> *const c_void {
        RESOLVED.fetch_add(1, Ordering::Relaxed);
        // Formatting uses vector registers and much stack: a resolver that saves too little
        // fails here.
        let text = format!("{index} {:.9}", index as f64 * std::f64::consts::PI);
        assert!(text.len() > 10);
        settle(&TARGETS, index, std::ptr::null(), || match index {
            1 => integers as Integers as *const c_void,
            _ => floats as Floats as *const c_void,
        })
    }

    #[test]
    fn where_a_name_leads_is_remembered_even_if_finding_it_panicked() {
        let targets: Targets<2> = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];
        let found = integers as Integers as *const c_void;
        let otherwise = floats as Floats as *const c_void;
        let at = |index: usize| targets[index].load(Ordering::Acquire).cast_const();
        assert_eq!(settle(&targets, 0, otherwise, || found), found);
        assert_eq!(at(0), found);
        let lost = settle(&targets, 1, otherwise, || {
            panic!("a bug of ours, on purpose")
        });
        assert_eq!((lost, at(1)), (otherwise, otherwise));
        // No such row: nowhere to remember it.
        assert_eq!(settle(&targets, 2, otherwise, || found), found);
    }

    #[test]
    fn arguments_arrive_as_they_were_given_on_the_first_call_and_later() {
        let address: unsafe extern "C" fn() = sublet_test_integers;
        // SAFETY: the trampoline leads to a function of this type.
        let through: Integers = unsafe { std::mem::transmute(address) };
        let given = |f: Integers| f(1, 2, 3, 4, -9, 5, 6, 7, std::ptr::without_provenance(8), 9);
        for call in 0..3 {
            assert_eq!(given(through), given(integers), "call {call}");
        }
        let address: unsafe extern "C" fn() = sublet_test_floats;
        // SAFETY: as above.
        let through: Floats = unsafe { std::mem::transmute(address) };
        let given = |f: Floats| f(0.5, 3, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5);
        for call in 0..3 {
            assert_eq!(
                given(through).to_bits(),
                given(floats).to_bits(),
                "call {call}"
            );
        }
        assert_eq!(RESOLVED.load(Ordering::Relaxed), 2, "resolved once each");
    }
}
