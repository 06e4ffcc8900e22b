//! What jobs use: by their ledgers, whenever it matters, and by the driver, several times a
//! second and soon after a process began. The slots are read before the driver is asked and
//! again when it has answered; the larger counts, so that memory which came or went meanwhile is
//! no discrepancy, and whoever took or gave any is named.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_abi::SlotIndex;
use sublet_model::{Bytes, GpuIndex, Time};
use sublet_share::{Books, Event, JobId, Pid, Reading, SlotUse};
use tracing::warn;

use super::Arbiter;
use crate::peer;
use crate::tenant::SlotCard;

/// How long the driver may take before somebody should know.
const DRIVER_LATE_MS: u64 = 5_000;

/// A card, as it was last read.
#[derive(Debug, Clone, Default)]
pub(super) struct CardNow {
    pub(super) used: Bytes,
    /// How many readings in a row have failed.
    failures: u32,
}

/// After so many failed readings, a second's worth, no new work is put on a card.
const FAILURES_MAX: u32 = 5;

impl Arbiter {
    /// Tells the machine what jobs use by their ledgers.
    pub(super) fn take_use(&mut self) {
        let used = self.tenants.iter().filter(|(_, tenant)| tenant.has_pages());
        let used = used.flat_map(|(job, tenant)| {
            tenant.totals().map(move |(card, total)| Books {
                job: *job,
                card,
                total,
                accounts: None,
            })
        });
        let used = used.collect();
        self.apply(Event::Used(used));
    }

    /// What jobs use by their ledgers: the sums, and what these are the sums of.
    fn books_now(&self) -> Vec<Books> {
        let mut slots: BTreeMap<JobId, Vec<SlotIndex>> = BTreeMap::new();
        for pid in self.processes.keys() {
            if let Some((job, slot)) = self.machine.process(*pid)
                && let Some(slot) = SlotIndex::of_process(slot)
            {
                slots.entry(job).or_default().push(slot);
            }
        }
        let tenants = self.tenants.iter().filter(|(_, tenant)| tenant.has_pages());
        let books = tenants.flat_map(|(&job, tenant)| {
            let slots = slots.remove(&job).unwrap_or_default();
            let books = tenant.devices().map(move |(device, card)| Books {
                job,
                card: card.card,
                accounts: tenant.accounts(device, &slots),
                total: tenant.total(device),
            });
            books.collect::<Vec<_>>()
        });
        books.collect()
    }

    fn slots_now(&self) -> BTreeMap<(Pid, usize), (JobId, SlotCard)> {
        let pids = self.processes.keys();
        let owned = pids.filter_map(|pid| Some((*pid, self.machine.process(*pid)?)));
        let uses = owned.flat_map(|(pid, (job, slot))| {
            let tenant = self.tenants.get(&job);
            let slot = SlotIndex::of_process(slot);
            let uses = tenant.zip(slot).map(|(tenant, slot)| tenant.slot_use(slot));
            let uses = uses.into_iter().flatten();
            uses.map(move |card| ((pid, card.card), (job, card)))
        });
        uses.collect()
    }

    /// What the slots say, with what they said when the driver was asked.
    fn slots_meanwhile(&mut self) -> Vec<SlotUse> {
        let before = std::mem::take(&mut self.before);
        let now = self.slots_now().into_iter();
        let both = now.map(|((pid, card), (job, now))| {
            let before = before.get(&(pid, card)).map(|(_, before)| before);
            SlotUse {
                job,
                pid,
                card,
                used: before.map_or(now.used, |before| before.used.max(now.used)),
                is_quiet: before.is_some_and(|before| before.operation == now.operation),
            }
        });
        both.collect()
    }

    pub(super) fn ask_driver(&mut self, now: u64) {
        if self.sampler.waits() {
            let late_ms = now.saturating_sub(self.asked_driver_ms);
            if late_ms >= DRIVER_LATE_MS {
                self.asked_driver_ms = now;
                self.counters.unreadable += 1;
                warn!(late_ms, "the GPU driver does not answer");
            }
            return;
        }
        self.before = self.slots_now();
        self.asked_driver_ms = now;
        self.machine.reads_now(Time::from_ms(now));
        self.sampler.ask();
    }

    pub(super) fn take_reading(&mut self) {
        let Some(cards) = self.sampler.take() else {
            return;
        };
        let slots = self.slots_meanwhile();
        let broken_before = self.broken();
        for (now, card) in self.cards_now.iter_mut().zip(&cards) {
            match card {
                Some(card) => {
                    now.used = card.used;
                    now.failures = 0;
                }
                None => {
                    self.counters.unreadable += 1;
                    now.failures = now.failures.saturating_add(1);
                }
            }
        }
        let broken = self.broken();
        if broken != broken_before {
            warn!(gpus = ?broken, "GPUs that the driver cannot read");
            let inventory = self
                .inventory
                .with_sick(&broken, "the driver cannot read it");
            self.apply(Event::Inventory(Arc::new(inventory)));
        }
        let cards = cards.into_iter().map(|card| {
            card.map(|card| Reading {
                processes: card.processes,
            })
        });
        let cards: Vec<Option<Reading>> = cards.collect();
        let may_return = self.may_return(&cards);
        let books = self.books_now();
        self.apply(Event::Read {
            cards,
            slots,
            books,
            may_return,
        });
        // Overheads may have changed what jobs use.
        self.take_use();
    }

    /// After a restart: who is on a card without a slot, and has a ledger of before open, with
    /// which it may come back. The others are strangers at once.
    fn may_return(&self, cards: &[Option<Reading>]) -> BTreeSet<Pid> {
        if self.settled {
            return BTreeSet::new();
        }
        let on_cards = cards.iter().flatten().flat_map(|card| &card.processes);
        let pids: BTreeSet<Pid> = on_cards.map(|(pid, _)| *pid).collect();
        pids.into_iter()
            .filter(|pid| !self.processes.contains_key(pid) && peer::may_hold_ledger(*pid))
            .collect()
    }

    /// Cards that could not be read for some time.
    fn broken(&self) -> BTreeSet<GpuIndex> {
        let gpus = self.inventory.gpus().iter().zip(&self.cards_now);
        gpus.filter(|(_, now)| now.failures >= FAILURES_MAX)
            .map(|(gpu, _)| gpu.index)
            .collect()
    }
}
