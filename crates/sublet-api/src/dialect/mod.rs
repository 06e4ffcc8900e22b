//! Dialects: the ways of writing claims and allocations on pods.
//!
//! A dialect says how much a container asks, reads its own older annotations, and writes
//! its own result keys and environment. Everything else is the same for all of them.
//! Adding one: a file here and a line in [`DIALECTS`].

mod aliyun;
mod nvidia;

use std::collections::BTreeMap;

use sublet_model::{
    Allocation, Claim, ClaimShapeError, ContainerClaim, ContainerName, Demand, Dialect, Host,
    NameError, NodeFacts, Role, Unit,
};

use crate::allocation::{AllocationError, allocation_from_json, allocation_to_json};
use crate::keys;
use crate::machine::host_of;
use crate::models::models_of;
use crate::object::{Container, Pod};
use crate::quantity::{QuantityError, whole_number};

/// What one dialect knows.
trait Codec: Sync {
    /// Which it is.
    fn dialect(&self) -> Dialect;
    /// The resource by which a container asks.
    fn resource(&self) -> &'static str;
    /// What so many of the resource are; `None` where that is too much.
    fn demand(&self, count: u64, unit: Unit) -> Option<Demand>;
    /// The pod's allocation out of annotations of this dialect alone.
    fn older_allocation(
        &self,
        pod: &Pod,
        claim: &Claim,
    ) -> Result<Option<Allocation>, AllocationError>;
    /// Result keys of this dialect, for a Binding.
    fn results(
        &self,
        claim: &Claim,
        allocation: &Allocation,
        facts: &NodeFacts,
        now_ns: u64,
    ) -> BTreeMap<String, String>;
    /// Keys to patch when the node has handed over everything.
    fn handed_over(&self, now_ns: u64) -> BTreeMap<String, String>;
    /// Environment of one container, beside [`keys::NVIDIA_VISIBLE_DEVICES`].
    fn environment(
        &self,
        claim: &Claim,
        allocation: &Allocation,
        container: &ContainerClaim,
        facts: &NodeFacts,
    ) -> BTreeMap<String, String>;
}

const DIALECTS: &[&dyn Codec] = &[&aliyun::Aliyun, &nvidia::Nvidia];

/// A claim's dialect; a claim of no GPU has none.
fn codec(claim: &Claim) -> Option<&'static dyn Codec> {
    let dialect = claim.dialect()?;
    let found = DIALECTS.iter().find(|codec| codec.dialect() == dialect);
    found.copied()
}

/// Why what a pod asks cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// A wrong amount.
    #[error("container {container}: `{resource}` is `{value}`: {cause}")]
    Amount {
        /// The container.
        container: String,
        /// The resource.
        resource: String,
        /// As written.
        value: String,
        /// What is wrong with it.
        cause: QuantityError,
    },
    /// Two dialects in one pod.
    #[error("the pod asks for `{0}` and for `{1}`; a pod can use one way of asking for GPUs")]
    Dialects(&'static str, &'static str),
    /// The slot resource without anything that it would carry.
    #[error(
        "the pod asks for `{slot}` but for no GPU: add `{mem}` or `{gpu}`",
        slot = keys::GPU_SLOT, mem = keys::ALIYUN_GPU_MEM, gpu = keys::NVIDIA_GPU
    )]
    SlotAlone,
    /// A container's name is none.
    #[error("wrong container name: {0}")]
    Name(#[from] NameError),
    /// A mixture that no allocation can serve.
    #[error(transparent)]
    Shape(#[from] ClaimShapeError),
}

/// What a pod asks; `None` where it asks for no GPU. `unit`: what one
/// [`keys::ALIYUN_GPU_MEM`] is.
///
/// # Errors
/// A wrong amount, two dialects, or a mixture that cannot be served.
pub fn claim_of(pod: &Pod, unit: Unit) -> Result<Option<Claim>, ClaimError> {
    let mut used: Option<&dyn Codec> = None;
    let mut claims = Vec::new();
    let mut has_slot = false;
    for (position, role, container) in containers(pod) {
        has_slot |= amount(container, keys::GPU_SLOT)?.is_some();
        for &codec in DIALECTS {
            let resource = codec.resource();
            let Some(count) = amount(container, resource)? else {
                continue;
            };
            if let Some(first) = used.filter(|first| first.dialect() != codec.dialect()) {
                return Err(ClaimError::Dialects(first.resource(), resource));
            }
            used = Some(codec);
            let demand = codec
                .demand(count, unit)
                .ok_or_else(|| ClaimError::Amount {
                    container: container.name.clone(),
                    resource: resource.to_owned(),
                    value: count.to_string(),
                    cause: QuantityError::TooLarge,
                })?;
            let name = ContainerName::new(&container.name)?;
            claims.push(ContainerClaim {
                name,
                position,
                role,
                demand,
            });
        }
    }
    match used {
        Some(codec) => {
            let claim = Claim::new(codec.dialect(), claims, has_slot)?;
            // The stock scheduler decides about these: a pod does not lose its GPU because a
            // score cannot read its CPU.
            let host = host_of(pod).unwrap_or(Host::ZERO);
            Ok(Some(claim.with_host(host).with_models(models_of(pod))))
        }
        None if has_slot => Err(ClaimError::SlotAlone),
        None => Ok(None),
    }
}

/// What a bound pod got: from [`keys::ALLOCATION`], else from its dialect's own annotations;
/// `None` where there are none.
///
/// # Errors
/// Annotations that cannot be read, or do not answer the claim.
pub fn allocation_of(pod: &Pod, claim: &Claim) -> Result<Option<Allocation>, AllocationError> {
    let Some(text) = pod.metadata.annotations.get(keys::ALLOCATION) else {
        return match codec(claim) {
            Some(codec) => codec.older_allocation(pod, claim),
            None => Ok(None),
        };
    };
    let allocation = allocation_from_json(text)?;
    if allocation.answers(claim) {
        Ok(Some(allocation))
    } else {
        Err(AllocationError::Mismatch {
            key: keys::ALLOCATION,
        })
    }
}

/// The annotations of a Binding. Every result key that the pod already carries is among
/// them, so that nothing written by somebody else survives (`present`: the pod's keys).
#[must_use]
pub fn binding_annotations<'a>(
    claim: &Claim,
    allocation: &Allocation,
    facts: &NodeFacts,
    now_ns: u64,
    present: impl IntoIterator<Item = &'a str>,
) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    if let Some(codec) = codec(claim) {
        annotations = codec.results(claim, allocation, facts, now_ns);
        annotations.insert(keys::ALLOCATION.to_owned(), allocation_to_json(allocation));
        annotations.insert(keys::ASSIGNED.to_owned(), "[]".to_owned());
    }
    for key in present {
        if keys::RESULT_KEYS.contains(&key) {
            // A Binding can overwrite an annotation but not remove it.
            annotations.entry(key.to_owned()).or_default();
        }
    }
    annotations
}

/// The containers whose devices the node has handed over. Garbage counts as none: the pod
/// then waits for its node, which writes the list anew.
#[must_use]
pub fn assigned_containers(pod: &Pod) -> Vec<String> {
    let text = pod.metadata.annotations.get(keys::ASSIGNED);
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

/// Has the node handed over the devices of every container?
#[must_use]
pub fn is_assigned(pod: &Pod, claim: &Claim) -> bool {
    if !pod.metadata.annotations.contains_key(keys::ASSIGNED) {
        let original = pod.metadata.annotations.get(keys::ALIYUN_ASSIGNED);
        return original.is_none_or(|text| text == "true");
    }
    let assigned = assigned_containers(pod);
    claim
        .containers()
        .iter()
        .all(|c| assigned.iter().any(|name| name == c.name.as_str()))
}

/// The annotations to patch when the node has handed over the devices of `containers`.
#[must_use]
pub fn assigned_annotations(
    claim: &Claim,
    containers: &[String],
    now_ns: u64,
) -> BTreeMap<String, String> {
    let all = claim
        .containers()
        .iter()
        .all(|c| containers.iter().any(|n| n == c.name.as_str()));
    let mut patch = match codec(claim) {
        Some(codec) if all => codec.handed_over(now_ns),
        _ => BTreeMap::new(),
    };
    let list = serde_json::to_string(containers).expect("strings are always JSON");
    patch.insert(keys::ASSIGNED.to_owned(), list);
    patch
}

/// What a container finds in its environment.
#[must_use]
pub fn environment(
    claim: &Claim,
    allocation: &Allocation,
    container: &ContainerClaim,
    facts: &NodeFacts,
) -> BTreeMap<String, String> {
    let mut environment = codec(claim).map_or_else(BTreeMap::new, |codec| {
        codec.environment(claim, allocation, container, facts)
    });
    let visible: Vec<String> = allocation
        .of(&container.name)
        .map(|grant| match &grant.card.uuid {
            Some(uuid) => uuid.to_string(),
            None => grant.card.index.to_string(),
        })
        .collect();
    environment.insert(keys::NVIDIA_VISIBLE_DEVICES.to_owned(), visible.join(","));
    environment
}

/// The name of the resource a claim was written with; a claim of no GPU has none.
#[must_use]
pub fn resource_of(claim: &Claim) -> Option<&'static str> {
    codec(claim).map(Codec::resource)
}

/// All containers in the order in which they start.
pub(crate) fn containers(pod: &Pod) -> impl Iterator<Item = (usize, Role, &Container)> {
    let init = pod
        .spec
        .init_containers
        .iter()
        .enumerate()
        .map(|(position, container)| {
            let sidecar = container.restart_policy.as_deref() == Some("Always");
            (
                position,
                if sidecar { Role::Sidecar } else { Role::Init },
                container,
            )
        });
    let main = pod.spec.containers.iter().enumerate();
    init.chain(main.map(|(position, container)| (position, Role::Main, container)))
}

/// How much of a resource a container asks; nothing and zero are the same.
fn amount(container: &Container, resource: &'static str) -> Result<Option<u64>, ClaimError> {
    let Some(text) = container.resources.asked(resource) else {
        return Ok(None);
    };
    match whole_number(text) {
        Ok(0) => Ok(None),
        Ok(count) => Ok(Some(count)),
        Err(cause) => Err(ClaimError::Amount {
            container: container.name.clone(),
            resource: resource.to_owned(),
            value: text.to_owned(),
            cause,
        }),
    }
}

#[cfg(test)]
mod tests;
