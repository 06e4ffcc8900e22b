//! A job's use, when its own ledger, the sum of its processes' accounts and the driver disagree.
//!
//! A job can write into the page that its processes count on. The page is believed if that costs
//! the job itself. If others depend on the figure, the driver's counts, or the job's earlier
//! claim. So a page that was written into makes a job look worse, and never takes room from
//! others.

use sublet_model::{Bytes, MiB, Time};

use super::Machine;
use super::job::{HeldCard, mib_for};
use crate::event::{Action, LedgerUse, Reading, SlotUse};
use crate::job::JobId;
use crate::reading::Excess;

/// Longest time until a job's processes end after SIGTERM; as `docker stop`.
const GRACE_MS: u64 = 10_000;

/// Readings in a row that must show a fact before it counts: the driver and the ledgers are
/// never read at the same instant.
const READINGS: u8 = 2;

/// Known use of one card by a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobUsage {
    /// By the page's own sum.
    total: u64,
    /// By the accounts of its processes, if they could be read at rest.
    accounts: Option<u64>,
    /// By the driver: all its processes.
    driver: u64,
    /// Memory that the driver sees beyond the page's sum.
    beyond: Excess,
    /// More than the page's sum, by the driver or by the accounts, in the last reading but one and
    /// in the last.
    hidden: [u64; 2],
    /// Number of readings in which the page's sum differed from the sum of its accounts.
    unequal: u8,
    /// The most that it may use by the driver's count, contexts aside: its limit, or its use
    /// when the limit was lowered. `None` until a job from before was seen once.
    allowed: Option<u64>,
    /// Number of readings in which it had more than that.
    over: u8,
    /// Part of the page's sum that the arbiter has charged there itself.
    overhead: u64,
}

impl JobUsage {
    /// For a job that begins with this limit; `None` for one that may have begun before.
    pub(super) fn begin(limit: Option<MiB>) -> JobUsage {
        JobUsage {
            total: 0,
            accounts: None,
            driver: 0,
            beyond: Excess::NONE,
            hidden: [0; 2],
            unequal: 0,
            allowed: limit.map(|limit| Bytes::from(limit).get()),
            over: 0,
            overhead: 0,
        }
    }

    /// Its true use, even if its page says less.
    pub(super) fn bytes(&self) -> Bytes {
        let hidden = self.hidden[0].min(self.hidden[1]);
        Bytes::new(self.total.saturating_add(hidden))
    }

    /// The page's sum, the accounts' and the driver's figure, if they do not agree.
    pub(super) fn mismatch(&self) -> Option<Mismatch> {
        let is_unequal = self.unequal >= READINGS;
        let hidden = self.hidden[0].min(self.hidden[1]);
        (is_unequal || hidden > 0).then_some(Mismatch {
            total: Bytes::new(self.total),
            accounts: self.accounts.map(Bytes::new),
            driver: Bytes::new(self.driver),
        })
    }

    /// The part of it that keeps others out: within the present entitlement, unless the driver
    /// says more.
    fn believed(&self, entitled: MiB) -> MiB {
        let total = mib_for(Bytes::new(self.total)).min(entitled);
        let total = if self.unequal >= READINGS {
            MiB::ZERO
        } else {
            total
        };
        total.max(mib_for(Bytes::new(self.driver)))
    }

    fn read_ledger(&mut self, ledger: &LedgerUse) {
        self.total = ledger.total.get();
        self.accounts = ledger.accounts.map(Bytes::get);
    }

    /// Notes the amount that an earlier arbiter has charged on the page.
    pub(super) fn remember_overhead(&mut self, bytes: Bytes) {
        self.overhead = bytes.get();
    }

    /// The driver was read beside the ledgers. Its overhead is charged on the page from now on.
    /// `is_quiet`: the job took and gave nothing meanwhile, so that both figures are of one moment.
    fn looked_at(&mut self, driver: u64, overhead: u64, is_quiet: bool) {
        self.driver = driver;
        let more = overhead.saturating_sub(self.overhead);
        self.overhead = overhead;
        self.total = self.total.saturating_add(more);
        let accounts = self.accounts;
        self.accounts = accounts.map(|accounts| accounts.saturating_add(more));
        let beyond = driver.saturating_sub(self.total);
        self.beyond = self.beyond.next(beyond, is_quiet);
        let unsummed = self.accounts.unwrap_or(0).saturating_sub(self.total);
        self.hidden = [self.hidden[1], self.beyond.bytes().max(unsummed)];
        match self.accounts {
            Some(accounts) if accounts == self.total => self.unequal = 0,
            Some(_) => self.unequal = self.unequal.saturating_add(1),
            None => {}
        }
    }

    /// Takes its memory by the driver's count, contexts aside. True if that exceeds the limit,
    /// in this reading and in the last.
    fn exceeds(&mut self, limit: MiB, without_contexts: u64) -> bool {
        let limit = Bytes::from(limit).get();
        let allowed = self.allowed.unwrap_or(without_contexts).max(limit);
        if without_contexts > allowed {
            self.over = self.over.saturating_add(1);
        } else {
            self.over = 0;
            self.allowed = Some(limit.max(without_contexts));
        }
        self.over >= READINGS
    }
}

/// Figures that should be the same, and are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// The sum on the job's page.
    pub total: Bytes,
    /// The sum of its processes' accounts, if they could be read at rest.
    pub accounts: Option<Bytes>,
    /// The driver's figure of its processes.
    pub driver: Bytes,
}

impl HeldCard {
    /// Brings the charge up to date.
    pub(super) fn settle_charge(&mut self) {
        let entitled = self.charge;
        let promised = self.promised.unwrap_or(self.part).limit.memory;
        let least = self.part.limit.memory.max(promised);
        self.charge = least.max(self.uses.believed(entitled));
    }
}

impl Machine {
    /// Takes the jobs' own figures of their use.
    pub(super) fn use_now(&mut self, ledgers: &[LedgerUse]) {
        for one in ledgers {
            if let Some(held) = self.held_mut(one.job, one.card) {
                held.uses.read_ledger(one);
                held.settle_charge();
                self.charge(one.job, one.card);
            }
        }
    }

    /// Compares the jobs' own figures with the driver's.
    pub(super) fn compare(
        &mut self,
        now: Time,
        cards: &[Option<Reading>],
        slots: &[SlotUse],
        ledgers: &[LedgerUse],
        out: &mut Vec<Action>,
    ) {
        self.use_now(ledgers);
        for one in ledgers {
            let Some(Some(reading)) = cards.get(one.card) else {
                continue;
            };
            let processes = &self.processes;
            let own = |pid| processes.get(&pid).is_some_and(|(job, _)| *job == one.job);
            let figures = reading.of(own);
            let (sum, count) = figures.fold((0_u64, 0_u64), |(sum, count), bytes| {
                (sum.saturating_add(bytes), count + u64::from(bytes > 0))
            });
            // What a context costs nobody is ended for: not where it is unknown, either.
            let context = self.reconciliation.context(one.card).get();
            let contexts = match context {
                0 => u64::MAX,
                context => count.saturating_mul(context),
            };
            let overhead = self.reconciliation.overhead(one.job, one.card).get();
            let mut own = slots
                .iter()
                .filter(|slot| (slot.job, slot.card) == (one.job, one.card));
            let is_quiet = own.all(|slot| slot.is_quiet);
            let Some(held) = self.held_mut(one.job, one.card) else {
                continue;
            };
            held.uses.looked_at(sum, overhead, is_quiet);
            held.settle_charge();
            let limit = held.part.limit.memory;
            let exceeds = held.uses.exceeds(limit, sum.saturating_sub(contexts));
            self.charge(one.job, one.card);
            if exceeds && self.evict_over {
                self.end_job(now, one.job, out);
            }
        }
        self.end_late(now, out);
    }

    pub(super) fn held_mut(&mut self, job: JobId, card: usize) -> Option<&mut HeldCard> {
        let job = self.jobs.get_mut(&job)?;
        job.held.iter_mut().find(|held| held.part.card == card)
    }

    /// A job works while it has no turn: nothing but its end gives others their time.
    pub(super) fn out_of_turn(&mut self, now: Time, job: JobId, out: &mut Vec<Action>) {
        if self.evict_overuse {
            self.end_job(now, job, out);
        }
    }

    /// Begins to end a job that has more than it may have.
    fn end_job(&mut self, now: Time, id: JobId, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.ends_at.is_none() {
            job.ends_at = Some(now.plus_ms(GRACE_MS));
            out.push(Action::Terminate(id));
        }
    }

    /// Ends the processes that did not end by themselves.
    fn end_late(&mut self, now: Time, out: &mut Vec<Action>) {
        for (id, job) in &self.jobs {
            if job.ends_at.is_some_and(|at| at <= now) {
                out.push(Action::Kill(*id));
            }
        }
    }
}

#[cfg(test)]
mod tests;
