//! A node's devices: their number, size and health.
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
    /// No, for this reason (such as `xid 79`). Work that runs there is still counted.
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
    /// Memory that can be granted, without the driver's own.
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
    /// A healthy card with a number and a size, and nothing else known.
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

/// Reason why a list of devices is not an inventory.
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
    /// Two pairs are of the same cards.
    #[error("`pairs` has GPUs {0} and {1} twice")]
    PairTwice(GpuIndex, GpuIndex),
    /// A pair is of one card.
    #[error("`pairs` has GPU {0} as a pair with itself")]
    PairOfOne(GpuIndex),
    /// Two network cards have one PCI address.
    #[error("`nics` has the PCI address {0} twice")]
    NicTwice(Bdf),
    /// Two partitions have one number.
    #[error("`partitions` has the id {0} twice")]
    PartitionTwice(u16),
    /// A partition has a card twice.
    #[error("`partitions` has GPU {gpu} twice in partition {id}")]
    InPartitionTwice {
        /// The partition.
        id: u16,
        /// The card.
        gpu: GpuIndex,
    },
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
    /// Too many cards, a pair of one card, a pair or partition of an unknown card, or something that
    /// is there twice: an index, a UUID, a pair in either order, the PCI address of a network card,
    /// the number of a partition, or a card in it. Several network cards may have one RDMA device,
    /// and several partitions the same cards.
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
        if let Some(index) = twice(gpus.iter().map(|gpu| gpu.index)) {
            return Err(InventoryError::Index(index));
        }
        if let Some(uuid) = twice(gpus.iter().filter_map(|gpu| gpu.uuid.as_ref())) {
            return Err(InventoryError::Uuid(uuid.clone()));
        }
        let inventory = Inventory {
            gpus,
            pairs,
            nics,
            partitions,
        };
        inventory.check_wiring()?;
        Ok(inventory)
    }

    fn check_wiring(&self) -> Result<(), InventoryError> {
        let pairs = self.pairs.iter().map(|pair| pair.gpus);
        let named = pairs
            .clone()
            .flat_map(|(a, b)| [a, b])
            .chain(self.partitions.iter().flat_map(|part| part.gpus.clone()));
        for index in named {
            let found = self.gpus.binary_search_by_key(&index, |gpu| gpu.index);
            found.map_err(|_| InventoryError::Unknown(index))?;
        }
        if let Some((one, _)) = pairs.clone().find(|(a, b)| a == b) {
            return Err(InventoryError::PairOfOne(one));
        }
        if let Some((a, b)) = twice(pairs.map(|(a, b)| (a.min(b), a.max(b)))) {
            return Err(InventoryError::PairTwice(a, b));
        }
        if let Some(bdf) = twice(self.nics.iter().map(|nic| nic.bdf)) {
            return Err(InventoryError::NicTwice(bdf));
        }
        if let Some(id) = twice(self.partitions.iter().map(|part| part.id)) {
            return Err(InventoryError::PartitionTwice(id));
        }
        for Partition { id, gpus, .. } in &self.partitions {
            if let Some(gpu) = twice(gpus.iter().copied()) {
                return Err(InventoryError::InPartitionTwice { id: *id, gpu });
            }
        }
        Ok(())
    }

    /// The first so many cards, and the wiring that is theirs alone.
    #[must_use]
    pub fn with_first(&self, count: usize) -> Inventory {
        let gpus = self.gpus.iter().take(count).cloned().collect::<Vec<_>>();
        let is_there = |index: &GpuIndex| gpus.iter().any(|gpu| gpu.index == *index);
        let pairs = self.pairs.iter();
        let pairs = pairs.filter(|pair| is_there(&pair.gpus.0) && is_there(&pair.gpus.1));
        let partitions = self.partitions.iter();
        let partitions = partitions.filter(|partition| partition.gpus.iter().all(is_there));
        Inventory {
            pairs: pairs.cloned().collect(),
            nics: self.nics.clone(),
            partitions: partitions.cloned().collect(),
            gpus,
        }
    }

    /// `count` equal cards, for a node that no agent reports.
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

    /// The wiring of pairs of cards.
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

/// The first of these that has come before.
fn twice<T: Ord + Clone>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let mut seen = BTreeSet::new();
    all.find(|one| !seen.insert(one.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CardRef, Level};

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
    fn wiring_that_contradicts_itself_is_refused_by_its_field() {
        let gpus = || vec![card(0, None), card(1, None), card(2, None)];
        let pair = |(a, b)| Pair {
            gpus: (GpuIndex(a), GpuIndex(b)),
            level: Level::Pix,
            nvlinks: 0,
        };
        let nic = |(bdf, ibdev): (&str, &str)| Nic {
            bdf: bdf.parse().unwrap(),
            ibdev: ibdev.to_owned(),
            numa: None,
            pci_path: Vec::new(),
        };
        let partition = |(id, gpus): (u16, &[u16])| Partition {
            id,
            gpus: gpus.iter().map(|gpu| GpuIndex(*gpu)).collect(),
            links: 0,
        };
        let check = |pairs: &[(u16, u16)], nics: &[(&str, &str)], partitions: &[(u16, &[u16])]| {
            let made = Inventory::new(
                gpus(),
                pairs.iter().copied().map(pair).collect(),
                nics.iter().copied().map(nic).collect(),
                partitions.iter().copied().map(partition).collect(),
            );
            made.map_or_else(|error| error.to_string(), |_| String::new())
        };
        let (a, b) = (("0000:1c:00.0", "mlx5_0"), ("0000:1c:00.1", "mlx5_0"));
        for (found, expected) in [
            (check(&[(0, 1), (1, 2), (0, 2)], &[], &[]), ""),
            (
                check(&[(0, 1), (0, 1)], &[], &[]),
                "`pairs` has GPUs 0 and 1 twice",
            ),
            (
                check(&[(1, 2), (2, 1)], &[], &[]),
                "`pairs` has GPUs 1 and 2 twice",
            ),
            (
                check(&[(1, 1)], &[], &[]),
                "`pairs` has GPU 1 as a pair with itself",
            ),
            (
                check(&[(7, 7)], &[], &[]),
                "the topology names GPU 7, which is not on the node",
            ),
            (check(&[], &[a, b], &[]), ""),
            (
                check(&[], &[a, b, a], &[]),
                "`nics` has the PCI address 0000:1c:00.0 twice",
            ),
            (check(&[], &[], &[(1, &[0, 1]), (2, &[0, 1]), (3, &[])]), ""),
            (
                check(&[], &[], &[(1, &[0]), (1, &[1])]),
                "`partitions` has the id 1 twice",
            ),
            (
                check(&[], &[], &[(4, &[0, 2, 0])]),
                "`partitions` has GPU 0 twice in partition 4",
            ),
        ] {
            assert_eq!(found, expected);
        }
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
