//! Cards with kernels on them, and jobs that obey their gates: the test bench of the turns.
//!
//! Each process of a job launches kernels on all its cards, as many ahead as it likes and its bound
//! of queued work allows, and pauses after so many. A card runs the kernels of all processes that
//! have any there, each at its part of the speed, as drivers slice the time of a card among
//! processes; or really in slices ([`World::slice`]). The world counts the time that each job really
//! had, and how long each burst took, and does not ask the turns.

mod tenant;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub(super) use self::tenant::{Faults, Work};
use self::tenant::{Process, Tenant};
use super::*;

/// Length of a step of the world.
pub(super) const STEP: Duration = Duration::from_micros(500);

/// Time without a sign of the arbiter after which gates open by themselves.
const SILENCE: Duration = Duration::from_secs(2);

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A process in the world.
type Place = (JobId, usize);

/// The cards, the jobs, and the turns that they get.
#[derive(Debug)]
pub(super) struct World {
    pub(super) turns: Turns,
    pub(super) now: Duration,
    pub(super) tenants: BTreeMap<JobId, Tenant>,
    /// Until then the arbiter does not look at the clock.
    pub(super) asleep_until: Duration,
    /// From then until then the arbiter hears nothing either.
    stopped: (Duration, Duration),
    /// Longest slice of a process; nothing if all run at once, each at its part of the speed.
    pub(super) slice: Duration,
    /// Those that have a card's next slices, and the rest of each.
    lines: BTreeMap<usize, VecDeque<(Place, Duration)>>,
    /// The arbiter hears and decides once in this time; at once if it is nothing.
    pub(super) round: Duration,
    unheard: Vec<TurnEvent>,
    hears_at: Duration,
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
            stopped: (Duration::ZERO, Duration::ZERO),
            slice: Duration::ZERO,
            lines: BTreeMap::new(),
            round: Duration::ZERO,
            unheard: Vec::new(),
            hears_at: Duration::ZERO,
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
            queue: Duration::ZERO,
            processes: vec![Process::begun(self.now)],
            random: (2 * id + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15),
            has_said: None,
            quiet_since: None,
            answered: None,
            n_done: 0,
            had: BTreeMap::new(),
            bursts: Vec::new(),
            last_ran: self.now,
            longest_wait: Duration::ZERO,
        };
        self.tenants.insert(job, tenant);
        self.tell(TurnEvent::Placed {
            job,
            class,
            shares,
            slice: None,
        });
    }

    /// A job works in so many processes from now on.
    pub(super) fn set_processes(&mut self, job: JobId, n_processes: u32) {
        if let Some(tenant) = self.tenants.get_mut(&job) {
            let process = tenant.processes[0].clone();
            tenant.processes.resize(n_processes as usize, process);
            self.tell(TurnEvent::AtWork { job, n_processes });
        }
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

    /// The arbiter stops for a while. After some time its gates hold nobody.
    pub(super) fn stop(&mut self, time: Duration) {
        self.stopped = (self.now, self.now + time);
        self.asleep_until = self.now + time;
    }

    fn is_stopped(&self) -> bool {
        self.now < self.stopped.1
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
        for SetGate { job, gate, queue } in gates {
            if let Some(tenant) = self.tenants.get_mut(&job) {
                tenant.queue = queue;
                if tenant.gate == gate {
                    continue;
                }
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
        // Twice, so that a gate that opens is used at once.
        for id in ids.iter().chain(&ids) {
            let said = self.act(*id);
            if self.is_stopped() {
                self.unsay(*id);
                continue;
            }
            self.unheard.extend(said);
            if self.hears_at <= self.now {
                for event in std::mem::take(&mut self.unheard) {
                    self.tell(event);
                }
            }
        }
        let is_due = self.wakes_at.is_some_and(|at| at <= self.now);
        if is_due && self.asleep_until <= self.now && self.hears_at <= self.now {
            self.tell(TurnEvent::Tick);
        }
        if self.hears_at <= self.now {
            self.hears_at = self.now + self.round;
        }
    }

    /// Nobody hears a job: it says all again later.
    fn unsay(&mut self, id: JobId) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            (tenant.has_said, tenant.answered) = (None, None);
        }
    }

    fn run_kernels(&mut self) {
        let now = self.now;
        let mut parts: BTreeMap<Place, BTreeMap<usize, Duration>> = BTreeMap::new();
        let shares = self.tenants.values().flat_map(|tenant| &tenant.shares);
        let cards: BTreeSet<usize> = shares.map(|share| share.card).collect();
        for card in cards {
            for (place, part) in self.parts_of_step(card) {
                *parts.entry(place).or_default().entry(card).or_default() += part;
            }
        }
        for (id, tenant) in &mut self.tenants {
            let had_work = tenant.is_running();
            for at in 0..tenant.processes.len() {
                tenant.run(at, parts.remove(&(*id, at)).unwrap_or_default());
            }
            if had_work || !tenant.has_work(now) {
                tenant.last_ran = now;
            }
            tenant.longest_wait = tenant.longest_wait.max(now - tenant.last_ran);
        }
    }

    /// Each process's part of a step on a card.
    fn parts_of_step(&mut self, card: usize) -> Vec<(Place, Duration)> {
        let mut pending: BTreeMap<Place, Duration> = BTreeMap::new();
        for (id, tenant) in &self.tenants {
            for (at, process) in tenant.processes.iter().enumerate() {
                let time = process.pending(card, tenant.work.kernel);
                pending.extend((!time.is_zero()).then_some(((*id, at), time)));
            }
        }
        if self.slice.is_zero() {
            let n_on = pending.len() as u32;
            return pending.into_keys().map(|on| (on, STEP / n_on)).collect();
        }
        let line = self.lines.entry(card).or_default();
        line.retain(|(place, _)| pending.contains_key(place));
        for (place, time) in &pending {
            if line.iter().all(|(other, _)| other != place) {
                line.push_back((*place, self.slice.min(*time)));
            }
        }
        let (mut left, mut parts) = (STEP, Vec::new());
        while !left.is_zero()
            && let Some((place, slice)) = line.pop_front()
        {
            let part = slice.min(left);
            parts.push((place, part));
            left -= part;
            let pending = pending.entry(place).or_default();
            *pending = pending.saturating_sub(part);
            if part < slice && !pending.is_zero() {
                line.push_front((place, slice - part));
            } else if !pending.is_zero() {
                line.push_back((place, self.slice.min(*pending)));
            }
        }
        parts
    }

    /// Lets a job act, and returns its reports of this moment.
    fn act(&mut self, id: JobId) -> Vec<TurnEvent> {
        let now = self.now;
        let is_silent = self.is_stopped() && self.stopped.0 + SILENCE <= now;
        let Some(tenant) = self.tenants.get_mut(&id) else {
            return Vec::new();
        };
        tenant.end_bursts(now);
        let is_open = is_silent || !matches!(tenant.gate, LaunchGate::Closed(_));
        if is_open {
            tenant.launch(now);
        }
        let may_launch = tenant.may_launch(now);
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
            && (!tenant.is_running() || tenant.faults.lies)
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

/// A share of a card, in thousandths.
pub(super) fn share(card: usize, request: u16, limit: u16) -> TimeShare {
    let milli = |value: u16| Milli::new(value.min(1000)).expect("at most a whole");
    TimeShare {
        card,
        request: milli(request.min(limit)),
        limit: milli(limit),
    }
}

/// Always at work, with kernels of this number of half milliseconds.
pub(super) fn busy(kernel: u64) -> Work {
    Work {
        kernel: STEP * kernel as u32,
        burst: 4,
        pause: Duration::ZERO,
        ..Work::default()
    }
}

pub(super) fn run(world: &mut World, time: Duration) {
    let end = world.now + time;
    while world.now < end {
        world.step();
    }
}

/// Time of a card that each job had.
pub(super) fn had_over(
    world: &mut World,
    card: usize,
    time: Duration,
) -> BTreeMap<JobId, Duration> {
    let had = |tenant: &Tenant| tenant.had.get(&card).copied().unwrap_or_default();
    let before: BTreeMap<JobId, Duration> = {
        let tenants = world.tenants.iter();
        tenants.map(|(id, tenant)| (*id, had(tenant))).collect()
    };
    run(world, time);
    let after = world.tenants.iter();
    let after = after.map(|(id, tenant)| (*id, had(tenant) - before[id]));
    after.collect()
}

/// The same, in thousandths of the time.
pub(super) fn shares_over(world: &mut World, card: usize, time: Duration) -> BTreeMap<JobId, i64> {
    let had = had_over(world, card, time).into_iter();
    let share = |used: Duration| (used.as_nanos() * 1000 / time.as_nanos()) as i64;
    had.map(|(id, used)| (id, share(used))).collect()
}
