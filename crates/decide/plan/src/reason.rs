//! Reasons why a node cannot take a claim: data with numbers, which become text only when printed.
//!
//! A reason says which limit, on which device, by how much. It has two texts. The full one
//! (`Display`) is for events, `sublet explain` and `sublet plan`. The short one ([`wire::Wire`]) has
//! nothing that differs from node to node, because the scheduler joins all distinct texts into
//! the pod's condition.

mod node_text;
mod room_text;
mod stock_text;
pub(crate) mod wire;
mod wish_text;

use std::fmt;
use std::sync::Arc;

use sublet_model::{
    Bytes, CardWishes, Count, GpuIndex, Health, HostPort, MiB, Milli, MilliCpu, Models, NodeName,
    Part, PodKey, Sharing, TagConflict, Unit,
};

use crate::stock::taint::Taint;

/// Reason why a node cannot take a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The node is not known, or its inventory cannot be read.
    Unknown,
    /// The node has no GPU.
    NoGpu,
    /// The node's GPUs are of a model that the pod does not accept.
    Model {
        /// The models that it accepts.
        wanted: Models,
        /// The node's model; empty where it does not say.
        node: Arc<str>,
    },
    /// Another device plugin hands out the node's cards, and does not know our decisions.
    Plugin {
        /// Name of the plugin.
        plugin: &'static str,
    },
    /// The pod names cards or models, and accepts no card of the node.
    Unwanted {
        /// The cards that it accepts.
        wishes: Arc<CardWishes>,
        /// The models of the node's cards, each once; empty for one that is not known.
        models: Vec<Arc<str>>,
        /// It would accept some, but wants all of one NUMA node, and that is not known of them.
        numa_unknown: bool,
    },
    /// Cards have enough room, but the pod's tags, or those of pods on the cards, keep them apart.
    Tags {
        /// A card with room.
        gpu: GpuIndex,
        /// The tag that keeps the pod away from it.
        tag: TagConflict,
    },
    /// Cards have enough room, and as many pods already as the node offers each card to kubelet.
    Splits {
        /// Number of pods that the node offers each card to.
        splits: u32,
    },
    /// Too little CPU is left.
    Cpu {
        /// CPU that the pod asks for.
        asked: MilliCpu,
        /// CPU that is left.
        left: MilliCpu,
    },
    /// Too little memory of the machine is left.
    HostMemory {
        /// Memory that the pod asks for.
        asked: Bytes,
        /// Memory that is left.
        left: Bytes,
    },
    /// The node takes no new pods.
    Unschedulable,
    /// The node has a taint that the pod does not tolerate.
    Taint {
        /// The taint.
        taint: Arc<Taint>,
    },
    /// The node lacks a label that the pod selects.
    NodeSelector {
        /// The selected label, as `key=value`.
        wanted: Arc<str>,
        /// The value that the node's label has; `None` if it has no such label.
        found: Option<Arc<str>>,
    },
    /// No term of the pod's required node affinity matches the node.
    NodeAffinity {
        /// Number of terms.
        terms: usize,
        /// The first requirement that the node does not meet, and the value that its label has;
        /// `None` if no term has any requirement.
        unmet: Option<(Arc<str>, Option<Arc<str>>)>,
    },
    /// The node has as many pods as it takes.
    Pods {
        /// The most pods that it takes.
        most: u64,
    },
    /// Too little of a resource is left.
    Resource {
        /// Its name.
        name: Arc<str>,
        /// Amount that the pod asks for.
        asked: u64,
        /// Amount that is left.
        left: u64,
        /// Amount that a node without pods would have left.
        allocatable: u64,
    },
    /// A port of the node is taken.
    HostPort {
        /// The port that the pod asks for.
        port: Arc<HostPort>,
    },
    /// The node hands out whole cards only, or parts only, and the pod asks for the other.
    Sharing {
        /// Sharing mode of the node.
        node: Sharing,
    },
    /// The node counts memory in another unit than the scheduler, so that the pod's number would
    /// mean something else there.
    Unit {
        /// The node's unit.
        node: Unit,
        /// The scheduler's unit.
        scheduler: Unit,
    },
    /// Kubelet would not ask the node's agent about the pod, which lacks the slot resource: its way
    /// of asking always needs one, or the node has more memory than device plugins can count.
    NoSlot,
    /// Kubelet would ask the node's agent twice: by the slot, and by the pod's other resource.
    SlotBeside,
    /// No card of the node is large enough, even when empty.
    TooSmall {
        /// Memory that the pod asks for on one card.
        asked: MiB,
        /// The memory of the largest card.
        largest: MiB,
        /// The largest card.
        gpu: GpuIndex,
    },
    /// The node has fewer cards than the pod asks for.
    TooFew {
        /// Number of cards that the pod asks for.
        asked: Count,
        /// Number of cards that the node has, or number of these that the pod accepts.
        total: Count,
        /// Does the pod accept only some of the node's cards?
        chosen: bool,
    },
    /// No card has enough free memory.
    NoRoom {
        /// Memory that the pod asks for on one card.
        asked: MiB,
        /// The largest amount that is free on a card.
        hole: MiB,
        /// The card with that free amount.
        gpu: GpuIndex,
        /// Cards that are large enough but sick.
        sick: SickCards,
        /// Memory of that card that is kept for pods that do not say which card they have.
        unsure: MiB,
    },
    /// Some cards have the memory, but none of them has the compute time.
    NoCompute {
        /// Compute time that the pod asks for on one card.
        asked: Milli,
        /// The most that is left on one of these cards.
        left: Milli,
        /// The card with the most left.
        gpu: GpuIndex,
    },
    /// A guaranteed pod that asks for all of a card's compute time shares the card with no other
    /// guaranteed pod. That rules out every card with room.
    Company {
        /// The card with the most room.
        gpu: GpuIndex,
    },
    /// The pods of the card, some of them bound by somebody else, ask for more than it has.
    Overfull {
        /// The card, which would have enough memory.
        gpu: GpuIndex,
    },
    /// Fewer cards have room than the pod asks for.
    TooFewRooms {
        /// Number of cards that the pod asks for.
        asked: Count,
        /// Request of the pod for the first of them.
        part: Part,
        /// Number of its parts that can have a card.
        fitting: Count,
    },
    /// Each container of the pod would find cards, but not all of them beside each other.
    TooFewForAll {
        /// Number of containers of the pod that ask for cards.
        containers: u32,
        /// Number of containers that can have their cards at once.
        fitting: u32,
    },
    /// Not enough cards are idle.
    NoIdle {
        /// Number of cards that the pod asks for.
        asked: Count,
        /// Number of cards that are idle.
        idle: Count,
        /// Number of cards that the node has.
        total: Count,
        /// Cards that are sick.
        sick: SickCards,
        /// Number of cards without a known pod that may have one that does not say its card.
        unsure: Count,
    },
    /// The node's agent could confuse this pod with another that has not got its devices yet.
    LookAlike {
        /// The other pod.
        other: PodKey,
    },
    /// Pods were evicted here for another pod of higher priority, which would find no place beside
    /// this one.
    KeptFor {
        /// The other pod.
        other: PodKey,
    },
    /// The pod has an allocation already, and gets no second one. Only binds are refused for this.
    Placed {
        /// The node of that allocation.
        node: NodeName,
    },
}

impl Reason {
    /// True if no eviction and no waiting will help: only another node or another pod would.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Reason::NoGpu
            | Reason::Model { .. }
            | Reason::Unwanted { .. }
            | Reason::Plugin { .. }
            | Reason::Taint { .. }
            | Reason::NodeSelector { .. }
            | Reason::NodeAffinity { .. }
            | Reason::Sharing { .. }
            | Reason::Unit { .. }
            | Reason::NoSlot
            | Reason::SlotBeside
            | Reason::TooSmall { .. }
            | Reason::TooFew { .. } => true,
            Reason::Unknown
            | Reason::Tags { .. }
            | Reason::Splits { .. }
            | Reason::Cpu { .. }
            | Reason::HostMemory { .. }
            | Reason::Unschedulable
            | Reason::Pods { .. }
            | Reason::Resource { .. }
            | Reason::HostPort { .. }
            | Reason::NoRoom { .. }
            | Reason::NoCompute { .. }
            | Reason::Company { .. }
            | Reason::Overfull { .. }
            | Reason::TooFewRooms { .. }
            | Reason::TooFewForAll { .. }
            | Reason::NoIdle { .. }
            | Reason::LookAlike { .. }
            | Reason::KeptFor { .. }
            | Reason::Placed { .. } => false,
        }
    }

    /// A short fixed word for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Reason::Unknown => "unknown_node",
            Reason::NoGpu => "no_gpu",
            Reason::Model { .. } => "model",
            Reason::Plugin { .. } => "plugin",
            Reason::Unwanted { .. } => "unwanted",
            Reason::Tags { .. } => "tags",
            Reason::Splits { .. } => "splits",
            Reason::Cpu { .. } => "cpu",
            Reason::HostMemory { .. } => "host_memory",
            Reason::Unschedulable => "unschedulable",
            Reason::Taint { .. } => "taint",
            Reason::NodeSelector { .. } => "node_selector",
            Reason::NodeAffinity { .. } => "node_affinity",
            Reason::Pods { .. } => "pods",
            Reason::Resource { .. } => "resource",
            Reason::HostPort { .. } => "host_port",
            Reason::Sharing { .. } => "sharing",
            Reason::Unit { .. } => "unit",
            Reason::NoSlot => "no_slot",
            Reason::SlotBeside => "slot_beside",
            Reason::TooSmall { .. } => "too_small",
            Reason::TooFew { .. } => "too_few",
            Reason::NoRoom { .. } => "no_room",
            Reason::NoCompute { .. } => "no_compute",
            Reason::Company { .. } => "company",
            Reason::Overfull { .. } => "overfull",
            Reason::TooFewRooms { .. } => "too_few_rooms",
            Reason::TooFewForAll { .. } => "too_few_for_all",
            Reason::NoIdle { .. } => "no_idle",
            Reason::LookAlike { .. } => "look_alike",
            Reason::KeptFor { .. } => "kept_for",
            Reason::Placed { .. } => "placed",
        }
    }
}

/// Cards that get no new work.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct SickCards {
    /// Number of cards.
    pub count: Count,
    /// Reason why the first of them gets none; empty if there are none.
    pub why: Arc<str>,
}

impl SickCards {
    /// The sick ones among these cards.
    pub(crate) fn among<'a>(cards: impl Iterator<Item = &'a Health>) -> SickCards {
        let why = |health: &'a Health| match health {
            Health::Sick(why) => Some(Arc::clone(why)),
            Health::Healthy => None,
        };
        let mut sick = cards.filter_map(why);
        let first = sick.next();
        SickCards {
            count: Count::new(u32::from(first.is_some()) + sick.count() as u32),
            why: first.unwrap_or_default(),
        }
    }

    /// Adds that there are some, if there are.
    fn note(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count.get() {
            0 => Ok(()),
            1 => write!(f, "; 1 GPU is unhealthy ({})", self.why),
            n => write!(f, "; {n} GPUs are unhealthy (the first: {})", self.why),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Unknown
            | Reason::NoGpu
            | Reason::Sharing { .. }
            | Reason::Unit { .. }
            | Reason::NoSlot
            | Reason::SlotBeside
            | Reason::Plugin { .. } => self.node_text(f),
            Reason::TooSmall { .. }
            | Reason::NoRoom { .. }
            | Reason::NoCompute { .. }
            | Reason::Company { .. }
            | Reason::Overfull { .. }
            | Reason::Splits { .. } => self.room_text(f),
            Reason::TooFew { .. }
            | Reason::TooFewRooms { .. }
            | Reason::TooFewForAll { .. }
            | Reason::NoIdle { .. } => self.number_text(f),
            Reason::Model { .. } | Reason::Unwanted { .. } | Reason::Tags { .. } => {
                self.wish_text(f)
            }
            Reason::LookAlike { other } => write!(
                f,
                "pod {other} asks for the same amount and has not started yet; the node tells pods apart by size"
            ),
            Reason::KeptFor { other } => write!(
                f,
                "room was made here for pod {other} of higher priority, which would find none beside this pod"
            ),
            Reason::Placed { node } => write!(
                f,
                "the pod already has a place on node {node}: an earlier bind holds, or is not settled yet"
            ),
            of_the_stock_scheduler => of_the_stock_scheduler.stock_text(f),
        }
    }
}

#[cfg(test)]
mod tests;
