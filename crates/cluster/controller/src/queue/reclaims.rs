//! Counts on a group's own object that it goes as a whole for another group. Pure.
//!
//! Its pods are made anew, and the object stays; so the count outlives them, and the leader. It is
//! written before the first pod is asked to go, with the time of the plan: a plan counts once, whoever
//! carries it out. A write that fails is not tried again, because the claimant does not wait for it. A
//! group without an object (a lone pod, a gang by annotations alone) has no count.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;
use sublet_api::gang_plan::GangPlan;
use sublet_api::group::{PodGroupFacts, QueuedGroup};
use sublet_api::keys;
use sublet_client::{Act, ObjectAddress, Write};
use sublet_model::Time;

use super::memory::Memory;
use super::steps::{Step, Then, job_address};
use super::watched_state::{GroupObject, WatchedState};

/// Puts the counts that are due for a plan in front of its evictions, which come in the next look.
pub(crate) fn count_first(
    steps: &mut Vec<Step>,
    (plan, made): (&GangPlan, Option<Time>),
    watched: &WatchedState,
    groups: &BTreeMap<&str, &QueuedGroup>,
    memory: &mut Memory,
) {
    let parts = plan.groups.iter();
    let victims = parts.flat_map(|part| &part.victims);
    let victims: BTreeSet<&str> = victims.map(|victim| victim.uid.as_str()).collect();
    let asked = steps.iter().filter_map(|step| match &step.then {
        Then::Evicted(uid) => victims.get(uid.as_str()).copied(),
        _ => None,
    });
    let asked: BTreeSet<&str> = asked.collect();
    let Some(made) = made.filter(|_| !asked.is_empty()) else {
        return;
    };
    let (mut counts, mut later) = (Vec::new(), BTreeSet::new());
    for queued in groups.values() {
        let there = there(queued, watched);
        let is_told = queued.group.past.reclaimed >= Some(made);
        if is_told || asked.is_disjoint(&there) || !there.is_subset(&victims) {
            continue;
        }
        let objects = objects(queued, watched);
        let known = memory.counted.entry(plan.name.to_string()).or_default();
        if !objects.is_empty() && known.insert(queued.group.id.clone()) {
            let reclaims = queued.group.past.reclaims.saturating_add(1);
            let counted = objects.into_iter();
            counts.extend(counted.map(|object| object.count(reclaims, made)));
            later.extend(there.into_iter().map(str::to_owned));
        }
    }
    let goes_on = |step: &Step| !matches!(&step.then, Then::Evicted(uid) if later.contains(uid));
    steps.retain(goes_on);
    steps.extend(counts);
}

/// The pods of a group that are on nodes and were not asked to go.
fn there<'a>(queued: &'a QueuedGroup, watched: &WatchedState) -> BTreeSet<&'a str> {
    let stays = |uid: &&str| {
        let pod = watched.pods.get(*uid);
        pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none())
    };
    let bound = queued.pods.iter().filter(|pod| pod.is_bound);
    bound.map(|pod| pod.uid.as_str()).filter(stays).collect()
}

/// An object that has the count of a group.
struct Counted {
    object: GroupObject,
    to: ObjectAddress,
    uid: String,
}

/// The objects of a group: its job, or its PodGroups.
fn objects(queued: &QueuedGroup, watched: &WatchedState) -> Vec<Counted> {
    let job = queued.job.as_ref().and_then(|job| watched.jobs.get(job));
    let job = job.map(|job| Counted {
        object: GroupObject::Job(job.job.clone()),
        to: job_address(job),
        uid: job.uid.clone(),
    });
    let all = watched.pod_groups.iter();
    let own = all.filter(|(_, group)| queued.gangs.contains(&group.facts.gang));
    let own = own.filter_map(|(at, group)| {
        Some(Counted {
            object: GroupObject::PodGroup(at.clone()),
            to: pod_group_address(&group.facts)?,
            uid: group.facts.uid.clone(),
        })
    });
    job.into_iter().chain(own).collect()
}

impl Counted {
    fn count(self, reclaims: u32, made: Time) -> Step {
        let ms = i64::try_from(made.ms()).unwrap_or(i64::MAX);
        let at = Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX);
        let annotations = json!({
            keys::RECLAIMS: reclaims.to_string(), keys::RECLAIMED_AT: at.to_string(),
        });
        Step {
            write: Write {
                to: self.to,
                act: Act::Merge(json!({
                    "metadata": { "uid": self.uid, "annotations": annotations },
                })),
            },
            then: Then::Counted(self.object, reclaims, made),
        }
    }
}

/// The address of a PodGroup, in the version in which it was read.
fn pod_group_address(facts: &PodGroupFacts) -> Option<ObjectAddress> {
    let (group, version) = facts.api_version.split_once('/')?;
    let kind = GroupVersionKind::gvk(group, version, "PodGroup");
    Some(ObjectAddress {
        kind: ApiResource::from_gvk_with_plural(&kind, "podgroups"),
        namespace: Some(facts.gang.namespace.clone()),
        name: facts.gang.name.clone(),
    })
}
