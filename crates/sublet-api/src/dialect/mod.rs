//! Dialects: the ways of writing claims and allocations on pods.
//!
//! A dialect owns all that is its own: the resources by which pods ask, what a node without our
//! agent says in them, what our agent offers to kubelet, result keys and environment. Everything
//! else is the same for all of them. Adding one: a file here and a line in [`DIALECTS`].

mod aliyun;
mod nvidia;
#[cfg(test)]
mod toy;

use std::collections::BTreeMap;

use sublet_model::{
    Allocation, Claim, ClaimShapeError, Class, ContainerClaim, ContainerName, Demand, DialectName,
    Host, MiB, NameError, NodeFacts, Role, Sharing, Unit,
};

use crate::allocation::{AllocationError, allocation_from_json, allocation_to_json};
use crate::keys;
use crate::machine::host_of;
use crate::models::models_of;
use crate::node::{NodeDefaults, NodeError};
use crate::object::{Container, Node, Pod};
use crate::quantity::{QuantityError, whole_number};

/// Every dialect; a new one stands last. For a node that no agent reports, the first that finds cards there counts.
pub const DIALECTS: &[&dyn Dialect] = &[
    &aliyun::Aliyun,
    &nvidia::Nvidia,
    #[cfg(test)]
    &toy::Toy,
];

/// What one dialect knows.
pub trait Dialect: Sync {
    /// Its name, for maps.
    fn name(&self) -> DialectName;

    /// The resources by which a container asks. The others are amounts of what the first asks,
    /// and are refused without it.
    fn resources(&self) -> &'static [&'static str];

    /// Resources in a node's status that no container asks by.
    fn node_resources(&self) -> &'static [&'static str] {
        &[]
    }

    /// What a container asks that asks for these amounts of the [resources](Self::resources), in
    /// their order. `unit`: what one unit of memory is.
    ///
    /// # Errors
    /// The position of an amount that is too large.
    fn demand(&self, amounts: &[u64], unit: Unit) -> Result<Demand, usize>;

    /// The cards of a node that no agent of ours reports, from its status; `None` where it has
    /// none that this dialect knows.
    ///
    /// # Errors
    /// An amount in the status that cannot be read.
    fn cards(&self, node: &Node, defaults: NodeDefaults) -> Result<Option<EqualCards>, NodeError>;

    /// What our agent tells kubelet of the first of the [resources](Self::resources).
    fn offering(&self) -> Offering;

    /// Annotations of a pod that only Sublet may write: the policies in `deploy/` guard them.
    fn result_keys(&self) -> &'static [&'static str] {
        &[]
    }

    /// The pod's allocation out of annotations of this dialect alone.
    ///
    /// # Errors
    /// Annotations that cannot be read.
    fn older_allocation(
        &self,
        _pod: &Pod,
        _claim: &Claim,
    ) -> Result<Option<Allocation>, AllocationError> {
        Ok(None)
    }

    /// Has the node handed over everything, by this dialect's own mark? `None` if there is no
    /// mark.
    fn assigned_mark(&self, _pod: &Pod) -> Option<bool> {
        None
    }

    /// Result keys of this dialect, for a Binding.
    fn results(
        &self,
        _claim: &Claim,
        _allocation: &Allocation,
        _facts: &NodeFacts,
        _now_ns: u64,
    ) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Keys to patch when the node has handed over everything.
    fn handed_over(&self, _now_ns: u64) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Environment of one container, beside [`keys::NVIDIA_VISIBLE_DEVICES`].
    fn environment(
        &self,
        _claim: &Claim,
        _allocation: &Allocation,
        _container: &ContainerClaim,
        _facts: &NodeFacts,
    ) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}

/// Cards of which a node says only how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EqualCards {
    /// How many.
    pub count: u64,
    /// Memory of each.
    pub memory: MiB,
    /// How they are handed out.
    pub sharing: Sharing,
}

/// What our agent tells kubelet of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offering {
    /// What one device of it is.
    pub device: OfferedDevice,
    /// The name of the plugin's socket in kubelet's folder.
    pub socket: &'static str,
}

/// What one device of a resource is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferedDevice {
    /// One unit of a card's memory, on nodes that hand out parts. It is what the cluster's
    /// `--memory-unit` says, so [`Dialect::demand`] must count in the unit that it is given. Where kubelet cannot be told
    /// so many, amounts go into the node's status and slots carry Allocate.
    Unit {
        /// The resource that says how many cards there are.
        count: &'static str,
        /// The resource by which compute time is asked for, in percent of one card: a node has
        /// 100 for each.
        compute: &'static str,
    },
    /// A whole card, on nodes that hand those out.
    Card,
}

/// The resources of the node's status by which a node without a device plugin has none.
pub fn device_resources() -> impl Iterator<Item = &'static str> {
    let own = DIALECTS.iter().flat_map(|dialect| {
        let asked = dialect.resources().iter().copied();
        asked.chain(dialect.node_resources().iter().copied())
    });
    own.chain([keys::GPU_SLOT])
}

/// Every annotation that only Sublet may write on a pod.
pub fn result_keys() -> impl Iterator<Item = &'static str> {
    let own = DIALECTS.iter().flat_map(|dialect| dialect.result_keys());
    [keys::ALLOCATION, keys::ASSIGNED]
        .into_iter()
        .chain(own.copied())
}

/// The dialects that users have: all but that of the tests.
#[cfg(test)]
pub(crate) fn shipped() -> impl Iterator<Item = &'static dyn Dialect> {
    let all = DIALECTS.iter().copied();
    all.filter(|dialect| dialect.name() != DialectName("toy"))
}

/// The resources by which a pod can ask for GPUs, for people.
fn ways_to_ask() -> String {
    let first = DIALECTS
        .iter()
        .filter_map(|dialect| dialect.resources().first());
    let quoted: Vec<String> = first.map(|resource| format!("`{resource}`")).collect();
    quoted.join(" or ")
}

/// A claim's dialect; a claim of no GPU has none.
fn dialect_of(claim: &Claim) -> Option<&'static dyn Dialect> {
    let name = claim.dialect()?;
    let found = DIALECTS.iter().find(|dialect| dialect.name() == name);
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
    /// It asks for the slot resource and for nothing that the slot would carry.
    #[error(
        "the pod asks for `{slot}` but for no GPU: add {ways}",
        slot = keys::GPU_SLOT, ways = ways_to_ask()
    )]
    SlotAlone,
    /// An amount of something that it does not ask for.
    #[error("container {container} asks for `{resource}` but for no `{first}`: add it")]
    Lacks {
        /// The container.
        container: String,
        /// What it asks.
        resource: &'static str,
        /// What it should ask beside it.
        first: &'static str,
    },
    /// A class that nobody knows.
    #[error(
        "label `{key}` is `{0}`; write `{guaranteed}` or `{opportunistic}`",
        key = keys::CLASS_LABEL,
        guaranteed = Class::Guaranteed.word(), opportunistic = Class::Opportunistic.word()
    )]
    Class(String),
    /// A container has no valid name.
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
    let mut used: Option<&dyn Dialect> = None;
    let mut claims = Vec::new();
    let mut has_slot = false;
    for (position, role, container) in containers(pod) {
        has_slot |= amount(container, keys::GPU_SLOT)?.is_some();
        for &dialect in DIALECTS {
            let resource = dialect.resources()[0];
            let amounts = dialect.resources().iter();
            let amounts = amounts.map(|resource| Ok(amount(container, resource)?.unwrap_or(0)));
            let amounts: Vec<u64> = amounts.collect::<Result<_, ClaimError>>()?;
            if amounts[0] == 0 {
                let mut others = dialect.resources().iter().zip(&amounts);
                match others.find(|(_, amount)| **amount > 0) {
                    None => continue,
                    Some((other, _)) => {
                        return Err(ClaimError::Lacks {
                            container: container.name.clone(),
                            resource: other,
                            first: resource,
                        });
                    }
                }
            }
            if let Some(first) = used.filter(|first| first.name() != dialect.name()) {
                return Err(ClaimError::Dialects(first.resources()[0], resource));
            }
            used = Some(dialect);
            let demand = dialect.demand(&amounts, unit);
            let demand = demand.map_err(|at| ClaimError::Amount {
                container: container.name.clone(),
                resource: dialect.resources()[at].to_owned(),
                value: amounts[at].to_string(),
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
        Some(dialect) => {
            let claim = Claim::new(Some(dialect.name()), claims, has_slot)?;
            let classed = class_of(pod).and_then(|class| Ok(claim.clone().with_class(class)?));
            let claim = match classed {
                // A label can be changed at any time. What a pod has already counts all the same.
                Err(_) if !pod.spec.node_name.is_empty() => claim,
                classed => classed?,
            };
            // CPU and memory are for the stock scheduler to check. A pod does not lose its GPU
            // because we cannot read its CPU.
            let host = host_of(pod).unwrap_or(Host::ZERO);
            Ok(Some(claim.with_host(host).with_models(models_of(pod))))
        }
        None if has_slot => Err(ClaimError::SlotAlone),
        None => Ok(None),
    }
}

/// Who gives way, as the pod's label says.
fn class_of(pod: &Pod) -> Result<Class, ClaimError> {
    let Some(text) = pod.metadata.labels.get(keys::CLASS_LABEL) else {
        return Ok(Class::default());
    };
    let mut classes = [Class::Guaranteed, Class::Opportunistic].into_iter();
    let class = classes.find(|class| class.word() == text);
    class.ok_or_else(|| ClaimError::Class(text.clone()))
}

/// What a bound pod got: from [`keys::ALLOCATION`], else from its dialect's own annotations;
/// `None` where there are none.
///
/// # Errors
/// Annotations that cannot be read, or do not answer the claim.
pub fn allocation_of(pod: &Pod, claim: &Claim) -> Result<Option<Allocation>, AllocationError> {
    let Some(text) = pod.metadata.annotations.get(keys::ALLOCATION) else {
        return match dialect_of(claim) {
            Some(dialect) => dialect.older_allocation(pod, claim),
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
    if let Some(dialect) = dialect_of(claim) {
        annotations = dialect.results(claim, allocation, facts, now_ns);
        annotations.insert(keys::ALLOCATION.to_owned(), allocation_to_json(allocation));
        annotations.insert(keys::ASSIGNED.to_owned(), "[]".to_owned());
    }
    for key in present {
        if result_keys().any(|own| own == key) {
            // A Binding can overwrite an annotation but not remove it.
            annotations.entry(key.to_owned()).or_default();
        }
    }
    annotations
}

/// The containers whose devices the node has handed over. An unreadable list counts as empty: the
/// pod then waits for its node, which writes the list anew.
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
        let mark = dialect_of(claim).and_then(|dialect| dialect.assigned_mark(pod));
        return mark.unwrap_or(true);
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
    let mut patch = match dialect_of(claim) {
        Some(dialect) if all => dialect.handed_over(now_ns),
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
    let mut environment = dialect_of(claim).map_or_else(BTreeMap::new, |dialect| {
        dialect.environment(claim, allocation, container, facts)
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

/// The resource whose devices carry Allocate for a claim; a claim of no GPU has none.
#[must_use]
pub fn resource_of(claim: &Claim) -> Option<&'static str> {
    dialect_of(claim).map(|dialect| dialect.resources()[0])
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
