//! Use by jobs: by their ledgers, whenever it matters, and by the driver, several times a second
//! and soon after a process began. The slots are read before the driver is asked and again after
//! its answer, and the larger value counts. So memory that came or went meanwhile is no
//! discrepancy, and the process that took or freed it is named. A process for which the driver has
//! loaded code asks for a reading, and waits until what it took is charged.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use sublet_abi::SlotIndex;
use sublet_model::{Bytes, GpuIndex, Inventory, Time};
use sublet_share::{Event, JobId, LedgerUse, Pid, Reading, SlotUse};
use tracing::warn;

use super::Arbiter;
use super::returning::Returning;
use crate::gauge::Figures;
use crate::gpu::{CardReading, Sampler, UNREADABLE};
use crate::job_pages::SlotCard;

/// Longest wait for an answer of the driver before a warning.
const DRIVER_LATE_MS: u64 = 5_000;

/// After this number of failed readings, a second's worth, no new work is put on a card.
const FAILURES_MAX: u32 = 5;

/// A card, as it was last read.
#[derive(Debug, Clone, Default)]
struct CardNow {
    used: Bytes,
    /// Number of failed readings in a row.
    failures: u32,
}

/// Each slot's record of each card.
type Slots = BTreeMap<(Pid, usize), (JobId, SlotCard)>;

/// The driver, and its last answer.
#[derive(Debug)]
pub(super) struct DriverReadings {
    sampler: Sampler,
    /// The cards as they were found, before any of them broke.
    inventory: Arc<Inventory>,
    /// Memory of contexts and allocations on each card.
    figures: Vec<Figures>,
    cards: Vec<CardNow>,
    /// The slots when the driver was asked.
    slots_before: Slots,
    asked_ms: u64,
    /// Knows the processes that may come back after a restart.
    returning: Returning,
}

impl DriverReadings {
    pub(super) fn new(
        sampler: Sampler,
        inventory: Arc<Inventory>,
        figures: Vec<Figures>,
        now: u64,
    ) -> DriverReadings {
        DriverReadings {
            cards: vec![CardNow::default(); inventory.gpus().len()],
            sampler,
            inventory,
            figures,
            slots_before: Slots::new(),
            asked_ms: now,
            returning: Returning::default(),
        }
    }

    /// Memory of contexts and allocations on a card.
    pub(super) fn figures(&self, card: usize) -> Figures {
        self.figures[card]
    }

    /// Memory in use on a card, by the last reading.
    pub(super) fn used(&self, card: usize) -> Bytes {
        self.cards[card].used
    }

    /// True while the driver owes an answer.
    pub(super) fn is_awaited(&self) -> bool {
        self.sampler.waits()
    }

    /// Asks the driver. `slots` are the slots' records now.
    fn ask(&mut self, now: u64, slots: Slots) {
        self.slots_before = slots;
        self.asked_ms = now;
        self.sampler.ask();
    }

    /// Time for which the driver has owed an answer, if it deserves a warning; told once per
    /// [`DRIVER_LATE_MS`].
    fn take_lateness(&mut self, now: u64) -> Option<u64> {
        let late_ms = now.saturating_sub(self.asked_ms);
        let is_news = late_ms >= DRIVER_LATE_MS;
        if is_news {
            self.asked_ms = now;
        }
        is_news.then_some(late_ms)
    }

    /// The processes that waited for the reading when it began: job, card and number.
    fn waiting(&self) -> Vec<(Pid, JobId, usize, u32)> {
        let slots = self.slots_before.iter();
        let waiting = slots.filter_map(|((pid, card), (job, slot))| {
            slot.awaited.map(|number| (*pid, *job, *card, number))
        });
        waiting.collect()
    }

    /// Takes an answer. Returns how many cards could not be read.
    fn take(&mut self, cards: &[Option<CardReading>]) -> u64 {
        let mut unread = 0;
        for (now, card) in self.cards.iter_mut().zip(cards) {
            match card {
                Some(card) => {
                    now.used = card.used;
                    now.failures = 0;
                }
                None => {
                    unread += 1;
                    now.failures = now.failures.saturating_add(1);
                }
            }
        }
        unread
    }

    /// Cards that could not be read for some time.
    fn broken(&self) -> BTreeSet<GpuIndex> {
        let gpus = self.inventory.gpus().iter().zip(&self.cards);
        gpus.filter(|(_, now)| now.failures >= FAILURES_MAX)
            .map(|(gpu, _)| gpu.index)
            .collect()
    }

    /// The slots' records now, combined with the records at the time of the question.
    fn slots_meanwhile(&mut self, now: Slots) -> Vec<SlotUse> {
        let before = std::mem::take(&mut self.slots_before);
        let both = now.into_iter().map(|((pid, card), (job, now))| {
            let before = before.get(&(pid, card)).map(|(_, before)| before);
            SlotUse {
                job,
                pid,
                card,
                used: before.map_or(now.used, |before| before.used.max(now.used)),
                is_quiet: before.is_some_and(|before| before.operation == now.operation),
                has_asked: before.is_some_and(|before| before.awaited.is_some()),
            }
        });
        both.collect()
    }
}

impl AsFd for DriverReadings {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sampler.as_fd()
    }
}

impl Arbiter {
    /// Tells the machine the use of jobs by their ledgers.
    pub(super) fn take_use(&mut self) {
        let used = self.jobs.ledger_sums();
        self.apply(Event::Used(used));
    }

    /// Use of jobs by their ledgers: the sums, and the slots behind them.
    fn ledgers_now(&self) -> Vec<LedgerUse> {
        let mut slots: BTreeMap<JobId, Vec<SlotIndex>> = BTreeMap::new();
        for pid in self.processes.pids() {
            if let Some((job, slot)) = self.machine.process(pid)
                && let Some(slot) = SlotIndex::of_process(slot)
            {
                slots.entry(job).or_default().push(slot);
            }
        }
        let ledgers = self.jobs.with_pages().flat_map(|(job, pages)| {
            let slots = slots.remove(&job).unwrap_or_default();
            pages.devices().map(move |(device, card)| {
                let (total, accounts) = pages.sums(device, &slots);
                LedgerUse {
                    job,
                    card: card.card,
                    total,
                    accounts,
                }
            })
        });
        ledgers.collect()
    }

    fn slots_now(&self) -> Slots {
        let pids = self.processes.pids();
        let owned = pids.filter_map(|pid| Some((pid, self.machine.process(pid)?)));
        let uses = owned.flat_map(|(pid, (job, slot))| {
            let pages = self.jobs.pages(job);
            let slot = SlotIndex::of_process(slot);
            let uses = pages.zip(slot).map(|(pages, slot)| pages.slot_use(slot));
            let uses = uses.into_iter().flatten();
            uses.map(move |card| ((pid, card.card), (job, card)))
        });
        uses.collect()
    }

    /// When the driver is to be read though no tick is due; not before it has answered the
    /// question before.
    pub(super) fn early_reading_ms(&self) -> Option<u64> {
        let at = self.machine.read_at();
        at.filter(|_| !self.readings.is_awaited()).map(Time::ms)
    }

    /// Asks the driver, unless it owes an answer.
    pub(super) fn ask_driver(&mut self, now: u64) {
        if self.readings.is_awaited() {
            if let Some(late_ms) = self.readings.take_lateness(now) {
                self.counters.unreadable += 1;
                warn!(late_ms, "the GPU driver does not answer");
            }
            return;
        }
        let slots = self.slots_now();
        self.machine.reads_now(Time::from_ms(now));
        self.readings.ask(now, slots);
    }

    /// The driver has answered.
    pub(super) fn take_reading(&mut self) {
        let Some(answer) = self.readings.sampler.take() else {
            return;
        };
        if let Some(busy) = answer.busy {
            self.turns.settle();
            self.take_busy(&busy);
        }
        let cards = answer.cards;
        let waiting = self.readings.waiting();
        let slots = self.slots_now();
        let slots = self.readings.slots_meanwhile(slots);
        let broken_before = self.readings.broken();
        self.counters.unreadable += self.readings.take(&cards);
        let broken = self.readings.broken();
        if broken != broken_before {
            warn!(gpus = ?broken, "GPUs that the driver cannot read");
            let found = &self.readings.inventory;
            let inventory = found.with_sick(&broken, UNREADABLE);
            self.apply(Event::Inventory(Arc::new(inventory)));
        }
        let cards = cards.into_iter().map(|card| {
            card.map(|card| Reading {
                processes: card.processes,
            })
        });
        let cards: Vec<Option<Reading>> = cards.collect();
        let may_return = self.may_return(&cards);
        let ledgers = self.ledgers_now();
        self.apply(Event::Read {
            cards,
            slots,
            ledgers,
            may_return,
        });
        // Overheads may have changed what jobs use.
        self.take_use();
        self.answer_questions(&waiting);
    }

    /// A process may wait for a reading.
    pub(super) fn hear_question(&mut self, pid: Pid) {
        let Some((job, slot)) = self.machine.process(pid) else {
            return;
        };
        let (pages, slot) = (self.jobs.pages(job), SlotIndex::of_process(slot));
        if pages
            .zip(slot)
            .is_some_and(|(pages, slot)| pages.awaits_reading(slot))
        {
            self.machine.wants_reading();
        }
    }

    /// Tells the processes that waited for the reading that it is done. Others may have asked
    /// meanwhile: for them it began too early.
    fn answer_questions(&mut self, waiting: &[(Pid, JobId, usize, u32)]) {
        for (pid, job, card, number) in waiting {
            let slot = match self.machine.process(*pid) {
                Some((owner, slot)) if owner == *job => SlotIndex::of_process(slot),
                _ => None,
            };
            if let Some((pages, slot)) = self.jobs.pages(*job).zip(slot) {
                pages.finish_reading(slot, *card, *number);
            }
        }
    }

    /// After a restart: the processes on a card without a slot that may come back, because
    /// they have an earlier ledger open. The others are strangers at once.
    fn may_return(&mut self, cards: &[Option<Reading>]) -> BTreeSet<Pid> {
        let returning = &mut self.readings.returning;
        if self.lifetime.is_settled() {
            *returning = Returning::default();
            return BTreeSet::new();
        }
        let on_cards = cards.iter().flatten().flat_map(|card| &card.processes);
        let pids: BTreeSet<Pid> = on_cards.map(|(pid, _)| *pid).collect();
        pids.into_iter()
            .filter(|pid| !self.processes.contains(*pid) && returning.may(*pid))
            .collect()
    }
}
