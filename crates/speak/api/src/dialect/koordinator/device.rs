//! Koordinator's `Device`: a node's cards as koordlet reports them. Our agent writes the same form
//! for Koordinator's readers.
//!
//! Fields, units and defaults are koordlet's (Koordinator 1.7, `states_device_linux.go`).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sublet_model::{Gpu, GpuUuid, Inventory};

use super::allocated::written;
use crate::keys;
use crate::object::Node;

/// The API group of `Device`.
pub const GROUP: &str = "scheduling.koordinator.sh";
/// Its version.
pub const VERSION: &str = "v1alpha1";
/// Its kind.
pub const KIND: &str = "Device";

/// A `Device` without its name, which is that of its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceObject {
    metadata: DeviceMetadata,
    spec: DeviceSpec,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct DeviceMetadata {
    labels: BTreeMap<&'static str, String>,
    /// So that it goes with its node.
    owner_references: Vec<NodeOwner>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeOwner {
    api_version: &'static str,
    kind: &'static str,
    name: String,
    uid: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct DeviceSpec {
    devices: Vec<DeviceInfo>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct DeviceInfo {
    #[serde(rename = "type")]
    kind: &'static str,
    id: String,
    minor: u16,
    #[serde(rename = "moduleID", skip_serializing_if = "Option::is_none")]
    module_id: Option<u8>,
    health: bool,
    resources: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topology: Option<DeviceTopology>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct DeviceTopology {
    #[serde(rename = "socketID")]
    socket: i32,
    #[serde(rename = "nodeID")]
    numa: i32,
    #[serde(rename = "pcieID")]
    root: String,
    #[serde(rename = "busID")]
    bus: String,
}

impl DeviceObject {
    /// The object of a node with these cards. A card without a UUID is left out.
    #[must_use]
    pub fn of(node: &Node, inventory: &Inventory) -> DeviceObject {
        let vendor = (keys::KOORDINATOR_VENDOR, "nvidia".to_owned());
        let model = model_of(inventory).map(|model| (keys::KOORDINATOR_MODEL, model));
        let mut devices: Vec<_> = inventory.gpus().iter().filter_map(device_of).collect();
        // As koordlet sorts them.
        devices.sort_by_key(|device| device.minor);
        DeviceObject {
            metadata: DeviceMetadata {
                labels: [vendor].into_iter().chain(model).collect(),
                owner_references: vec![NodeOwner {
                    api_version: "v1",
                    kind: "Node",
                    name: node.metadata.name.clone(),
                    uid: node.metadata.uid.clone(),
                }],
            },
            spec: DeviceSpec { devices },
        }
    }
}

/// The cards that another writer's `Device` calls unhealthy. A card without the field `health` is
/// unhealthy: the CRD's default is `false`.
///
/// # Errors
/// Not such an object.
pub fn unhealthy_in(device: &Value) -> Result<BTreeSet<GpuUuid>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Device {
        #[serde(default)]
        spec: Spec,
    }
    #[derive(Default, Deserialize)]
    struct Spec {
        #[serde(default)]
        devices: Vec<One>,
    }
    #[derive(Deserialize)]
    struct One {
        #[serde(rename = "type")]
        kind: String,
        #[serde(default)]
        id: String,
        #[serde(default)]
        health: bool,
    }
    let devices = Device::deserialize(device)?.spec.devices;
    let sick = devices
        .iter()
        .filter(|one| one.kind == "gpu" && !one.health);
    // A name that no card can have is none of ours.
    Ok(sick.filter_map(|one| GpuUuid::new(&one.id).ok()).collect())
}

fn device_of(gpu: &Gpu) -> Option<DeviceInfo> {
    let resources = [
        (keys::KOORDINATOR_CORE, "100".to_owned()),
        (keys::KOORDINATOR_MEMORY, written(gpu.memory)),
        (keys::KOORDINATOR_RATIO, "100".to_owned()),
    ];
    Some(DeviceInfo {
        kind: "gpu",
        id: gpu.uuid.as_ref()?.to_string(),
        minor: gpu.minor.unwrap_or(gpu.index.0),
        module_id: gpu.module_id,
        health: gpu.health.is_healthy(),
        resources: resources.into(),
        topology: topology_of(gpu),
    })
}

/// All of it or nothing, as the CRD requires. An unknown NUMA node is -1, which Koordinator's scheduler
/// takes for unknown; 0 is a place. Koordlet says 0 then, and -1 for the socket, which it never knows.
fn topology_of(gpu: &Gpu) -> Option<DeviceTopology> {
    let bus = gpu.bdf?;
    // The name of the root complex has the bus of its first port. Bus 0 belongs to no bridge.
    let first = match gpu.pci_path.first() {
        Some(port) => *port,
        None if bus.bus == 0 => bus,
        None => return None,
    };
    Some(DeviceTopology {
        socket: gpu.socket.map_or(-1, i32::from),
        numa: gpu.numa.map_or(-1, i32::from),
        root: format!("pci{:04x}:{:02x}", first.domain, first.bus),
        bus: bus.to_string(),
    })
}

/// The model of all cards as a label's value: `A100-SXM4-80GB`.
fn model_of(inventory: &Inventory) -> Option<String> {
    let models: BTreeSet<&str> = inventory.gpus().iter().map(|gpu| &*gpu.model).collect();
    let model = models.first().filter(|_| models.len() == 1)?;
    let model = model.strip_prefix("NVIDIA ").unwrap_or(model);
    let model = model.replace(' ', "-");
    let is_end = |end: Option<char>| end.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_label = model.len() <= 63
        && is_end(model.chars().next())
        && is_end(model.chars().last())
        && model
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    is_label.then_some(model)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::json;
    use sublet_model::{GpuIndex, GpuUuid, Health, MiB};

    use super::*;
    use crate::quantity::bytes;

    fn card(index: u16) -> Gpu {
        Gpu {
            uuid: GpuUuid::new(&format!("GPU-{index}")).ok(),
            model: Arc::from("NVIDIA A100-SXM4 80GB"),
            ..Gpu::plain(GpuIndex(index), MiB::from(81_559))
        }
    }

    fn object(gpus: Vec<Gpu>) -> Value {
        let mut node = Node::default();
        node.metadata.name = "n1".to_owned();
        node.metadata.uid = "u1".to_owned();
        let inventory = Inventory::new(gpus, vec![], vec![], vec![]).unwrap();
        serde_json::to_value(DeviceObject::of(&node, &inventory)).unwrap()
    }

    #[test]
    fn a_node_is_reported_as_koordlet_reports_it() {
        let placed = Gpu {
            minor: Some(3),
            module_id: Some(2),
            bdf: "0000:4b:00.0".parse().ok(),
            pci_path: vec!["0000:4a:02.0".parse().unwrap()],
            numa: Some(1),
            socket: Some(1),
            memory: MiB::from(81_920),
            ..card(0)
        };
        let sick = Gpu {
            health: Health::Sick(Arc::from("xid 79")),
            ..card(1)
        };
        let lost = Gpu {
            uuid: None,
            ..card(2)
        };
        let resources = |memory: &str| {
            json!({
                "koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": memory,
                "koordinator.sh/gpu-memory-ratio": "100",
            })
        };
        let topology = json!({
            "socketID": 1, "nodeID": 1, "pcieID": "pci0000:4a", "busID": "0000:4b:00.0",
        });
        let expected = json!({
            "metadata": {
                "labels": {
                    "node.koordinator.sh/gpu-vendor": "nvidia",
                    "node.koordinator.sh/gpu-model": "A100-SXM4-80GB",
                },
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1"},
                ],
            },
            "spec": {"devices": [
                {
                    "type": "gpu", "id": "GPU-1", "minor": 1, "health": false,
                    "resources": resources("81559Mi"),
                },
                {
                    "type": "gpu", "id": "GPU-0", "minor": 3, "moduleID": 2, "health": true,
                    "resources": resources("80Gi"), "topology": topology,
                },
            ]},
        });
        assert_eq!(object(vec![placed, sick, lost]), expected);
    }

    #[test]
    fn cards_are_unhealthy_that_koordlet_calls_so() {
        let unhealthy = |spec: Value| {
            let found = unhealthy_in(&json!({"metadata": {"name": "n1"}, "spec": spec}));
            let found = found.map_err(|error| error.to_string())?;
            Ok::<_, String>(found.iter().map(GpuUuid::to_string).collect::<Vec<_>>())
        };
        let devices = json!({"devices": [
            {"type": "gpu", "id": "GPU-0", "minor": 0, "health": true},
            {"type": "gpu", "id": "GPU-1", "minor": 1, "health": false},
            {"type": "gpu", "id": "GPU-2", "minor": 2},
            {"type": "gpu", "id": "", "health": false},
            {"type": "rdma", "id": "0000:09:00.0", "health": false},
        ]});
        assert_eq!(unhealthy(devices), Ok(vec!["GPU-1".into(), "GPU-2".into()]));
        assert_eq!(unhealthy(json!({})), Ok(vec![]));
        assert!(unhealthy(json!({"devices": {}})).is_err());
        assert!(unhealthy(json!({"devices": [{"type": 1}]})).is_err());
    }

    #[test]
    fn a_place_is_said_where_it_is_known() {
        for (bus, path, expected) in [
            (Some("0000:4b:00.0"), "0000:4a:02.0", "pci0000:4a"),
            (Some("10000:02:00.0"), "10000:00:01.0", "pci10000:00"),
            // On the root itself, as in many virtual machines; or a container that cannot see.
            (Some("0000:00:05.0"), "", "pci0000:00"),
            (Some("0000:4b:00.0"), "", "nothing"),
            (None, "0000:4a:02.0", "nothing"),
        ] {
            let gpu = Gpu {
                bdf: bus.and_then(|bus| bus.parse().ok()),
                pci_path: path.parse().into_iter().collect(),
                ..card(0)
            };
            let topology = topology_of(&gpu);
            let root = topology.map_or("nothing".to_owned(), |known| {
                assert_eq!((known.socket, known.numa), (-1, -1));
                known.root
            });
            assert_eq!(root, expected, "{bus:?} {path}");
        }
    }

    #[test]
    fn a_model_is_said_if_it_is_one_and_a_label() {
        for (models, expected) in [
            (vec!["Tesla T4"], Some("Tesla-T4")),
            (vec!["NVIDIA A100", "NVIDIA A100"], Some("A100")),
            (vec!["A100", "H100"], None),
            (vec!["GPU (beta)"], None),
            (vec![""], None),
            (vec![], None),
        ] {
            let named = |(at, model): (usize, &&str)| Gpu {
                model: Arc::from(*model),
                ..card(u16::try_from(at).unwrap())
            };
            let gpus = models.iter().enumerate().map(named).collect();
            let inventory = Inventory::new(gpus, vec![], vec![], vec![]).unwrap();
            assert_eq!(model_of(&inventory).as_deref(), expected, "{models:?}");
        }
    }

    proptest! {
        /// Every card once, with all its memory, and each label one that the API server takes.
        #[test]
        fn every_card_is_there_with_all_it_has(
            given in proptest::collection::vec((0..90_000_u32, any::<bool>(), "[ -~]{0,70}"), 0..9),
        ) {
            let gpu = |(at, (memory, health, model)): (usize, &(u32, bool, String))| Gpu {
                memory: MiB::from(*memory),
                model: Arc::from(model.as_str()),
                health: match health {
                    true => Health::Healthy,
                    false => Health::Sick(Arc::from("xid 79")),
                },
                ..card(u16::try_from(at).unwrap())
            };
            let object = object(given.iter().enumerate().map(gpu).collect());
            let devices = object["spec"]["devices"].as_array().unwrap();
            prop_assert_eq!(devices.len(), given.len());
            for (at, (device, (memory, health, _))) in devices.iter().zip(&given).enumerate() {
                prop_assert_eq!(&device["id"], &json!(format!("GPU-{at}")));
                prop_assert_eq!(&device["health"], &json!(health));
                let amount = device["resources"]["koordinator.sh/gpu-memory"].as_str().unwrap();
                prop_assert_eq!(bytes(amount).unwrap(), u64::from(*memory) << 20);
            }
            for label in object["metadata"]["labels"].as_object().unwrap().values() {
                let label = label.as_str().unwrap();
                prop_assert!(!label.is_empty() && label.len() <= 63 && !label.contains(' '));
            }
        }
    }
}
