//! Ledger entry of a bound pod, from a Pod object.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::{Claim, Entry, NameError, NodeName, PodKey, PodUid, Standing};

use crate::allocation::AllocationError;
use crate::object::Pod;
use crate::{dialect, keys};

/// The name by which the API server fills in the cluster's own scheduler.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// Namespace and name.
///
/// # Errors
/// Empty or malformed.
pub fn pod_key(pod: &Pod) -> Result<PodKey, NameError> {
    let namespace = if pod.metadata.namespace.is_empty() {
        "default"
    } else {
        &pod.metadata.namespace
    };
    PodKey::new(namespace, &pod.metadata.name)
}

/// UID.
///
/// # Errors
/// Empty or malformed.
pub fn pod_uid(pod: &Pod) -> Result<PodUid, NameError> {
    PodUid::new(&pod.metadata.uid)
}

/// Has the pod given its memory back? Only when it has ended *and* no container runs: a pod that
/// is marked for deletion still holds all of it.
#[must_use]
pub fn is_over(pod: &Pod) -> bool {
    let ended = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
    let all = pod
        .status
        .container_statuses
        .iter()
        .chain(&pod.status.init_container_statuses);
    ended
        && all
            .into_iter()
            .all(|container| container.state.running.is_none())
}

/// Has the scheduler found no node for it, its own preemption included?
#[must_use]
pub fn is_unschedulable(pod: &Pod) -> bool {
    let mut conditions = pod.status.conditions.iter();
    conditions.any(|condition| {
        condition.kind == "PodScheduled"
            && condition.status == "False"
            && condition.reason == "Unschedulable"
    })
}

/// The scheduler of a pod that is created in a namespace with these labels. Only a pod that names
/// none gets another, and only if its node is not chosen already. `assign`: the scheduler if the
/// labels name none.
#[must_use]
pub fn scheduler_for<'a>(
    pod: &'a Pod,
    labels: &'a BTreeMap<String, String>,
    assign: Option<&'a str>,
) -> &'a str {
    let named = scheduler_of(pod);
    let label = labels.get(keys::ASSIGN_SCHEDULER_LABEL);
    match label.map(String::as_str).or(assign) {
        Some(assign) if named == DEFAULT_SCHEDULER && pod.spec.node_name.is_empty() => assign,
        _ => named,
    }
}

/// Is the queue's scheduling gate on it?
#[must_use]
pub fn has_scheduling_gate(pod: &Pod) -> bool {
    let mut gates = pod.spec.scheduling_gates.iter();
    gates.any(|gate| gate.name == keys::SCHEDULING_GATE)
}

/// Reason why a bound pod has no readable allocation, and advice, in the words of events and of
/// `sublet explain`. `schedulers`: the names of the schedulers that ask Sublet.
#[must_use]
pub fn unsaid(pod: &Pod, problem: Option<&str>, schedulers: &[String]) -> (String, String) {
    if pod.metadata.annotations.contains_key(keys::MIRROR) {
        return (
            "it is a static pod, which its node's kubelet runs from a file and nobody places"
                .to_owned(),
            "take the GPU out of that file, and ask for it in a pod that a scheduler places, such \
             as a DaemonSet's"
                .to_owned(),
        );
    }
    let anew = "delete the pod, so that it is placed anew".to_owned();
    if let Some(problem) = problem {
        return (problem.to_owned(), anew);
    }
    let name = scheduler_of(pod);
    match schedulers.first() {
        Some(ours) if !schedulers.iter().any(|one| one == name) => (
            format!("it was placed by the scheduler {name}, which does not ask Sublet"),
            format!("give it `schedulerName: {ours}`"),
        ),
        _ => (
            "whoever bound it, or wrote `nodeName` into it, recorded no GPU".to_owned(),
            "leave `spec.nodeName` out of what it is made from, if it is there, and delete the pod, \
             so that it is placed anew"
                .to_owned(),
        ),
    }
}

/// The scheduler that a pod names; the API server fills in the cluster's own.
#[must_use]
pub fn scheduler_of(pod: &Pod) -> &str {
    match pod.spec.scheduler_name.as_str() {
        "" => DEFAULT_SCHEDULER,
        name => name,
    }
}

/// The entry for a pod that is bound. If its annotations cannot be read, the fault too.
///
/// # Errors
/// A name that Kubernetes would not allow.
pub fn bound_entry(
    pod: &Pod,
    claim: Arc<Claim>,
) -> Result<(Entry, Option<AllocationError>), NameError> {
    let (allocation, problem) = match dialect::allocation_of(pod, &claim) {
        Ok(allocation) => (allocation, None),
        Err(problem) => (None, Some(problem)),
    };
    let entry = Entry {
        pod: pod_key(pod)?,
        uid: pod_uid(pod)?,
        node: NodeName::new(&pod.spec.node_name)?,
        // The node hands over no card to it, so nobody waits for that.
        assigned: allocation.is_none() || dialect::is_assigned(pod, &claim),
        claim,
        allocation,
        standing: Standing::Bound,
        priority: pod.spec.priority.unwrap_or(0),
    };
    Ok((entry, problem))
}
