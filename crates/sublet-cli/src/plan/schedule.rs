//! Places the waiting pods of an input, one after the other, with the scheduler's engine.
//!
//! The order is the stock scheduler's: priority, then age, then (for pods of one second) the
//! order of the files. Time is an argument: the same input at the same time gives the same plan.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_api::dialect::{binding_annotations, claim_of};
use sublet_api::object::Pod;
use sublet_api::{is_over, pod_key, pod_uid};
use sublet_model::{Allocation, Claim, Entry, NodeName, PodKey, PodUid, Standing, Time, Unit};
use sublet_plan::{EngineOptions, Policy};

use super::input::{Input, Located, Origin};
use crate::verdict::{Cluster, Refusal};

/// How to plan.
#[derive(Debug, Clone)]
pub struct PlanOptions {
    /// How to choose among places that fit.
    pub policy: Policy,
    /// What one `aliyun.com/gpu-mem` is, on nodes that do not say it themselves.
    pub unit: Unit,
    /// The moment that annotations name, in nanoseconds since the Unix epoch.
    pub now_ns: u64,
}

/// What becomes of one waiting pod.
pub(super) enum Outcome {
    /// It fits.
    Placed {
        node: NodeName,
        allocation: Allocation,
        annotations: BTreeMap<String, String>,
    },
    /// It does not, and why, by node.
    Refused(BTreeMap<String, Refusal>),
    /// It may not be scheduled before these gates are lifted.
    Gated(Vec<String>),
}

/// One waiting pod.
pub(super) struct PlannedPod {
    pub(super) pod: PodKey,
    pub(super) outcome: Outcome,
}

/// What becomes of every waiting pod, in the order in which they were taken.
pub struct Plan {
    pub(super) pods: Vec<PlannedPod>,
    /// A line for each bound pod whose annotations cannot be read.
    pub(super) notes: Vec<String>,
}

/// Places the waiting pods.
///
/// # Errors
/// A line for each object that cannot be used; then nothing is planned.
pub fn plan(mut input: Input, options: &PlanOptions) -> Result<Plan, Vec<String>> {
    let mut errors = settle(&mut input);
    let mut cluster = Cluster::new(EngineOptions {
        unit: options.unit,
        // All nodes come back: a plan needs no favour to the stock scheduler's speed.
        few: 0,
        ..EngineOptions::of(options.policy.clone())
    });
    for node in &input.nodes {
        let name = &node.object.metadata.name;
        if let Err(error) = cluster.enter_node(&node.object, None) {
            errors.push(format!("{}: node {name}: {error}", node.origin));
        }
    }
    let mut notes = Vec::new();
    let mut waiting = Vec::new();
    for Located { origin, object } in &input.pods {
        if object.spec.node_name.is_empty() {
            match read_waiting(object, options.unit) {
                Ok(pod) => waiting.extend(pod),
                Err(error) => errors.push(bad_pod(origin, object, &error)),
            }
            continue;
        }
        match cluster.enter_pod(object) {
            Ok(None) => {}
            Ok(Some(problem)) => {
                let pod = &object.metadata.name;
                notes.push(format!(
                    "note: {origin}: pod {pod}: {problem}; which GPU it has is not known"
                ));
            }
            Err(error) => errors.push(bad_pod(origin, object, &error.to_string())),
        }
        if let Ok(uid) = pod_uid(object) {
            cluster.start(&uid);
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    // The sort is stable: what is equal stays in the order of the files. A pod without a time
    // was written by hand and is not in the cluster yet: younger than all that are.
    waiting.sort_by_key(|pod| {
        let created = pod.created.clone();
        (Reverse(pod.priority), created.is_none(), created)
    });
    let pods = waiting
        .into_iter()
        .map(|pod| PlannedPod {
            pod: pod.key.clone(),
            outcome: place(&mut cluster, &pod, options),
        })
        .collect();
    Ok(Plan { pods, notes })
}

/// A pod that waits and asks for a GPU.
struct Waiting<'a> {
    key: PodKey,
    uid: PodUid,
    claim: Arc<Claim>,
    priority: i32,
    created: Option<String>,
    pod: &'a Pod,
}

fn read_waiting(pod: &Pod, unit: Unit) -> Result<Option<Waiting<'_>>, String> {
    let name = |error| format!("field `metadata`: {error}");
    let (key, uid) = (pod_key(pod).map_err(name)?, pod_uid(pod).map_err(name)?);
    let claim = claim_of(pod, unit).map_err(|error| error.to_string())?;
    // The scheduler never takes up a pod that is being deleted.
    let Some(claim) = claim.filter(|_| pod.metadata.deletion_timestamp.is_none()) else {
        return Ok(None);
    };
    Ok(Some(Waiting {
        key,
        uid,
        claim: Arc::new(claim),
        priority: pod.spec.priority.unwrap_or(0),
        created: pod.metadata.creation_timestamp.clone(),
        pod,
    }))
}

fn place(cluster: &mut Cluster<'_>, waiting: &Waiting<'_>, options: &PlanOptions) -> Outcome {
    let Waiting {
        uid, claim, pod, ..
    } = waiting;
    if !pod.spec.scheduling_gates.is_empty() {
        let gates = pod.spec.scheduling_gates.iter();
        return Outcome::Gated(gates.map(|gate| gate.name.clone()).collect());
    }
    let now = Time::from_ms(options.now_ns / 1_000_000);
    cluster.engine.learn(claim);
    let (open, _) = cluster.open_nodes(pod);
    let soft: BTreeMap<_, _> = open
        .iter()
        .map(|&node| (node, cluster.soft_taints(pod, node)))
        .collect();
    let answer = cluster
        .engine
        .filter(now, uid, claim, &open, true, |node| soft[&node]);
    let Some(&best) = answer.passed.first() else {
        return Outcome::Refused(cluster.refusals(pod, uid, claim));
    };
    let node = cluster.name(best).clone();
    let entry = Entry {
        pod: waiting.key.clone(),
        uid: uid.clone(),
        node: node.clone(),
        claim: Arc::clone(claim),
        allocation: None,
        standing: Standing::Reserved,
        assigned: false,
        priority: waiting.priority,
    };
    let allocation = match cluster.engine.reserve(now, entry) {
        Ok(allocation) => allocation,
        Err(reason) => {
            return Outcome::Refused(BTreeMap::from([(
                node.to_string(),
                Refusal::Reason(reason),
            )]));
        }
    };
    cluster.start(uid);
    let facts = cluster.engine.ledger().book(best).facts();
    let present = pod.metadata.annotations.keys().map(String::as_str);
    let annotations = facts.map_or_else(BTreeMap::new, |facts| {
        binding_annotations(claim, &allocation, facts, options.now_ns, present)
    });
    Outcome::Placed {
        node,
        allocation,
        annotations,
    }
}

/// Leaves out pods that are over, fills in what files written by hand lack, and puts nodes in
/// the order of their names; gives back a line for each object that cannot be used.
pub(crate) fn settle(input: &mut Input) -> Vec<String> {
    let mut errors = std::mem::take(&mut input.errors);
    input.pods.retain(|pod| !is_over(&pod.object));
    for (number, pod) in input.pods.iter_mut().enumerate() {
        complete(&mut pod.object, number);
    }
    find_doubles(input, &mut errors);
    input
        .nodes
        .sort_by(|a, b| a.object.metadata.name.cmp(&b.object.metadata.name));
    errors
}

/// Files written by hand have no UIDs and often no namespaces.
fn complete(pod: &mut Pod, number: usize) {
    let meta = &mut pod.metadata;
    if meta.namespace.is_empty() {
        meta.namespace = "default".to_owned();
    }
    if meta.uid.is_empty() {
        meta.uid = format!("no-uid-{number}");
    }
}

/// Two objects of one name are two versions of one object: which is meant is not ours to say.
fn find_doubles(input: &Input, errors: &mut Vec<String>) {
    let mut seen: BTreeMap<String, &Origin> = BTreeMap::new();
    let mut check = |what: String, origin| match seen.get(&what) {
        Some(first) => {
            errors.push(format!("{origin}: {what} stands already in {first}"));
            false
        }
        None => seen.insert(what, origin).is_none(),
    };
    for node in &input.nodes {
        check(format!("node {}", node.object.metadata.name), &node.origin);
    }
    for pod in &input.pods {
        let meta = &pod.object.metadata;
        if check(format!("pod {}/{}", meta.namespace, meta.name), &pod.origin) {
            check(format!("a pod with the UID {}", meta.uid), &pod.origin);
        }
    }
}

/// What is said of a pod that cannot be used.
pub(crate) fn bad_pod(origin: &Origin, pod: &Pod, error: &str) -> String {
    let meta = &pod.metadata;
    format!("{origin}: pod {}/{}: {error}", meta.namespace, meta.name)
}
