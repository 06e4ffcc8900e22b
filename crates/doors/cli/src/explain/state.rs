//! The state of one pod: a value, decided from a cluster's objects.
//!
//! Pure: it asks the engine that the scheduler asks, and knows no connection.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_api::dialect::{claim_of, is_assigned, remarks};
use sublet_api::object::{Node, Pod};
use sublet_api::stock::pod_rules;
use sublet_api::{
    NodeDefaults, ResourceQuota, bound_entry, facts_of, is_over, pod_key, pod_uid, scheduler_of,
    unsaid,
};
use sublet_model::{Claim, GpuIndex, Grant, KeptFree, NodeFacts, NodeName, PodUid, Unit};
use sublet_plan::stock::Unmodelled;
use sublet_plan::{EngineOptions, GpuQuota, OverQuota, Policy, Reason, check_quota};

use crate::refusals::Refusals;

use crate::plan::name_of;
use crate::similar::similar;
use crate::verdict::{Cluster, Odd, asked};

/// Everything that an explanation is made of.
pub(super) struct ClusterObjects {
    /// Every node.
    pub(super) nodes: Vec<Node>,
    /// Every pod.
    pub(super) pods: Vec<Pod>,
    /// The cards that an operator listed as unhealthy, by node.
    pub(super) sick: BTreeMap<NodeName, BTreeSet<GpuIndex>>,
    /// Resource quotas of the namespaces.
    pub(super) quotas: Vec<ResourceQuota>,
}

/// Scheduler that places our pods, and its settings.
pub(super) struct ExplainOptions {
    /// The `schedulerName`s of schedulers that ask Sublet.
    pub(super) schedulers: Vec<String>,
    /// Unit of `aliyun.com/gpu-mem`.
    pub(super) unit: Unit,
    /// The scheduler's policy.
    pub(super) policy: Policy,
}

/// The state of a pod.
pub(super) enum State {
    /// There is none of that name; these have similar ones.
    NotFound { similar: Vec<String> },
    /// It has ended; perhaps because it never had a card.
    Over { phase: String, doubt: Option<Doubt> },
    /// Its request cannot be read or served.
    BadClaim { what: String },
    /// It asks for no GPU.
    NoGpu,
    /// It has a node.
    Bound {
        node: String,
        devices: Vec<Grant>,
        /// Has the node handed the devices over?
        handed_over: bool,
        /// That it does not say which cards it has.
        doubt: Option<Doubt>,
    },
    /// It is being deleted and was never placed.
    Deleting,
    /// It may not be scheduled before these scheduling gates are lifted.
    HeldBack { gates: Vec<String> },
    /// Another scheduler places it.
    OtherScheduler { name: String },
    /// Its namespace may have no more.
    OverQuota { what: String },
    /// It waits.
    Waiting(Waiting),
}

/// Reason why a bound pod does not say which cards it has.
pub(super) struct Doubt {
    pub(super) cause: String,
    pub(super) cure: String,
    /// The cards that the node's agent has handed to it all the same.
    pub(super) handed: Vec<GpuIndex>,
    /// Amount that every card of the node keeps free meanwhile.
    pub(super) kept: Option<KeptFree>,
}

/// A pod that waits for a node.
pub(super) struct Waiting {
    /// The scheduler's message about the pod (its PodScheduled condition).
    pub(super) condition: Option<String>,
    /// Nodes that can take it now.
    pub(super) fits: Vec<String>,
    /// The others, and why not.
    pub(super) refusals: Arc<Refusals>,
    /// Rules that the scheduler considers and Sublet does not model.
    pub(super) unmodelled: Vec<Unmodelled>,
}

impl Waiting {
    /// Would no eviction and no waiting help on any node?
    pub(super) fn is_hopeless(&self) -> bool {
        self.fits.is_empty() && self.refusals.reasons().all(Reason::is_final)
    }
}

/// A pod's state, and a line for each object that cannot be understood.
pub(super) fn state(
    objects: &ClusterObjects,
    namespace: &str,
    name: &str,
    options: &ExplainOptions,
) -> (State, Vec<String>) {
    let is_it = |pod: &&Pod| pod.metadata.namespace == namespace && pod.metadata.name == name;
    let Some(pod) = objects.pods.iter().find(is_it) else {
        let similar = similar_pods(&objects.pods, namespace, name);
        return (State::NotFound { similar }, Vec::new());
    };
    if is_over(pod) {
        return (over(pod, options), Vec::new());
    }
    match claim_of(pod, options.unit) {
        Err(error) => {
            let what = error.to_string();
            (State::BadClaim { what }, Vec::new())
        }
        Ok(None) => (State::NoGpu, Vec::new()),
        Ok(Some(claim)) => {
            // Another scheduler may mean another unit.
            let is_ours = options.schedulers.iter().any(|it| it == scheduler_of(pod));
            let said = is_ours.then(|| remarks(&claim, options.unit));
            let (state, mut notes) = state_of(objects, pod, claim, options);
            let said = said.into_iter().flatten();
            notes.extend(said.map(|remark| format!("warning: {remark}")));
            (state, notes)
        }
    }
}

/// The state of a pod that asks for that.
fn state_of(
    objects: &ClusterObjects,
    pod: &Pod,
    claim: Claim,
    options: &ExplainOptions,
) -> (State, Vec<String>) {
    if !pod.spec.node_name.is_empty() {
        return (bound(objects, pod, claim, options), Vec::new());
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return (State::Deleting, Vec::new());
    }
    if !pod.spec.scheduling_gates.is_empty() {
        let gates = pod.spec.scheduling_gates.iter();
        let gates = gates.map(|gate| gate.name.clone()).collect();
        return (State::HeldBack { gates }, Vec::new());
    }
    if !options.schedulers.iter().any(|it| it == scheduler_of(pod)) {
        let name = scheduler_of(pod).to_owned();
        return (State::OtherScheduler { name }, Vec::new());
    }
    waiting(objects, pod, options)
}

fn over(pod: &Pod, options: &ExplainOptions) -> State {
    let phase = pod.status.phase.clone();
    let placed = phase == "Failed" && !pod.spec.node_name.is_empty();
    let claim = claim_of(pod, options.unit).ok().flatten();
    let entry = claim.and_then(|claim| bound_entry(pod, Arc::new(claim)).ok());
    let lost = entry.filter(|(entry, _)| placed && entry.allocation.is_none());
    let doubt = lost.map(|(_, problem)| {
        let problem = problem.map(|it| it.to_string());
        let (cause, cure) = unsaid(pod, problem.as_deref(), &options.schedulers);
        Doubt {
            cause,
            cure,
            handed: Vec::new(),
            kept: None,
        }
    });
    State::Over { phase, doubt }
}

fn bound(objects: &ClusterObjects, pod: &Pod, claim: Claim, options: &ExplainOptions) -> State {
    let handed_over = is_assigned(pod, &claim);
    let node = pod.spec.node_name.clone();
    let claim = Arc::new(claim);
    let (devices, problem) = match bound_entry(pod, Arc::clone(&claim)) {
        Ok((entry, problem)) => (entry.allocation, problem.map(|it| it.to_string())),
        Err(error) => (None, Some(error.to_string())),
    };
    let doubt = devices.is_none().then(|| {
        let (cause, cure) = unsaid(pod, problem.as_deref(), &options.schedulers);
        let unit = options.unit;
        let is_it = |it: &&Node| it.metadata.name == node;
        let facts = objects.nodes.iter().find(is_it);
        let facts = facts.and_then(|it| facts_of(it, NodeDefaults { unit }).ok().flatten());
        let (facts, uid) = (facts.as_ref(), pod_uid(pod).ok());
        let known = facts.zip(uid.as_ref());
        let gpus = |(facts, uid): (&NodeFacts, _)| {
            let known = facts.handed_to(uid).into_iter();
            known.map(|at| facts.inventory.gpus()[at].index).collect()
        };
        Doubt {
            cause,
            cure,
            handed: known.map(gpus).unwrap_or_default(),
            kept: known.and_then(|(facts, uid)| facts.kept_free_for(uid, claim.ask())),
        }
    });
    State::Bound {
        node,
        devices: devices.map(|got| got.grants).unwrap_or_default(),
        handed_over,
        doubt,
    }
}

fn waiting(objects: &ClusterObjects, pod: &Pod, options: &ExplainOptions) -> (State, Vec<String>) {
    let mut notes = Vec::new();
    let mut cluster = Cluster::new(EngineOptions {
        unit: options.unit,
        ..EngineOptions::of(options.policy.clone())
    });
    let mut nodes: Vec<&Node> = objects.nodes.iter().collect();
    nodes.sort_by_key(|node| &node.metadata.name);
    for node in nodes {
        let name = &node.metadata.name;
        let sick = objects.sick.get(name.as_str());
        if let Err(error) = cluster.enter_node(node, sick) {
            notes.push(format!("warning: node {name} is left out: {error}"));
        }
    }
    let bound = |pod: &&Pod| !pod.spec.node_name.is_empty() && !is_over(pod);
    for other in objects.pods.iter().filter(bound) {
        for Odd { field, what } in cluster.enter_pod(other) {
            let name = name_of(other);
            notes.push(format!("warning: {name}, field `{field}`: {what}"));
        }
    }
    let conditions = pod.status.conditions.iter();
    let condition = conditions
        .filter(|condition| condition.kind == "PodScheduled" && condition.status == "False")
        .map(|condition| condition.message.clone())
        .find(|message| !message.is_empty());
    let Ok(uid) = pod_uid(pod) else {
        let what = "it has no UID".to_owned();
        return (State::BadClaim { what }, notes);
    };
    let bad = |odd: Odd| {
        let what = format!("field `{}`: {}", odd.field, odd.what);
        State::BadClaim { what }
    };
    let claim = match asked(pod, options.unit) {
        Ok(claim) => claim,
        Err(error) => return (bad(Odd::of_claim(pod, &error)), notes),
    };
    if let Some(over) = over_quota(objects, &cluster, pod, &uid, &claim) {
        let what = over.to_string();
        return (State::OverQuota { what }, notes);
    }
    let rules = match pod_rules(pod) {
        Ok(rules) => rules,
        Err(error) => return (bad(Odd::of_rules(&error)), notes),
    };
    let refusals = cluster.refusals(&uid, &claim, &rules);
    let fits = cluster.names().filter(|name| !refusals.has(name));
    let waiting = Waiting {
        condition,
        fits: fits.map(str::to_owned).collect(),
        refusals,
        unmodelled: cluster.unmodelled(pod),
    };
    (State::Waiting(waiting), notes)
}

/// Refusal by the namespace's quotas, as the scheduler counts them.
fn over_quota(
    objects: &ClusterObjects,
    cluster: &Cluster,
    pod: &Pod,
    uid: &PodUid,
    claim: &Claim,
) -> Option<OverQuota> {
    let namespace = &pod.metadata.namespace;
    let quotas = objects.quotas.iter();
    let own = quotas.filter(|quota| quota.metadata.namespace == *namespace);
    let limits = own.filter_map(|quota| quota.of_gpus().ok());
    let quota = limits.fold(GpuQuota::default(), GpuQuota::and);
    let ledger = cluster.engine.ledger();
    check_quota(ledger, quota, (&pod_key(pod).ok()?, uid), claim, None).err()
}

/// Pods of the namespace with similar names, and those with the name in another namespace.
fn similar_pods(pods: &[Pod], namespace: &str, name: &str) -> Vec<String> {
    let known = pods.iter().map(|pod| &pod.metadata);
    let known = known.filter(|meta| meta.namespace == namespace || meta.name == name);
    let told = known.map(|meta| (&*meta.name, format!("{}/{}", meta.namespace, meta.name)));
    similar(name, told)
}
