//! Waiting for a word to change, and waking the waiting threads.

use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Waits while a word of this process's own has that value, and not for longer.
pub fn wait_own(word: &AtomicU32, value: u32, longest: Duration) {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    futex(word.as_ptr(), operation, value, Some(longest));
}

/// Wakes all threads of this process that wait for it.
pub fn wake_own(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    futex(word.as_ptr(), operation, i32::MAX.cast_unsigned(), None);
}

/// Waits while a word of a shared page has that value, and not for longer. The page may be one
/// that can only be read.
pub fn wait_shared(word: *const u32, value: u32, longest: Duration) {
    futex(word, libc::FUTEX_WAIT, value, Some(longest));
}

/// Wakes all threads that wait for it, in any process.
pub fn wake_shared(word: *const u32) {
    futex(word, libc::FUTEX_WAKE, i32::MAX.cast_unsigned(), None);
}

/// Calls futex. The result does not matter: a thread that waited reads the word again.
fn futex(word: *const u32, operation: libc::c_int, value: u32, longest: Option<Duration>) {
    let time = longest.map(|longest| libc::timespec {
        tv_sec: libc::time_t::try_from(longest.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: longest.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the kernel reads the word itself, and fails where it cannot; the time is live.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word,
            operation,
            value,
            time,
            ptr::null::<u32>(),
            0_u32,
        );
    }
}
