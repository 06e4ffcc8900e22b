//! Decides about a pod that is created: a pure function from pod, namespace and configuration to a
//! patch, or to a refusal that names the field.
//!
//! It only fills in fields that a user could have written: the scheduler's name, slots, the amounts
//! of a flavor, the queue's scheduling gate, and a variable that carries the allocation. It never
//! changes a field that the pod sets, except a variable under our own name. A pod for a scheduler
//! that does not ask Sublet is left alone. Applied twice, the second time changes nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;

use json_patch::{Patch, PatchOperation};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sublet_api::dialect::{ClaimError, add_slots, claim_of, remarks};
use sublet_api::group::is_queued;
use sublet_api::keys;
use sublet_api::object::Pod;
use sublet_api::{flavor_of, has_scheduling_gate, scheduler_for, scheduler_of};
use sublet_model::{Advertise, Carrier, Claim, Role, Unit};

use crate::flavors::{FlavorError, KnownFlavors, expand};
use crate::patch::add;

/// Field in which a container finds its allocation.
const ALLOCATION_FIELD: &str = "metadata.annotations['sublet.dev/allocation']";

/// The webhook's settings, as the operator wants them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdmissionRules {
    /// Amount that one `aliyun.com/gpu-mem` stands for.
    pub(crate) unit: Unit,
    /// The schedulers that ask Sublet. The first is the one that people are told of.
    pub(crate) schedulers: Vec<String>,
    /// The scheduler of GPU pods that name none, where their namespace does not say it.
    pub(crate) assign: Option<String>,
    /// Whether containers that ask by units of memory get slots, unless their namespace says it. A
    /// container that always needs a slot gets one in any case.
    pub(crate) slots: bool,
    /// Whether jobs queue.
    pub(crate) queue: bool,
}

/// The answer for a pod that may be created.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Admitted {
    /// Changes to the pod; often none.
    pub(crate) patch: Patch,
    /// Warnings for the client that creates the pod.
    pub(crate) warnings: Vec<String>,
}

/// Reason why a pod is not admitted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdmissionError {
    /// The object is no pod.
    #[error("the pod cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// A parent of an added field is of another kind than in a pod.
    #[error("the pod cannot be changed: {0}")]
    Unfit(#[from] json_patch::PatchError),
    /// It asks for GPUs in a way that cannot be served: the words are those of the scheduler.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// It asks for a flavor in a way that cannot be served.
    #[error(transparent)]
    Flavor(#[from] FlavorError),
    /// Its author has chosen the node, and nobody has chosen a card there.
    #[error(
        "`spec.nodeName` is `{node}`, and the pod asks for a GPU: nobody would choose its card, and \
         node {node} would fail it; leave `nodeName` out, and say `nodeSelector: \
         {{kubernetes.io/hostname: {node}}}` if it must be this node"
    )]
    NodeChosen {
        /// The node.
        node: String,
    },
}

/// A pod as it was sent, whole.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sent<'a> {
    /// By the API server. A tree of it would take longer than all else that is done about most pods.
    Text(&'a str),
    /// By ourselves.
    Tree(&'a Value),
}

impl Sent<'_> {
    fn read<T: DeserializeOwned>(self) -> Result<T, serde_json::Error> {
        match self {
            Sent::Text(text) => serde_json::from_str(text),
            Sent::Tree(tree) => T::deserialize(tree),
        }
    }
}

/// A pod, as much of it as every pod is asked for, and all of it for the few that need more.
#[derive(Debug)]
pub(crate) struct SentPod<'a> {
    pub(crate) pod: Pod,
    sent: Sent<'a>,
}

impl<'a> SentPod<'a> {
    /// Reads a pod.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn read(sent: Sent<'a>) -> Result<SentPod<'a>, serde_json::Error> {
        let pod = sent.read()?;
        Ok(SentPod { pod, sent })
    }
}

/// Decides about a pod of our own making, as [`admit_sent`] does.
///
/// # Errors
/// The pod cannot be read, or its request cannot be served.
pub(crate) fn admit(
    object: &Value,
    labels: &BTreeMap<String, String>,
    flavors: Option<&KnownFlavors>,
    rules: &AdmissionRules,
) -> Result<Admitted, AdmissionError> {
    let sent = SentPod::read(Sent::Tree(object))?;
    admit_sent(&sent, labels, flavors, rules)
}

/// Decides about a pod. `labels` are its namespace's; `flavors` are all flavors, if they are known.
///
/// # Errors
/// The pod cannot be read, or its request cannot be served.
pub(crate) fn admit_sent(
    SentPod { pod, sent }: &SentPod<'_>,
    labels: &BTreeMap<String, String>,
    flavors: Option<&KnownFlavors>,
    rules: &AdmissionRules,
) -> Result<Admitted, AdmissionError> {
    let mut admitted = Admitted::default();
    // Its kubelet runs it already, from a file; nothing here would reach it.
    if pod.metadata.annotations.contains_key(keys::MIRROR) {
        return Ok(admitted);
    }
    let mut patch = Vec::new();
    let scheduler = scheduler(pod, labels, rules, &mut patch);
    if !rules.schedulers.contains(&scheduler) {
        // Some other scheduler's pod, which may mean other things by the same resources.
        if let Some(flavor) = flavor_of(pod)? {
            admitted.warnings.push(format!(
                "`{}` is `{flavor}`, but the scheduler {scheduler} does not ask Sublet: the pod \
                 gets no GPU by it; set schedulerName: {}",
                keys::FLAVOR,
                rules.schedulers.first().map_or("", String::as_str),
            ));
        }
        admitted.patch = Patch(patch);
        return Ok(admitted);
    }
    let amounts = Patch(expand(pod, labels, flavors)?);
    let mut pod = Cow::Borrowed(pod);
    if !amounts.is_empty() {
        let mut object: Value = sent.read()?;
        json_patch::patch(&mut object, &amounts)?;
        pod = Cow::Owned(Pod::deserialize(&object)?);
        patch.extend(amounts.0);
    }
    let pod = &*pod;
    let queues = rules.queue && pod.spec.node_name.is_empty() && is_queued(pod, labels);
    if queues && !has_scheduling_gate(pod) {
        patch.push(scheduling_gate(pod));
    }
    let Some(claim) = claim_of(pod, rules.unit)? else {
        // One without a GPU is none of ours, unless it starts together with others.
        admitted.patch = Patch(if queues { patch } else { Vec::new() });
        return Ok(admitted);
    };
    let node = &pod.spec.node_name;
    if !node.is_empty() {
        return Err(AdmissionError::NodeChosen { node: node.clone() });
    }
    admitted.warnings.extend(remarks(&claim, rules.unit));
    let advertise = advertise(labels, rules).unwrap_or_else(|warning| {
        admitted.warnings.push(warning);
        of_all(rules)
    });
    equip(pod, &sent.read()?, &claim, advertise, &mut patch);
    admitted.patch = Patch(patch);
    Ok(admitted)
}

/// Returns the way in which nodes advertise memory to pods of a namespace with these labels.
///
/// # Errors
/// The label has another value than `true` and `false`: a text for people.
fn advertise(
    labels: &BTreeMap<String, String>,
    rules: &AdmissionRules,
) -> Result<Advertise, String> {
    match labels.get(keys::ADD_SLOTS_LABEL).map(String::as_str) {
        None => Ok(of_all(rules)),
        Some("true") => Ok(Advertise::Slots),
        Some("false") => Ok(Advertise::Units),
        Some(other) => Err(format!(
            "the namespace's label `{}` is `{other}`; write `true` or `false`",
            keys::ADD_SLOTS_LABEL
        )),
    }
}

/// The way in which nodes advertise memory to pods of a namespace without the label.
fn of_all(rules: &AdmissionRules) -> Advertise {
    match rules.slots {
        true => Advertise::Slots,
        false => Advertise::Units,
    }
}

/// The field that a pod lacks because nobody completed it when it was created: the API server lets
/// nobody add it later, so the pod can never be placed. `None` for a pod that lacks nothing, and for
/// one that would be refused if it were created now.
///
/// # Errors
/// It asks for a flavor, and flavors are not known yet.
pub(crate) fn lacking(
    pod: &Pod,
    labels: &BTreeMap<String, String>,
    flavors: Option<&KnownFlavors>,
    rules: &AdmissionRules,
) -> Result<Option<&'static str>, FlavorError> {
    let is_ours = rules.schedulers.iter().any(|one| one == scheduler_of(pod));
    if !is_ours || pod.metadata.annotations.contains_key(keys::MIRROR) {
        return Ok(None);
    }
    match expand(pod, labels, flavors) {
        Ok(amounts) if amounts.is_empty() => {}
        Ok(_) => return Ok(Some(keys::FLAVOR)),
        Err(unread @ FlavorError::Unread(_)) => return Err(unread),
        Err(_) => return Ok(None),
    }
    let Ok(Some(claim)) = claim_of(pod, rules.unit) else {
        return Ok(None);
    };
    let advertise = advertise(labels, rules).unwrap_or(of_all(rules));
    Ok(add_slots(&mut pod.clone(), &claim, advertise).then_some(keys::GPU_SLOT))
}

/// The scheduler that the pod will have.
fn scheduler(
    pod: &Pod,
    labels: &BTreeMap<String, String>,
    rules: &AdmissionRules,
    patch: &mut Vec<PatchOperation>,
) -> String {
    let scheduler = scheduler_for(pod, labels, rules.assign.as_deref());
    if scheduler != scheduler_of(pod) {
        patch.push(add(&["spec", "schedulerName"], json!(scheduler)));
    }
    scheduler.to_owned()
}

/// The patch that puts the queue's scheduling gate on a pod.
fn scheduling_gate(pod: &Pod) -> PatchOperation {
    let gate = json!({ "name": keys::SCHEDULING_GATE });
    match pod.spec.scheduling_gates.is_empty() {
        false => add(&["spec", "schedulingGates", "-"], gate),
        true => add(&["spec", "schedulingGates"], json!([gate])),
    }
}

/// The variables of a pod's containers, which only a pod with a claim is asked for.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Variables {
    spec: SpecVariables,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SpecVariables {
    containers: Option<Vec<ContainerVariables>>,
    init_containers: Option<Vec<ContainerVariables>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerVariables {
    env: Option<Vec<Variable>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Variable {
    name: String,
    value_from: Option<VariableSource>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct VariableSource {
    field_ref: Option<FieldSource>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FieldSource {
    field_path: String,
}

/// Adds the fields that each container of a claim needs beside its request.
fn equip(
    pod: &Pod,
    variables: &Variables,
    claim: &Claim,
    advertise: Advertise,
    patch: &mut Vec<PatchOperation>,
) {
    let needs_slot = claim.carrier_on(advertise) == Carrier::Slots;
    for part in claim.containers() {
        let (spec, variables) = (&pod.spec, &variables.spec);
        let (list, containers, variables) = match part.role {
            Role::Main => ("containers", &spec.containers, &variables.containers),
            Role::Init | Role::Sidecar => (
                "initContainers",
                &spec.init_containers,
                &variables.init_containers,
            ),
        };
        let Some(container) = containers.get(part.position) else {
            continue;
        };
        let position = part.position.to_string();
        let begin = ["spec", list, position.as_str()];
        if needs_slot && container.resources.asked(keys::GPU_SLOT).is_none() {
            // The API server fills in the request.
            let one = json!("1");
            patch.push(if container.resources.limits.is_empty() {
                add(
                    &[&begin[..], &["resources", "limits"]].concat(),
                    json!({ keys::GPU_SLOT: one }),
                )
            } else {
                add(
                    &[&begin[..], &["resources", "limits", keys::GPU_SLOT]].concat(),
                    one,
                )
            });
        }
        let env = variables.iter().flatten().nth(part.position);
        let env = env.and_then(|container| container.env.as_deref());
        if let Some((to, value)) = allocation_variable(env.unwrap_or_default()) {
            patch.push(add(&[&begin[..], &["env"], &to].concat(), value));
        }
    }
}

/// The path below `env` where the variable with the allocation is missing, and the value to add. Of
/// several variables under one name the last one counts.
fn allocation_variable(env: &[Variable]) -> Option<(Vec<&'static str>, Value)> {
    let mut named = env.iter().rev();
    let last = named.find(|variable| variable.name == keys::ALLOCATION_VARIABLE);
    let source = last.and_then(|last| last.value_from.as_ref()?.field_ref.as_ref());
    if source.is_some_and(|field| field.field_path == ALLOCATION_FIELD) {
        return None;
    }
    let ours = json!({
        "name": keys::ALLOCATION_VARIABLE,
        "valueFrom": { "fieldRef": { "fieldPath": ALLOCATION_FIELD } },
    });
    Some(if env.is_empty() {
        (Vec::new(), json!([ours]))
    } else {
        (vec!["-"], ours)
    })
}

#[cfg(test)]
mod tests;
