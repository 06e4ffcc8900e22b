//! Dialects: the ways of writing claims and allocations on pods.
//!
//! A dialect owns all of its rules: the resources by which pods ask, the meaning of a node's status
//! without our agent, the resources that our agent offers to kubelet, result keys and environment.
//! Everything else is the same for all of them. A new dialect needs a file here and a line in
//! [`DIALECTS`].

mod aliyun;
mod asked;
mod fraction;
pub mod hami;
mod kai;
mod kept;
pub mod koordinator;
mod kubeshare;
mod nvidia;
mod share_pod;
mod slots;
mod sublet;
#[cfg(test)]
mod toy;

use std::collections::BTreeMap;

use sublet_model::{
    Allocation, CardWishes, Carrier, Claim, Class, ContainerCards, ContainerClaim, Demand,
    DialectName, Identity, Inventory, MiB, NodeFacts, Sharing, Unit,
};

pub(crate) use self::asked::containers;
pub use self::asked::{Asked, ClaimError, asked_by, claim_of, slice_of};
pub use self::slots::add_slots;
use crate::allocation::{AllocationError, allocation_from_json, allocation_to_json};
use crate::keys;
use crate::node::{NodeDefaults, NodeError};
use crate::object::{Node, Pod};

/// Every dialect; a new one stands last. For a node that no agent reports, the first that finds cards there counts.
pub const DIALECTS: &[&dyn Dialect] = &[
    &aliyun::Aliyun,
    // Before what counts its devices as cards.
    &hami::Hami,
    &nvidia::Nvidia,
    &sublet::Sublet,
    &koordinator::Koordinator,
    &kubeshare::KubeShare,
    &kai::Kai,
    &share_pod::SharePod,
    #[cfg(test)]
    &toy::Toy,
];

/// Rules and names of one dialect.
pub trait Dialect: Sync {
    /// Its name, for maps.
    fn name(&self) -> DialectName;

    /// The resources by which a container asks in this dialect and in no other one.
    fn resources(&self) -> &'static [&'static str];

    /// Annotations and labels by which a pod asks in this dialect and in no other one.
    fn marks(&self) -> &'static [&'static str] {
        &[]
    }

    /// The dialect whose resources have another or a further meaning beside resources of this
    /// dialect. A pod that is written in both is read by this one.
    fn extends(&self) -> Option<DialectName> {
        None
    }

    /// Resources in a node's status that no container asks by.
    fn node_resources(&self) -> &'static [&'static str] {
        &[]
    }

    /// Demand of a container; `None` if it asks for no GPU.
    ///
    /// # Errors
    /// A demand that cannot be served, with its field.
    fn demand(&self, asked: &Asked<'_>) -> Result<Option<Demand>, ClaimError>;

    /// Advice for the author of the container about its request, although it can be served.
    fn remark(&self, _container: &ContainerClaim, _unit: Unit) -> Option<String> {
        None
    }

    /// Way in which the containers of one pod have cards.
    fn container_cards(&self) -> ContainerCards {
        ContainerCards::Shared
    }

    /// Cards that the pod accepts.
    ///
    /// # Errors
    /// A wish that cannot be read, with its field.
    fn wishes(&self, _pod: &Pod) -> Result<CardWishes, ClaimError> {
        Ok(CardWishes::default())
    }

    /// The class of a pod without [`keys::CLASS_LABEL`].
    ///
    /// # Errors
    /// A class that cannot be read, with its field.
    fn class(&self, _pod: &Pod) -> Result<Class, ClaimError> {
        Ok(Class::default())
    }

    /// The cards of a node without our agent, from its status; `None` if the status has none that
    /// this dialect knows.
    ///
    /// # Errors
    /// An amount in the status that cannot be read.
    fn cards(&self, _node: &Node, _defaults: NodeDefaults) -> Result<Option<NodeCards>, NodeError> {
        Ok(None)
    }

    /// Owner of the device plugin that hands out the node's cards, if the plugin follows only the
    /// decisions of its own scheduler. Asked for nodes with our agent too: such a plugin does not
    /// know which cards our agent hands out.
    fn plugin(&self, _node: &Node) -> Option<&'static str> {
        None
    }

    /// Resource that our agent offers to kubelet, so that kubelet asks it about the dialect's pods;
    /// `None` if slots carry Allocate for them.
    fn offering(&self) -> Option<Offering> {
        None
    }

    /// The resource whose devices make kubelet ask about the dialect's pods, and the kind of these
    /// devices.
    fn carrier(&self) -> (&'static str, Carrier) {
        match self.offering() {
            None => (keys::GPU_SLOT, Carrier::Slots),
            Some(offering) => match offering.device {
                OfferedDevice::Unit => (offering.resource, Carrier::Units),
                OfferedDevice::Card => (offering.resource, Carrier::Cards),
            },
        }
    }

    /// Amounts in a node's status beside the resource that is offered to kubelet. They let the
    /// stock scheduler send pods that ask for them to the node. Sublet decides whether they fit.
    fn amounts(&self, _cards: &OfferedCards) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

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
    fn handed_over(&self, _claim: &Claim, _now_ns: u64) -> BTreeMap<String, String> {
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

/// The cards of a node that no agent of ours reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCards {
    /// Known facts about the cards.
    pub inventory: Inventory,
    /// Way in which the cards are handed out.
    pub sharing: Sharing,
}

impl NodeCards {
    /// So many cards of that memory, without any other known facts.
    ///
    /// # Errors
    /// More than a node can have.
    pub fn equal(count: u64, memory: MiB, sharing: Sharing) -> Result<NodeCards, NodeError> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        Ok(NodeCards {
            inventory: Inventory::equal_cards(count, memory)?,
            sharing,
        })
    }
}

/// Resource that our agent offers to kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offering {
    /// The resource.
    pub resource: &'static str,
    /// Meaning of one device of the resource.
    pub device: OfferedDevice,
    /// The name of the plugin's socket in kubelet's folder.
    pub socket: &'static str,
}

/// The cards of a node, as amounts in its status count them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfferedCards {
    /// Number of cards.
    pub count: u64,
    /// Memory of all of them together.
    pub memory: MiB,
    /// Way in which the cards are handed out.
    pub sharing: Sharing,
    /// Largest number of containers that can have a part of one card.
    pub containers: u64,
}

impl OfferedCards {
    /// Percent of all cards together.
    #[must_use]
    pub fn percent(&self) -> u64 {
        self.count.saturating_mul(100)
    }

    /// Memory of all cards together, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.get().saturating_mul(1 << 20)
    }
}

/// Meaning of one device of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferedDevice {
    /// One unit of a card's memory, on nodes that hand out parts. The cluster's `--memory-unit`
    /// gives its size, so [`Dialect::demand`] must count in [`Asked::unit`]. If kubelet cannot be
    /// told so many devices, amounts go into the node's status and slots carry Allocate.
    Unit,
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
    [keys::ALLOCATION, keys::ASSIGNED, keys::ASKED]
        .into_iter()
        .chain(own.copied())
}

/// The dialects that users have: all but that of the tests.
#[cfg(test)]
pub(crate) fn shipped() -> impl Iterator<Item = &'static dyn Dialect> {
    let all = DIALECTS.iter().copied();
    all.filter(|dialect| dialect.name() != DialectName("toy"))
}

/// A claim's dialect; a claim of no GPU has none.
fn dialect_of(claim: &Claim) -> Option<&'static dyn Dialect> {
    let name = claim.dialect()?;
    let found = DIALECTS.iter().find(|dialect| dialect.name() == name);
    found.copied()
}

/// Advice for the author of the pod about its request, although it can be served. `unit`: the unit
/// of [`keys::ALIYUN_GPU_MEM`].
#[must_use]
pub fn remarks(claim: &Claim, unit: Unit) -> Vec<String> {
    let dialect = dialect_of(claim);
    let remark = |container| dialect.and_then(|dialect| dialect.remark(container, unit));
    claim.containers().iter().filter_map(remark).collect()
}

/// Allocation of a bound pod: from [`keys::ALLOCATION`], else from its dialect's own annotations;
/// `None` if it has neither.
///
/// # Errors
/// Annotations that cannot be read, or do not answer the claim.
pub fn allocation_of(pod: &Pod, claim: &Claim) -> Result<Option<Allocation>, AllocationError> {
    let Some(text) = pod.metadata.annotations.get(keys::ALLOCATION) else {
        return older_allocation_of(pod, claim);
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

/// Allocation of a pod that another scheduler bound. It is written as by the pod's dialect, or by a
/// dialect that extends that one, since their schedulers bind pods of both.
fn older_allocation_of(pod: &Pod, claim: &Claim) -> Result<Option<Allocation>, AllocationError> {
    let Some(own) = dialect_of(claim) else {
        return Ok(None);
    };
    let extending = DIALECTS
        .iter()
        .filter(|one| one.extends() == claim.dialect());
    for dialect in [own].into_iter().chain(extending.copied()) {
        if let Some(allocation) = dialect.older_allocation(pod, claim)? {
            return Ok(Some(allocation));
        }
    }
    Ok(None)
}

/// The annotations of a Binding. Every result key that the pod already carries is among them, so
/// that no other writer's value survives (`present`: the pod's keys). Plugins that the pod's author
/// requires of the runtime stay as they are. Without our plugin the container would not start
/// either, and the runtime's message would be less clear.
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
        if !dialect.marks().is_empty() {
            annotations.insert(keys::ASKED.to_owned(), kept::to_json(claim));
        }
    }
    if facts.identity == Identity::Nri && !annotations.is_empty() {
        let plugins = format!(r#"["{}"]"#, keys::NRI_PLUGIN);
        annotations.insert(keys::REQUIRED_PLUGINS.to_owned(), plugins);
    }
    for key in present {
        if key == keys::REQUIRED_PLUGINS {
            annotations.remove(key);
        } else if result_keys().any(|own| own == key) {
            // A Binding can overwrite an annotation but not remove it.
            annotations.entry(key.to_owned()).or_default();
        }
    }
    annotations
}

/// Containers whose devices the node has handed over. An unreadable list counts as empty: the pod
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
        Some(dialect) if all => dialect.handed_over(claim, now_ns),
        _ => BTreeMap::new(),
    };
    let list = serde_json::to_string(containers).expect("strings are always JSON");
    patch.insert(keys::ASSIGNED.to_owned(), list);
    patch
}

/// Environment variables of a container.
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

/// The resource whose devices carry Allocate for a claim; `None` for a claim without GPUs.
#[must_use]
pub fn resource_of(claim: &Claim) -> Option<&'static str> {
    dialect_of(claim).map(|dialect| dialect.carrier().0)
}

#[cfg(test)]
mod tests;
