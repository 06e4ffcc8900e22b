//! Keeps our code out of the program's way.
//!
//! Two dangers are in every hooked call. The real driver may call an exported function of its
//! own, and the loader may lead that call to us: it must go straight back, or it would be
//! counted twice. And a bug of ours must not end somebody else's program: a panic stops at
//! [`catch_panic`], and the call goes on as if nobody had watched.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    // Constant and without a destructor: reading it needs no allocation, and it is there
    // until the thread's last instruction.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    // This thread runs what `catch_panic` was given.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// This thread is in one of our functions, until this is dropped.
#[derive(Debug)]
pub struct Inside(());

impl Inside {
    /// `None` if the thread is inside already: then the call comes from the driver itself.
    #[must_use]
    pub fn enter() -> Option<Self> {
        let entered = INSIDE.try_with(|inside| !inside.replace(true));
        entered.unwrap_or(false).then_some(Self(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // A thread without its locals is ending, and calls no hooked function any more.
        let _ = INSIDE.try_with(|inside| inside.set(false));
    }
}

/// Runs our own code; `None` if it panicked.
pub fn catch_panic<T>(body: impl FnOnce() -> T) -> Option<T> {
    static SILENT: Once = Once::new();
    // Nothing of ours is printed into the program's output. The hook belongs to this library's
    // own copy of std, so a program in Rust keeps its own. Other panics keep their message: those
    // of a test that has our code in its own process.
    SILENT.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !CAUGHT.try_with(Cell::get).unwrap_or(true) {
                others(panic);
            }
        }));
    });
    let outer = CAUGHT.try_with(|caught| caught.replace(true));
    // What a panic leaves half done is at worst a charge too many: amounts are taken before
    // they are used, and each map is changed in one step.
    let result = panic::catch_unwind(AssertUnwindSafe(body)).ok();
    let _ = CAUGHT.try_with(|caught| caught.set(outer.unwrap_or(false)));
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_within_a_call_is_told() {
        let outer = Inside::enter().expect("the first");
        assert!(Inside::enter().is_none());
        let other = std::thread::spawn(|| Inside::enter().is_some());
        assert!(other.join().expect("the thread ends"), "threads are apart");
        drop(outer);
        assert!(Inside::enter().is_some());
    }

    #[test]
    fn a_panic_stops_here_and_others_are_told() {
        assert_eq!(catch_panic(|| 5), Some(5));
        let none: Option<u8> = catch_panic(|| panic!("a bug of ours, on purpose"));
        assert_eq!(none, None);
        assert!(
            Inside::enter().is_some(),
            "the guard was dropped on the way"
        );
        assert!(!CAUGHT.get(), "a panic of the test's own is silent");
    }
}
