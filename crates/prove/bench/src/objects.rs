//! Nodes and pods as a GPU cluster has them, as JSON.
//!
//! Everything is computed from an object's number, so that two runs load the same cluster.

use serde_json::{Value, json};
use sublet_api::{NodeDefaults, NodeReport, dialect, facts_of, keys, object, report_to_json};
use sublet_model::{
    Advertise, Allocation, Bdf, CardRef, ContainerName, Gpu, GpuIndex, GpuUuid, Grant, Identity,
    Inventory, MiB, Sharing, Unit,
};

use anyhow::{Context, Result};
use sublet_testbed::PodForm;

/// Cards of each node.
pub(crate) const CARDS: usize = 8;

/// Memory of each card: what an 80 GB card has left for programs.
const CARD_MIB: u64 = 81_559;

/// MiB that pods ask for, in turn: from small notebooks to half a card.
pub(crate) const SIZES_MIB: [u64; 5] = [2_048, 8_138, 4_096, 16_384, 40_000];

/// A node's name, as long as cloud providers' names are.
pub(crate) fn node_name(number: usize) -> String {
    format!("gpu-pool-a-{number:05}.internal")
}

fn uuid(node: usize, card: usize) -> Result<GpuUuid> {
    Ok(GpuUuid::new(&format!(
        "GPU-{node:08x}-5b1e-4c0a-9d3f-{card:012x}"
    ))?)
}

/// The inventory that an agent would report for a node.
fn inventory(node: usize) -> Result<String> {
    let mut gpus = Vec::new();
    for card in 0..CARDS {
        let mut gpu = Gpu::plain(GpuIndex(card as u16), MiB::from(CARD_MIB as u32));
        gpu.uuid = Some(uuid(node, card)?);
        gpu.model = "NVIDIA A100-SXM4-80GB".into();
        gpu.minor = Some(card as u16);
        gpu.numa = Some((card / 4) as u16);
        gpu.bdf = Some(format!("0000:{:02x}:00.0", 0x10 + card).parse::<Bdf>()?);
        gpus.push(gpu);
    }
    Ok(report_to_json(&NodeReport {
        inventory: Inventory::new(gpus, Vec::new(), Vec::new(), Vec::new())?,
        sharing: Sharing::Memory,
        identity: Identity::SizeAndOrder,
        advertise: Advertise::Units,
        unit: Unit::MiB,
        splits: None,
    }))
}

/// A Ready node of eight cards, with an agent's inventory. A `played` node belongs to KWOK and
/// has no inventory: no agent ever runs there.
pub(crate) fn node(number: usize, played: bool) -> Result<Value> {
    let amounts = json!({
        "cpu": "128", "memory": "1024Gi", "pods": "500",
        keys::ALIYUN_GPU_MEM: (CARD_MIB * CARDS as u64).to_string(),
        keys::ALIYUN_GPU_COUNT: CARDS.to_string(),
    });
    let mut node = ready_node(&node_name(number), &amounts, played)?;
    if !played {
        node["metadata"]["annotations"] = json!({ keys::INVENTORY: inventory(number)? });
    }
    Ok(node)
}

/// A Ready node with these amounts and nothing else; if `played`, KWOK plays it.
pub(crate) fn ready_node(name: &str, amounts: &Value, played: bool) -> Result<Value> {
    let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second())?.to_string();
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": { "kubernetes.io/hostname": name, "kubernetes.io/os": "linux" },
        },
        "status": {
            "capacity": amounts, "allocatable": amounts,
            // Ready from the start, or the node controller would evict its pods.
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }],
        },
    });
    if played {
        node["metadata"]["labels"]["type"] = json!("kwok");
        node["metadata"]["annotations"] = json!({ "kwok.x-k8s.io/node": "fake" });
    }
    Ok(node)
}

/// A pod that waits for its node. No two batches may share names: KWOK deletes pods by name, and
/// after a delay.
pub(crate) fn waiting_pod(batch: &str, number: usize) -> Value {
    let size = SIZES_MIB[number % SIZES_MIB.len()];
    pod(&format!("pod-{batch}-{number:06}"), &part(size).into())
}

/// A pod that has run for a long time: bound, with its allocation, and with its devices handed
/// over. It is pod `number` in a cluster of `nodes` nodes, and asks in the form of a dialect, in
/// turn. Each pod gets its own card until there are more pods than cards.
pub(crate) fn bound_pod(number: usize, nodes: usize) -> Result<Value> {
    let (node, card) = (number % nodes, number / nodes % CARDS);
    let size = SIZES_MIB[number % SIZES_MIB.len()];
    let allocation = Allocation {
        grants: vec![Grant {
            container: ContainerName::new("main")?,
            card: CardRef {
                index: GpuIndex(card as u16),
                uuid: Some(uuid(node, card)?),
            },
            memory: MiB::from(size as u32),
        }],
    };
    let mut pod = pod(&format!("pod-{number:06}"), &PodForm::part(number, size));
    let read: object::Pod = serde_json::from_value(pod.clone())?;
    let claim = dialect::claim_of(&read, Unit::MiB)?.context("the pod asks no GPU")?;
    let node: object::Node = serde_json::from_value(self::node(node, false)?)?;
    let facts = facts_of(&node, NodeDefaults::default())?.context("the node has no GPU")?;
    let now = 1_760_000_000_000_000_000;
    let mut results = dialect::binding_annotations(&claim, &allocation, &facts, now, []);
    results.extend(dialect::assigned_annotations(
        &claim,
        &["main".to_owned()],
        now,
    ));
    pod["spec"]["nodeName"] = json!(node.metadata.name);
    for (key, value) in results {
        pod["metadata"]["annotations"][key] = json!(value);
    }
    Ok(pod)
}

/// The resources of a container that asks for a part of a card.
pub(crate) fn part(size_mib: u64) -> Value {
    json!({
        "requests": { "cpu": "100m", "memory": "128Mi" },
        "limits": { keys::ALIYUN_GPU_MEM: size_mib.to_string() },
    })
}

/// A pod that waits, with one container. It asks for this.
pub(crate) fn pod(name: &str, asked: &PodForm) -> Value {
    let env: Vec<Value> = (0..12)
        .map(|n| json!({ "name": format!("SETTING_{n:02}"), "value": "a value of a usual length" }))
        .collect();
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": { "app": "trainer", "team": "vision", "pod-template-hash": "7c5ddbdf54" },
        },
        "spec": {
            "schedulerName": "sublet-scheduler",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": "example.internal/trainer:1.0",
                "command": ["python", "-m", "train"], "env": env,
                "resources": asked.resources(),
            }],
        },
    });
    asked.write_on(&mut pod);
    pod
}

/// The pod of a filter or prioritize call: as the API server has it, with the environment,
/// volumes and annotations that real pods carry (14 KB).
pub(crate) fn call_pod(uid: &str, asked: &PodForm) -> String {
    let mut pod = pod("asking", asked);
    pod["metadata"]["uid"] = json!(uid);
    pod["metadata"]["namespace"] = json!("default");
    pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    let applied = "{\\\"kind\\\":\\\"Pod\\\",\\\"spec\\\":{\\\"containers\\\":[]}}".repeat(90);
    pod["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] =
        json!(applied);
    let env: Vec<Value> = (0..60)
        .map(|n| {
            json!({
                "name": format!("SETTING_{n:02}"),
                "value": "a value of a usual length, as charts write them",
            })
        })
        .collect();
    let volumes: Vec<Value> = (0..12)
        .map(|n| {
            json!({
                "name": format!("volume-{n}"),
                "configMap": { "name": format!("settings-{n}"), "defaultMode": 420 },
            })
        })
        .collect();
    let mounts: Vec<Value> = (0..12)
        .map(|n| {
            json!({
                "name": format!("volume-{n}"), "readOnly": true,
                "mountPath": format!("/etc/settings/{n}"),
            })
        })
        .collect();
    pod["spec"]["volumes"] = json!(volumes);
    pod["spec"]["containers"][0]["env"] = json!(env);
    pod["spec"]["containers"][0]["volumeMounts"] = json!(mounts);
    pod["spec"]["tolerations"] = json!([
        { "key": "node.kubernetes.io/not-ready", "operator": "Exists",
          "effect": "NoExecute", "tolerationSeconds": 300 },
        { "key": "node.kubernetes.io/unreachable", "operator": "Exists",
          "effect": "NoExecute", "tolerationSeconds": 300 },
    ]);
    pod["status"] = json!({ "phase": "Pending", "qosClass": "Burstable" });
    pod.to_string()
}

/// The body of a call, from the pod and the names of the nodes.
pub(crate) fn call_body(pod: &str, names_json: &str) -> Vec<u8> {
    format!("{{\"Pod\":{pod},\"Nodes\":null,\"NodeNames\":{names_json}}}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_api::{bound_entry, extender};

    #[test]
    fn a_call_is_read_and_has_the_size_of_a_real_one() {
        let pod = call_pod("u1", &part(8_138).into());
        assert!((13_000..15_000).contains(&pod.len()), "{}", pod.len());
        let body = call_body(&pod, r#"["n1","n2"]"#);
        let args: extender::ExtenderArgs<'_> = serde_json::from_slice(&body).unwrap();
        assert_eq!(args.node_names.unwrap(), ["n1", "n2"]);
        let claim = dialect::claim_of(&args.pod, Unit::MiB).unwrap();
        assert!(claim.is_some());
    }

    #[test]
    fn bound_pods_lie_on_cards_of_their_nodes() {
        let defaults = NodeDefaults { unit: Unit::MiB };
        for number in [0, 7, 23, 2, 3, 4, 5, 6] {
            let mut value = bound_pod(number, 3).unwrap();
            value["metadata"]["uid"] = json!(format!("u{number}"));
            let pod: object::Pod = serde_json::from_value(value).unwrap();
            let claim = dialect::claim_of(&pod, Unit::MiB).unwrap().unwrap();
            let (entry, problem) = bound_entry(&pod, claim.into()).unwrap();
            assert!(problem.is_none() && entry.assigned);
            let node: object::Node =
                serde_json::from_value(node(number % 3, false).unwrap()).unwrap();
            let facts = facts_of(&node, defaults).unwrap().unwrap();
            assert_eq!(facts.name, entry.node);
            let card = &entry.allocation.unwrap().grants[0].card;
            assert!(facts.inventory.position(card).is_some());
        }
    }
}
