//! One machine's arbiter as a state machine: each job's part of each card, the jobs that wait,
//! and the processes of each job. It knows no clock, socket or page: events come in as
//! [`Event`]s, orders go out as [`Action`]s.
//!
//! Waiting jobs stand in a queue, by priority, their users' shares and age (`line`). A job that
//! would fit does not overtake a first job that does not: small jobs could otherwise keep a
//! large one out for ever, and no one could say when a job's turn comes. The price is that cards
//! may have unused room while the first of the queue waits for more.
//!
//! A job is charged on each card with its limit, or with its use if that is more (after its
//! limit was lowered): memory that is still in use is not given twice. Containers that a cluster
//! placed are charged by the pod (`pods`), and never wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_model::{Bytes, Class, Count, Inventory, MiB, Milli, Time};
use sublet_plan::Policy;

use self::job::{HeldCard, Job};
use self::line::Line;
use self::pods::Pods;
use self::usage::JobUsage;
use crate::event::{Action, Event};
use crate::job::{Amount, Holding, JobAsk, JobId, Pid};
use crate::place::Cards;
use crate::read_schedule::ReadSchedule;
use crate::reading::Reconciliation;
use crate::refusal::JobRefusal;

mod job;
mod limits;
mod line;
mod pods;
mod processes;
mod usage;

pub use self::job::JobView;
pub use self::limits::Ancestry;
pub use self::line::{PATIENCE_MS, StartCondition};
pub use self::usage::Mismatch;

/// Maximum number of processes of a job on GPUs: the slots of a ledger page.
pub const SLOTS: u32 = 1024;

/// Settings of a machine.
#[derive(Debug, Clone)]
pub struct MachineOptions {
    /// Its cards.
    pub inventory: Arc<Inventory>,
    /// Choice among cards that have room.
    pub policy: Policy,
    /// Memory of each card that no job gets.
    pub reserved: MiB,
    /// After a restart: until then earlier jobs may come back, and nothing else is placed.
    pub settled_at: Time,
    /// May there be jobs that no cluster has promised their room?
    pub local_jobs: bool,
    /// End processes that use a card without being a job?
    pub evict: bool,
    /// End jobs that have more than they may have, by the driver's count?
    pub evict_over: bool,
    /// End jobs that work without a turn?
    pub evict_overuse: bool,
}

/// A card's account, as others see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardView {
    /// Memory of the card.
    pub capacity: MiB,
    /// Memory charged to jobs.
    pub granted: MiB,
    /// Memory kept from jobs.
    pub kept: MiB,
    /// Memory that a new job could have.
    pub open: MiB,
    /// Compute time that is promised to jobs.
    pub promised: Milli,
    /// Memory of a new context.
    pub context: Bytes,
}

/// The machine.
#[derive(Debug, Clone)]
pub struct Machine {
    cards: Cards,
    jobs: BTreeMap<JobId, Job>,
    /// The jobs that wait.
    line: Line,
    pods: Pods,
    processes: BTreeMap<Pid, (JobId, u32)>,
    reconciliation: Reconciliation,
    read_schedule: ReadSchedule,
    local_jobs: bool,
    evict_over: bool,
    evict_overuse: bool,
    settled_at: Time,
    settled: bool,
}

impl Machine {
    /// A machine without jobs.
    #[must_use]
    pub fn new(options: MachineOptions) -> Machine {
        let n_cards = options.inventory.gpus().len();
        Machine {
            cards: Cards::new(options.inventory, options.policy, options.reserved),
            jobs: BTreeMap::new(),
            line: Line::default(),
            pods: Pods::new(),
            processes: BTreeMap::new(),
            reconciliation: Reconciliation::new(n_cards, options.evict),
            read_schedule: ReadSchedule::default(),
            local_jobs: options.local_jobs,
            evict_over: options.evict_over,
            evict_overuse: options.evict_overuse,
            settled_at: options.settled_at,
            settled: false,
        }
    }

    /// Takes an event that happened at `now`; adds the actions to `out`, in order.
    pub fn apply(&mut self, now: Time, event: Event, out: &mut Vec<Action>) {
        if !self.settled && self.settled_at <= now {
            self.settled = true;
        }
        let (changes, told) = (self.cards.changes(), out.len());
        match event {
            Event::Submitted { job, ask } => self.submit(now, job, ask, out),
            Event::Declared {
                job,
                ask,
                parts,
                promise,
            } => self.declare(job, Job::declared(ask, now, promise), parts, out),
            Event::Left(job) => self.leave(job, out),
            Event::LimitAsked { job, memory } => self.limit(job, memory, out),
            Event::PinnedLimitAsked { job, memory } => self.limit_pinned(job, memory, out),
            Event::ComputeAsked { job, compute } => self.limit_compute(job, compute, out),
            Event::Joined { job, pid } => self.join(now, job, pid, None, out),
            Event::Returned { job, pid, slot } => self.join(now, job, pid, Some(slot), out),
            Event::Exited(pid) => self.exit(pid, out),
            Event::Used(ledgers) => self.use_now(&ledgers),
            Event::Read {
                cards,
                slots,
                ledgers,
                may_return,
            } => {
                self.read(now, &cards, &slots, &may_return, out);
                self.compare(now, &cards, &slots, &ledgers, out);
            }
            Event::OutOfTurn(job) => self.out_of_turn(now, job, out),
            Event::Inventory(inventory) => self.cards.set_inventory(inventory),
            Event::Tick => {}
        }
        self.advance(now, out);
        // Each adds up all accounts anew: where no card changed and nobody is told, none did.
        let is_same = (self.cards.changes(), out.len()) == (changes, told);
        debug_assert!(is_same || self.is_conserved());
    }

    /// When [`Event::Tick`] is due though nothing happens.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        match self.settled {
            false => Some(self.settled_at),
            true => self.patience_ends(),
        }
    }

    /// Latest time of the next reading of the driver, besides the regular times: if a process
    /// has just begun, its memory beside its allocations shows first.
    #[must_use]
    pub fn read_at(&self) -> Option<Time> {
        self.read_schedule.next()
    }

    /// A process waits for a reading that has not begun.
    pub fn wants_reading(&mut self) {
        self.read_schedule.asked();
    }

    /// The driver is being asked, for any reason.
    pub fn reads_now(&mut self, now: Time) {
        self.read_schedule.begun(now);
    }

    /// True if there is no job.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The cards.
    #[must_use]
    pub fn inventory(&self) -> &Arc<Inventory> {
        self.cards.inventory()
    }

    /// A card's account; `card` is a position in [`Machine::inventory`].
    #[must_use]
    pub fn card(&self, card: usize) -> CardView {
        CardView {
            capacity: self.cards.capacity(card),
            granted: self.cards.granted(card),
            kept: self.cards.kept(card),
            open: self.cards.open(card),
            promised: self.cards.promised(card),
            context: self.reconciliation.context(card),
        }
    }

    /// Sets a context's memory on a card: as measured with a process that had nothing else.
    pub fn set_context(&mut self, card: usize, bytes: Bytes) {
        self.reconciliation.set_context(card, bytes);
    }

    /// A job that came back is charged already with this memory, for which no slot accounts.
    pub fn remember_overhead(&mut self, job: JobId, card: usize, bytes: Bytes) {
        self.reconciliation.remember_overhead(job, card, bytes);
        if let Some(held) = self.held_mut(job, card) {
            held.uses.remember_overhead(bytes);
        }
    }

    /// Size of the amount on a card.
    #[must_use]
    pub fn amount_on(&self, amount: Amount, card: usize) -> MiB {
        self.cards.now(amount, card)
    }

    /// One job.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<JobView<'_>> {
        let job = self.jobs.get(&id)?;
        Some(JobView {
            id,
            ask: &job.ask,
            parts: job.held.iter().map(|held| held.part).collect(),
            pids: job.pids.iter().copied().collect(),
            state: job.state(),
            since: job.since,
            waits: job.last_news.as_ref(),
            is_evicted: job.ends_at.is_some(),
        })
    }

    /// Every job, by number.
    pub fn jobs(&self) -> impl Iterator<Item = JobView<'_>> {
        self.jobs.keys().filter_map(|id| self.job(*id))
    }

    /// The job and the slot of a process.
    #[must_use]
    pub fn process(&self, pid: Pid) -> Option<(JobId, u32)> {
        self.processes.get(&pid).copied()
    }

    /// Processes that use cards without a slot, and their use of each card.
    pub fn strangers(&self) -> impl Iterator<Item = (Pid, &BTreeMap<usize, Bytes>)> {
        self.reconciliation.strangers()
    }

    /// A job's true use of a card, even if its page says less.
    #[must_use]
    pub fn used(&self, job: JobId, card: usize) -> Bytes {
        let held = self.jobs.get(&job).and_then(|job| job.on(card));
        held.map_or(Bytes::new(0), |held| held.uses.bytes())
    }

    /// The figures of a job's use of a card, if they contradict each other.
    #[must_use]
    pub fn mismatch(&self, job: JobId, card: usize) -> Option<Mismatch> {
        self.jobs.get(&job)?.on(card)?.uses.mismatch()
    }

    /// Charge of a job on a card beside its slots' records.
    #[must_use]
    pub fn overhead(&self, job: JobId, card: usize) -> Bytes {
        self.reconciliation.overhead(job, card)
    }

    /// True if every account is the sum of its entries; debug builds check it at each step.
    #[must_use]
    pub fn is_conserved(&self) -> bool {
        let charged = self.jobs.values().filter(|job| job.promise.is_none());
        let charged = charged.flat_map(|job| &job.held);
        let charged: MiB = charged.map(|held| held.charge).sum();
        let n_cards = self.cards.inventory().gpus().len();
        let charged = charged.plus(self.taken_by_pods());
        let granted: MiB = (0..n_cards).map(|card| self.cards.granted(card)).sum();
        let pids: usize = self.jobs.values().map(|job| job.pids.len()).sum();
        let slots: usize = self.jobs.values().map(|job| job.slots.len()).sum();
        self.cards.is_conserved()
            && charged == granted
            && pids == self.processes.len()
            && slots == pids
            && self.line.queue.iter().copied().collect::<BTreeSet<_>>() == self.waiting()
    }

    /// The jobs that have no card.
    fn waiting(&self) -> BTreeSet<JobId> {
        let waiting = self.jobs.iter().filter(|(_, job)| job.held.is_empty());
        waiting.map(|(id, _)| *id).collect()
    }

    fn submit(&mut self, now: Time, id: JobId, ask: JobAsk, out: &mut Vec<Action>) {
        let refusal = if self.jobs.contains_key(&id) {
            Some(JobRefusal::Known(id))
        } else if !self.local_jobs {
            Some(JobRefusal::Clustered)
        } else if let Err(reason) = self.cards.check(&ask) {
            Some(reason)
        } else if ask.may_wait {
            None
        } else if !self.settled {
            Some(JobRefusal::Settling)
        } else {
            match self.ahead_of(now, id, &ask) {
                0 => self.cards.find(&ask).err(),
                waiting => Some(JobRefusal::Behind { waiting }),
            }
        };
        if let Some(reason) = refusal {
            out.push(Action::Refuse { job: id, reason });
            return;
        }
        self.jobs.insert(id, Job::new(ask, now));
        // `advance` places it at once if nobody is before it and there is room.
        self.join_line(now, id);
    }

    fn declare(&mut self, id: JobId, job: Job, mut parts: Vec<Holding>, out: &mut Vec<Action>) {
        parts.sort_unstable_by_key(|part| part.card);
        parts.dedup_by_key(|part| part.card);
        if let Err(reason) = self.check_declared(id, &job, &parts) {
            out.push(Action::Refuse { job: id, reason });
            return;
        }
        let parts = parts
            .into_iter()
            .map(|part| part.with_compute(job.ask.compute));
        let parts = parts.collect();
        self.jobs.insert(id, job);
        self.give(id, parts, true, out);
    }

    fn check_declared(&self, id: JobId, job: &Job, parts: &[Holding]) -> Result<(), JobRefusal> {
        let ask = &job.ask;
        if self.jobs.contains_key(&id) {
            return Err(JobRefusal::Known(id));
        }
        if job.promise.is_none() && !self.local_jobs {
            return Err(JobRefusal::Clustered);
        }
        if parts.is_empty() || parts.iter().any(|part| part.limit.memory.is_zero()) {
            return Err(JobRefusal::Nothing);
        }
        let promise = ask.compute.request();
        if ask.class == Class::Opportunistic && promise > Milli::ZERO {
            return Err(JobRefusal::Opportunistic { asked: promise });
        }
        let total = self.cards.total();
        for part in parts {
            if part.card >= total.get() as usize {
                return Err(JobRefusal::NoSuchCard { total });
            }
            if job.promise.is_some() {
                continue;
            }
            // A sick card is no reason: the job is on it already. Nor is what strangers use:
            // its own processes may be among them until they are back.
            let free = if ask.memory == Amount::Whole && !self.cards.granted(part.card).is_zero() {
                MiB::ZERO
            } else {
                self.cards.free_of_jobs(part.card)
            };
            if part.limit.memory > free {
                return Err(JobRefusal::NoRoom {
                    asked: part.limit.memory,
                    gpus: ask.gpus,
                    fitting: Count::ZERO,
                    gpu: self.cards.inventory().gpus()[part.card].index,
                    free,
                    kept: MiB::ZERO,
                    sick: Count::ZERO,
                });
            }
            let place = (part.card, id);
            self.cards.check_promise(place, promise, ask.class)?;
        }
        Ok(())
    }

    /// Gives a job its cards. One that may be old can have had a higher limit before.
    fn give(&mut self, id: JobId, parts: Vec<Holding>, may_be_old: bool, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let whole = job.ask.memory == Amount::Whole;
        for &part in &parts {
            self.cards.set_whole(part.card, id, whole);
            job.held.push(HeldCard {
                part,
                promised: job.promise.is_some().then_some(part),
                uses: JobUsage::begin((!may_be_old).then_some(part.limit.memory)),
                charge: part.limit.memory,
            });
        }
        job.last_news = None;
        self.enter_pod(id);
        for part in &parts {
            self.charge(id, part.card);
        }
        out.push(Action::Place { job: id, parts });
    }

    fn leave(&mut self, id: JobId, out: &mut Vec<Action>) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.root_gone = true;
            self.leave_line(id);
            self.end_if_empty(id, out);
        }
    }

    fn end_if_empty(&mut self, id: JobId, out: &mut Vec<Action>) {
        if !self
            .jobs
            .get(&id)
            .is_some_and(|job| job.root_gone && job.pids.is_empty())
        {
            return;
        }
        if let Some(job) = self.jobs.remove(&id) {
            self.leave_account(id, &job);
            for held in job.held {
                self.cards.set_whole(held.part.card, id, false);
            }
            self.reconciliation.forget_job(id);
            out.push(Action::End(id));
        }
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
