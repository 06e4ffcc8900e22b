//! Cards with kernels on them, and jobs that obey their gates: the test bench of the turns.
//!
//! A job is one thread that launches a kernel on all its cards, then the next when that is done,
//! and pauses after so many. A card runs the kernels of all jobs that have any there, each at
//! its part of the speed, as drivers slice the time of a card. The world counts the time that
//! each job really had, and does not ask the turns for it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;

/// Length of a step of the world.
pub(super) const STEP: Duration = Duration::from_micros(500);

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A job's work pattern.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    /// Time of a kernel with the card for itself.
    pub(super) kernel: Duration,
    /// Kernels between two pauses.
    pub(super) burst: u32,
    /// Length of its pause; nothing if it always has work.
    pub(super) pause: Duration,
}

/// Ways in which a job's answers go wrong.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    /// Delay until it says that it is drained.
    pub(super) late: Duration,
    /// It says so twice.
    pub(super) twice: bool,
    /// It says that it never works, and that it is drained at once.
    pub(super) lies: bool,
}

#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) class: Class,
    pub(super) shares: Vec<TimeShare>,
    pub(super) work: Work,
    pub(super) faults: Faults,
    gate: LaunchGate,
    /// Rest of the running kernel, by card.
    running: BTreeMap<usize, Duration>,
    launched: u32,
    resumes_at: Duration,
    has_said: Option<bool>,
    quiet_since: Option<Duration>,
    answered: Option<u32>,
    /// Number of ended kernels.
    pub(super) n_done: u64,
    /// Time of each card that it really had.
    pub(super) had: BTreeMap<usize, Duration>,
}

impl Tenant {
    /// True if it runs, or would.
    pub(super) fn has_work(&self, now: Duration) -> bool {
        !self.running.is_empty() || self.resumes_at <= now
    }

    pub(super) fn is_on(&self, card: usize) -> bool {
        self.running.contains_key(&card)
    }
}

/// The cards, the jobs, and the turns that they get.
#[derive(Debug)]
pub(super) struct World {
    pub(super) turns: Turns,
    pub(super) now: Duration,
    pub(super) tenants: BTreeMap<JobId, Tenant>,
    /// Until then the arbiter does not look at the clock.
    pub(super) asleep_until: Duration,
    wakes_at: Option<Duration>,
}

impl World {
    pub(super) fn new(overlap: Overlap, n_cards: usize) -> World {
        let mut turns = Turns::new(TurnRules::default());
        for card in 0..n_cards {
            turns.set_overlap(card, overlap);
        }
        World {
            turns,
            now: Duration::ZERO,
            tenants: BTreeMap::new(),
            asleep_until: Duration::ZERO,
            wakes_at: None,
        }
    }

    pub(super) fn arrive(&mut self, id: u64, class: Class, shares: Vec<TimeShare>, work: Work) {
        let job = JobId(id);
        let tenant = Tenant {
            class,
            shares: shares.clone(),
            work,
            faults: Faults::default(),
            gate: LaunchGate::Closed(0),
            running: BTreeMap::new(),
            launched: 0,
            resumes_at: self.now,
            has_said: None,
            quiet_since: None,
            answered: None,
            n_done: 0,
            had: BTreeMap::new(),
        };
        self.tenants.insert(job, tenant);
        self.tell(TurnEvent::Placed { job, class, shares });
    }

    pub(super) fn leave(&mut self, job: JobId) {
        if self.tenants.remove(&job).is_some() {
            self.tell(TurnEvent::Left(job));
        }
    }

    /// Looks how the guaranteed jobs get on: each kernel is a unit of their work.
    pub(super) fn coordinate(&mut self) {
        let tenants = self.tenants.iter();
        let done = tenants.map(|(id, tenant)| {
            let units = tenant.n_done;
            (
                *id,
                WorkDone {
                    units,
                    ..WorkDone::default()
                },
            )
        });
        let done = done.collect();
        let mut out = Vec::new();
        self.turns.coordinate(self.now, &done, &mut out);
        self.set_gates(out);
    }

    /// By the driver's figures a job was at work on the first card for longer than it said.
    pub(super) fn overused(&mut self, job: JobId, by: Duration) {
        self.tell(TurnEvent::Overused { job, card: 0, by });
    }

    fn tell(&mut self, event: TurnEvent) {
        let mut out = Vec::new();
        self.turns.apply(self.now, event, &mut out);
        self.set_gates(out);
    }

    fn set_gates(&mut self, gates: Vec<SetGate>) {
        for SetGate { job, gate } in gates {
            if let Some(tenant) = self.tenants.get_mut(&job) {
                tenant.gate = gate;
                tenant.has_said = None;
                tenant.quiet_since = None;
            }
        }
        self.wakes_at = self.turns.wake_at();
    }

    /// One step of time.
    pub(super) fn step(&mut self) {
        self.run_kernels();
        self.now += STEP;
        let ids: Vec<JobId> = self.tenants.keys().copied().collect();
        for id in ids {
            for event in self.act(id) {
                self.tell(event);
            }
        }
        let is_due = self.wakes_at.is_some_and(|at| at <= self.now);
        if is_due && self.asleep_until <= self.now {
            self.tell(TurnEvent::Tick);
        }
    }

    fn run_kernels(&mut self) {
        let mut n_on: BTreeMap<usize, u32> = BTreeMap::new();
        for card in self
            .tenants
            .values()
            .flat_map(|tenant| tenant.running.keys())
        {
            *n_on.entry(*card).or_default() += 1;
        }
        for tenant in self.tenants.values_mut() {
            for (card, left) in &mut tenant.running {
                let part = (STEP / n_on[card]).min(*left);
                *left -= part;
                *tenant.had.entry(*card).or_default() += part;
            }
            let had_work = !tenant.running.is_empty();
            tenant.running.retain(|_, left| !left.is_zero());
            tenant.n_done += u64::from(had_work && tenant.running.is_empty());
        }
    }

    /// Lets a job act, and returns its reports of this moment.
    fn act(&mut self, id: JobId) -> Vec<TurnEvent> {
        let now = self.now;
        let Some(tenant) = self.tenants.get_mut(&id) else {
            return Vec::new();
        };
        if tenant.running.is_empty() && tenant.launched >= tenant.work.burst {
            tenant.launched = 0;
            tenant.resumes_at = now + tenant.work.pause;
        }
        let may_launch = tenant.running.is_empty() && tenant.resumes_at <= now;
        let is_open = !matches!(tenant.gate, LaunchGate::Closed(_));
        if may_launch && is_open {
            let cards = tenant.shares.iter().map(|share| share.card);
            tenant.running = cards.map(|card| (card, tenant.work.kernel)).collect();
            tenant.launched += 1;
        }
        let has_work = tenant.has_work(now);
        let mut said = Vec::new();
        if tenant.gate != LaunchGate::Free {
            // While its gate closes it tells of threads that come to stand there.
            let stands = !is_open && may_launch;
            let tells = if is_open {
                has_work && !tenant.faults.lies
            } else {
                stands
            };
            if tenant.has_said != Some(tells) {
                let is_first = tenant.has_said.is_none();
                tenant.has_said = Some(tells);
                match (tells, is_first && !is_open) {
                    (true, _) => said.push(TurnEvent::Wants(id)),
                    (false, false) => said.push(TurnEvent::Rests(id)),
                    // It runs still.
                    (false, true) => {}
                }
            }
        }
        if let LaunchGate::Closed(turn) = tenant.gate
            && (tenant.running.is_empty() || tenant.faults.lies)
            && tenant.answered != Some(turn)
        {
            let since = *tenant.quiet_since.get_or_insert(now);
            if since + tenant.faults.late <= now {
                tenant.answered = Some(turn);
                let (job, wants) = (id, may_launch);
                let drained = TurnEvent::Drained { job, turn, wants };
                said.push(drained.clone());
                if tenant.faults.twice {
                    said.push(drained);
                }
            }
        }
        said
    }
}
