//! The cluster while jobs come and go: the places of running jobs, and the outcome of each job.
//!
//! It decides nothing: disciplines say which jobs start and go, and the engine says where.

use std::collections::{BTreeMap, BTreeSet};

use sublet_model::{Entry, Ledger, NodeIdx};
use sublet_plan::Engine;
use sublet_plan::stock::NodeRules;
use sublet_queue::Slot;

use super::event::{ReplayEvent, ReplayStep};
use super::figures::Figures;
use super::ground::{Beside, Ground, Place, ROLES, entry, members, uid};
use super::jobs::Jobs;

/// The cluster, and the jobs that run on it.
pub struct Floor<'a> {
    jobs: &'a Jobs,
    /// The cluster of all, or by tenant what each has for itself.
    grounds: Vec<Ground>,
    /// By number, since when a job runs.
    running: BTreeMap<usize, u64>,
    /// Seconds of a job's work that earlier runs have saved, of those that were evicted.
    saved: BTreeMap<usize, u64>,
    /// When a job that runs ends.
    ends: BTreeSet<(u64, usize)>,
    /// By tenant, thousandths of cards in use.
    used: Vec<u64>,
    now: u64,
    figures: Figures,
    watch: &'a mut dyn FnMut(ReplayEvent<'_>),
}

impl<'a> Floor<'a> {
    pub(super) fn new(
        jobs: &'a Jobs,
        grounds: Vec<Ground>,
        watch: &'a mut dyn FnMut(ReplayEvent<'_>),
    ) -> Floor<'a> {
        Floor {
            jobs,
            grounds,
            running: BTreeMap::new(),
            saved: BTreeMap::new(),
            ends: BTreeSet::new(),
            used: vec![0; jobs.tenants().len()],
            now: jobs.window().0,
            figures: Figures::of(jobs),
            watch,
        }
    }

    /// The input of the queue's engine: the engine with all that runs, and its nodes.
    pub(super) fn ground(&mut self) -> (&mut Engine, &[(NodeIdx, NodeRules)]) {
        let ground = &mut self.grounds[0];
        (&mut ground.engine, &ground.nodes)
    }

    /// The nodes of a job's tenant.
    fn ground_of(&mut self, job: usize) -> &mut Ground {
        let at = match self.grounds.len() {
            1 => 0,
            _ => self.jobs.all()[job].tenant,
        };
        &mut self.grounds[at]
    }

    /// Thousandths of cards that jobs of a tenant use.
    pub(super) fn used(&self, tenant: usize) -> u64 {
        self.used[tenant]
    }

    /// Time goes on to this moment.
    pub(super) fn set_time(&mut self, now: u64) {
        self.now = now;
    }

    /// When the next job ends.
    pub(super) fn next_end(&self) -> Option<u64> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// The running jobs, and when each ends, the first first.
    pub(super) fn ends(&self) -> impl Iterator<Item = (u64, usize)> {
        self.ends.iter().copied()
    }

    /// The running jobs that end until then.
    pub(super) fn ending_until(&self, then: u64) -> impl Iterator<Item = usize> {
        self.ends.range(..=(then, usize::MAX)).map(|(_, job)| *job)
    }

    /// The nodes on which a job would be if these had ended, and it had room.
    pub(super) fn nodes_without(
        &mut self,
        job: usize,
        gone: &[usize],
    ) -> Option<BTreeSet<NodeIdx>> {
        let (wanted, now, jobs) = (self.jobs.numbered(job), self.now, self.jobs);
        let gone = gone.iter().map(|&number| jobs.numbered(number));
        let place = self.ground_of(job).find_without(wanted, now, gone);
        place.map(|place| place.nodes)
    }

    /// A job comes. Policies that learn see its members, as in a cluster.
    pub(super) fn come(&mut self, job: usize) {
        for members in &self.jobs.kind(job).members {
            for _ in 0..members.count {
                self.ground_of(job).engine.learn(&members.claim);
            }
        }
        self.tell(job, self.jobs.all()[job].at, ReplayStep::Comes);
    }

    /// Starts a job if there is room for it now.
    pub(super) fn start_if_room(&mut self, job: usize) -> bool {
        let (wanted, now) = (self.jobs.numbered(job), self.now);
        let found = self.ground_of(job).find(wanted, now);
        self.start_at(job, found.as_ref())
    }

    /// The same on other nodes than these.
    pub(super) fn start_if_room_off(&mut self, job: usize, kept: &BTreeSet<NodeIdx>) -> bool {
        let (wanted, now) = (self.jobs.numbered(job), self.now);
        let found = self.ground_of(job).find_off(wanted, now, kept);
        self.start_at(job, found.as_ref())
    }

    /// Starts a job if there is room for it now, and for the next one when these have ended.
    pub(super) fn start_if_room_beside(
        &mut self,
        job: usize,
        next: usize,
        gone: &[usize],
    ) -> Beside {
        let (now, jobs) = (self.now, self.jobs);
        let gone = gone.iter().map(|&number| jobs.numbered(number));
        let (wanted, next) = (jobs.numbered(job), jobs.numbered(next));
        let found = self.ground_of(job).find_beside(wanted, now, next, gone);
        if let Beside::Room(slots, _) = &found {
            self.start(job, slots);
        }
        found
    }

    fn start_at(&mut self, job: usize, place: Option<&Place>) -> bool {
        if let Some(place) = place {
            self.start(job, &place.slots);
        }
        place.is_some()
    }

    /// Starts a job at these places, which the engine has proven.
    pub(super) fn start(&mut self, job: usize, slots: &[Slot]) {
        let kind = self.jobs.kind(job);
        let ground = self.ground_of(job);
        for slot in slots {
            let role = ROLES.iter().position(|role| *role == &*slot.role);
            let Some(members) = role.and_then(|at| kind.members.get(at)) else {
                continue;
            };
            let uid = uid(job, &slot.role, slot.index);
            ground.engine.observe(Entry {
                allocation: Some(slot.allocation.clone()),
                ..entry(uid, &members.claim, slot.node.clone())
            });
        }
        let tenant = self.jobs.all()[job].tenant;
        self.running.insert(job, self.now);
        self.ends.insert((self.end(job, self.now), job));
        self.used[tenant] += kind.milli();
        self.figures.started(self.jobs, job, self.now);
        self.tell(job, self.now, ReplayStep::Starts(slots));
    }

    /// A job has to go. It loses its work since its last checkpoint.
    pub(super) fn evict(&mut self, job: usize) {
        if let Some(since) = self.leave(job) {
            let every = self.jobs.saves_every();
            let keeps = every.map_or(0, |every| (self.now - since) / every * every);
            *self.saved.entry(job).or_default() += keeps;
            self.figures.saved(self.jobs, job, (since, since + keeps));
            self.figures.lost(self.jobs, job, (since + keeps, self.now));
            self.tell(job, self.now, ReplayStep::Evicted);
        }
    }

    /// One of the jobs that have ended by now.
    pub(super) fn end_one(&mut self, now: u64) -> Option<usize> {
        let &(at, job) = self.ends.first().filter(|(at, _)| *at <= now)?;
        let since = self.leave(job)?;
        for members in &self.jobs.kind(job).members {
            for _ in 0..members.count {
                self.ground_of(job).engine.unlearn(&members.claim);
            }
        }
        let saved = self.saved.remove(&job).unwrap_or(0);
        self.figures.ended(self.jobs, job, (since, at), saved);
        self.tell(job, at, ReplayStep::Ends);
        Some(job)
    }

    /// End of a run that begins then.
    fn end(&self, job: usize, since: u64) -> u64 {
        let saved = self.saved.get(&job).copied().unwrap_or(0);
        let left = self.jobs.all()[job].lasts.saturating_sub(saved);
        since.saturating_add(left)
    }

    /// Takes a job away; tells since when it ran.
    fn leave(&mut self, job: usize) -> Option<u64> {
        let since = self.running.remove(&job)?;
        let tenant = self.jobs.all()[job].tenant;
        self.ends.remove(&(self.end(job, since), job));
        let gone = self.jobs.numbered(job);
        self.used[tenant] -= gone.kind.milli();
        for uid in members(gone) {
            self.ground_of(job).engine.forget(&uid);
        }
        Some(since)
    }

    fn tell(&mut self, job: usize, at: u64, step: ReplayStep<'_>) {
        let row = self.jobs.all()[job].row;
        (self.watch)(ReplayEvent { at, row, step });
    }

    /// The figures, when nothing comes any more, and whether the cluster is empty and its accounts are
    /// right.
    pub(super) fn outcome(self) -> (Figures, bool) {
        let mut ledgers = self.grounds.iter().map(|ground| ground.engine.ledger());
        let is_empty = |ledger: &Ledger| ledger.entries().next().is_none() && ledger.is_conserved();
        let ends_empty = ledgers.all(is_empty);
        (self.figures, ends_empty)
    }
}
