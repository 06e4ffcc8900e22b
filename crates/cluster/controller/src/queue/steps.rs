//! Turns the steps due for a plan into writes: the protocol decides (`sublet_queue::protocol`), and
//! here its words become requests to the API server. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod as PodKind;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use sublet_api::gang_plan::{
    GangPlan, PlannedRole, SlotMark, plan_to_object, slot_of, slot_to_json,
};
use sublet_api::group::{JobFacts, JobName, QueuedGroup};
use sublet_api::object::Pod;
use sublet_api::{is_over, keys, pod_uid};
use sublet_client::{Act, ObjectAddress, Write};
use sublet_model::{NodeName, PodUid, Time};
use sublet_queue::GroupId;
use sublet_queue::protocol::{
    GroupSnapshot, PlanSnapshot, PlanStep, PodSnapshot, next_steps, stranded,
};

use super::memory::Memory;
use super::watched_state::{GroupObject, WatchedState};
use sublet_api::has_scheduling_gate;

/// One write, and its effect once it is done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    pub(crate) write: Write,
    pub(crate) then: Then,
}

/// The effect of a write.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Then {
    /// Nothing that a decision looks at.
    Nothing,
    /// The plan of that name is there; it counts once a watch tells of it.
    Planned(String),
    /// The plan of that name is another than in this version.
    Rewritten(String, String),
    /// The pod of this UID may go to its slot.
    Released(String, SlotMark),
    /// The pod of this UID was asked to go.
    Evicted(String),
    /// The job is held back, or not.
    Switched(JobName, bool),
    /// The object says that its group went so often, and when it was last decided so.
    Counted(GroupObject, u32, Time),
}

/// All that the protocol looks at.
pub(crate) struct ProtocolSnapshot<'a> {
    watched: &'a WatchedState,
    groups: &'a BTreeMap<&'a str, &'a QueuedGroup>,
    pods: BTreeMap<PodUid, PodSnapshot>,
    snapshots: BTreeMap<GroupId, GroupSnapshot<'a>>,
    /// The plan of each group that goes before its others.
    first: BTreeMap<GroupId, Arc<str>>,
    epoch: u64,
    now: Time,
}

impl<'a> ProtocolSnapshot<'a> {
    pub(crate) fn new(
        watched: &'a WatchedState,
        groups: &'a BTreeMap<&'a str, &'a QueuedGroup>,
        memory: &Memory,
        (epoch, now): (u64, Time),
    ) -> ProtocolSnapshot<'a> {
        let plans = || {
            watched
                .plans
                .values()
                .filter_map(|watched| watched.plan.as_ref().ok())
        };
        let mut first: BTreeMap<GroupId, Arc<str>> = BTreeMap::new();
        let victims = plans()
            .flat_map(|plan| &plan.groups)
            .flat_map(|group| &group.victims);
        let victims: BTreeSet<&str> = victims.map(|victim| victim.uid.as_str()).collect();
        for plan in plans() {
            for group in &plan.groups {
                first
                    .entry(group.id.clone())
                    .or_insert_with(|| plan.name.clone());
            }
        }
        let pods = watched.pods.values().filter_map(|pod| {
            // A victim that has ended is gone.
            let counts = !is_over(pod) || !victims.contains(&*pod.metadata.uid);
            counts.then(|| Some((pod_uid(pod).ok()?, snapshot_of(pod))))?
        });
        let snapshots = groups.values().map(|queued| {
            let snapshot = GroupSnapshot {
                group: &queued.group,
                suspended: queued.is_suspended,
                waiting: waiting(watched, queued),
                requeued_by: memory.given_up(queued.group.id.as_str()),
                late: &queued.late,
                is_sized: queued.job.is_some(),
            };
            (queued.group.id.clone(), snapshot)
        });
        ProtocolSnapshot {
            watched,
            groups,
            pods: pods.collect(),
            snapshots: snapshots.collect(),
            first,
            epoch,
            now,
        }
    }

    /// Returns the steps due for a plan. `is_confirmed`: was this leadership confirmed after the
    /// plan came?
    pub(crate) fn steps(
        &self,
        (plan, uid): (&GangPlan, &str),
        is_confirmed: bool,
        memory: &mut Memory,
    ) -> Vec<Step> {
        let is_usable = |node: &NodeName| self.watched.nodes.contains_key(node.as_str());
        let other = |group: &GroupId| {
            let first = self.first.get(group);
            first.is_some_and(|first| *first != plan.name)
        };
        let mut slots = plan.groups.iter().flat_map(|group| &group.slots);
        let snapshot = PlanSnapshot {
            epoch: self.epoch,
            is_confirmed,
            now: self.now,
            pods: &self.pods,
            groups: &self.snapshots,
            is_usable: &is_usable,
            has_other_plan: &other,
            fits: slots.all(|slot| is_usable(&slot.node)),
        };
        let due = next_steps(plan, &snapshot).into_iter();
        due.filter_map(|step| self.written(step, plan, uid, memory))
            .collect()
    }

    /// Returns the steps due for groups in no plan, with too few members that have places.
    pub(crate) fn stranded(&self, memory: &Memory) -> Vec<Step> {
        let free = self
            .snapshots
            .values()
            .filter(|snapshot| !self.first.contains_key(&snapshot.group.id));
        let uids = free.flat_map(|snapshot| stranded(snapshot, &self.pods));
        uids.filter_map(|uid| self.eviction(&uid, memory)).collect()
    }

    fn written(
        &self,
        step: PlanStep<PlannedRole>,
        plan: &GangPlan,
        plan_uid: &str,
        memory: &mut Memory,
    ) -> Option<Step> {
        match step {
            PlanStep::Rewrite(wanted) => {
                let is_due = !only_removes(plan, &wanted) || memory.tidies(&plan.name, self.now);
                is_due.then(|| replacement(&wanted))
            }
            PlanStep::Delete => Some(Step {
                write: Write {
                    to: plan_address(&plan.name),
                    act: Act::Delete {
                        uid: plan_uid.to_owned(),
                        version: Some(plan.version.to_string()),
                    },
                },
                then: Then::Nothing,
            }),
            PlanStep::Evict(uid) => self.eviction(&uid, memory),
            PlanStep::Release(group) => switch(self.job(&group)?, false),
            PlanStep::Requeue(group) => {
                memory.give_up(group.as_str(), &plan.name, self.now);
                switch(self.job(&group)?, true)
            }
            PlanStep::Free(uid, mark) | PlanStep::Steer(uid, mark) => {
                Some(release(self.watched.pods.get(uid.as_str())?, mark))
            }
        }
    }

    fn eviction(&self, uid: &PodUid, memory: &Memory) -> Option<Step> {
        let pod = self.watched.pods.get(uid.as_str())?;
        if memory.was_asked(uid.as_str(), self.now) {
            return None;
        }
        Some(Step {
            write: Write {
                to: pod_address(pod),
                act: Act::Evict(uid.to_string()),
            },
            then: Then::Evicted(uid.to_string()),
        })
    }

    fn job(&self, group: &GroupId) -> Option<&JobFacts> {
        let queued = self.groups.get(group.as_str())?;
        self.watched.jobs.get(queued.job.as_ref()?)
    }
}

/// The group's pods that have no node, the oldest first.
fn waiting(watched: &WatchedState, queued: &QueuedGroup) -> Vec<(Arc<str>, PodUid)> {
    let free = queued.pods.iter().filter(|member| !member.is_bound);
    let mut free: Vec<_> = free
        .filter_map(|member| {
            let meta = &watched.pods.get(member.uid.as_str())?.metadata;
            Some(((member.index, &meta.creation_timestamp, &meta.name), member))
        })
        .collect();
    free.sort_by_key(|(order, _)| *order);
    let named = free
        .into_iter()
        .map(|(_, member)| (member.role.clone(), member.uid.clone()));
    named.collect()
}

fn snapshot_of(pod: &Pod) -> PodSnapshot {
    PodSnapshot {
        held: has_scheduling_gate(pod),
        slot: slot_of(pod).map(|mark| mark.key),
        bound: NodeName::new(&pod.spec.node_name).ok(),
        going: pod.metadata.deletion_timestamp.is_some(),
        ended: is_over(pod),
    }
}

/// Is nothing in the plan to be another but groups that are over? Their slots are in nobody's way for a
/// moment, and a plan of many groups would be written anew for each of them.
fn only_removes(plan: &GangPlan, wanted: &GangPlan) -> bool {
    let mut left = wanted.groups.iter().peekable();
    for part in &plan.groups {
        let _same = left.next_if(|one| *one == part);
    }
    plan.epoch == wanted.epoch && left.peek().is_none()
}

/// Puts a plan in place of the version that it was made from.
pub(crate) fn replacement(plan: &GangPlan) -> Step {
    let mut object = plan_to_object(plan);
    object["metadata"] = json!({ "resourceVersion": &*plan.version });
    Step {
        write: Write {
            to: plan_address(&plan.name),
            act: Act::Replace(object),
        },
        then: Then::Rewritten(plan.name.to_string(), plan.version.to_string()),
    }
}

/// The address of a plan.
pub(crate) fn plan_address(name: &str) -> ObjectAddress {
    let kind = GroupVersionKind::gvk("sublet.dev", "v1alpha1", "GangPlan");
    ObjectAddress {
        kind: ApiResource::from_gvk_with_plural(&kind, "gangplans"),
        namespace: None,
        name: name.to_owned(),
    }
}

fn pod_address(pod: &Pod) -> ObjectAddress {
    ObjectAddress::of::<PodKind>(Some(&pod.metadata.namespace), &pod.metadata.name)
}

/// Gives a pod its slot and takes its scheduling gate, if it still is that pod.
fn release(pod: &Pod, mark: SlotMark) -> Step {
    let meta = &pod.metadata;
    let mut operations = vec![json!({"op": "test", "path": "/metadata/uid", "value": meta.uid})];
    let mut gates = pod.spec.scheduling_gates.iter();
    if let Some(at) = gates.position(|gate| gate.name == keys::SCHEDULING_GATE) {
        let path = format!("/spec/schedulingGates/{at}");
        let name = format!("{path}/name");
        operations.push(json!({"op": "test", "path": name, "value": keys::SCHEDULING_GATE}));
        operations.push(json!({"op": "remove", "path": path}));
    }
    if meta.annotations.is_empty() {
        // All that others have written since would be gone with it.
        let version = json!({
            "op": "test", "path": "/metadata/resourceVersion", "value": meta.resource_version,
        });
        operations.push(version);
        operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
    }
    let path = format!("/metadata/annotations/{}", keys::SLOT.replace('/', "~1"));
    operations.push(json!({"op": "add", "path": path, "value": slot_to_json(&mark)}));
    Step {
        write: Write {
            to: pod_address(pod),
            act: Act::JsonPatch(Value::Array(operations)),
        },
        then: Then::Released(meta.uid.clone(), mark),
    }
}

/// The address of a job, in the version in which it was read.
pub(crate) fn job_address(job: &JobFacts) -> ObjectAddress {
    let api = job.api;
    let kind = GroupVersionKind::gvk(api.group, api.version, api.kind);
    ObjectAddress {
        kind: ApiResource::from_gvk_with_plural(&kind, api.plural),
        namespace: Some(job.job.namespace.clone()),
        name: job.job.name.clone(),
    }
}

/// Lets a job make its pods, or holds it back.
fn switch(job: &JobFacts, suspend: bool) -> Option<Step> {
    Some(Step {
        write: Write {
            to: job_address(job),
            act: Act::JsonPatch(job.switch(suspend)?),
        },
        then: Then::Switched(job.job.clone(), suspend),
    })
}

#[cfg(test)]
mod tests {
    use sublet_api::gang_plan::SlotKey;

    use super::*;

    /// Annotations that somebody wrote since would be wiped out.
    #[test]
    fn annotations_are_made_only_on_the_version_that_has_none() {
        let released = |annotations: Value| {
            let pod = serde_json::from_value(json!({
                "metadata": {
                    "name": "p", "namespace": "a", "uid": "u", "resourceVersion": "7",
                    "annotations": annotations,
                },
                "spec": {"containers": []},
            }));
            let key = SlotKey {
                plan: "plan".into(),
                group: GroupId::new("g"),
                role: "w".into(),
                index: 0,
            };
            let node = NodeName::new("n1").unwrap();
            let step = release(&pod.unwrap(), SlotMark { key, node });
            let Act::JsonPatch(operations) = step.write.act else {
                panic!("{:?}", step.write)
            };
            let words = operations.as_array().unwrap().iter();
            let words = words.map(|one| format!("{} {}", one["op"], one["path"]));
            words.collect::<Vec<_>>().join("; ").replace('"', "")
        };
        let slot = "add /metadata/annotations/sublet.dev~1slot";
        assert_eq!(
            released(json!({"a": "b"})),
            format!("test /metadata/uid; {slot}")
        );
        assert_eq!(
            released(json!({})),
            format!(
                "test /metadata/uid; test /metadata/resourceVersion; add /metadata/annotations; {slot}"
            )
        );
    }
}
