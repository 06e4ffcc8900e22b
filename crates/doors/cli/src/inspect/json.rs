//! The form of `sublet inspect` for programs.
//!
//! A promise: fields are added, never renamed or taken away. Memory is always in MiB, whatever unit
//! the node counts in. A node's `pending` pods do not say which card they use. The node's
//! `grantedMiB` includes them, and no card's does.

use serde::Serialize;
use sublet_api::NotIsolated;
use sublet_model::{Health, MiB};

use super::view::{NodeView, Place, PodView, View, identity_name, sharing_name};
use crate::compute::{ComputeTime, percent_of};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Inspect {
    nodes: Vec<NodeJson>,
    #[serde(rename = "memoryMiB")]
    memory_mib: u64,
    #[serde(rename = "grantedMiB")]
    granted_mib: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeJson {
    name: String,
    address: String,
    sharing: &'static str,
    identity: &'static str,
    unit: String,
    #[serde(rename = "memoryMiB")]
    memory_mib: u64,
    #[serde(rename = "grantedMiB")]
    granted_mib: u64,
    /// Only if containers are not held to their parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_isolated: Option<NotIsolatedJson>,
    gpus: Vec<GpuJson>,
    pending: Vec<PodJson>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NotIsolatedJson {
    /// Are parts of cards handed out all the same?
    hands_out_parts: bool,
    problem: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GpuJson {
    gpu: u16,
    uuid: Option<String>,
    health: &'static str,
    /// Fault of an unhealthy card.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(rename = "memoryMiB")]
    memory_mib: u64,
    #[serde(rename = "grantedMiB")]
    granted_mib: u64,
    /// Memory kept free for pods that do not say which card they have.
    #[serde(rename = "keptMiB", skip_serializing_if = "Option::is_none")]
    kept_mib: Option<u64>,
    /// Compute time that is promised; only if any pod of the document asks for some.
    #[serde(skip_serializing_if = "Option::is_none")]
    compute_granted_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compute_kept_percent: Option<f64>,
    /// Mean over a minute, as the node's agent measures it.
    #[serde(skip_serializing_if = "Option::is_none")]
    compute_used_percent: Option<f64>,
    pods: Vec<PodJson>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodJson {
    namespace: String,
    name: String,
    /// On this card.
    #[serde(rename = "grantedMiB")]
    granted_mib: u64,
    /// Promised on this card.
    #[serde(skip_serializing_if = "Option::is_none")]
    compute_granted_percent: Option<f64>,
    /// Whole cards that the pod asks for, on all cards together.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_gpus: Option<u32>,
    /// Request of each container, on all cards together.
    containers: Vec<ContainerJson>,
}

#[derive(Serialize)]
struct ContainerJson {
    name: String,
    #[serde(rename = "requestMiB")]
    request_mib: u64,
    /// Compute time on each of its cards.
    #[serde(flatten)]
    compute: Option<ComputeTime>,
}

pub(super) fn inspect(view: &View) -> Inspect {
    let with_compute = view.has_compute();
    let nodes = view.nodes.iter();
    let nodes: Vec<NodeJson> = nodes.map(|node| node_json(node, with_compute)).collect();
    Inspect {
        memory_mib: nodes.iter().map(|node| node.memory_mib).sum(),
        granted_mib: nodes.iter().map(|node| node.granted_mib).sum(),
        nodes,
    }
}

/// The cluster's sums in a sentence.
pub(super) fn totals(view: &View) -> String {
    let Inspect {
        nodes,
        memory_mib,
        granted_mib,
    } = inspect(view);
    let gpus: usize = nodes.iter().map(|node| node.gpus.len()).sum();
    let n = nodes.len();
    format!("{granted_mib} of {memory_mib} MiB granted, {gpus} GPUs on {n} nodes")
}

fn node_json(node: &NodeView, with_compute: bool) -> NodeJson {
    let facts = &node.facts;
    let gpus = facts.inventory.gpus().iter();
    let granted = node.pods.iter().flat_map(|pod| pod.on.values());
    NodeJson {
        name: facts.name.to_string(),
        address: node.address.clone(),
        sharing: sharing_name(facts.sharing),
        identity: identity_name(facts.identity),
        unit: facts.unit.to_string(),
        memory_mib: facts.inventory.memory().get(),
        granted_mib: granted.map(|part| part.memory).sum::<MiB>().get(),
        not_isolated: node.not_isolated.as_ref().map(|why| match why {
            NotIsolated::Pending(why) => NotIsolatedJson {
                hands_out_parts: false,
                problem: why.clone(),
            },
            NotIsolated::Unsupported(why) => NotIsolatedJson {
                hands_out_parts: true,
                problem: why.clone(),
            },
        }),
        gpus: gpus
            .zip(&node.kept)
            .map(|(gpu, kept)| {
                let place = Place::Card(i64::from(gpu.index.0));
                let granted = node.granted(place);
                let measured = node.measured.get(&gpu.index);
                GpuJson {
                    gpu: gpu.index.0,
                    uuid: gpu.uuid.as_ref().map(ToString::to_string),
                    health: if gpu.health.is_healthy() {
                        "healthy"
                    } else {
                        "unhealthy"
                    },
                    problem: match &gpu.health {
                        Health::Healthy => None,
                        Health::Sick(why) => Some(why.to_string()),
                    },
                    memory_mib: gpu.memory.get(),
                    granted_mib: granted.memory.get(),
                    kept_mib: Some(kept.memory.get()).filter(|kept| *kept > 0),
                    compute_granted_percent: with_compute.then(|| percent_of(granted.compute)),
                    compute_kept_percent: Some(percent_of(kept.compute))
                        .filter(|kept| with_compute && *kept > 0.0),
                    compute_used_percent: measured.map(|measured| percent_of(measured.busy)),
                    pods: pods_at(node, place, with_compute),
                }
            })
            .collect(),
        pending: pods_at(node, Place::Pending, with_compute),
    }
}

fn pods_at(node: &NodeView, place: Place, with_compute: bool) -> Vec<PodJson> {
    let pod_json = |pod: &PodView| {
        let here = pod.on.get(&place)?;
        let containers = pod.containers.iter().map(|container| ContainerJson {
            name: container.name.to_string(),
            request_mib: container.memory.get(),
            compute: with_compute.then_some(container.compute),
        });
        Some(PodJson {
            namespace: pod.key.namespace().to_owned(),
            name: pod.key.name().to_owned(),
            granted_mib: here.memory.get(),
            compute_granted_percent: with_compute.then(|| percent_of(here.compute)),
            request_gpus: pod.n_whole,
            containers: containers.collect(),
        })
    };
    node.pods.iter().filter_map(pod_json).collect()
}

#[cfg(test)]
mod tests {
    use sublet_api::keys;
    use sublet_api::object::{Node, Quantity};

    use super::super::{InspectFormat, print};

    #[test]
    fn a_node_that_does_not_limit_its_containers_is_named_with_the_reason() {
        let check = |note: &str| {
            let mut node = Node::default();
            node.metadata.name = "n1".to_owned();
            let amounts = [(keys::ALIYUN_GPU_MEM, "30"), (keys::ALIYUN_GPU_COUNT, "2")];
            let amounts =
                amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
            node.status.capacity.extend(amounts);
            let note = (!note.is_empty()).then(|| (keys::NOT_ISOLATED.to_owned(), note.to_owned()));
            node.metadata.annotations.extend(note);
            let answer = print(&[node], &[], None, InspectFormat::Json, false).unwrap();
            let document: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
            let said = document["nodes"][0]["notIsolated"].to_string();
            (said, answer.notes.join("\n"))
        };
        assert_eq!(check(""), ("null".to_owned(), String::new()));
        let (said, note) = check("pending: the disk is full");
        assert_eq!(
            said,
            r#"{"handsOutParts":false,"problem":"the disk is full"}"#
        );
        let words = "warning: node n1 hands out no part of a GPU until its agent can limit it: the disk is full";
        assert_eq!(note, words);
        let (said, note) = check("unsupported: no libraries");
        assert_eq!(said, r#"{"handsOutParts":true,"problem":"no libraries"}"#);
        let words = "warning: containers on node n1 can use more than their part: no libraries";
        assert_eq!(note, words);
    }
}
