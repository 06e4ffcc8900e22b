//! Flavors on the real API server: what their definition refuses, pods that ask for them and share
//! a card, and what becomes of such a pod while no webhook answers.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::{World, eventually, yaml};
use sublet_testbed::{Signal, deployed};

const FLAVORS: &str = include_str!("../../../../../examples/flavors.yaml");

/// A pod of one container that asks for nothing but its flavor.
fn pod(name: &str, flavor: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"sublet.dev/flavor": flavor}},
        "spec": {
            "schedulerName": "sublet-scheduler",
            "automountServiceAccountToken": false,
            "containers": [{"name": "c0", "image": "sublet.test/busybox:1"}],
        },
    })
}

fn make(world: &World, object: &Value) -> Result<String> {
    let args = ["create", "--filename", "-"];
    let cluster = &world.cluster;
    cluster.kubectl_with_input(&args, &object.to_string())
}

fn card(world: &World, pod: &str) -> Result<String> {
    world.until_placed(pod)?;
    let pod = world.get(&["pod", pod])?;
    let text = &pod["metadata"]["annotations"]["sublet.dev/allocation"];
    let allocation: Value = serde_json::from_str(text.as_str().context("no allocation")?)?;
    let grant = serde_json::to_string(&allocation)?;
    let (_, after) = grant.split_once("\"index\":").context(grant.clone())?;
    Ok(after.chars().take_while(char::is_ascii_digit).collect())
}

#[test]
fn pods_of_flavors_share_a_card() -> Result<()> {
    let Some(world) = World::start()? else {
        return Ok(());
    };
    let (node, inventory) = yaml::agent_node("n1", 1, 16_276)?;
    world.cluster.apply(&node)?;
    world.annotate_node_as_agent("n1", "sublet.dev/inventory", &inventory)?;
    world.cluster.apply(FLAVORS)?;
    the_definition_refuses(&world)?;
    world.start_controller(&[])?;
    // An unknown flavor is refused from the moment at which the webhook is asked.
    eventually(|| {
        let third = pod("third", "third").to_string();
        let args = ["create", "--dry-run=server", "--filename", "-"];
        let refused = world.cluster.kubectl_with_input(&args, &third);
        let refused = refused.err().context("the webhook is not asked yet")?;
        let words = "`sublet.dev/flavor` is `third`, and there is no such GpuFlavor; there are \
                     `half`, `quarter`";
        ensure!(refused.to_string().contains(words), "{refused}");
        Ok(())
    })?;
    make(&world, &pod("a", "half"))?;
    make(&world, &pod("b", "quarter"))?;
    let default = "sublet.dev/default-flavor=quarter";
    world
        .cluster
        .kubectl(&["label", "namespace", "default", default])?;
    eventually(|| make(&world, &pod("c", "default")))?;
    for pod in ["a", "b", "c"] {
        assert_eq!(card(&world, pod)?, "0", "{pod}");
    }
    let made = world.get(&["pod", "c"])?;
    let limits = &made["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits["sublet.dev/gpu-memory-percent"], "25");
    assert_eq!(
        made["metadata"]["annotations"]["sublet.dev/flavor-applied"],
        "quarter"
    );
    // The card is full.
    make(&world, &pod("d", "quarter"))?;
    world.until_refused("d")?;

    without_the_webhook(&world)
}

fn the_definition_refuses(world: &World) -> Result<()> {
    for (name, spec, words) in [
        (
            "both",
            json!({"memory": "1Gi", "memoryPercent": 5}),
            "either memory or memoryPercent",
        ),
        (
            "none",
            json!({"compute": 5}),
            "either memory or memoryPercent",
        ),
        (
            "default",
            json!({"memory": "1Gi"}),
            "the name default stands for",
        ),
        (
            "above",
            json!({"memoryPercent": 5, "compute": 60, "computeLimit": 50}),
            "computeLimit must be at least as much as compute",
        ),
        (
            "spare",
            json!({"memoryPercent": 5, "compute": 60, "class": "opportunistic"}),
            "an opportunistic pod is promised no compute time",
        ),
        ("much", json!({"memoryPercent": 101}), "spec.memoryPercent"),
        ("odd", json!({"memory": "much"}), "spec.memory"),
    ] {
        let flavor = json!({
            "apiVersion": "sublet.dev/v1alpha1", "kind": "GpuFlavor",
            "metadata": {"name": name}, "spec": spec,
        });
        let refused = eventually(|| {
            let refused = make(world, &flavor).expect_err("it is refused").to_string();
            // Right after its definition the API server does not know the kind yet.
            ensure!(!refused.contains("no matches for kind"), "{refused}");
            Ok(refused)
        })?;
        assert!(refused.contains(words), "{name}: {refused}");
    }
    Ok(())
}

/// The scheduler says what to do; it does not take it for a pod of no GPU.
fn without_the_webhook(world: &World) -> Result<()> {
    world.cluster.kill(deployed::CONTROLLER, Signal::KILL)?;
    make(world, &pod("late", "half"))?;
    world.until_event("late", "nobody has turned this flavor into amounts")?;
    world.until_refused("late").map(drop)
}
