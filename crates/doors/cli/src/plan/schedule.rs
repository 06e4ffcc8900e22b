//! Places the waiting pods of an input, one after the other, as the schedulers of a cluster would.
//!
//! Pods that wait together have the stock scheduler's order: priority, then age, then (for pods of
//! one second) the order of the files. Time is an argument: the same input at the same time gives
//! the same plan.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_api::dialect::{add_slots, binding_annotations, claim_of, remarks};
use sublet_api::object::{Node, Pod};
use sublet_api::stock::pod_rules;
use sublet_api::{ResourceQuota, is_over, pod_key, pod_uid, scheduler_of};
use sublet_model::{Advertise, Allocation, Claim, Entry, PodKey, PodUid, Standing, Time, Unit};
use sublet_plan::stock::{self, PodRules, Selected, Unmodelled};
use sublet_plan::{EngineOptions, GpuQuota, OverQuota, Policy, check_quota};

use super::coming::Arrival;
use super::input::{Input, Located, Origin, Unreadable};
use crate::refusals::Refusals;
use crate::verdict::{Cluster, Odd, asked};

/// Scheduler of a pod that names no scheduler.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// Options of a plan.
#[derive(Debug, Clone)]
pub(super) struct PlanOptions {
    /// Policy that chooses among places that fit.
    pub policy: Policy,
    /// Arrival of new pods.
    pub arrival: Arrival,
    /// Unit of `aliyun.com/gpu-mem`, on nodes that do not say it themselves.
    pub unit: Unit,
    /// The `schedulerName`s of schedulers that ask Sublet.
    pub schedulers: Vec<String>,
    /// The moment that annotations name, in nanoseconds since the Unix epoch.
    pub now_ns: u64,
}

/// Place of a pod.
pub(super) struct Place {
    pub(super) node: String,
    pub(super) allocation: Allocation,
    pub(super) annotations: BTreeMap<String, String>,
    /// Other nodes that the stock scheduler may take in its place.
    pub(super) alternatives: Vec<String>,
}

/// Outcome of one waiting pod.
pub(super) enum Outcome {
    /// It fits.
    Placed(Place),
    /// It fits, unless something that is not modelled stands in the way. The place, if there is
    /// one, stays reserved for it.
    Conditional {
        because: Vec<Unmodelled>,
        place: Option<Place>,
        refusals: Arc<Refusals>,
    },
    /// It does not, and why, by node.
    Refused(Arc<Refusals>),
    /// Its namespace may have no more.
    OverQuota(OverQuota),
    /// It may not be scheduled before these scheduling gates are lifted.
    HeldBack(Vec<String>),
}

/// One waiting pod.
pub(super) struct PlannedPod {
    pub(super) pod: PodKey,
    pub(super) claim: Arc<Claim>,
    pub(super) outcome: Outcome,
}

/// Outcome of every waiting pod, in the order in which they were taken.
pub(super) struct Plan {
    pub(super) pods: Vec<PlannedPod>,
    /// Objects that could not be read, or not completely.
    pub(super) unreadable: Vec<Unreadable>,
    /// Further notes.
    pub(super) notes: Vec<String>,
}

/// Places the waiting pods.
#[must_use]
pub(super) fn plan(mut input: Input, options: &PlanOptions) -> Plan {
    settle(&mut input);
    let admitted = admit(&mut input.pods, options);
    let mut unreadable = input.unreadable;
    let quotas = Quotas::of(&input.limits, &mut unreadable);
    let mut cluster = Cluster::new(EngineOptions {
        unit: options.unit,
        ..EngineOptions::of(options.policy.clone())
    });
    unreadable.extend(enter_nodes(&input.nodes, &mut cluster));
    let mut waiting = Vec::new();
    let mut passed_over = 0;
    for Located { origin, object } in by_age(&input.pods) {
        let mut tell = |odd: Odd, may_wait| {
            let mut odd = Unreadable::of(origin, name_of(object), &odd.field, odd.what);
            odd.may_wait = may_wait;
            unreadable.push(odd);
        };
        if !object.spec.node_name.is_empty() {
            let odd = cluster.enter_pod(object);
            odd.into_iter().for_each(|odd| tell(odd, false));
            if let Ok(uid) = pod_uid(object) {
                cluster.start(&uid);
            }
            continue;
        }
        match Waiting::read(object, options) {
            Ok(pod) => {
                if pod.is_there(options) {
                    cluster.engine.learn(&pod.claim);
                }
                passed_over += usize::from(pod.is_passed_over());
                waiting.extend(Some(pod).filter(Waiting::is_planned));
            }
            Err(odd) => tell(odd, object.metadata.deletion_timestamp.is_none()),
        }
    }
    // Stable: pods of one priority stay in the order of their age, and those that come one by one in
    // that of the files.
    waiting.sort_by_key(|pod| {
        let priority = Reverse(pod.pod.spec.priority.unwrap_or(0));
        match pod.is_there(options) {
            true => (false, Some(priority)),
            false => (true, None),
        }
    });
    let pods = waiting.into_iter().map(|pod| PlannedPod {
        pod: pod.key.clone(),
        claim: Arc::clone(&pod.claim),
        outcome: place(&mut cluster, &pod, &quotas, options),
    });
    let pods: Vec<PlannedPod> = pods.collect();
    let mut notes = counted(passed_over, admitted);
    notes.extend(few_units(&pods, options.unit));
    Plan {
        pods,
        unreadable,
        notes,
    }
}

/// Enters nodes into the cluster, and returns what cannot be used of them.
fn enter_nodes(nodes: &[Located<Node>], cluster: &mut Cluster) -> Vec<Unreadable> {
    let mut unreadable = Vec::new();
    for Located { origin, object } in nodes {
        let odd = match cluster.enter_node(object, None) {
            Ok(_) => Odd::of_measured_use(object),
            Err(error) => Some(Odd::of_node(&error)),
        };
        if let Some(Odd { field, what }) = odd {
            let name = format!("node {}", object.metadata.name);
            unreadable.push(Unreadable::of(origin, name, &field, what));
        }
    }
    unreadable
}

/// Notes about pods that are not planned, or not as they were written.
fn counted(passed_over: usize, admitted: usize) -> Vec<String> {
    let mut notes = Vec::new();
    if passed_over > 0 {
        notes.push(format!(
            "note: {passed_over} waiting pods of other schedulers ask for no GPU and are passed \
             over; they may yet take CPU and memory"
        ));
    }
    if admitted > 0 {
        notes.push(format!(
            "note: {admitted} pods are planned with the sublet.dev/gpu-slot that `sublet controller` \
             adds when they are created; without it, write it yourself"
        ));
    }
    notes
}

/// Note for the authors of pods about their requests: the first pod's remark, and the number of
/// others.
fn few_units(pods: &[PlannedPod], unit: Unit) -> Option<String> {
    let remarks = |pod: &PlannedPod| remarks(&pod.claim, unit).into_iter().next();
    let mut told = pods
        .iter()
        .filter_map(|pod| Some((&pod.pod, remarks(pod)?)));
    let (pod, remark) = told.next()?;
    Some(match told.count() {
        0 => format!("warning: pod {pod}: {remark}"),
        more => format!("warning: pod {pod}, and {more} pods like it: {remark}"),
    })
}

/// Gives pods that are not created yet the slots that the webhook will give them. Returns the
/// number of pods that lacked one.
fn admit(pods: &mut [Located<Pod>], options: &PlanOptions) -> usize {
    let mut admitted = 0;
    for Located { object: pod, .. } in pods {
        let is_new = pod.metadata.creation_timestamp.is_none() && pod.spec.node_name.is_empty();
        let scheduler = scheduler_of(pod);
        if !is_new || !options.schedulers.iter().any(|ours| ours == scheduler) {
            continue;
        }
        // What cannot be read is told where the pod is placed.
        if let Ok(Some(claim)) = claim_of(pod, options.unit) {
            admitted += usize::from(add_slots(pod, &claim, Advertise::Units));
        }
    }
    admitted
}

/// Pods in the order in which the scheduler came to know them. A pod without a time was written
/// by hand and is not in the cluster yet: younger than all that are.
fn by_age(pods: &[Located<Pod>]) -> Vec<&Located<Pod>> {
    let mut sorted: Vec<&Located<Pod>> = pods.iter().collect();
    sorted.sort_by_key(|pod| {
        let created = pod.object.metadata.creation_timestamp.as_deref();
        (created.is_none(), created)
    });
    sorted
}

/// A pod that waits.
struct Waiting<'a> {
    key: PodKey,
    uid: PodUid,
    claim: Arc<Claim>,
    rules: PodRules,
    /// The scheduler that it names, if that one does not ask Sublet.
    stranger: Option<&'a str>,
    pod: &'a Pod,
}

impl<'a> Waiting<'a> {
    fn read(pod: &'a Pod, options: &PlanOptions) -> Result<Waiting<'a>, Odd> {
        let name = |error: sublet_model::NameError| Odd {
            field: "metadata".to_owned(),
            what: error.to_string(),
        };
        let claim = asked(pod, options.unit).map_err(|error| Odd::of_claim(pod, &error))?;
        let scheduler = match pod.spec.scheduler_name.as_str() {
            "" => DEFAULT_SCHEDULER,
            name => name,
        };
        let ours = options.schedulers.iter().any(|ours| ours == scheduler);
        Ok(Waiting {
            key: pod_key(pod).map_err(name)?,
            uid: pod_uid(pod).map_err(name)?,
            claim: Arc::new(claim),
            rules: pod_rules(pod).map_err(|error| Odd::of_rules(&error))?,
            stranger: (!ours).then_some(scheduler),
            pod,
        })
    }

    /// Does the scheduler know it before it takes the first?
    fn is_there(&self, options: &PlanOptions) -> bool {
        options.arrival == Arrival::Together || self.pod.metadata.creation_timestamp.is_some()
    }

    /// The scheduler never takes up a pod that is being deleted.
    fn is_going(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }

    fn is_passed_over(&self) -> bool {
        !self.is_going() && self.stranger.is_some() && !self.claim.has_gpu()
    }

    fn is_planned(&self) -> bool {
        !self.is_going() && !self.is_passed_over()
    }

    /// Was it tried before, and refused?
    fn was_tried(&self) -> bool {
        let mut conditions = self.pod.status.conditions.iter();
        conditions.any(|c| c.kind == "PodScheduled" && c.status == "False")
    }
}

fn place(
    cluster: &mut Cluster,
    waiting: &Waiting<'_>,
    quotas: &Quotas,
    options: &PlanOptions,
) -> Outcome {
    let Waiting {
        uid, claim, pod, ..
    } = waiting;
    if !waiting.is_there(options) {
        cluster.engine.learn(claim);
    }
    if !pod.spec.scheduling_gates.is_empty() {
        let gates = pod.spec.scheduling_gates.iter();
        return Outcome::HeldBack(gates.map(|gate| gate.name.clone()).collect());
    }
    if let Err(over) = quotas.check(cluster, waiting, None) {
        return Outcome::OverQuota(over);
    }
    let mut because = cluster.unmodelled(pod);
    let stranger = waiting.stranger.map(Arc::from);
    because.extend(stranger.map(Unmodelled::Scheduler));
    let now = Time::from_ms(options.now_ns / 1_000_000);
    let question = stock::Waiting {
        uid,
        claim,
        rules: &waiting.rules,
        everywhere: pod.spec.has_soft_wishes() || waiting.was_tried(),
        unweighed: pod.spec.has_unweighed_wishes(),
    };
    let taken = cluster
        .select(now, question)
        .and_then(|selected| take(cluster, waiting, &selected, options));
    if let Some(place) = &taken
        && let Err(over) = quotas.check(cluster, waiting, Some(&place.allocation))
    {
        cluster.engine.forget(uid);
        return Outcome::OverQuota(over);
    }
    let Some(place) = taken else {
        let refusals = cluster.refusals(uid, claim, &waiting.rules);
        if may_evict(cluster, waiting, &refusals) {
            because.push(Unmodelled::Preemption);
        } else if waiting.stranger.is_none() {
            return Outcome::Refused(refusals);
        }
        return Outcome::Conditional {
            because,
            place: None,
            refusals,
        };
    };
    // Checked when it was read with the pods that run; a pod that waits has none to keep away
    // before it has a place.
    let _never_fails = cluster.keep_away(pod);
    if because.is_empty() {
        return Outcome::Placed(place);
    }
    Outcome::Conditional {
        because,
        place: Some(place),
        refusals: Arc::new(Refusals::NONE),
    }
}

/// Takes the selected place.
fn take(
    cluster: &mut Cluster,
    waiting: &Waiting<'_>,
    selected: &Selected,
    options: &PlanOptions,
) -> Option<Place> {
    let node = cluster.name(selected.node).clone();
    let entry = Entry {
        pod: waiting.key.clone(),
        uid: waiting.uid.clone(),
        node: node.clone(),
        claim: Arc::clone(&waiting.claim),
        allocation: None,
        standing: Standing::Reserved,
        assigned: false,
        priority: waiting.pod.spec.priority.unwrap_or(0),
    };
    let now = Time::from_ms(options.now_ns / 1_000_000);
    let allocation = cluster.engine.reserve(now, entry).ok()?;
    cluster.start(&waiting.uid);
    let facts = cluster.engine.ledger().book(selected.node).facts();
    let present = waiting.pod.metadata.annotations.keys().map(String::as_str);
    let annotations = facts.map_or_else(BTreeMap::new, |facts| {
        binding_annotations(&waiting.claim, &allocation, facts, options.now_ns, present)
    });
    let name = |node| cluster.name(node).to_string();
    Some(Place {
        node: node.to_string(),
        allocation,
        annotations,
        alternatives: selected.alternatives.iter().copied().map(name).collect(),
    })
}

/// GPU quotas of the namespaces.
struct Quotas(BTreeMap<String, GpuQuota>);

impl Quotas {
    fn of(found: &[Located<ResourceQuota>], unreadable: &mut Vec<Unreadable>) -> Quotas {
        let mut quotas: BTreeMap<String, GpuQuota> = BTreeMap::new();
        for Located { origin, object } in found {
            let namespace = match object.metadata.namespace.as_str() {
                "" => "default",
                name => name,
            };
            match object.of_gpus() {
                Ok(quota) => {
                    let known = quotas.entry(namespace.to_owned()).or_default();
                    *known = known.and(quota);
                }
                Err((key, cause)) => {
                    let name = format!("ResourceQuota {namespace}/{}", object.metadata.name);
                    let field = format!("spec.hard.{key}");
                    let what = format!("{cause}; it limits nothing of GPUs");
                    unreadable.push(Unreadable::of(origin, name, &field, what));
                }
            }
        }
        Quotas(quotas)
    }

    /// May the namespace have this pod too, as the extender asks for its own pods before it looks for a
    /// place and when it takes one?
    fn check(
        &self,
        cluster: &Cluster,
        waiting: &Waiting<'_>,
        allocation: Option<&Allocation>,
    ) -> Result<(), OverQuota> {
        let Waiting {
            key, uid, claim, ..
        } = waiting;
        let quota = self.0.get(key.namespace());
        let Some(quota) = quota.filter(|_| waiting.stranger.is_none()) else {
            return Ok(());
        };
        let ledger = cluster.engine.ledger();
        check_quota(ledger, *quota, (key, uid), claim, allocation)
    }
}

/// Might the stock scheduler evict pods of lower priority for a pod that was refused?
fn may_evict(cluster: &Cluster, waiting: &Waiting<'_>, refusals: &Refusals) -> bool {
    let priority = waiting.pod.spec.priority.unwrap_or(0);
    waiting.pod.spec.preemption_policy != "Never"
        && refusals.reasons().any(|reason| !reason.is_final())
        && cluster.has_below(priority)
}

/// Leaves out pods that are over and objects that occur twice, fills in missing fields of
/// hand-written files, and sorts nodes by name.
pub(crate) fn settle(input: &mut Input) {
    input.pods.retain(|pod| !is_over(&pod.object));
    for (number, pod) in input.pods.iter_mut().enumerate() {
        complete(&mut pod.object, number);
    }
    let mut seen = BTreeMap::new();
    let odd = &mut input.unreadable;
    input.nodes.retain(|node| {
        let what = format!("node {}", node.object.metadata.name);
        is_first(&mut seen, what, "metadata.name", &node.origin, odd)
    });
    input.pods.retain(|pod| {
        let uid = format!("a pod with the UID {}", pod.object.metadata.uid);
        let what = name_of(&pod.object);
        is_first(&mut seen, what, "metadata.name", &pod.origin, odd)
            && is_first(&mut seen, uid, "metadata.uid", &pod.origin, odd)
    });
    input
        .nodes
        .sort_by(|a, b| a.object.metadata.name.cmp(&b.object.metadata.name));
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

/// Two objects of one name are two versions of one object: the first counts.
fn is_first(
    seen: &mut BTreeMap<String, Origin>,
    what: String,
    field: &str,
    origin: &Origin,
    odd: &mut Vec<Unreadable>,
) -> bool {
    if let Some(first) = seen.get(&what) {
        let problem = format!("it stands already in {first}, which counts");
        odd.push(Unreadable::of(origin, what, field, problem));
        return false;
    }
    seen.insert(what, origin.clone());
    true
}

/// Name of a pod in messages.
pub(crate) fn name_of(pod: &Pod) -> String {
    let meta = &pod.metadata;
    format!("pod {}/{}", meta.namespace, meta.name)
}
