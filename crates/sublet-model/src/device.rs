//! A node's devices: what is there, how large, how healthy.
//!
//! An [`Inventory`] is checked when it is made, so that a card can be named by index or by
//! UUID without doubt. It never changes: a node whose cards change gets a new one.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::{Bdf, Fabric, GpuUuid, MiB, Nic, Pair, Partition};

/// A GPU's number on its node, as NVML and `nvidia-smi` count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuIndex(pub u16);

impl fmt::Display for GpuIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// May new work be put on a device?
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Yes.
    Healthy,
    /// No, and why (such as `xid 79`). What runs there is still counted.
    Sick(Arc<str>),
}

impl Health {
    /// True if new work may be put on it.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        matches!(self, Health::Healthy)
    }
}

/// One physical GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its number on the node.
    pub index: GpuIndex,
    /// Its UUID; unknown where no agent reports the node.
    pub uuid: Option<GpuUuid>,
    /// Product name, such as `NVIDIA H200`; empty where unknown.
    pub model: Arc<str>,
    /// Memory that can be granted: what the driver keeps for itself is not in it.
    pub memory: MiB,
    /// May new work be put on it?
    pub health: Health,
    /// Number of its device file, `/dev/nvidia<minor>`.
    pub minor: Option<u16>,
    /// Place on the board, from 1. NVSwitch partitions name cards by it.
    pub module_id: Option<u8>,
    /// PCI address.
    pub bdf: Option<Bdf>,
    /// NUMA node.
    pub numa: Option<u16>,
    /// CPU socket.
    pub socket: Option<u16>,
    /// PCIe bridges from the root down.
    pub pci_path: Vec<Bdf>,
    /// Multi-node NVLink membership.
    pub fabric: Option<Fabric>,
}

impl Gpu {
    /// A healthy card of which only number and size are known.
    #[must_use]
    pub fn plain(index: GpuIndex, memory: MiB) -> Gpu {
        Gpu {
            index,
            uuid: None,
            model: Arc::from(""),
            memory,
            health: Health::Healthy,
            minor: None,
            module_id: None,
            bdf: None,
            numa: None,
            socket: None,
            pci_path: Vec::new(),
            fabric: None,
        }
    }
}

/// Why a list of devices is not an inventory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InventoryError {
    /// Two cards have one number.
    #[error("GPU index {0} is given twice")]
    Index(GpuIndex),
    /// Two cards have one UUID.
    #[error("GPU UUID {0} is given twice")]
    Uuid(GpuUuid),
    /// More cards than a node can have.
    #[error("{0} GPUs on one node (at most {max})", max = Inventory::MAX_GPUS)]
    TooMany(usize),
    /// A pair or partition names a card that is not there.
    #[error("the topology names GPU {0}, which is not on the node")]
    Unknown(GpuIndex),
}

/// A node's devices and how they are wired. Cards are in order of their index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inventory {
    gpus: Vec<Gpu>,
    pairs: Vec<Pair>,
    nics: Vec<Nic>,
    partitions: Vec<Partition>,
}

impl Inventory {
    /// The most cards on one node. The largest machines sold have 16. Users of GPU schedulers
    /// simulate larger ones, and a scan of 4,096 cards is still short.
    pub const MAX_GPUS: usize = 4096;

    /// Checks and keeps the devices.
    ///
    /// # Errors
    /// Two cards with one index or UUID, too many cards, a pair or partition of an unknown card.
    pub fn new(
        mut gpus: Vec<Gpu>,
        pairs: Vec<Pair>,
        nics: Vec<Nic>,
        partitions: Vec<Partition>,
    ) -> Result<Inventory, InventoryError> {
        if gpus.len() > Inventory::MAX_GPUS {
            return Err(InventoryError::TooMany(gpus.len()));
        }
        gpus.sort_by_key(|gpu| gpu.index);
        if let Some(two) = gpus.windows(2).find(|two| two[0].index == two[1].index) {
            return Err(InventoryError::Index(two[0].index));
        }
        let mut seen = BTreeSet::new();
        for uuid in gpus.iter().filter_map(|gpu| gpu.uuid.as_ref()) {
            if !seen.insert(uuid) {
                return Err(InventoryError::Uuid(uuid.clone()));
            }
        }
        let named = pairs
            .iter()
            .flat_map(|pair| [pair.gpus.0, pair.gpus.1])
            .chain(partitions.iter().flat_map(|part| part.gpus.iter().copied()));
        for index in named {
            if gpus.binary_search_by_key(&index, |gpu| gpu.index).is_err() {
                return Err(InventoryError::Unknown(index));
            }
        }
        Ok(Inventory {
            gpus,
            pairs,
            nics,
            partitions,
        })
    }

    /// `count` equal cards: what is known of a node that no agent reports.
    ///
    /// # Errors
    /// More than [`Inventory::MAX_GPUS`].
    pub fn equal_cards(count: usize, memory: MiB) -> Result<Inventory, InventoryError> {
        if count > Inventory::MAX_GPUS {
            return Err(InventoryError::TooMany(count));
        }
        let gpus = (0..count as u16)
            .map(|i| Gpu::plain(GpuIndex(i), memory))
            .collect();
        Inventory::new(gpus, Vec::new(), Vec::new(), Vec::new())
    }

    /// The cards, in order of their index.
    #[must_use]
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// How pairs of cards are wired.
    #[must_use]
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Network cards.
    #[must_use]
    pub fn nics(&self) -> &[Nic] {
        &self.nics
    }

    /// NVSwitch partitions.
    #[must_use]
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Position in [`Inventory::gpus`] of the card a reference means: the UUID decides where
    /// both sides know one, since an index may move when a card is taken out.
    #[must_use]
    pub fn position(&self, card: &crate::CardRef) -> Option<usize> {
        let by_index = || {
            self.gpus
                .binary_search_by_key(&card.index, |gpu| gpu.index)
                .ok()
        };
        let Some(wanted) = &card.uuid else {
            return by_index();
        };
        self.gpus
            .iter()
            .position(|gpu| gpu.uuid.as_ref() == Some(wanted))
            .or_else(|| by_index().filter(|&at| self.gpus[at].uuid.is_none()))
    }

    /// Memory of all cards together.
    #[must_use]
    pub fn memory(&self) -> MiB {
        self.gpus.iter().map(|gpu| gpu.memory).sum()
    }

    /// The same devices with the given cards marked sick; those already sick keep their reason.
    #[must_use]
    pub fn with_sick(&self, indices: &BTreeSet<GpuIndex>, why: &str) -> Inventory {
        let mut copy = self.clone();
        for gpu in &mut copy.gpus {
            if gpu.health.is_healthy() && indices.contains(&gpu.index) {
                gpu.health = Health::Sick(Arc::from(why));
            }
        }
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CardRef;

    fn card(index: u16, uuid: Option<&str>) -> Gpu {
        let mut gpu = Gpu::plain(GpuIndex(index), MiB::from(100));
        gpu.uuid = uuid.map(|text| GpuUuid::new(text).unwrap());
        gpu
    }

    fn of(gpus: Vec<Gpu>) -> Result<Inventory, InventoryError> {
        Inventory::new(gpus, vec![], vec![], vec![])
    }

    #[test]
    fn the_uuid_wins_over_the_index() {
        let inventory = of(vec![card(1, Some("b")), card(0, Some("a")), card(2, None)]).unwrap();
        let at = |index, uuid: Option<&str>| {
            let uuid = uuid.map(|text| GpuUuid::new(text).unwrap());
            inventory.position(&CardRef {
                index: GpuIndex(index),
                uuid,
            })
        };
        assert_eq!(at(0, Some("b")), Some(1));
        assert_eq!(at(0, None), Some(0));
        assert_eq!(at(0, Some("gone")), None, "that card was taken out");
        assert_eq!(
            at(2, Some("gone")),
            Some(2),
            "this card's own UUID is unknown"
        );
        assert_eq!(at(9, None), None);
    }

    #[test]
    fn doubtful_inventories_are_refused() {
        assert_eq!(
            of(vec![card(1, None), card(1, None)]),
            Err(InventoryError::Index(GpuIndex(1)))
        );
        assert!(matches!(
            of(vec![card(0, Some("a")), card(1, Some("a"))]),
            Err(InventoryError::Uuid(_))
        ));
        assert_eq!(
            Inventory::equal_cards(5000, MiB::ZERO)
                .unwrap_err()
                .to_string(),
            "5000 GPUs on one node (at most 4096)"
        );
    }
}
