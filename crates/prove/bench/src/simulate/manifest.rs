//! A trace's nodes and pods as Kubernetes objects. The product reads from them exactly what the
//! simulator has (a test compares).

use std::sync::Arc;

use anyhow::Result;
use serde_json::{Value, json};
use sublet_api::{allocation_to_json, keys};
use sublet_model::{
    Allocation, Ask, CardRef, Claim, ContainerName, GpuIndex, Grant, Inventory, MiB, NodeFacts,
};

use crate::objects;

/// Memory of each card, in MiB, where a list tells nothing of memory.
const CARD_MIB: u32 = 1000;

/// A node that hands out whole cards and parts; KWOK plays it if asked.
pub(super) fn node(name: &str, facts: &NodeFacts, played: bool) -> Result<Value> {
    let cards = facts.inventory.gpus().len();
    let amounts = json!({
        "cpu": format!("{}m", facts.host.cpu.get()),
        "memory": facts.host.memory.get().to_string(),
        // No trace says how many pods a node may have.
        "pods": "10000",
        keys::ALIYUN_GPU_MEM: facts.inventory.memory().get().to_string(),
        keys::ALIYUN_GPU_COUNT: cards.to_string(),
        keys::NVIDIA_GPU: cards.to_string(),
    });
    let mut node = objects::ready_node(name, &amounts, played)?;
    node["metadata"]["labels"][keys::SHARING_LABEL] = json!("both");
    if !facts.model.is_empty() {
        node["metadata"]["labels"][keys::MODEL_LABELS[0]] = json!(&*facts.model);
    }
    Ok(node)
}

/// The resources of a container with this claim.
pub(super) fn resources(claim: &Claim) -> Value {
    let host = claim.host();
    json!({
        "requests": {
            "cpu": format!("{}m", host.cpu.get()),
            "memory": host.memory.get().to_string(),
        },
        "limits": match claim.ask() {
            Ask::Nothing => json!({}),
            Ask::Parts(parts) => json!({ keys::ALIYUN_GPU_MEM: parts.memory().get().to_string() }),
            Ask::WholeCards(count) => json!({ keys::NVIDIA_GPU: count.get().to_string() }),
        },
    })
}

/// A pod that waits, with this claim. Models are a required node affinity.
pub(super) fn pod(name: &str, claim: &Claim) -> Value {
    let mut pod = objects::pod(name, &resources(claim).into());
    let models: Vec<&str> = claim.models().iter().map(|model| &**model).collect();
    if !models.is_empty() {
        let wish = json!({ "key": keys::MODEL_LABELS[0], "operator": "In", "values": models });
        let terms = json!([{ "matchExpressions": [wish] }]);
        pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!({ "nodeSelectorTerms": terms });
    }
    pod
}

/// A pod that has run for a long time on these cards of a node.
pub(super) fn bound_pod(name: &str, claim: &Claim, node: &str, cards: &[u16]) -> Result<Value> {
    let memory = match claim.ask() {
        Ask::Parts(parts) => parts.memory(),
        _ => MiB::from(CARD_MIB),
    };
    let container = ContainerName::new("main")?;
    let grant = |&index: &u16| Grant {
        container: container.clone(),
        card: CardRef {
            index: GpuIndex(index),
            uuid: None,
        },
        memory,
    };
    let allocation = Allocation {
        grants: cards.iter().map(grant).collect(),
    };
    let mut pod = pod(name, claim);
    pod["spec"]["nodeName"] = json!(node);
    if claim.has_gpu() {
        pod["metadata"]["annotations"] = json!({
            keys::ALLOCATION: allocation_to_json(&allocation),
            keys::ASSIGNED: "[\"main\"]",
        });
    }
    Ok(pod)
}

/// The inventory of a node without cards.
pub(super) fn no_cards() -> Arc<Inventory> {
    Arc::default()
}

/// An inventory of so many cards, as a list without memory has them.
pub(super) fn cards(count: usize) -> Result<Arc<Inventory>> {
    let cards = Inventory::equal_cards(count, MiB::from(CARD_MIB))?;
    Ok(Arc::new(cards))
}

#[cfg(test)]
mod tests {
    use sublet_api::{NodeDefaults, bound_entry, dialect, facts_of, host_of, object};
    use sublet_model::Unit;
    use sublet_sim::{BadLines, read_nodes, read_pods};

    use super::*;

    #[test]
    fn the_product_reads_what_the_simulator_has() {
        let nodes = "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,2,P100\nb,1500,1,8,\n";
        let (nodes, _) = read_nodes(nodes.as_bytes(), BadLines::Stop).unwrap();
        for facts in &nodes.rows {
            let value = node(facts.name.as_str(), facts, true).unwrap();
            let read = serde_json::from_value(value).unwrap();
            let read = facts_of(&read, NodeDefaults { unit: Unit::MiB });
            let read = read.unwrap().unwrap();
            assert_eq!(read.inventory, facts.inventory);
            assert_eq!((read.host, &read.model), (facts.host, &facts.model));
            assert_eq!(read.sharing, facts.sharing);
        }
        let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n\
                    a,100,5,0,0,\nb,12000,16384,1,1000,T4|P100\nc,6000,12288,1,460,P100\n\
                    d,0,0,8,1000,\n";
        let (pods, _) = read_pods(pods.as_bytes(), &nodes, BadLines::Stop).unwrap();
        for (row, cards) in pods
            .rows
            .iter()
            .zip([&[][..], &[1], &[0], &[0, 1, 2, 3, 4, 5, 6, 7]])
        {
            let mut value = bound_pod("p", &row.claim, "b", cards).unwrap();
            value["metadata"]["uid"] = json!("u");
            let pod: object::Pod = serde_json::from_value(value).unwrap();
            let claim = dialect::claim_of(&pod, Unit::MiB).unwrap();
            let claim = claim.unwrap_or_else(|| Claim::host_only(host_of(&pod).unwrap()));
            assert_eq!(
                (claim.ask(), claim.host(), claim.models()),
                (row.claim.ask(), row.claim.host(), row.claim.models())
            );
            let (entry, problem) = bound_entry(&pod, claim.into()).unwrap();
            assert!(problem.is_none() && entry.assigned);
            let grants = entry
                .allocation
                .map_or(0, |allocation| allocation.grants.len());
            assert_eq!(grants, cards.len());
        }
    }
}
