//! Peers' manifests that ask for whole cards, on a node as it is by default: the refusal says which
//! label changes that, and with the label all are placed. Then the node hands out parts and whole cards,
//! and no card is given twice, although the sums that the stock scheduler sees have every card twice.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::{World, yaml};

const HAMI: &str = include_str!("../../../../../../fixtures/peers/hami-whole-cards.yaml");

/// The card that HAMi's examples name.
const NAMED: &str = "GPU-03f69c50-207a-2038-9b45-23cac89cb67d";

const CARDS: u16 = 16;
const CARD_MIB: u32 = 40_960;

/// A node of sixteen cards, with the named one among them.
fn start_node(world: &World) -> Result<()> {
    let (node, report) = yaml::agent_node("n1", CARDS, CARD_MIB)?;
    let mut report: Value = serde_json::from_str(&report)?;
    let gpus = report["gpus"].as_array_mut().context("no cards")?;
    for gpu in gpus.iter_mut() {
        gpu["model"] = "NVIDIA A100-SXM4-40GB".into();
    }
    gpus[3]["uuid"] = NAMED.into();
    world.cluster.apply(&node)?;
    world.annotate_node_as_agent("n1", "sublet.dev/inventory", &report.to_string())
}

/// HAMi's pods under names of their own, for Sublet's scheduler. Nothing else of them is another.
fn of_hami(world: &World) -> Result<BTreeMap<String, Value>> {
    let client = [
        "create",
        "--dry-run=client",
        "--output=json",
        "--filename=-",
    ];
    let mut pods = BTreeMap::new();
    for document in HAMI.split("\n---\n").skip(1) {
        let mut pod: Value =
            serde_json::from_str(&world.cluster.kubectl_with_input(&client, document)?)?;
        let name = format!("hami-{}", pods.len());
        pod["metadata"]["name"] = name.clone().into();
        pod["spec"]["schedulerName"] = "sublet-scheduler".into();
        pods.insert(name, pod);
    }
    Ok(pods)
}

/// A pod in another form, with the slot that the webhook would give it.
fn of_another(name: &str, labels: &Value, limits: &Value) -> (String, Value) {
    let mut limits = limits.clone();
    limits["sublet.dev/gpu-slot"] = "1".into();
    let container =
        json!({"name": "c0", "image": "sublet.test/busybox:1", "resources": {"limits": limits}});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"schedulerName": "sublet-scheduler", "containers": [container]},
    });
    (name.to_owned(), pod)
}

/// Grants on each card, in MiB.
fn grants(world: &World) -> Result<BTreeMap<u64, Vec<u64>>> {
    let pods = world.get(&["pods"])?;
    let mut cards: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for pod in pods["items"].as_array().context("no pods")? {
        let Some(text) = pod["metadata"]["annotations"]["sublet.dev/allocation"].as_str() else {
            continue;
        };
        for grant in serde_json::from_str::<Vec<Value>>(text)? {
            let number = |key: &str| {
                grant[key]
                    .as_u64()
                    .with_context(|| format!("{key}: {grant}"))
            };
            cards
                .entry(number("index")?)
                .or_default()
                .push(number("memoryMiB")?);
        }
    }
    Ok(cards)
}

#[test]
fn whole_cards_wait_for_the_label_that_the_refusal_names_and_none_is_given_twice() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    start_node(&world)?;
    let mut pods = of_hami(&world)?;
    ensure!(
        pods.len() == 8,
        "{} pods in HAMi's seven examples",
        pods.len()
    );
    let whole = json!({"sharedgpu/gpu_request": "2", "sharedgpu/gpu_limit": "2"});
    pods.extend([
        of_another("kubeshare", &whole, &json!({})),
        of_another(
            "koordinator",
            &json!({}),
            &json!({"koordinator.sh/gpu": "100"}),
        ),
    ]);
    all_are_told_of_the_label(&world, &pods)?;
    world
        .cluster
        .kubectl(&["delete", "pods", "--all", "--now"])?;
    world
        .cluster
        .kubectl(&["label", "node", "n1", "sublet.dev/sharing=both"])?;
    all_are_placed(&world, &pods)?;
    the_last_card_is_for_parts_or_for_one_pod(&world)?;
    cards_change_hands(&world)
}

fn all_are_told_of_the_label(world: &World, pods: &BTreeMap<String, Value>) -> Result<()> {
    for pod in pods.values() {
        world.cluster.apply(&pod.to_string())?;
    }
    for name in pods.keys() {
        let words = world.until_refused(name)?;
        ensure!(
            words.contains("parts of GPUs only; its label sublet.dev/sharing=both"),
            "{name}: {words}"
        );
    }
    Ok(())
}

/// The pod that names its card comes first: others take any.
fn all_are_placed(world: &World, pods: &BTreeMap<String, Value>) -> Result<()> {
    let names_a_card = |pod: &Value| {
        let annotations = &pod["metadata"]["annotations"];
        annotations["nvidia.com/use-gpuuuid"].is_string()
    };
    let (first, others): (Vec<_>, Vec<_>) = pods.iter().partition(|(_, pod)| names_a_card(pod));
    assert_eq!(first.len(), 1);
    for wave in [first, others] {
        for (_, pod) in &wave {
            world.cluster.apply(&pod.to_string())?;
        }
        for (name, _) in &wave {
            world.until_placed(name).with_context(|| (*name).clone())?;
        }
    }
    let cards = grants(world)?;
    assert_eq!(cards.len(), 15, "{cards:?}");
    assert!(cards.values().all(|grants| grants.len() == 1), "{cards:?}");
    Ok(())
}

/// Creates a pod with this limit.
fn create(world: &World, name: &str, limit: &str) -> Result<()> {
    let pod = yaml::Pod {
        name,
        limits: &[limit],
        ..yaml::Pod::default()
    };
    world.cluster.apply(&pod.yaml()).map(drop)
}

/// The sums of the node say that all of its memory is there for parts, and a card for a whole one.
fn the_last_card_is_for_parts_or_for_one_pod(world: &World) -> Result<()> {
    create(world, "half", "aliyun.com/gpu-mem: 20480")?;
    world.until_placed("half")?;
    create(world, "whole", "nvidia.com/gpu: 1")?;
    let words = world.until_refused("whole")?;
    ensure!(words.contains("node has fewer than 1 idle GPU"), "{words}");
    create(world, "more", "aliyun.com/gpu-mem: 20481")?;
    let words = world.until_refused("more")?;
    ensure!(words.contains("no GPU has 20481 MiB free"), "{words}");
    let cards = grants(world)?;
    assert_eq!(cards.len(), usize::from(CARDS), "{cards:?}");
    assert!(cards.values().all(|grants| grants.len() == 1), "{cards:?}");
    Ok(())
}

/// A card goes from one whole pod to another, and one from parts to a whole pod.
fn cards_change_hands(world: &World) -> Result<()> {
    world
        .cluster
        .kubectl(&["delete", "pod", "more", "koordinator", "--now"])?;
    world.until_placed("whole")?;
    create(world, "last", "nvidia.com/gpu: 1")?;
    world.until_refused("last")?;
    world.cluster.kubectl(&["delete", "pod", "half", "--now"])?;
    world.until_placed("last")?;
    let cards = grants(world)?;
    assert!(cards.values().all(|grants| grants.len() == 1), "{cards:?}");
    Ok(())
}
