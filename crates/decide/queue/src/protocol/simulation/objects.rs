//! Objects of the simulation's API server, and a leader's view of them.

use sublet_model::{Claim, Class, Host};
use sublet_plan::stock::PodRules;

use super::super::*;
use crate::group::{Gang, GangRole, GroupPast, MatchPolicy, Member, MemberShape};
use crate::tree::Amounts;

#[derive(Debug, Clone)]
pub(super) struct Owner {
    pub(super) size: u32,
    pub(super) suspended: bool,
    pub(super) satisfied: bool,
    pub(super) requeued_by: Option<Arc<str>>,
}

/// Objects of the API server.
#[derive(Debug, Clone, Default)]
pub(super) struct Objects {
    pub(super) plans: BTreeMap<Arc<str>, (u64, QueuePlan<()>)>,
    pub(super) pods: BTreeMap<PodUid, (GroupId, PodSnapshot)>,
    pub(super) groups: BTreeMap<GroupId, Owner>,
    pub(super) lost: BTreeSet<NodeName>,
}

impl Objects {
    pub(super) fn taken(&self) -> BTreeSet<NodeName> {
        let slots = self.plans.values().flat_map(|(_, plan)| &plan.groups);
        let slots = slots
            .flat_map(|part| &part.slots)
            .map(|slot| slot.node.clone());
        let pods = self.pods.values().filter(|(_, pod)| !pod.ended);
        let bound = pods.filter_map(|(_, pod)| pod.bound.clone());
        slots.chain(bound).collect()
    }
}

pub(super) fn node(at: u64) -> NodeName {
    NodeName::new(&format!("n{at}")).unwrap()
}

/// The group as a leader sees it: its bound pods are its members.
pub(super) fn group_of(id: &GroupId, owner: &Owner, sees: &Objects) -> Group {
    let pods = sees.pods.iter();
    let own = pods.filter(|(_, (group, pod))| group == id && !pod.ended);
    let bound = own.filter_map(|(uid, (_, pod))| {
        Some(Member {
            index: pod.slot.as_ref().map_or(0, |slot| slot.index),
            uid: uid.clone(),
            node: pod.bound.clone()?,
            standing: Standing::Bound,
        })
    });
    let shape = MemberShape {
        claim: Arc::new(Claim::host_only(Host::ZERO)),
        rules: PodRules::default(),
        unmodelled: Vec::new(),
        amounts: Amounts::new(),
    };
    let role = GangRole {
        name: Arc::from("w"),
        min: 0,
        replicas: owner.size,
        pod: Arc::new(shape),
        members: bound.collect(),
    };
    Group {
        id: id.clone(),
        quota: Arc::from("q"),
        priority: 0,
        class: Class::Guaranteed,
        preemptible: true,
        since: Time::from_ms(0),
        not_before: None,
        gangs: vec![Gang {
            name: Arc::from("g"),
            min: owner.size,
            roles: vec![role],
        }],
        mode: GangMode::Strict,
        matching: MatchPolicy::OnceSatisfied,
        satisfied: owner.satisfied,
        ends: None,
        started: None,
        runs_ms: None,
        past: GroupPast::default(),
    }
}

/// The group with its pods that wait, as a leader sees them.
pub(super) fn snapshot_of<'a>(
    id: &GroupId,
    group: &'a Group,
    sees: &Objects,
    nobody: &'a BTreeSet<Arc<str>>,
) -> GroupSnapshot<'a> {
    let owner = &sees.groups[id];
    let own = sees.pods.iter().filter(|(_, (of, _))| of == id);
    let waiting = own.filter(|(_, (_, pod))| pod.bound.is_none());
    GroupSnapshot {
        group,
        suspended: owner.suspended,
        waiting: waiting
            .map(|(uid, _)| (Arc::from("w"), uid.clone()))
            .collect(),
        requeued_by: owner.requeued_by.clone(),
        late: nobody,
        is_sized: true,
    }
}
