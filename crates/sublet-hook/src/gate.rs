//! May this launch go? The joint at which compute time will be shared.
//!
//! Every launch reads one word in the control page ([`WORD`] says which) and goes on if it is
//! zero, as it always is while nobody shares compute. Otherwise the launching thread waits
//! here. It waits for the arbiter's word, never for a dead arbiter: without a heartbeat the
//! gate counts as open, since a job that stands still for ever is worse than one that takes
//! more than its share.
//!
//! All devices of a tenant share one gate: a job on several cards whose launches stop on one of
//! them waits for itself on the others (HAMi-core#142).

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use sublet_abi::ControlPage;

use crate::link;

/// A gate for processes that have no arbiter.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// Where the word is that launches read. Never null.
pub static WORD: AtomicPtr<u32> = AtomicPtr::new(OPEN.as_ptr());

/// A word that is never zero.
static SHUT: AtomicU32 = AtomicU32::new(1);

/// Where the word is that launches of graphs read: the same one, until somebody wants to look at
/// each of them. Never null.
pub static GRAPHS: AtomicPtr<u32> = AtomicPtr::new(OPEN.as_ptr());

static CONTROL: AtomicPtr<ControlPage> = AtomicPtr::new(ptr::null_mut());

/// A waiting thread looks again so often, in case a wake-up was lost or the page replaced.
const LOOK_AGAIN_NS: libc::c_long = 100_000_000;

/// From now on this page's gate counts. The page stays mapped for ever.
pub fn follow(control: &'static ControlPage) {
    CONTROL.store(ptr::from_ref(control).cast_mut(), Ordering::Release);
    let word = control.gate().address().cast_mut();
    let before = WORD.swap(word, Ordering::AcqRel);
    // Fails where graphs are looked at, and that stays so.
    let (set, kept) = (Ordering::AcqRel, Ordering::Relaxed);
    let _ = GRAPHS.compare_exchange(before, word, set, kept);
}

/// From now on each launch of a graph goes by way of its hook, gate or not.
pub fn look_at_graphs() {
    GRAPHS.store(SHUT.as_ptr(), Ordering::Release);
}

/// Returns when the gate is open, or when nobody is there to open it.
pub extern "C" fn wait() {
    loop {
        let word = WORD.load(Ordering::Acquire);
        // SAFETY: points to the static or into a page that stays mapped; read atomically,
        // because the arbiter writes it.
        let closed = unsafe { ptr::read_volatile(word) };
        if closed == 0 || is_forsaken() {
            return;
        }
        let pause = libc::timespec {
            tv_sec: 0,
            tv_nsec: LOOK_AGAIN_NS,
        };
        // Not the private kind: the arbiter wakes from another process. It works on a mapping
        // that may only be read.
        // SAFETY: the word stays mapped, and the time is live.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word,
                libc::FUTEX_WAIT,
                closed,
                &raw const pause,
                ptr::null::<u32>(),
                0_u32,
            );
        }
    }
}

fn is_forsaken() -> bool {
    let control = CONTROL.load(Ordering::Acquire);
    // SAFETY: null, or a page that stays mapped.
    let control = unsafe { control.as_ref() };
    !control.is_some_and(link::is_arbiter_alive)
}
