//! Permission of a launch. Each launch reads a word of the process's own.
//!
//! The arbiter's word is in a page that several processes read. Only the [keeper](crate::keeper)
//! reads that, and sets [`WORD`] from it. A launch first says that it is inside, in memory of its
//! thread ([`threads`]), and then reads the word. If it is free, the launch goes on: no shared
//! write, no system call, no lock.
//!
//! After a change of the word, the keeper must know which launches had read the old one. The
//! processor may let a launch read the word before other processors see that the launch is inside.
//! A fence in each launch would cost more than all the rest, so the keeper pays instead: after its
//! change it makes every running thread of the process pass a fence ([`barrier`]). Then every
//! launch that read the old word is seen to be inside, and every other launch will read the new
//! word.
//!
//! All devices of a tenant share one gate: a job on several cards whose launches stop on one of
//! them waits for itself on the others (HAMi-core#142).

pub mod barrier;
pub mod futex;
pub mod threads;

use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sublet_abi::{GateState, GateWord};

use crate::link::{Link, now_ns};
use threads::Launcher;

/// State of this process's gate. Only the keeper closes the gate.
static WORD: AtomicU32 = AtomicU32::new(GateWord::new(GateState::Free, 0).bits());

/// A waiting thread looks again so often, in case a wake-up was lost.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The calling thread is inside from now on, until [`Launcher::leave`]. `None` at its first launch:
/// that one goes by [`enter_first`]. So the way of all others has no call around which a hook
/// would have to save its arguments.
#[inline(always)]
#[must_use]
pub fn enter() -> Option<&'static Launcher> {
    let launcher = threads::known()?;
    launcher.enter();
    // The compiler keeps the order; the processor is made to by the keeper.
    compiler_fence(Ordering::SeqCst);
    Some(launcher)
}

/// The same for a thread's first launch.
#[cold]
#[inline(never)]
#[must_use]
pub fn enter_first() -> &'static Launcher {
    let launcher = threads::own();
    launcher.enter();
    compiler_fence(Ordering::SeqCst);
    launcher
}

/// The calling thread waits for something: it is not inside until this is dropped.
#[derive(Debug)]
pub struct Outside<'a>(&'a Launcher);

impl<'a> Outside<'a> {
    /// From now on.
    #[must_use]
    pub fn step(launcher: &'a Launcher) -> Self {
        launcher.leave();
        Self(launcher)
    }
}

impl Drop for Outside<'_> {
    fn drop(&mut self) {
        self.0.enter();
        compiler_fence(Ordering::SeqCst);
    }
}

/// True if a launch may go and need say nothing. Asked inside.
#[inline(always)]
#[must_use]
pub fn is_free() -> bool {
    WORD.load(Ordering::Relaxed) == GateWord::new(GateState::Free, 0).bits()
}

/// Returns the gate's word.
#[must_use]
pub fn word() -> GateWord {
    GateWord::of_bits(WORD.load(Ordering::Acquire))
}

/// Sets the word, and wakes the waiting threads if they may go. When this returns, every launch has
/// read the new word, or is seen by [`threads::is_anybody_inside`].
pub fn set(word: GateWord) {
    WORD.store(word.bits(), Ordering::SeqCst);
    if word.state() != GateState::Closed {
        futex::wake_own(&WORD);
    }
    barrier::pass_all();
}

/// A child made by fork has none of its parent's threads, and no gate until it has an arbiter.
pub(crate) fn forget_parent() {
    threads::forget_all();
    barrier::forget_parent();
    WORD.store(0, Ordering::SeqCst);
}

/// The threads that wait at the gate.
#[derive(Debug, Default)]
pub struct ThreadsAtGate {
    n_threads: Mutex<usize>,
}

impl ThreadsAtGate {
    /// Waits while the gate is closed. The calling thread is not inside meanwhile.
    pub fn wait(&self, link: &Link, launcher: &Launcher) {
        let _outside = Outside::step(launcher);
        let start = now_ns();
        self.count(link, 1);
        loop {
            let word = word();
            if word.state() != GateState::Closed {
                break;
            }
            futex::wait_own(&WORD, word.bits(), LOOK_AGAIN);
            // A program may have overwritten it. The arbiter opens the gate for nobody who does not
            // stand there.
            self.count(link, 0);
        }
        self.count(link, -1);
        link.turns().add_waited_ns(now_ns().saturating_sub(start));
    }

    /// Counts under a lock, so that the last value in the slot is the true one.
    fn count(&self, link: &Link, change: isize) {
        let n_threads = self.n_threads.lock();
        let mut n_threads = n_threads.unwrap_or_else(PoisonError::into_inner);
        *n_threads = n_threads.saturating_add_signed(change);
        let is_news = link.turns().set_at_gate(*n_threads > 0);
        if is_news && *n_threads > 0 && !will_answer(link) {
            link.knock();
        }
    }
}

/// True if the keeper has not answered the closing of the gate yet. It knocks when it does, and the
/// arbiter then finds who stands here, too.
fn will_answer(link: &Link) -> bool {
    // Either this sees the answer, or the arbiter sees who stands here when it hears the answer.
    fence(Ordering::SeqCst);
    let word = word();
    word.state() == GateState::Closed && link.turns().answered() != word.turn()
}
