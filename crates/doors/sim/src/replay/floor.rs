//! The cluster while jobs come and go: the places of running jobs, and the outcome of each job.
//!
//! It decides nothing: disciplines say which jobs start and go, and the engine says where.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_model::{Claim, Entry, NodeIdx, NodeName, PodKey, PodUid, Standing, Time};
use sublet_plan::stock::NodeRules;
use sublet_plan::{Candidacy, Engine, PodShape, Policy, ShapeCounts};
use sublet_queue::Slot;

use super::figures::{Figures, ReplayOutcome};
use super::jobs::{Job, Jobs, Kind};
use super::{ReplayEvent, ReplayStep};
use crate::trace::{NodeList, PodList};
use crate::world;

/// The names of the members of a job: those as large as a node, and the rest.
pub(super) const ROLES: [&str; 2] = ["whole", "rest"];

/// Nodes in the engine.
pub(super) struct Ground {
    engine: Engine,
    nodes: Vec<(NodeIdx, NodeRules)>,
    /// The same nodes.
    open: Vec<NodeIdx>,
}

impl Ground {
    pub(super) fn of(nodes: &NodeList, pods: &PodList, policy: &Policy) -> Ground {
        let mut demand = ShapeCounts::default();
        for row in &pods.rows {
            demand.add(PodShape::of(&row.claim));
        }
        let (engine, open) = world::entered(nodes, None, &demand, policy);
        let rules = nodes.rows.iter().map(|row| NodeRules {
            name: row.name.as_str().into(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            unschedulable: false,
        });
        Ground {
            nodes: open.iter().copied().zip(rules).collect(),
            engine,
            open,
        }
    }

    /// Places for all members of a job of that number and kind, or for none. Nothing is taken.
    pub(super) fn find(&mut self, kind: &Kind, job: usize, now: u64) -> Option<Vec<Slot>> {
        let (engine, open) = (&mut self.engine, &self.open);
        let anywhere = engine.ledger().book(*open.first()?).name().clone();
        // A trial that is dropped is undone.
        let mut trial = engine.trial(moment(now));
        let mut slots = Vec::new();
        for (members, role) in kind.members.iter().zip(ROLES) {
            for index in 0..members.count {
                let uid = uid(job, role, index);
                // The trial says on which node.
                let entry = entry(uid.clone(), &members.claim, anywhere.clone());
                trial.place(&[Candidacy { entry, nodes: open }]).ok()?;
                let placed = trial.engine().ledger().entry(&uid)?;
                slots.push(Slot {
                    role: role.into(),
                    index,
                    node: placed.node.clone(),
                    allocation: placed.allocation.clone()?,
                    pod: None,
                });
            }
        }
        Some(slots)
    }
}

/// The cluster, and the jobs that run on it.
pub struct Floor<'a> {
    jobs: &'a Jobs,
    ground: Ground,
    /// By number, since when a job runs.
    running: BTreeMap<usize, u64>,
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
        ground: Ground,
        watch: &'a mut dyn FnMut(ReplayEvent<'_>),
    ) -> Floor<'a> {
        Floor {
            jobs,
            ground,
            running: BTreeMap::new(),
            ends: BTreeSet::new(),
            used: vec![0; jobs.tenants().len()],
            now: jobs.window().0,
            figures: Figures::of(jobs),
            watch,
        }
    }

    /// The input of the queue's engine: the engine with all that runs, and its nodes.
    pub(super) fn ground(&mut self) -> (&mut Engine, &[(NodeIdx, NodeRules)]) {
        (&mut self.ground.engine, &self.ground.nodes)
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

    /// A job comes. Policies that learn see its members, as in a cluster.
    pub(super) fn come(&mut self, job: usize) {
        for members in &self.jobs.kind(job).members {
            for _ in 0..members.count {
                self.ground.engine.learn(&members.claim);
            }
        }
        self.tell(job, self.jobs.all()[job].at, ReplayStep::Comes);
    }

    /// Starts a job if there is room for it now.
    pub(super) fn start_if_room(&mut self, job: usize) -> bool {
        let found = self.ground.find(self.jobs.kind(job), job, self.now);
        if let Some(slots) = &found {
            self.start(job, slots);
        }
        found.is_some()
    }

    /// Starts a job at these places, which the engine has proven.
    pub(super) fn start(&mut self, job: usize, slots: &[Slot]) {
        let kind = self.jobs.kind(job);
        for slot in slots {
            let role = ROLES.iter().position(|role| *role == &*slot.role);
            let Some(members) = role.and_then(|at| kind.members.get(at)) else {
                continue;
            };
            let uid = uid(job, &slot.role, slot.index);
            self.ground.engine.observe(Entry {
                allocation: Some(slot.allocation.clone()),
                ..entry(uid, &members.claim, slot.node.clone())
            });
        }
        let Job { tenant, lasts, .. } = self.jobs.all()[job];
        self.running.insert(job, self.now);
        self.ends.insert((self.now.saturating_add(lasts), job));
        self.used[tenant] += kind.milli();
        self.tell(job, self.now, ReplayStep::Starts(slots));
    }

    /// A job has to go. It loses its work.
    pub(super) fn evict(&mut self, job: usize) {
        if let Some(since) = self.leave(job) {
            self.figures.lost(self.jobs, job, (since, self.now));
            self.tell(job, self.now, ReplayStep::Evicted);
        }
    }

    /// One of the jobs that have ended by now.
    pub(super) fn end_one(&mut self, now: u64) -> Option<usize> {
        let &(at, job) = self.ends.first().filter(|(at, _)| *at <= now)?;
        let since = self.leave(job)?;
        for members in &self.jobs.kind(job).members {
            for _ in 0..members.count {
                self.ground.engine.unlearn(&members.claim);
            }
        }
        self.figures.ended(self.jobs, job, (since, at));
        self.tell(job, at, ReplayStep::Ends);
        Some(job)
    }

    /// Takes a job away; tells since when it ran.
    fn leave(&mut self, job: usize) -> Option<u64> {
        let since = self.running.remove(&job)?;
        let Job { tenant, lasts, .. } = self.jobs.all()[job];
        self.ends.remove(&(since.saturating_add(lasts), job));
        let kind = self.jobs.kind(job);
        self.used[tenant] -= kind.milli();
        for (members, role) in kind.members.iter().zip(ROLES) {
            for index in 0..members.count {
                self.ground.engine.forget(&uid(job, role, index));
            }
        }
        Some(since)
    }

    fn tell(&mut self, job: usize, at: u64, step: ReplayStep<'_>) {
        let row = self.jobs.all()[job].row;
        (self.watch)(ReplayEvent { at, row, step });
    }

    /// The outcome, when nothing comes any more. The gangs' reasons for waiting come from their
    /// line.
    pub(super) fn outcome(self, gangs_waited_for: BTreeMap<&'static str, u64>) -> ReplayOutcome {
        let ledger = self.ground.engine.ledger();
        let ends_empty = ledger.entries().next().is_none() && ledger.is_conserved();
        self.figures
            .outcome(self.jobs, gangs_waited_for, ends_empty)
    }
}

/// Seconds of the trace, for the engine.
pub(super) fn moment(seconds: u64) -> Time {
    Time::from_ms(seconds.saturating_mul(1000))
}

/// A member of a job.
pub(super) fn uid(job: usize, role: &str, index: u32) -> PodUid {
    PodUid::new(&format!("{job}.{role}.{index}")).expect("numbers and a word")
}

fn entry(uid: PodUid, claim: &Arc<Claim>, node: NodeName) -> Entry {
    Entry {
        pod: PodKey::new("default", "job").expect("a fixed name that is right"),
        uid,
        node,
        claim: Arc::clone(claim),
        allocation: None,
        standing: Standing::Bound,
        // Members start one after another; none has to wait for one that looks like it.
        assigned: true,
        priority: 0,
    }
}
