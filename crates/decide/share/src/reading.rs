//! Compares the driver's figures of the processes on each card with their slots. It finds two
//! things: memory that no slot accounts for (modules, memory that bypassed the interposer,
//! memory of a context beyond its reserve), and processes without any slot. It judges numbers
//! that were read for it, and reads nothing itself. Its findings on a job change that job's
//! charge, and nothing else.
//!
//! The driver and the slots are never read at the same instant. The shell reads the slots
//! before and after the driver and passes on the larger, so memory freed or allocated in
//! between only makes the difference smaller. A difference counts when it was there twice, or at
//! once if its process asked for the reading: the driver has loaded something for it, and it takes
//! and gives nothing until it has the answer.
//! Operations reveal a process that takes memory *and* gives it back in between: after any,
//! the difference may be memory that is gone already, and says nothing new.

use std::collections::{BTreeMap, BTreeSet};

use sublet_model::{Bytes, Time};

use crate::event::{Action, Reading, SlotUse};
use crate::job::{JobId, Pid};

/// Longest time of a process on a card without a slot before it is reported. A managed program
/// has its slot before its first context; with a reading every 200 ms, a stranger is known
/// within a second. After a restart the same holds for a process without an earlier ledger to
/// come back with.
const STRANGER_AFTER_MS: u64 = 600;

impl Reading {
    /// The memory of each process that is meant, in bytes. One that is listed twice (compute
    /// and graphics) has that memory once.
    pub(crate) fn of(&self, is_meant: impl Fn(Pid) -> bool) -> impl Iterator<Item = u64> {
        let uses = real_uses(self).into_iter();
        uses.filter(move |(pid, _)| is_meant(*pid))
            .map(|(_, bytes)| bytes)
    }
}

/// Memory of a process, or a job, on a card by the driver's figures beyond its ledger.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Excess {
    /// As it was last known.
    known: u64,
    /// The least of the readings since then, and their number: in none was it quiet.
    least: u64,
    n_busy: u32,
}

/// After this number of readings in which a process was never quiet, the least of them is
/// believed. With a reading every 200 ms these are five seconds. No program takes nearly all its
/// memory and gives it back in each of them.
const BUSY_READINGS: u32 = 25;

impl Excess {
    /// Nothing is known yet.
    pub(crate) const NONE: Excess = Excess::known(0);

    const fn known(bytes: u64) -> Excess {
        Excess {
            known: bytes,
            least: u64::MAX,
            n_busy: 0,
        }
    }

    /// The excess, as far as it is known.
    pub(crate) const fn bytes(self) -> u64 {
        self.known
    }

    /// The next state, after a reading that showed `seen`.
    pub(crate) fn next(self, seen: u64, is_quiet: bool) -> Excess {
        let (least, n_busy) = (self.least.min(seen), self.n_busy + 1);
        if is_quiet {
            Excess::known(seen)
        } else if n_busy == BUSY_READINGS {
            Excess::known(least)
        } else {
            let known = self.known.min(seen);
            Excess {
                known,
                least,
                n_busy,
            }
        }
    }
}

/// Memory of a job on a card beyond its slots' reservations.
#[derive(Debug, Clone, Copy, Default)]
struct Residual {
    charged: u64,
    /// By the last reading. It is charged when the next one shows it too.
    last: u64,
}

/// Memory of a job on a card beyond its slots' reservations, by one reading.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    all: u64,
    /// The part that is new, of processes that asked for the reading.
    loaded: u64,
}

/// A process that is on a card without a slot.
#[derive(Debug, Clone)]
struct Stranger {
    since: Time,
    reported: bool,
    on: BTreeMap<usize, Bytes>,
}

/// The driver's figures set against the slots', over time.
#[derive(Debug, Clone)]
pub(crate) struct Reconciliation {
    /// Memory of a new context, by card.
    contexts: Vec<Bytes>,
    excesses: BTreeMap<(Pid, usize), Excess>,
    residuals: BTreeMap<(JobId, usize), Residual>,
    /// The processes seen on each card.
    seen: BTreeSet<(Pid, usize)>,
    strangers: BTreeMap<Pid, Stranger>,
    evict: bool,
}

impl Reconciliation {
    pub(crate) fn new(n_cards: usize, evict: bool) -> Reconciliation {
        Reconciliation {
            contexts: vec![Bytes::new(0); n_cards],
            excesses: BTreeMap::new(),
            residuals: BTreeMap::new(),
            seen: BTreeSet::new(),
            strangers: BTreeMap::new(),
            evict,
        }
    }

    pub(crate) fn context(&self, card: usize) -> Bytes {
        self.contexts[card]
    }

    pub(crate) fn set_context(&mut self, card: usize, bytes: Bytes) {
        if let Some(context) = self.contexts.get_mut(card) {
            *context = bytes;
        }
    }

    pub(crate) fn overhead(&self, job: JobId, card: usize) -> Bytes {
        let residual = self.residuals.get(&(job, card));
        Bytes::new(residual.map_or(0, |residual| residual.charged))
    }

    pub(crate) fn remember_overhead(&mut self, job: JobId, card: usize, bytes: Bytes) {
        let charged = bytes.get();
        let residual = Residual {
            charged,
            last: charged,
        };
        self.residuals.insert((job, card), residual);
    }

    /// The reported strangers.
    pub(crate) fn strangers(&self) -> impl Iterator<Item = (Pid, &BTreeMap<usize, Bytes>)> {
        let reported = self.strangers.iter().filter(|(_, who)| who.reported);
        reported.map(|(pid, who)| (*pid, &who.on))
    }

    /// Use by reported strangers, by card.
    pub(crate) fn use_of_strangers(&self) -> Vec<Bytes> {
        let mut sums = vec![0u64; self.contexts.len()];
        for (_, on) in self.strangers() {
            for (card, bytes) in on {
                sums[*card] = sums[*card].saturating_add(bytes.get());
            }
        }
        sums.into_iter().map(Bytes::new).collect()
    }

    pub(crate) fn forget_job(&mut self, job: JobId) {
        self.residuals.retain(|(owner, _), _| *owner != job);
    }

    pub(crate) fn forget_process(&mut self, pid: Pid) {
        self.excesses.retain(|(owner, _), _| *owner != pid);
        self.seen.retain(|(owner, _)| *owner != pid);
    }

    /// A stranger got a slot.
    pub(crate) fn adopt(&mut self, pid: Pid, out: &mut Vec<Action>) {
        if let Some(who) = self.strangers.remove(&pid)
            && who.reported
        {
            out.push(Action::StrangerGone(pid));
        }
    }

    /// Sets the driver's numbers against the slots'. True if a process is on a card for the
    /// first time, so that its numbers should be read again soon.
    pub(crate) fn measure(
        &mut self,
        cards: &[Option<Reading>],
        slots: &[SlotUse],
        out: &mut Vec<Action>,
    ) -> bool {
        let uses: Vec<Option<BTreeMap<Pid, u64>>> = cards
            .iter()
            .map(|card| card.as_ref().map(real_uses))
            .collect();
        let mut is_new = false;
        let mut sums: BTreeMap<(JobId, usize), Sum> = BTreeMap::new();
        for slot in slots {
            let Some(Some(uses)) = uses.get(slot.card) else {
                continue;
            };
            let real = uses.get(&slot.pid).copied().unwrap_or(0);
            let excess = self.excesses.entry((slot.pid, slot.card));
            let excess = excess.or_insert(Excess::NONE);
            let before = excess.bytes();
            *excess = excess.next(real.saturating_sub(slot.used.get()), slot.is_quiet);
            // A process whose reservation has not become memory yet does not make up for
            // another one's overhead.
            let sum = sums.entry((slot.job, slot.card)).or_default();
            sum.all = sum.all.saturating_add(excess.bytes());
            if slot.has_asked {
                let more = excess.bytes().saturating_sub(before);
                sum.loaded = sum.loaded.saturating_add(more);
            }
            is_new |= real > 0 && self.seen.insert((slot.pid, slot.card));
        }
        // A job whose last process is gone has no slots, and so no overhead.
        let gone = self.residuals.keys().copied();
        let gone: Vec<_> = gone.filter(|at| !sums.contains_key(at)).collect();
        for at in gone {
            if cards.get(at.1).is_some_and(Option::is_some) {
                sums.insert(at, Sum::default());
            }
        }
        for ((job, card), sum) in sums {
            let residual = self.residuals.entry((job, card)).or_default();
            let before = residual.last.max(residual.charged);
            let steady = sum.all.min(before.saturating_add(sum.loaded));
            residual.last = sum.all;
            if steady != residual.charged {
                residual.charged = steady;
                let bytes = Bytes::new(steady);
                out.push(Action::Overhead { job, card, bytes });
            }
        }
        self.residuals
            .retain(|_, residual| residual.charged > 0 || residual.last > 0);
        is_new
    }

    /// Finds processes that are on a card without a slot.
    pub(crate) fn look_for_strangers(
        &mut self,
        now: Time,
        cards: &[Option<Reading>],
        is_ours: impl Fn(Pid) -> bool,
        may_return: impl Fn(Pid) -> bool,
        out: &mut Vec<Action>,
    ) {
        for (card, reading) in cards.iter().enumerate().take(self.contexts.len()) {
            // A card that cannot be read has whom it had.
            let Some(reading) = reading else { continue };
            for who in self.strangers.values_mut() {
                who.on.remove(&card);
            }
            for &(pid, bytes) in reading.processes.iter().filter(|(pid, _)| !is_ours(*pid)) {
                let who = self.strangers.entry(pid).or_insert_with(|| Stranger {
                    since: now,
                    reported: false,
                    on: BTreeMap::new(),
                });
                // One process can be listed for compute and for graphics.
                let on = who.on.entry(card).or_default();
                *on = Bytes::new(on.get().max(bytes.get()));
            }
        }
        let evict = self.evict;
        self.strangers.retain(|pid, who| {
            if who.on.is_empty() {
                if who.reported {
                    out.push(Action::StrangerGone(*pid));
                }
                return false;
            }
            // One that had a slot before a restart, and is not back yet.
            if may_return(*pid) {
                who.since = now;
            }
            if !who.reported && who.since.plus_ms(STRANGER_AFTER_MS) <= now {
                who.reported = true;
                out.push(Action::Stranger(*pid));
                if evict {
                    out.push(Action::Evict(*pid));
                }
            }
            true
        });
    }
}

/// The driver's figure for each process on one card; a process that is listed twice (compute
/// and graphics) has that memory once.
fn real_uses(reading: &Reading) -> BTreeMap<Pid, u64> {
    let mut uses: BTreeMap<Pid, u64> = BTreeMap::new();
    for (pid, bytes) in &reading.processes {
        let use_now = uses.entry(*pid).or_default();
        *use_now = (*use_now).max(bytes.get());
    }
    uses
}

#[cfg(test)]
mod tests;
