//! Facts about a node for the engine, from a Node object.
//!
//! An agent's inventory counts if there is one. Otherwise the amounts count that a device plugin
//! put into the node's status.

use std::collections::BTreeSet;
use std::sync::Arc;

use sublet_model::{
    Bytes, Gpu, GpuIndex, Host, Inventory, InventoryError, MilliCpu, NameError, NodeFacts,
    NodeName, Sharing, Unit,
};

use crate::dialect::DIALECTS;
use crate::handed::{HandedTextError, handed_from_json};
use crate::inventory::{InventoryTextError, report_from_json};
use crate::keys;
use crate::machine::allocatable;
use crate::measured::measured_use;
use crate::not_isolated::NotIsolated;
use crate::object::{ConfigMap, Node};
use crate::quantity::{QuantityError, bytes, milli_cpu, whole_number};

/// Defaults for nodes that do not give these values themselves.
#[derive(Debug, Clone, Copy, Default)]
pub struct NodeDefaults {
    /// The unit of `aliyun.com/gpu-mem`.
    pub unit: Unit,
}

/// Reason why a node cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A wrong name.
    #[error("wrong node name: {0}")]
    Name(#[from] NameError),
    /// A wrong inventory.
    #[error("annotation `{key}`: {0}", key = keys::INVENTORY)]
    Inventory(#[from] InventoryTextError),
    /// A wrong list of cards that were handed over.
    #[error("annotation `{key}`: {0}", key = keys::HANDED_OVER)]
    Handed(#[from] HandedTextError),
    /// A wrong amount in the status.
    #[error("status.capacity `{resource}` is `{value}`: {cause}")]
    Capacity {
        /// The resource.
        resource: &'static str,
        /// As written.
        value: String,
        /// The fault.
        cause: QuantityError,
    },
    /// A wrong amount of CPU or memory.
    #[error("status.allocatable `{resource}` is `{value}`: {cause}")]
    Allocatable {
        /// The resource.
        resource: String,
        /// As written.
        value: String,
        /// The fault.
        cause: QuantityError,
    },
    /// More cards than a node can have.
    #[error("status.capacity: {0}")]
    Devices(#[from] InventoryError),
    /// Another device plugin's report that cannot be read.
    #[error("annotation `{key}`: {why}")]
    Register {
        /// The annotation.
        key: &'static str,
        /// The fault.
        why: String,
    },
    /// A wrong label.
    #[error("label `{key}` is `{0}`, not `memory`, `whole` or `both`", key = keys::SHARING_LABEL)]
    Sharing(String),
}

/// Facts about a node for the engine; `None` if it has no GPU. A wrong annotation about measured
/// use ([`measured_use`]) counts as no annotation.
///
/// # Errors
/// A wrong name, annotation, label or amount.
pub fn facts_of(node: &Node, defaults: NodeDefaults) -> Result<Option<NodeFacts>, NodeError> {
    let name = NodeName::new(&node.metadata.name)?;
    let wish = sharing_wish(node)?;
    let labels = &node.metadata.labels;
    let model = keys::MODEL_LABELS
        .iter()
        .find_map(|label| labels.get(*label));
    let model = Arc::from(model.map_or("", String::as_str));
    let host = host_of(node)?;
    let plugin = DIALECTS.iter().find_map(|dialect| dialect.plugin(node));
    if let Some(text) = node.metadata.annotations.get(keys::INVENTORY) {
        let report = report_from_json(text)?;
        let handed = node.metadata.annotations.get(keys::HANDED_OVER);
        let handed = handed.map(|text| handed_from_json(text)).transpose()?;
        let sharing = wish.unwrap_or(report.sharing);
        return Ok(Some(NodeFacts {
            sharing,
            identity: report.identity,
            advertise: report.advertise,
            unit: report.unit,
            splits: report.splits,
            host,
            model,
            plugin,
            handed: Arc::new(handed.unwrap_or_default()),
            measured: Arc::new(measured_use(node).unwrap_or_default()),
            ..NodeFacts::plain(
                name,
                Arc::new(reachable(cordoned(report.inventory, node), sharing, node)),
            )
        }));
    }
    for dialect in DIALECTS {
        let Some(cards) = dialect.cards(node, defaults)? else {
            continue;
        };
        return Ok(Some(NodeFacts {
            sharing: wish.unwrap_or(cards.sharing),
            unit: defaults.unit,
            host,
            model,
            plugin,
            ..NodeFacts::plain(name, Arc::new(cordoned(cards.inventory, node)))
        }));
    }
    Ok(None)
}

/// The same inventory, in which cards that [`keys::HAMI_CORDON`] lists by UUID get no new work.
fn cordoned(inventory: Inventory, node: &Node) -> Inventory {
    let Some(list) = node.metadata.annotations.get(keys::HAMI_CORDON) else {
        return inventory;
    };
    let listed: BTreeSet<&str> = list.split(',').map(str::trim).collect();
    let gpus = inventory.gpus().iter();
    let is_listed = |gpu: &&Gpu| {
        let uuid = gpu.uuid.as_ref();
        uuid.is_some_and(|uuid| listed.contains(uuid.as_str()))
    };
    let indices = gpus.filter(is_listed).map(|gpu| gpu.index).collect();
    inventory.with_sick(&indices, "cordoned by hami.io/device-cordon")
}

/// The same inventory, in which no card gets new work while no agent hands out cards, or while
/// nothing would hold containers that share a card to their parts. A whole card needs no limit.
fn reachable(inventory: Inventory, sharing: Sharing, node: &Node) -> Inventory {
    let why = if node.metadata.annotations.contains_key(keys::AGENT_AWAY) {
        "the node's agent ended, and no other has come yet".to_owned()
    } else {
        match NotIsolated::of(node) {
            Some(NotIsolated::Pending(why)) if sharing != Sharing::Whole => {
                format!("nothing holds containers to their parts now: {why}")
            }
            _ => return inventory,
        }
    };
    let all = inventory.gpus().iter().map(|gpu| gpu.index).collect();
    inventory.with_sick(&all, &why)
}

/// Facts about a node without a GPU. Pods without GPUs can go there and leave CPU to pods that need
/// it.
///
/// # Errors
/// A wrong name or amount.
pub fn facts_without_gpu(node: &Node, defaults: NodeDefaults) -> Result<NodeFacts, NodeError> {
    Ok(NodeFacts {
        unit: defaults.unit,
        host: host_of(node)?,
        ..NodeFacts::plain(NodeName::new(&node.metadata.name)?, Arc::default())
    })
}

/// The same with everything that the stock scheduler counts, for callers that decide without a
/// stock scheduler. A resource that a hand-written file leaves out is unlimited ([`crate::stock`]).
///
/// # Errors
/// As of [`facts_of`] and [`facts_without_gpu`].
pub fn facts_with_stock(node: &Node, defaults: NodeDefaults) -> Result<NodeFacts, NodeError> {
    let facts = match facts_of(node, defaults)? {
        Some(facts) => facts,
        None => facts_without_gpu(node, defaults)?,
    };
    let has_cards = !facts.inventory.gpus().is_empty();
    let (host, stock) = allocatable(node, has_cards).map_err(|(resource, value, cause)| {
        NodeError::Allocatable {
            resource,
            value,
            cause,
        }
    })?;
    Ok(NodeFacts {
        host,
        stock: Some(Arc::new(stock)),
        ..facts
    })
}

/// CPU and memory of a node that pods can have; zero if the node lists none.
///
/// # Errors
/// An amount that cannot be read.
fn host_of(node: &Node) -> Result<Host, NodeError> {
    let read = |resource: &str, read: fn(&str) -> Result<u64, QuantityError>| {
        let Some(quantity) = node.status.allocatable.get(resource) else {
            return Ok(0);
        };
        read(&quantity.0).map_err(|cause| NodeError::Allocatable {
            resource: String::from(resource),
            value: quantity.0.clone(),
            cause,
        })
    };
    Ok(Host {
        cpu: MilliCpu::new(read("cpu", milli_cpu)?),
        memory: Bytes::new(read("memory", bytes)?),
    })
}

/// The cards that an operator's ConfigMap `kube-system/unhealthy-gpu-<node>` lists, and the node
/// (GPUShare); `None` for any other ConfigMap. Words that are not numbers are ignored, as the
/// original does.
#[must_use]
pub fn unhealthy_gpus(map: &ConfigMap) -> Option<(NodeName, BTreeSet<GpuIndex>)> {
    let node = map.metadata.name.strip_prefix(keys::UNHEALTHY_PREFIX)?;
    let node = NodeName::new(node).ok()?;
    let list = map.data.get("gpus").map_or("", String::as_str);
    let gpus = list
        .split(',')
        .filter_map(|text| text.trim().parse().ok())
        .map(GpuIndex);
    Some((node, gpus.collect()))
}

fn sharing_wish(node: &Node) -> Result<Option<Sharing>, NodeError> {
    let Some(text) = node.metadata.labels.get(keys::SHARING_LABEL) else {
        return Ok(None);
    };
    match text.as_str() {
        "memory" => Ok(Some(Sharing::Memory)),
        "whole" => Ok(Some(Sharing::Whole)),
        "both" => Ok(Some(Sharing::Both)),
        _ => Err(NodeError::Sharing(text.clone())),
    }
}

/// Amount of a resource that a node has; 0 if its status does not list it.
///
/// # Errors
/// A wrong amount.
pub(crate) fn capacity(node: &Node, resource: &'static str) -> Result<u64, NodeError> {
    let Some(quantity) = node.status.capacity.get(resource) else {
        return Ok(0);
    };
    whole_number(&quantity.0).map_err(|cause| NodeError::Capacity {
        resource,
        value: quantity.0.clone(),
        cause,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `aliyun.com/gpu-mem=32552 aliyun.com/gpu-count=2 label:x=y` as a node; → its cards.
    fn check(picture: &str) -> String {
        let mut node = Node::default();
        node.metadata.name = "n1".to_owned();
        for word in picture.split_whitespace() {
            let (key, value) = word.split_once('=').unwrap();
            if let Some(label) = key.strip_prefix("label:") {
                node.metadata
                    .labels
                    .insert(label.to_owned(), value.to_owned());
            } else if let Some(key) = key.strip_prefix("note:") {
                node.metadata
                    .annotations
                    .insert(key.to_owned(), value.to_owned());
            } else {
                let quantity = crate::object::Quantity(value.to_owned());
                node.status.capacity.insert(key.to_owned(), quantity);
            }
        }
        match facts_of(&node, NodeDefaults::default()) {
            Ok(None) => "no GPU".to_owned(),
            Ok(Some(facts)) => {
                let cards = facts.inventory.gpus().iter().map(|gpu| gpu.memory.get());
                format!("{:?} {:?}", facts.sharing, cards.collect::<Vec<_>>())
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn nodes_without_an_agent_have_equal_cards() {
        assert_eq!(check("cpu=4"), "no GPU");
        assert_eq!(
            check("aliyun.com/gpu-mem=32552 aliyun.com/gpu-count=2"),
            "Memory [16276, 16276]"
        );
        assert_eq!(
            check("aliyun.com/gpu-mem=32k aliyun.com/gpu-count=2"),
            "Memory [16000, 16000]"
        );
        assert_eq!(check("aliyun.com/gpu-mem=7"), "Memory []");
        assert_eq!(
            check("aliyun.com/gpu-mem=7 aliyun.com/gpu-count=0"),
            "Memory []"
        );
        assert_eq!(check("nvidia.com/gpu=2"), "Whole [0, 0]");
        assert_eq!(
            check("nvidia.com/gpu=1 label:nvidia.com/gpu.memory=81559"),
            "Whole [81559]"
        );
        assert_eq!(
            check("aliyun.com/gpu-mem=8 aliyun.com/gpu-count=1 nvidia.com/gpu=1"),
            "Memory [8]"
        );
        assert_eq!(
            check("aliyun.com/gpu-mem=8 aliyun.com/gpu-count=1 label:sublet.dev/sharing=both"),
            "Both [8]"
        );
    }

    #[test]
    fn bad_nodes_are_named() {
        assert_eq!(
            check("aliyun.com/gpu-mem=1.5"),
            "status.capacity `aliyun.com/gpu-mem` is `1.5`: it is not a whole number"
        );
        assert_eq!(
            check("aliyun.com/gpu-mem=1M aliyun.com/gpu-count=1M"),
            "status.capacity: 1000000 GPUs on one node (at most 4096)"
        );
        assert_eq!(
            check("label:sublet.dev/sharing=some"),
            "label `sublet.dev/sharing` is `some`, not `memory`, `whole` or `both`"
        );
        assert!(
            check("note:sublet.dev/inventory={}").starts_with("annotation `sublet.dev/inventory`")
        );
    }

    #[test]
    fn cards_that_nobody_limits_get_no_new_parts() {
        let inventory = concat!(
            r#"{"version":1,"unit":"MiB","sharing":"memory","identity":"nri","advertise":"units","#,
            r#""gpus":[{"index":0,"memoryMiB":8}]}"#
        );
        let health = |sharing: &str, note: &str| {
            let mut node = Node::default();
            node.metadata.name = "n1".to_owned();
            let notes = [(keys::INVENTORY, inventory), (keys::NOT_ISOLATED, note)];
            let notes = notes.iter().filter(|(_, text)| !text.is_empty());
            let notes = notes.map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
            node.metadata.annotations.extend(notes);
            let labels = &mut node.metadata.labels;
            labels.insert(keys::SHARING_LABEL.to_owned(), sharing.to_owned());
            let facts = facts_of(&node, NodeDefaults::default()).unwrap().unwrap();
            format!("{:?}", facts.inventory.gpus()[0].health)
        };
        let sick = "Sick(\"nothing holds containers to their parts now: the disk is full\")";
        for (sharing, note, expected) in [
            ("memory", "", "Healthy"),
            ("memory", "pending: the disk is full", sick),
            ("both", "pending: the disk is full", sick),
            ("whole", "pending: the disk is full", "Healthy"),
            ("memory", "unsupported: no libraries", "Healthy"),
        ] {
            assert_eq!(health(sharing, note), expected, "{sharing} {note}");
        }
    }

    #[test]
    fn unhealthy_lists_are_read() {
        let mut map = ConfigMap::default();
        map.metadata.name = "unhealthy-gpu-n1".to_owned();
        map.data.insert("gpus".to_owned(), "0, 2,x".to_owned());
        let (node, gpus) = unhealthy_gpus(&map).unwrap();
        assert_eq!(node.as_str(), "n1");
        assert_eq!(
            gpus.into_iter().collect::<Vec<_>>(),
            [GpuIndex(0), GpuIndex(2)]
        );
        map.metadata.name = "other".to_owned();
        assert_eq!(unhealthy_gpus(&map), None);
    }

    #[test]
    fn what_pods_can_have_and_the_model_are_read() {
        let mut node = Node::default();
        node.metadata.name = "n1".to_owned();
        let quantity = |text: &str| crate::object::Quantity(text.to_owned());
        let status = &mut node.status;
        status
            .capacity
            .insert("nvidia.com/gpu".to_owned(), quantity("8"));
        status
            .allocatable
            .insert("cpu".to_owned(), quantity("127500m"));
        status
            .allocatable
            .insert("memory".to_owned(), quantity("1Gi"));
        let labels = &mut node.metadata.labels;
        labels.insert("nvidia.com/gpu.product".to_owned(), "Tesla-T4".to_owned());
        let facts = facts_of(&node, NodeDefaults::default()).unwrap().unwrap();
        assert_eq!(facts.host.cpu, MilliCpu::new(127_500));
        assert_eq!(facts.host.memory, Bytes::new(1 << 30));
        assert_eq!(&*facts.model, "Tesla-T4");
        node.status
            .allocatable
            .insert("cpu".to_owned(), quantity("many"));
        let error = facts_of(&node, NodeDefaults::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("status.allocatable `cpu` is `many`:"),
            "{error}"
        );
    }
}
