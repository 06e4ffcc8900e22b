//! Pods that the queue manages, and the groups that it decides about. The controller and the
//! commands that show a queue make the groups from the same objects by the same rules.

use std::collections::{BTreeMap, BTreeSet};

use sublet_model::{MiB, PodUid, Standing, Time, Unit};
use sublet_queue::{Amounts, GroupId};

use super::gang::{GANG_DIALECTS, PodGroupFacts, gang_of};
use super::gather::{Gathered, GroupSources, QueuedGroup, gather};
use super::job::{JOB_KINDS, JobApi, JobFacts, apis_of};
use super::member::ShapeMemo;
use super::priority::PriorityClasses;
use crate::elastic_quota::ElasticQuota;
use crate::gang_plan::GangPlan;
use crate::keys;
use crate::object::Pod;
use crate::pod::{has_scheduling_gate, scheduler_for, scheduler_of};
use crate::quota_index::QuotaIndex;

/// Scope of the queue: the pods that it manages.
#[derive(Debug, Clone)]
pub struct QueueScope {
    /// The schedulers that ask Sublet.
    pub schedulers: BTreeSet<String>,
    /// The scheduler of pods that name none, if their namespace does not name one.
    pub assign: Option<String>,
    /// Unit of `aliyun.com/gpu-mem`.
    pub unit: Unit,
}

/// Labels of namespaces, by name.
pub type NamespaceLabels = BTreeMap<String, BTreeMap<String, String>>;

/// Objects that the queue looks at.
#[derive(Clone, Copy)]
pub struct QueueSources<'a> {
    /// Every pod.
    pub pods: &'a [&'a Pod],
    /// Resources of all nodes that pods can have, without cards; `None` if no node is known.
    pub nodes: Option<&'a Amounts>,
    /// PodGroups of all APIs.
    pub pod_groups: &'a [&'a PodGroupFacts],
    /// Jobs of all kinds.
    pub jobs: &'a [&'a JobFacts],
    /// Plans that live.
    pub plans: &'a [&'a GangPlan],
    /// Elastic quotas of all APIs.
    pub quotas: &'a [&'a ElasticQuota],
    /// Values of the priority classes.
    pub classes: &'a PriorityClasses,
    /// Labels of namespaces.
    pub namespaces: &'a NamespaceLabels,
    /// Scope of the queue.
    pub scope: &'a QueueScope,
    /// Present time, for an object that does not say since when it waits.
    pub now: Time,
}

/// Observations about a group that may have run as a whole.
#[derive(Debug, Clone, Copy)]
pub struct WholeSnapshot {
    /// It has its minimum on nodes now.
    pub is_whole: bool,
    /// A member is on a node and is not being evicted.
    pub stays: bool,
    /// A plan has slots for all of its minimum.
    pub is_starting: bool,
}

impl WholeSnapshot {
    /// Did the group run as a whole at any time since its present members came? `before` is the
    /// earlier answer. Without an earlier answer, a group that has members on nodes and is not
    /// about to start counts as one that ran, as in Koordinator: a running member must not be taken
    /// for one that came too early.
    #[must_use]
    pub fn ran(self, before: Option<bool>) -> bool {
        let ran = self.stays && before.unwrap_or(!self.is_starting);
        ran || self.is_whole
    }
}

impl QueueScope {
    /// Is the pod, or the template of one, such that it queues? `labels`: its namespace's.
    #[must_use]
    pub fn queues(&self, pod: &Pod, labels: Option<&BTreeMap<String, String>>) -> bool {
        let none = BTreeMap::new();
        let labels = labels.unwrap_or(&none);
        // A template has no name, and its pods get their scheduler when they are created.
        let scheduler = match pod.metadata.name.is_empty() {
            true => scheduler_for(pod, labels, self.assign.as_deref()),
            false => scheduler_of(pod),
        };
        self.schedulers.contains(scheduler) && is_queued(pod, labels)
    }
}

/// Every API that groups are read from, beside that of pods: PodGroups, jobs and PriorityClasses.
#[must_use]
pub fn group_apis() -> Vec<JobApi> {
    let pod_groups = GANG_DIALECTS.iter().flat_map(|dialect| {
        let versions = dialect.versions().iter();
        versions.map(move |&version| JobApi {
            group: dialect.api_group(),
            version,
            kind: "PodGroup",
            plural: "podgroups",
        })
    });
    let classes = JobApi {
        group: "scheduling.k8s.io",
        version: "v1",
        kind: "PriorityClass",
        plural: "priorityclasses",
    };
    let jobs = JOB_KINDS.iter().flat_map(|job| apis_of(*job));
    pod_groups.chain(jobs).chain([classes]).collect()
}

/// Has the pod a part in the queue already?
#[must_use]
pub fn is_in_queue(pod: &Pod) -> bool {
    has_scheduling_gate(pod) || pod.metadata.annotations.contains_key(keys::SLOT)
}

/// The groups that the queue decides about. `card`: the memory that a whole card counts with.
/// `ran`: did the group of that name run as a whole?
pub(crate) fn queued_groups(
    sources: QueueSources<'_>,
    (quotas, card): (&QuotaIndex, MiB),
    memo: &mut ShapeMemo,
    mut ran: impl FnMut(&str, WholeSnapshot) -> bool,
) -> Gathered {
    // Who was asked to go is no member any more, and its group waits again.
    let stays = |pod: &&&Pod| pod.metadata.deletion_timestamp.is_none();
    let pods: Vec<&Pod> = sources.pods.iter().filter(stays).copied().collect();
    let is_queued = |pod: &Pod| {
        let labels = sources.namespaces.get(&pod.metadata.namespace);
        is_in_queue(pod) || sources.scope.queues(pod, labels)
    };
    let of = GroupSources {
        pods: &pods,
        pod_groups: sources.pod_groups,
        jobs: sources.jobs,
        plans: sources.plans,
        quotas,
        priority: &|class| sources.classes.value(class),
        is_queued: &is_queued,
        unit: sources.scope.unit,
        card,
        now: sources.now,
    };
    let mut gathered = gather(of, memo);
    // Who never queued is nobody's victim.
    let in_queue = pods.iter().filter(|pod| is_in_queue(pod));
    let in_queue: BTreeSet<&str> = in_queue.map(|pod| &*pod.metadata.uid).collect();
    let planned = Planned::of(sources.plans);
    for queued in &mut gathered.groups {
        let whole = planned.whole(queued);
        let group = &mut queued.group;
        group.satisfied = ran(group.id.as_str(), whole);
        let mut pods = queued.pods.iter();
        let queued_once = pods.any(|pod| in_queue.contains(pod.uid.as_str()));
        group.preemptible &= queued_once || queued.job.is_some();
    }
    gathered
}

/// Facts that plans hold about groups.
struct Planned<'a> {
    /// Pods that are evicted for others.
    victims: BTreeSet<&'a PodUid>,
    /// Number of slots of each group.
    slots: BTreeMap<&'a GroupId, usize>,
}

impl<'a> Planned<'a> {
    fn of(plans: &'a [&'a GangPlan]) -> Planned<'a> {
        let parts = plans.iter().flat_map(|plan| &plan.groups);
        let mut planned = Planned {
            victims: BTreeSet::new(),
            slots: BTreeMap::new(),
        };
        for part in parts {
            *planned.slots.entry(&part.id).or_default() += part.slots.len();
            let victims = part.victims.iter().map(|victim| &victim.uid);
            planned.victims.extend(victims);
        }
        planned
    }

    fn whole(&self, QueuedGroup { group, .. }: &QueuedGroup) -> WholeSnapshot {
        // Who goes for others begins anew.
        let stays = group.members().any(|(_, member)| {
            member.standing == Standing::Bound && !self.victims.contains(&member.uid)
        });
        let min: u64 = group.gangs.iter().map(|gang| u64::from(gang.min)).sum();
        let planned = self.slots.get(&group.id).copied().unwrap_or(0);
        WholeSnapshot {
            is_whole: group.satisfied,
            stays,
            is_starting: planned as u64 >= min,
        }
    }
}

/// Does such a pod queue, if it names a scheduler that asks Sublet? It does if it has a gang or a
/// quota, or if its namespace asks for it. `labels`: the namespace's. A gang that cannot be read
/// counts as a gang.
#[must_use]
pub fn is_queued(pod: &Pod, labels: &BTreeMap<String, String>) -> bool {
    let opted_in = labels.get(keys::QUEUE_LABEL);
    opted_in.is_some_and(|is| is == "enabled")
        || pod.metadata.labels.contains_key(keys::QUOTA_NAME)
        || !matches!(gang_of(pod), Ok(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jobs whose pods get their scheduler from their namespace queue before they have pods.
    #[test]
    fn a_template_has_the_scheduler_that_its_pods_get() {
        let scope = QueueScope {
            schedulers: ["sublet-scheduler".to_owned()].into(),
            assign: None,
            unit: Unit::MiB,
        };
        let assigned: BTreeMap<String, String> = [
            (keys::QUEUE_LABEL.to_owned(), "enabled".to_owned()),
            (
                keys::ASSIGN_SCHEDULER_LABEL.to_owned(),
                "sublet-scheduler".to_owned(),
            ),
        ]
        .into();
        let template = Pod::default();
        assert!(scope.queues(&template, Some(&assigned)));
        // A pod that is there has what it has.
        let mut pod = template.clone();
        pod.metadata.name = "p".to_owned();
        assert!(!scope.queues(&pod, Some(&assigned)));
        let mut elsewhere = template;
        elsewhere.spec.scheduler_name = "theirs".to_owned();
        assert!(!scope.queues(&elsewhere, Some(&assigned)));
    }
}
