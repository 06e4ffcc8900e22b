//! Makes every thread of the process pass a memory fence, so that launches need none.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Taken while a page is flipped.
static TURN: AtomicU8 = AtomicU8::new(0);

/// Frees the turn in a child: one of its parent's threads may have had it, and the child has none
/// of them.
pub(super) fn forget_parent() {
    TURN.store(0, Ordering::Release);
}

/// Makes all threads pass a fence at some point during this call. After the call, this thread sees
/// everything that other threads did before that point. From that point on, they see everything
/// that this thread did before the call. Takes some microseconds.
pub fn pass_all() {
    if !membarrier() {
        flip_page();
    }
}

/// The system call for it, of Linux 4.14. A process registers for it once; a child of a fork, and
/// so a process that was never asked, is refused and registers then.
fn membarrier() -> bool {
    // SAFETY: neither takes a pointer.
    let call =
        |command: libc::c_int| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 };
    call(PRIVATE_EXPEDITED) || (call(REGISTER_PRIVATE_EXPEDITED) && call(PRIVATE_EXPEDITED))
}

/// Fallback for systems without that call (older kernels, gVisor, a filter of system calls): takes
/// away the right to write from a page that was just written. No processor may go on with its copy
/// of that right, so the kernel interrupts each processor that runs a thread of this process before
/// `mprotect` returns, and an interrupt is a fence on x86. A thread that does not run passes a
/// fence when it is put on a processor. One call at a time: a page that lost the right already
/// interrupts nobody.
///
/// Kernels of 2025 can do this without interrupts on some processors of AMD's. Such kernels have
/// the system call; if a filter denies it there, an answer may come one launch too early.
fn flip_page() {
    const BYTES: usize = 4096;
    while TURN.swap(1, Ordering::Acquire) != 0 {
        std::thread::yield_now();
    }
    let page = page();
    if !page.is_null() {
        // SAFETY: our own page, which is written to before the right is taken away.
        unsafe {
            libc::mprotect(page.cast(), BYTES, libc::PROT_READ | libc::PROT_WRITE);
            page.write_volatile(1);
            libc::mprotect(page.cast(), BYTES, libc::PROT_READ);
        }
    }
    TURN.store(0, Ordering::Release);
}

/// Null where there is no memory for it.
fn page() -> *mut u8 {
    static PAGE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
    let known = PAGE.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping where the kernel likes.
    let page = unsafe { libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    PAGE.store(page.cast(), Ordering::Release);
    page.cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, compiler_fence};
    use std::thread;

    /// Launches as fast as a thread can, and a gate that closes in between: once nobody is inside,
    /// nothing is launched.
    fn nothing_is_launched_at_a_closed_gate(pass: fn()) {
        let [inside, word, n_launched] = [const { AtomicU32::new(0) }; 3];
        let is_over = AtomicBool::new(false);
        thread::scope(|threads| {
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    inside.store(1, Ordering::Relaxed);
                    compiler_fence(Ordering::SeqCst);
                    if word.load(Ordering::Relaxed) == 0 {
                        let next = n_launched.load(Ordering::Relaxed).wrapping_add(1);
                        n_launched.store(next, Ordering::Relaxed);
                    }
                    inside.store(0, Ordering::Release);
                }
            });
            for closing in 0..100 {
                let before = n_launched.load(Ordering::Acquire);
                while n_launched.load(Ordering::Acquire) == before {
                    thread::yield_now();
                }
                word.store(1, Ordering::SeqCst);
                pass();
                while inside.load(Ordering::Acquire) != 0 {
                    thread::yield_now();
                }
                let before = n_launched.load(Ordering::Acquire);
                thread::yield_now();
                let after = n_launched.load(Ordering::Acquire);
                word.store(0, Ordering::SeqCst);
                if before != after {
                    is_over.store(true, Ordering::Relaxed);
                }
                assert_eq!(before, after, "closing {closing}");
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_launch_is_seen_or_sees_that_the_gate_is_closed() {
        nothing_is_launched_at_a_closed_gate(pass_all);
        nothing_is_launched_at_a_closed_gate(flip_page);
        assert!(!page().is_null());
    }
}
