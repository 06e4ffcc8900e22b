//! Permission for a tenant's processes to launch work: one word of the control page, and each
//! process's answer in its slot of the ledger.
//!
//! The arbiter writes [`GateWord`] and wakes its waiters (by a futex, which works on a read-only
//! mapping). A process that follows turns announces this in its slot. From then on its slot tells
//! whether the process is at work and whether a thread stands at the gate. After a closing, the
//! slot tells the number of the turn in which none of its work runs any more. A knock
//! ([`ProcessMessage::Knock`](crate::ProcessMessage)) follows a change that the arbiter should
//! notice at once: the page holds the state, the knock only means "look".
//!
//! A tenant can write its slot as it likes. The slot decides when the tenant's own turn ends; the
//! driver's own figures show the tenant's real work.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// State of a tenant's gate, with the number of its last closing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateState {
    /// Launch, and say nothing.
    Free,
    /// Launch, and say in the slot when you work. A knock need not come at once.
    Open,
    /// Launch, but others want the card: knock at each change.
    Contended,
    /// Do not launch. When nothing runs any more, answer with the number of this turn.
    Closed,
}

/// [`GateState`] and a turn's number, as they stand in the page. Zero is a free gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GateWord(u32);

impl GateWord {
    const STATE: u32 = 0b11;

    /// Returns the word of a state. It keeps 30 bits of the turn's number.
    #[must_use]
    pub const fn new(state: GateState, turn: u32) -> GateWord {
        let state = match state {
            GateState::Free => return GateWord(0),
            GateState::Open => 1,
            GateState::Contended => 2,
            GateState::Closed => 3,
        };
        GateWord(state | turn << 2)
    }

    /// Returns the word that was read from a page.
    #[must_use]
    pub const fn of_bits(bits: u32) -> GateWord {
        GateWord(bits)
    }

    /// As it stands in the page.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the gate's state.
    #[must_use]
    pub const fn state(self) -> GateState {
        match self.0 & Self::STATE {
            0 => GateState::Free,
            1 => GateState::Open,
            2 => GateState::Contended,
            _ => GateState::Closed,
        }
    }

    /// The number of the last closing, 30 bits of it.
    #[must_use]
    pub const fn turn(self) -> u32 {
        self.0 >> 2
    }
}

/// The words of the control page. Zeros are a free gate, and no rules.
#[repr(C)]
#[derive(Debug)]
pub struct GateRules {
    word: AtomicU32,
    without_arbiter: AtomicU32,
    queue_us: AtomicU32,
    reserved: AtomicU32,
}

impl GateRules {
    /// Returns the gate's word.
    #[must_use]
    pub fn word(&self) -> GateWord {
        GateWord(self.word.load(Ordering::Acquire))
    }

    /// Returns the word's address, for a futex wait. It is no reference: a store to the word would
    /// kill a tenant's process.
    #[must_use]
    pub fn address(&self) -> *const u32 {
        self.word.as_ptr()
    }

    /// Returns the share of time in which a process launches work while the arbiter is silent, in
    /// thousandths.
    #[must_use]
    pub fn without_arbiter(&self) -> u32 {
        match self.without_arbiter.load(Ordering::Relaxed) {
            0 => 1000,
            thousandths => thousandths.min(1000),
        }
    }

    /// Returns the amount of work that a process, with all of its threads and streams together,
    /// keeps in the queues of a card, in microseconds; `None` for no bound. It holds in every state
    /// of the gate, a free one too. Only a single launch may be longer.
    #[must_use]
    pub fn queue_us(&self) -> Option<u32> {
        let us = self.queue_us.load(Ordering::Relaxed);
        (us != 0).then_some(us)
    }

    pub(crate) fn set_word(&self, word: GateWord) {
        self.word.store(word.0, Ordering::Release);
    }

    pub(crate) fn set(&self, without_arbiter: u32, queue_us: u32) {
        self.without_arbiter
            .store(without_arbiter, Ordering::Relaxed);
        self.queue_us.store(queue_us, Ordering::Relaxed);
    }
}

/// A process's report on its turns, in its slot of the ledger.
#[repr(C)]
#[derive(Debug)]
pub struct TurnReport {
    answer: AtomicU32,
    flags: AtomicU32,
    n_units: AtomicU64,
    gpu_ns: AtomicU64,
    waited_ns: AtomicU64,
    has_knocked: AtomicU32,
    units_a_batch: AtomicU32,
}

const FOLLOWS: u32 = 1;
const AT_WORK: u32 = 2;
const AT_GATE: u32 = 4;

impl TurnReport {
    /// The slot has a new process.
    pub(crate) fn clear(&self) {
        for word in [
            &self.answer,
            &self.flags,
            &self.has_knocked,
            &self.units_a_batch,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.n_units, &self.gpu_ns, &self.waited_ns] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// The process obeys its gate from now on, and answers.
    pub fn follow(&self) {
        self.flags.fetch_or(FOLLOWS, Ordering::AcqRel);
    }

    /// True if the process obeys its gate and answers.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.has(FOLLOWS)
    }

    /// The process has launched something that may still run, or has no more. True if that is news.
    pub fn set_at_work(&self, is_at_work: bool) -> bool {
        self.set(AT_WORK, is_at_work)
    }

    /// True while something of the process may run.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        self.has(AT_WORK)
    }

    /// A thread of the process stands at the gate, or none does any more. True if that is news.
    pub fn set_at_gate(&self, is_at_gate: bool) -> bool {
        self.set(AT_GATE, is_at_gate)
    }

    /// True while a thread of the process stands at the gate.
    #[must_use]
    pub fn is_at_gate(&self) -> bool {
        self.has(AT_GATE)
    }

    /// Nothing of the process runs any more since the gate was closed with this word.
    pub fn answer(&self, word: GateWord) {
        self.answer.store(word.turn(), Ordering::Release);
    }

    /// The closing that was answered last; 0 in the beginning.
    #[must_use]
    pub fn answered(&self) -> u32 {
        self.answer.load(Ordering::Acquire)
    }

    /// Counts units of the program's work: mini-batches, requests.
    pub fn add_units(&self, units: u64) {
        self.n_units.fetch_add(units, Ordering::Relaxed);
    }

    /// Returns the number of units of work that the program has done.
    #[must_use]
    pub fn n_units(&self) -> u64 {
        self.n_units.load(Ordering::Relaxed)
    }

    /// Says how many units make a mini-batch; 0 where nobody knows.
    pub fn set_units_a_batch(&self, units: u32) {
        // Mostly the same as before: no write to a page that others read.
        if self.units_a_batch.load(Ordering::Relaxed) != units {
            self.units_a_batch.store(units, Ordering::Relaxed);
        }
    }

    /// Returns the number of units of a mini-batch, if known.
    #[must_use]
    pub fn units_a_batch(&self) -> Option<u32> {
        let units = self.units_a_batch.load(Ordering::Relaxed);
        (units != 0).then_some(units)
    }

    /// Adds time in which the process had work on a card, in nanoseconds, as the card measured it.
    pub fn add_gpu_ns(&self, ns: u64) {
        self.gpu_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// The time in which the process had work on a card, in nanoseconds.
    #[must_use]
    pub fn gpu_ns(&self) -> u64 {
        self.gpu_ns.load(Ordering::Relaxed)
    }

    /// Adds time that a thread stood at the gate, in nanoseconds.
    pub fn add_waited_ns(&self, ns: u64) {
        self.waited_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// The time that threads stood at the gate, in nanoseconds, of all threads together.
    #[must_use]
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns.load(Ordering::Relaxed)
    }

    /// True if the arbiter has to be sent a knock: the last one was heard.
    #[must_use]
    pub fn must_knock(&self) -> bool {
        self.has_knocked.swap(1, Ordering::AcqRel) == 0
    }

    /// The arbiter heard the knock, and looks at the slot after this.
    pub fn hear(&self) {
        self.has_knocked.store(0, Ordering::Release);
    }

    fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    fn set(&self, flag: u32, is_set: bool) -> bool {
        let before = if is_set {
            self.flags.fetch_or(flag, Ordering::AcqRel)
        } else {
            self.flags.fetch_and(!flag, Ordering::AcqRel)
        };
        (before & flag != 0) != is_set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_its_state_and_thirty_bits_of_its_turn() {
        let states = [GateState::Open, GateState::Contended, GateState::Closed];
        for state in states {
            for (turn, kept) in [(0, 0), (1, 1), (u32::MAX >> 2, u32::MAX >> 2), (1 << 30, 0)] {
                let word = GateWord::of_bits(GateWord::new(state, turn).bits());
                assert_eq!((word.state(), word.turn()), (state, kept));
            }
        }
        assert_eq!(GateWord::new(GateState::Free, 7), GateWord::default());
    }

    #[test]
    fn a_report_says_what_is_new_and_a_new_process_has_said_nothing() {
        // SAFETY: zeros are a value of atomics.
        let report: TurnReport = unsafe { core::mem::zeroed() };
        assert!(!report.follows());
        report.follow();
        assert!(report.set_at_work(true) && !report.set_at_work(true));
        assert!(report.set_at_gate(true) && report.set_at_work(false));
        assert_eq!(
            (report.follows(), report.is_at_work(), report.is_at_gate()),
            (true, false, true)
        );
        assert!(report.must_knock() && !report.must_knock());
        report.hear();
        assert!(report.must_knock());
        report.answer(GateWord::new(GateState::Closed, 9));
        report.add_units(2);
        report.set_units_a_batch(5);
        report.add_gpu_ns(3);
        report.add_waited_ns(4);
        let said = || {
            (
                report.answered(),
                report.n_units(),
                report.units_a_batch(),
                report.gpu_ns(),
                report.waited_ns(),
            )
        };
        assert_eq!(said(), (9, 2, Some(5), 3, 4));
        report.clear();
        assert_eq!(said(), (0, 0, None, 0, 0));
        assert!(!report.follows() && !report.is_at_gate() && report.must_knock());
    }
}
