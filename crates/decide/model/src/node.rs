//! A node's facts about itself, beyond its devices: how cards are handed out there.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU8;
use std::str::FromStr;
use std::sync::Arc;

use crate::{
    Ask, CardRef, GpuIndex, Host, Inventory, MiB, Milli, NodeName, Part, PodUid, StockAllocatable,
};

/// The ways in which a node may hand out its cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sharing {
    /// Parts of cards, by memory.
    Memory,
    /// Whole cards only.
    Whole,
    /// Both, because the operator said so.
    Both,
}

/// The means by which the node tells which pod a container belongs to, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// No Sublet agent: another device plugin hands out the cards.
    NoAgent,
    /// By size and order: two pods that look alike must not wait at the same time.
    SizeAndOrder,
    /// By size and order, and afterwards by kubelet's checkpoint: pods that get the same of the same
    /// card may wait at the same time.
    Checkpoint,
    /// By the container runtime (NRI).
    Nri,
}

/// The way in which the node advertises its memory to kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Advertise {
    /// One device per unit of memory.
    Units,
    /// Amounts in the node's status; a slot resource carries Allocate.
    Slots,
}

/// Amount that one `aliyun.com/gpu-mem` stands for.
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

/// Reason why a text is no unit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no unit of memory; write `MiB` or `GiB`")]
pub struct UnitError(String);

/// Reads `MiB` or `GiB`, in small letters too.
impl FromStr for Unit {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Unit, UnitError> {
        let mut all = [Unit::MiB, Unit::GiB].into_iter();
        let found = all.find(|unit| unit.to_string().eq_ignore_ascii_case(text));
        found.ok_or_else(|| UnitError(text.to_owned()))
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

/// Recent measurements of a card by the node's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MeasuredUse {
    /// Share of its time that it was busy.
    pub busy: Milli,
    /// Pods that were on it all the while. Their use is in that figure.
    pub pods: u32,
}

/// Everything the engine needs to know of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its name.
    pub name: NodeName,
    /// Its devices.
    pub inventory: Arc<Inventory>,
    /// Ways in which its cards may be handed out.
    pub sharing: Sharing,
    /// Means by which its agent, if any, tells pods apart.
    pub identity: Identity,
    /// Way in which it advertises memory.
    pub advertise: Advertise,
    /// The unit it counts memory in.
    pub unit: Unit,
    /// Number of times that it offers each card to kubelet (HAMi's device split count): a pod that
    /// kubelet counts by cards goes on no card with so many pods. No limit unless it is said.
    pub splits: Option<NonZeroU8>,
    /// CPU and memory that pods can have of it.
    pub host: Host,
    /// The GPU model by which pods choose it; empty where it does not say.
    pub model: Arc<str>,
    /// Name of the device plugin that hands out its cards, if the plugin obeys only its own
    /// scheduler: pods bound there count, and no more are placed.
    pub plugin: Option<&'static str>,
    /// All else that pods can have of it; `None` if the stock scheduler looks at that.
    pub stock: Option<Arc<StockAllocatable>>,
    /// Cards that its agent has handed to pods which do not say so themselves.
    pub handed: Arc<BTreeMap<PodUid, Vec<CardRef>>>,
    /// Measurements of its cards by its agent; a card without known use has none.
    pub measured: Arc<BTreeMap<GpuIndex, MeasuredUse>>,
}

/// Room kept free on every card of a node for a pod that does not say which card it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptFree {
    /// So much of it.
    Part(Part),
    /// All of it.
    All,
}

impl fmt::Display for KeptFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeptFree::Part(part) => part.fmt(f),
            KeptFree::All => f.write_str("all"),
        }
    }
}

impl NodeFacts {
    /// Does the other say the same, apart from measurements?
    #[must_use]
    pub fn is_like(&self, other: &NodeFacts) -> bool {
        let measured = Arc::clone(&other.measured);
        let as_measured = NodeFacts {
            measured,
            ..self.clone()
        };
        as_measured == *other
    }

    /// Positions of the cards that the agent has handed to a pod which does not say so itself.
    #[must_use]
    pub fn handed_to(&self, uid: &PodUid) -> Vec<usize> {
        let cards = self.handed.get(uid).into_iter().flatten();
        let mut known: Vec<usize> = cards
            .filter_map(|card| self.inventory.position(card))
            .collect();
        known.sort_unstable();
        known.dedup();
        known
    }

    /// The room that must be kept free on every card for such a pod, so that no card that it may
    /// use is given away. None if its cards are known. None for whole cards without an agent
    /// either: there kubelet gives each card out once.
    #[must_use]
    pub fn kept_free_for(&self, uid: &PodUid, ask: &Ask) -> Option<KeptFree> {
        let known = self.handed_to(uid).len();
        match ask {
            Ask::Parts(parts) => {
                let asked = parts.count().get() as usize;
                let doubt = known != asked && self.inventory.gpus().len() > asked;
                doubt.then(|| KeptFree::Part(parts.largest()))
            }
            Ask::WholeCards(count)
                if known < count.get() as usize && self.identity != Identity::NoAgent =>
            {
                Some(KeptFree::All)
            }
            _ => None,
        }
    }

    /// A node with a name and cards, and nothing else known.
    #[must_use]
    pub fn plain(name: NodeName, inventory: Arc<Inventory>) -> NodeFacts {
        NodeFacts {
            name,
            inventory,
            sharing: Sharing::Memory,
            identity: Identity::NoAgent,
            advertise: Advertise::Units,
            unit: Unit::MiB,
            splits: None,
            host: Host::ZERO,
            model: Arc::from(""),
            plugin: None,
            stock: None,
            handed: Arc::default(),
            measured: Arc::default(),
        }
    }
}
