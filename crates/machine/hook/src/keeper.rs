//! The gate keeper: the thread that follows the arbiter's word, and answers it.
//!
//! It reads the word in the control page and the arbiter's heartbeat, sets the word of this
//! process ([`gate`]), and says in the process's slot when nothing runs any more. It sleeps
//! unless something may have changed: until the word changes, half a second at the longest. Only
//! while it waits for work to end does it look more often ([`pause_of_look`]).
//!
//! It looks, and never waits inside the driver: the word may change while a kernel runs for ten
//! seconds, and the program may destroy a context that a waiting thread would be in.

use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::Duration;

use sublet_abi::{GateState, GateWord};

use crate::cuda::{CudaAccounts, work};
use crate::gate::{self, futex, threads};
use crate::guard::catch_panic;
use crate::link::{self, Link};
use crate::process;

/// Sleep of the thread while nothing happens. After it, the thread checks that the arbiter lives.
const IDLE: Duration = Duration::from_millis(500);

/// The time over which a share of it is kept to while no arbiter is there, in microseconds.
const CYCLE_US: u64 = 100_000;

/// A job with all of it is not held at all.
const ALL: u32 = 1000;

/// Starts the thread. Without it the process does not say that it follows turns, and its gate
/// stays free.
pub(crate) fn start(link: &'static Link) {
    let _no_thread = link::without_signals(|| {
        thread::Builder::new()
            .name("sublet-gate".into())
            .stack_size(256 << 10)
            .spawn(move || keep(link))
    });
}

fn keep(link: &'static Link) {
    threads::stand_aside();
    let mut keeper = Keeper {
        link,
        accounts: &process::current().accounts,
        is_followed: false,
        unanswered: None,
        n_looks: 0,
    };
    loop {
        // A gate that nobody keeps any more must not stay closed.
        if catch_panic(|| keeper.step()).is_none() {
            gate::set(GateWord::default());
            keeper.is_followed = false;
            thread::sleep(IDLE);
        }
    }
}

/// The value that the process's own word should have, and for how long.
#[derive(Debug, PartialEq, Eq)]
struct Aim {
    word: GateWord,
    /// The word is the arbiter's, and the arbiter wants to know whether work runs.
    is_followed: bool,
    look_again: Duration,
}

/// A process without an arbiter launches its share of the time, whatever its gate was before: one
/// that stands still for ever is worse than one that takes more than its share.
fn aim(page: GateWord, is_arbiter_alive: bool, without_arbiter: u32, now_us: u64) -> Aim {
    let of_own = |state, us| Aim {
        word: GateWord::new(state, 0),
        is_followed: false,
        look_again: Duration::from_micros(us),
    };
    let at = now_us % CYCLE_US;
    let open_us = CYCLE_US * u64::from(without_arbiter) / u64::from(ALL);
    match () {
        () if is_arbiter_alive => Aim {
            word: page,
            is_followed: page.state() != GateState::Free,
            look_again: IDLE,
        },
        () if without_arbiter >= ALL => of_own(GateState::Free, CYCLE_US),
        () if at < open_us => of_own(GateState::Free, open_us - at),
        () => of_own(GateState::Closed, CYCLE_US - at),
    }
}

/// Time until the next check whether the work has ended. A drain usually ends after a few
/// milliseconds, and the card is idle from its end until the keeper notices. So the keeper checks
/// every tenth of a millisecond at first, then a thousand times a second. While nobody waits for
/// this process, it checks seldom.
fn pause_of_look(state: GateState, n_looks: u32) -> Duration {
    match state {
        GateState::Closed if n_looks < 20 => Duration::from_micros(100),
        GateState::Closed => Duration::from_millis(1),
        GateState::Contended => Duration::from_millis(2),
        GateState::Open | GateState::Free => Duration::from_millis(20),
    }
}

struct Keeper {
    link: &'static Link,
    accounts: &'static CudaAccounts,
    /// The word is the arbiter's, and launched work is noted.
    is_followed: bool,
    /// The closing that the arbiter waits for.
    unanswered: Option<GateWord>,
    /// Number of checks since then.
    n_looks: u32,
}

impl Keeper {
    fn step(&mut self) {
        let control = self.link.control();
        let rules = control.gate();
        let page = rules.word();
        let is_alive = link::is_arbiter_alive(control);
        let without_arbiter = rules.without_arbiter();
        let aim = aim(page, is_alive, without_arbiter, link::now_ns() / 1000);
        // Again each time: a successor of the arbiter may have begun a new account.
        self.link.turns().follow();
        self.change_to(&aim);
        let pause = self.look(aim.word).min(aim.look_again);
        futex::wait_shared(rules.address(), page.bits(), pause);
    }

    fn change_to(&mut self, aim: &Aim) {
        if gate::word() == aim.word && self.is_followed == aim.is_followed {
            return;
        }
        gate::set(aim.word);
        if aim.is_followed && !self.is_followed {
            self.accounts.note_all_work(self.link);
        }
        if !aim.is_followed {
            self.accounts.work.forget_notes(self.link);
        }
        self.is_followed = aim.is_followed;
        let is_closed = aim.is_followed && aim.word.state() == GateState::Closed;
        self.unanswered = is_closed.then_some(aim.word);
        self.n_looks = 0;
    }

    /// Checks whether the launched work has ended, if the arbiter wants to know. Returns the time
    /// until the next check.
    fn look(&mut self, word: GateWord) -> Duration {
        let state = word.state();
        let is_closed = state == GateState::Closed;
        if !self.is_followed || is_closed && self.unanswered.is_none() {
            return IDLE;
        }
        let is_idle = self.accounts.look_for_end(
            self.link,
            work::Looker::Keeper {
                may_mark: is_closed,
            },
        );
        if is_idle && let Some(word) = self.unanswered.take() {
            self.link.turns().answer(word);
            // Who comes to the gate and does not see the answer leaves the knock to this one.
            fence(Ordering::SeqCst);
            self.link.knock();
            return IDLE;
        }
        let pause = pause_of_look(state, self.n_looks);
        self.n_looks = self.n_looks.saturating_add(1);
        // Who begins to work wakes this thread, unless it comes just before it sleeps.
        if is_idle { pause * 10 } else { pause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(state: GateState) -> GateWord {
        GateWord::new(state, 5)
    }

    #[test]
    fn the_arbiters_word_counts_while_it_lives() {
        use GateState::{Closed, Contended, Free, Open};
        for state in [Free, Open, Contended, Closed] {
            for without_arbiter in [1, 100, 1000] {
                let aim = aim(word(state), true, without_arbiter, 123_456);
                assert_eq!((aim.word, aim.look_again), (word(state), IDLE));
                assert_eq!(aim.is_followed, state != Free);
            }
        }
    }

    #[test]
    fn without_an_arbiter_a_process_launches_its_share_of_the_time() {
        for state in [GateState::Free, GateState::Contended, GateState::Closed] {
            for (without_arbiter, open_us) in [(1000, 100_000), (100, 10_000), (1, 100)] {
                let mut open = 0;
                let mut now_us = 7 * CYCLE_US;
                while now_us < 8 * CYCLE_US {
                    let aim = aim(word(state), false, without_arbiter, now_us);
                    let us = aim.look_again.as_micros() as u64;
                    assert!(us > 0 && !aim.is_followed && aim.word.turn() == 0);
                    open += if aim.word.state() == GateState::Free {
                        us
                    } else {
                        0
                    };
                    now_us += us;
                }
                assert_eq!((open, now_us), (open_us, 8 * CYCLE_US), "{without_arbiter}");
            }
        }
    }

    #[test]
    fn nobody_looks_more_than_a_thousand_times_a_second_for_long() {
        for state in [GateState::Open, GateState::Contended, GateState::Closed] {
            let first: Duration = (0..1000).map(|look| pause_of_look(state, look)).sum();
            assert!(first > Duration::from_millis(980), "{state:?}: {first:?}");
        }
    }
}
