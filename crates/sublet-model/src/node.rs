//! What a node says of itself, beyond its devices: how cards are handed out there.

use std::fmt;
use std::sync::Arc;

use crate::{Host, Inventory, MiB, NodeName, StockAllocatable};

/// How a node's cards may be handed out (R1.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sharing {
    /// Parts of cards, by memory.
    Memory,
    /// Whole cards only.
    Whole,
    /// Both, because the operator said so.
    Both,
}

/// How the node tells which pod a container belongs to, weakest first
/// (`k8s-scheduling.md` §6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// No Sublet agent: somebody else's device plugin does what it does.
    NoAgent,
    /// By size and order: two pods that look alike must not wait at the same time.
    SizeAndOrder,
    /// By environment that a webhook put into the pod.
    DownwardApi,
    /// By the container runtime (NRI).
    Nri,
}

/// How the node tells kubelet of its memory (design: advertising memory).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Advertise {
    /// One device per unit of memory.
    Units,
    /// Amounts in the node's status; a slot resource carries Allocate.
    Slots,
}

/// What one `aliyun.com/gpu-mem` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Unit {
    /// One MiB.
    #[default]
    MiB,
    /// One GiB, as the original device plugin counts unless told otherwise.
    GiB,
}

impl Unit {
    /// `count` units, or `None` where that is more memory than [`MiB::MAX`].
    #[must_use]
    pub fn times(self, count: u64) -> Option<MiB> {
        match self {
            Unit::MiB => MiB::new(count),
            Unit::GiB => crate::GiB::new(count).map(MiB::from),
        }
    }

    /// The whole units in `memory`.
    #[must_use]
    pub fn whole_in(self, memory: MiB) -> u64 {
        match self {
            Unit::MiB => memory.get(),
            Unit::GiB => crate::GiB::whole_in(memory).get(),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::MiB => "MiB",
            Unit::GiB => "GiB",
        })
    }
}

/// Everything the engine needs to know of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its name.
    pub name: NodeName,
    /// Its devices.
    pub inventory: Arc<Inventory>,
    /// How its cards may be handed out.
    pub sharing: Sharing,
    /// How its agent, if any, tells pods apart.
    pub identity: Identity,
    /// How it advertises memory.
    pub advertise: Advertise,
    /// The unit it counts memory in.
    pub unit: Unit,
    /// CPU and memory that pods can have of it.
    pub host: Host,
    /// The GPU model by which pods choose it; empty where it does not say.
    pub model: Arc<str>,
    /// What else pods can have of it; `None` where the stock scheduler looks at that.
    pub stock: Option<Arc<StockAllocatable>>,
}

impl NodeFacts {
    /// A node of which only its name and its cards are known.
    #[must_use]
    pub fn plain(name: NodeName, inventory: Arc<Inventory>) -> NodeFacts {
        NodeFacts {
            name,
            inventory,
            sharing: Sharing::Memory,
            identity: Identity::NoAgent,
            advertise: Advertise::Units,
            unit: Unit::MiB,
            host: Host::ZERO,
            model: Arc::from(""),
            stock: None,
        }
    }
}
