//! Nodes in the engine, and places on them for the members of a job. Nothing here knows time or
//! tenants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_model::{Claim, Entry, NodeIdx, NodeName, PodKey, PodUid, Standing, Time};
use sublet_plan::stock::NodeRules;
use sublet_plan::{Candidacy, Engine, PodShape, Policy, ShapeCounts, Trial};
use sublet_queue::Slot;

use super::jobs::Numbered;
use crate::trace::NodeList;
use crate::world;

/// The names of the members of a job: those as large as a node, and the rest.
pub(super) const ROLES: [&str; 2] = ["whole", "rest"];

/// Nodes in the engine.
pub(super) struct Ground {
    pub(super) engine: Engine,
    pub(super) nodes: Vec<(NodeIdx, NodeRules)>,
    /// The same nodes.
    open: Vec<NodeIdx>,
}

/// Places for all members of a job.
pub(super) struct Place {
    pub(super) slots: Vec<Slot>,
    /// The nodes of the slots.
    pub(super) nodes: BTreeSet<NodeIdx>,
}

/// The answer to a job that would start before the one that has to start next.
pub(super) enum Beside {
    /// It has no room now.
    NoRoom,
    /// It has room, and then the next one has none at its moment.
    InTheWay,
    /// Both have room: its own place, and the nodes of the next one.
    Room(Vec<Slot>, BTreeSet<NodeIdx>),
}

impl Ground {
    /// `claims`: those of all pods that will come, for policies that are told.
    pub(super) fn of<'p>(
        nodes: &NodeList,
        claims: impl Iterator<Item = &'p Arc<Claim>>,
        policy: &Policy,
    ) -> Ground {
        let mut demand = ShapeCounts::default();
        for claim in claims {
            demand.add(PodShape::of(claim));
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

    /// Places for all members of a job, or for none. Nothing is taken.
    pub(super) fn find(&mut self, job: Numbered<'_>, now: u64) -> Option<Place> {
        // A trial that is dropped is undone.
        let mut trial = self.engine.trial(moment(now));
        take(&mut trial, job, &self.open)
    }

    /// The same on other nodes than these.
    pub(super) fn find_off(
        &mut self,
        job: Numbered<'_>,
        now: u64,
        kept: &BTreeSet<NodeIdx>,
    ) -> Option<Place> {
        let others = self.open.iter().filter(|node| !kept.contains(node));
        let others: Vec<NodeIdx> = others.copied().collect();
        let mut trial = self.engine.trial(moment(now));
        take(&mut trial, job, &others)
    }

    /// The same as if these jobs had ended.
    pub(super) fn find_without<'a>(
        &mut self,
        job: Numbered<'_>,
        now: u64,
        gone: impl Iterator<Item = Numbered<'a>>,
    ) -> Option<Place> {
        let mut trial = self.engine.trial(moment(now));
        end(&mut trial, gone);
        take(&mut trial, job, &self.open)
    }

    /// Places for a job now, and for the next one as if these jobs had ended. Nothing is taken.
    pub(super) fn find_beside<'a>(
        &mut self,
        job: Numbered<'_>,
        now: u64,
        next: Numbered<'_>,
        gone: impl Iterator<Item = Numbered<'a>>,
    ) -> Beside {
        let mut trial = self.engine.trial(moment(now));
        let Some(place) = take(&mut trial, job, &self.open) else {
            return Beside::NoRoom;
        };
        end(&mut trial, gone);
        match take(&mut trial, next, &self.open) {
            Some(after) => Beside::Room(place.slots, after.nodes),
            None => Beside::InTheWay,
        }
    }
}

/// Takes a place for each member, or stops at the first that has none.
fn take(trial: &mut Trial<'_>, job: Numbered<'_>, open: &[NodeIdx]) -> Option<Place> {
    let ledger = trial.engine().ledger();
    let anywhere = ledger.book(*open.first()?).name().clone();
    let (mut slots, mut nodes) = (Vec::new(), BTreeSet::new());
    for (members, role) in job.kind.members.iter().zip(ROLES) {
        for index in 0..members.count {
            let uid = uid(job.number, role, index);
            // The trial says on which node.
            let entry = entry(uid.clone(), &members.claim, anywhere.clone());
            let placed = trial.place(&[Candidacy { entry, nodes: open }]);
            nodes.extend(placed.ok()?);
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
    Some(Place { slots, nodes })
}

fn end<'a>(trial: &mut Trial<'_>, gone: impl Iterator<Item = Numbered<'a>>) {
    for job in gone {
        for uid in members(job) {
            let _entry = trial.evict(&uid);
        }
    }
}

/// The members of a job.
pub(super) fn members(job: Numbered<'_>) -> impl Iterator<Item = PodUid> {
    let roles = job.kind.members.iter().zip(ROLES);
    roles.flat_map(move |(members, role)| {
        (0..members.count).map(move |index| uid(job.number, role, index))
    })
}

/// Seconds of the trace, for the engine.
pub(super) fn moment(seconds: u64) -> Time {
    Time::from_ms(seconds.saturating_mul(1000))
}

/// A member of a job.
pub(super) fn uid(job: usize, role: &str, index: u32) -> PodUid {
    PodUid::new(&format!("{job}.{role}.{index}")).expect("numbers and a word")
}

pub(super) fn entry(uid: PodUid, claim: &Arc<Claim>, node: NodeName) -> Entry {
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
