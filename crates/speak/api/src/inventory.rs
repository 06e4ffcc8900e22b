//! `sublet.dev/inventory`: a node's devices as its agent reports them, as JSON on the node.
//!
//! The same form serves files that describe a machine by hand; fields that are not known
//! are left out. Unknown fields are an error in a file (a typing mistake) but not in the
//! annotation, where they come from a newer agent.

use std::num::NonZeroU8;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sublet_model::{
    Advertise, Bdf, BdfError, Fabric, Gpu, GpuIndex, GpuUuid, Health, Identity, Inventory,
    InventoryError, Level, MiB, NameError, Nic, Pair, Partition, Sharing, Unit,
};

/// Report of an agent about its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// The devices.
    pub inventory: Inventory,
    /// Way in which the devices may be handed out.
    pub sharing: Sharing,
    /// Way in which the agent tells pods apart.
    pub identity: Identity,
    /// Way in which memory is advertised.
    pub advertise: Advertise,
    /// The unit memory is advertised in.
    pub unit: Unit,
    /// Number of times that each card is offered to kubelet as `nvidia.com/gpu`, if the operator
    /// set it.
    pub splits: Option<NonZeroU8>,
}

/// Reason why a text is not an inventory.
#[derive(Debug, thiserror::Error)]
pub enum InventoryTextError {
    /// Not the JSON that was expected; says line, column and field.
    #[error("not an inventory: {0}")]
    Json(#[from] serde_json::Error),
    /// A form from another time.
    #[error("`version` is {0}; this Sublet reads version 1")]
    Version(u32),
    /// A wrong UUID.
    #[error("`uuid`: {0}")]
    Name(#[from] NameError),
    /// A wrong PCI address.
    #[error("PCI address: {0}")]
    Bdf(#[from] BdfError),
    /// Too much memory to count.
    #[error("`memoryMiB` of GPU {0} is too large")]
    Memory(u16),
    /// Devices that contradict each other.
    #[error(transparent)]
    Devices(#[from] InventoryError),
}

/// The whole text.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct InventoryFile {
    version: u32,
    unit: UnitName,
    sharing: SharingName,
    identity: IdentityName,
    advertise: AdvertiseName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpu_splits: Option<NonZeroU8>,
    gpus: Vec<GpuJson>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pairs: Vec<PairJson>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    nics: Vec<NicJson>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    partitions: Vec<PartitionJson>,
}

/// A wire name for each value of an enum of the model.
macro_rules! names {
    ($wire:ident, $model:ident, $($variant:ident = $text:literal),+) => {
        #[derive(Debug, Clone, Copy, Serialize, Deserialize)]
        enum $wire {
            $(#[serde(rename = $text)] $variant),+
        }
        impl From<$wire> for $model {
            fn from(wire: $wire) -> $model {
                match wire { $($wire::$variant => $model::$variant),+ }
            }
        }
        impl From<$model> for $wire {
            fn from(model: $model) -> $wire {
                match model { $($model::$variant => $wire::$variant),+ }
            }
        }
    };
}

names!(UnitName, Unit, MiB = "MiB", GiB = "GiB");
names!(
    SharingName,
    Sharing,
    Memory = "memory",
    Whole = "whole",
    Both = "both"
);
names!(AdvertiseName, Advertise, Units = "units", Slots = "slots");
names!(
    IdentityName,
    Identity,
    NoAgent = "none",
    SizeAndOrder = "size-and-order",
    Checkpoint = "kubelet-checkpoint",
    Nri = "nri"
);
names!(
    LevelName,
    Level,
    Board = "BOARD",
    Pix = "PIX",
    Pxb = "PXB",
    Phb = "PHB",
    Node = "NODE",
    Socket = "SOCKET",
    Sys = "SYS"
);

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GpuJson {
    index: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    model: String,
    #[serde(rename = "memoryMiB")]
    memory_mib: u64,
    /// Fault of the card; absent for a healthy card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sick: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    minor: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    module_id: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bdf: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    numa: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    socket: Option<u16>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pci_path: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fabric: Option<FabricJson>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct FabricJson {
    cluster: String,
    clique: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct PairJson {
    gpus: [u16; 2],
    level: LevelName,
    #[serde(default)]
    nvlinks: u8,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NicJson {
    bdf: String,
    ibdev: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    numa: Option<u16>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pci_path: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct PartitionJson {
    id: u16,
    gpus: Vec<u16>,
    #[serde(default)]
    links: u8,
}

/// The annotation's text.
#[must_use]
pub fn report_to_json(report: &NodeReport) -> String {
    let path = |path: &[Bdf]| path.iter().map(Bdf::to_string).collect();
    let gpu = |gpu: &Gpu| GpuJson {
        index: gpu.index.0,
        uuid: gpu.uuid.as_ref().map(GpuUuid::to_string),
        model: gpu.model.to_string(),
        memory_mib: gpu.memory.get(),
        sick: match &gpu.health {
            Health::Healthy => None,
            Health::Sick(why) => Some(why.to_string()),
        },
        minor: gpu.minor,
        module_id: gpu.module_id,
        bdf: gpu.bdf.map(|bdf| bdf.to_string()),
        numa: gpu.numa,
        socket: gpu.socket,
        pci_path: path(&gpu.pci_path),
        fabric: gpu.fabric.as_ref().map(|fabric| FabricJson {
            cluster: fabric.cluster.to_string(),
            clique: fabric.clique,
        }),
    };
    let inventory = &report.inventory;
    let file = InventoryFile {
        version: 1,
        unit: report.unit.into(),
        sharing: report.sharing.into(),
        identity: report.identity.into(),
        advertise: report.advertise.into(),
        gpu_splits: report.splits,
        gpus: inventory.gpus().iter().map(gpu).collect(),
        pairs: inventory
            .pairs()
            .iter()
            .map(|pair| PairJson {
                gpus: [pair.gpus.0.0, pair.gpus.1.0],
                level: pair.level.into(),
                nvlinks: pair.nvlinks,
            })
            .collect(),
        nics: inventory
            .nics()
            .iter()
            .map(|nic| NicJson {
                bdf: nic.bdf.to_string(),
                ibdev: nic.ibdev.clone(),
                numa: nic.numa,
                pci_path: path(&nic.pci_path),
            })
            .collect(),
        partitions: inventory
            .partitions()
            .iter()
            .map(|part| PartitionJson {
                id: part.id,
                gpus: part.gpus.iter().map(|gpu| gpu.0).collect(),
                links: part.links,
            })
            .collect(),
    };
    serde_json::to_string(&file).expect("strings and numbers are always JSON")
}

/// Reads the annotation's text.
///
/// # Errors
/// Not such JSON, an unknown version, wrong names or addresses, or devices that contradict
/// each other.
pub fn report_from_json(text: &str) -> Result<NodeReport, InventoryTextError> {
    let file: InventoryFile = serde_json::from_str(text)?;
    if file.version != 1 {
        return Err(InventoryTextError::Version(file.version));
    }
    let gpus = file
        .gpus
        .into_iter()
        .map(gpu_of)
        .collect::<Result<_, _>>()?;
    let pair = |pair: PairJson| {
        let [a, b] = pair.gpus;
        Pair {
            gpus: (GpuIndex(a.min(b)), GpuIndex(a.max(b))),
            level: pair.level.into(),
            nvlinks: pair.nvlinks,
        }
    };
    let nic = |nic: NicJson| -> Result<Nic, InventoryTextError> {
        Ok(Nic {
            bdf: nic.bdf.parse()?,
            ibdev: nic.ibdev,
            numa: nic.numa,
            pci_path: path_of(&nic.pci_path)?,
        })
    };
    let partition = |part: PartitionJson| Partition {
        id: part.id,
        gpus: part.gpus.into_iter().map(GpuIndex).collect(),
        links: part.links,
    };
    let inventory = Inventory::new(
        gpus,
        file.pairs.into_iter().map(pair).collect(),
        file.nics.into_iter().map(nic).collect::<Result<_, _>>()?,
        file.partitions.into_iter().map(partition).collect(),
    )?;
    Ok(NodeReport {
        inventory,
        sharing: file.sharing.into(),
        identity: file.identity.into(),
        advertise: file.advertise.into(),
        unit: file.unit.into(),
        splits: file.gpu_splits,
    })
}

fn gpu_of(gpu: GpuJson) -> Result<Gpu, InventoryTextError> {
    let fabric = |fabric: FabricJson| -> Result<Fabric, NameError> {
        Ok(Fabric {
            cluster: GpuUuid::new(&fabric.cluster)?,
            clique: fabric.clique,
        })
    };
    Ok(Gpu {
        index: GpuIndex(gpu.index),
        uuid: gpu.uuid.as_deref().map(GpuUuid::new).transpose()?,
        model: Arc::from(gpu.model),
        memory: MiB::new(gpu.memory_mib).ok_or(InventoryTextError::Memory(gpu.index))?,
        health: gpu
            .sick
            .map_or(Health::Healthy, |why| Health::Sick(Arc::from(why))),
        minor: gpu.minor,
        module_id: gpu.module_id,
        bdf: gpu.bdf.as_deref().map(Bdf::from_str).transpose()?,
        numa: gpu.numa,
        socket: gpu.socket,
        pci_path: path_of(&gpu.pci_path)?,
        fabric: gpu.fabric.map(fabric).transpose()?,
    })
}

fn path_of(path: &[String]) -> Result<Vec<Bdf>, BdfError> {
    path.iter().map(|text| text.parse()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = concat!(
        r#"{"version":1,"unit":"MiB","sharing":"memory","identity":"size-and-order","advertise":"units","#,
        r#""gpus":[{"index":0,"uuid":"GPU-a","model":"V100","memoryMiB":16276,"numa":0,"pciPath":["0000:3a:00.0"]},"#,
        r#"{"index":1,"uuid":"GPU-b","memoryMiB":16276,"sick":"xid 79"}],"#,
        r#""pairs":[{"gpus":[0,1],"level":"PIX","nvlinks":2}]}"#
    );

    #[test]
    fn a_report_is_read_and_written_back() {
        let report = report_from_json(TEXT).unwrap();
        assert_eq!(report.inventory.gpus().len(), 2);
        assert_eq!(
            report.inventory.gpus()[1].health,
            Health::Sick(Arc::from("xid 79"))
        );
        assert_eq!(report_to_json(&report), TEXT);
    }

    #[test]
    fn garbage_is_named() {
        let check = |from: &str, to: &str| {
            assert!(TEXT.contains(from), "{from}");
            report_from_json(&TEXT.replace(from, to))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            check("\"version\":1", "\"version\":9"),
            "`version` is 9; this Sublet reads version 1"
        );
        assert_eq!(check("GPU-b", "GPU-a"), "GPU UUID GPU-a is given twice");
        assert_eq!(
            check("GPU-b", "GPU,b"),
            "`uuid`: a GPU UUID must not contain ','"
        );
        assert_eq!(
            check("[0,1]", "[0,7]"),
            "the topology names GPU 7, which is not on the node"
        );
        assert_eq!(
            check("[0,1]", "[1,1]"),
            "`pairs` has GPU 1 as a pair with itself"
        );
        assert_eq!(
            check(
                "\"pairs\":[",
                "\"pairs\":[{\"gpus\":[1,0],\"level\":\"SYS\"},"
            ),
            "`pairs` has GPUs 0 and 1 twice"
        );
        assert!(check("\"MiB\"", "\"MB\"").contains("unknown variant `MB`"));
        assert!(check("16276", "-1").contains("invalid value: integer `-1`"));
        assert!(report_from_json("").is_err());
    }

    proptest! {
        #[test]
        fn any_change_of_a_byte_is_answered(at in 0..TEXT.len(), byte in 32u8..127) {
            let mut text = TEXT.as_bytes().to_vec();
            text[at] = byte;
            let text = String::from_utf8(text).unwrap();
            if let Ok(report) = report_from_json(&text) {
                prop_assert_eq!(report_from_json(&report_to_json(&report)).unwrap(), report);
            }
        }
    }
}
