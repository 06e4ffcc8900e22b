//! Decides whether a Binding is let through. A GPU pod that a stranger binds to a node with our
//! agent gets no card there and fails, so the client that binds it is told at once.
//!
//! Pure: the user, the pod and the node go in; a refusal with its cure comes out. The agent refuses
//! such a pod in any case, so a Binding is let through if its pod or node cannot be read. Pods
//! without a GPU, nodes without our agent, and Bindings of our own scheduler are never held up.

use serde::Deserialize;
use sublet_api::dialect::{ClaimError, claim_of};
use sublet_api::object::{Node, Pod};
use sublet_api::{keys, scheduler_of};
use sublet_model::{NodeName, PodKey, Unit};

use crate::review::Review;

/// The clients that may bind GPU pods, as the operator wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BindingRules {
    /// Amount that one `aliyun.com/gpu-mem` stands for.
    pub(crate) unit: Unit,
    /// The schedulers that ask Sublet. The first is the one that people are told of.
    pub(crate) schedulers: Vec<String>,
    /// The user as which our extender binds.
    pub(crate) account: String,
}

/// A Binding by another client than our extender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StrangersBinding {
    /// The pod.
    pub(crate) pod: PodKey,
    /// Node that it binds the pod to.
    pub(crate) node: NodeName,
    /// User that sends it.
    pub(crate) user: String,
}

/// Reason why a Binding is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindingRefusal {
    /// Nobody has chosen a card.
    #[error(
        "pod {pod} asks for a GPU, and node {node} hands out only cards that Sublet has chosen; \
         this Binding by {user} chooses none; {cure}"
    )]
    NoCard {
        pod: PodKey,
        node: NodeName,
        user: String,
        cure: String,
    },
    /// Nobody could choose one: the words are those of the scheduler.
    #[error("pod {pod} would get no GPU on node {node}: {cause}")]
    Claim {
        pod: PodKey,
        node: NodeName,
        cause: Box<ClaimError>,
    },
}

/// A Binding, as much of it as counts.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Binding {
    metadata: Name,
    target: Name,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Name {
    name: String,
}

/// The Binding, if it must be looked at.
///
/// # Errors
/// A request that is no Binding of a pod.
pub(crate) fn strangers_binding(
    request: &Review<'_>,
    rules: &BindingRules,
) -> Result<Option<StrangersBinding>, String> {
    let user = request.user();
    if user == rules.account {
        return Ok(None);
    }
    let Binding { metadata, target } =
        serde_json::from_str(request.object()?).map_err(|error| error.to_string())?;
    // `bindings`, the old address of the same thing, has the name in the object alone.
    let name = match request.name.as_str() {
        "" => &metadata.name,
        name => name,
    };
    let node = &target.name;
    Ok(Some(StrangersBinding {
        pod: PodKey::new(&request.namespace, name).map_err(|error| error.to_string())?,
        node: NodeName::new(node).map_err(|error| error.to_string())?,
        user: user.to_owned(),
    }))
}

/// Does it matter to which node that pod goes?
pub(crate) fn is_ours(pod: &Pod, unit: Unit) -> bool {
    !matches!(claim_of(pod, unit), Ok(None))
}

/// Decides about a stranger's Binding of that pod to that node.
///
/// # Errors
/// The pod asks for a GPU, and our agent hands out those of the node.
pub(crate) fn judge(
    binding: &StrangersBinding,
    pod: &Pod,
    node: &Node,
    rules: &BindingRules,
) -> Result<(), BindingRefusal> {
    if !node.metadata.annotations.contains_key(keys::INVENTORY) {
        return Ok(());
    }
    let StrangersBinding { pod: key, node, .. } = binding;
    let (key, node) = (key.clone(), node.clone());
    match claim_of(pod, rules.unit) {
        Ok(None) => Ok(()),
        Ok(Some(_)) => Err(BindingRefusal::NoCard {
            pod: key,
            node,
            user: binding.user.clone(),
            cure: cure(pod, rules),
        }),
        Err(cause) => Err(BindingRefusal::Claim {
            pod: key,
            node,
            cause: Box::new(cause),
        }),
    }
}

/// The advice to the user. A pod that exists cannot get another scheduler.
fn cure(pod: &Pod, rules: &BindingRules) -> String {
    let named = scheduler_of(pod);
    if rules.schedulers.iter().any(|one| one == named) {
        return format!("leave it to its scheduler, {named}");
    }
    let one = rules.schedulers.first();
    let one = one.map_or("a scheduler that asks Sublet", String::as_str);
    format!("create it with `schedulerName: {one}`, or bind it to a node without Sublet's agent")
}

#[cfg(test)]
mod tests;
