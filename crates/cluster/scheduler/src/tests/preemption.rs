//! Tests of the victims that preempt offers, over the production route.

use serde_json::{Value, json};
use sublet_client::Change;
use sublet_plan::{EngineOptions, Policy};

use super::world::{World, pod};
use crate::preempt;

/// Two nodes of two cards; the pods as `node/card/name/priority/memory`.
fn world(pods: &[(&str, usize, &str, i32, u64)]) -> World {
    let world = World::of_none(EngineOptions::of(Policy::binpack()));
    world.node("n1", 32_552, 2);
    world.node("n2", 32_552, 2);
    for &(node, card, name, priority, memory) in pods {
        let mut pod = pod(name, memory);
        pod["spec"]["nodeName"] = json!(node);
        pod["spec"]["priority"] = json!(priority);
        pod["metadata"]["labels"] = json!({ "app": name });
        pod["metadata"]["annotations"] = json!({ "ALIYUN_COM_GPU_MEM_IDX": card.to_string() });
        let pod = serde_json::from_value(pod).unwrap();
        world.scheduler.state().set_pod(&pod);
    }
    world.ready();
    world
}

fn victims(names: &[&str], broken: u32) -> Value {
    let pods: Vec<_> = names.iter().map(|uid| json!({ "UID": uid })).collect();
    json!({ "Pods": pods, "NumPDBViolations": broken })
}

/// A pod that wants a whole card and comes before all others.
fn high() -> Value {
    let mut high = pod("high", 16_276);
    high["spec"]["priority"] = json!(9);
    high
}

async fn preempt(world: &World, pod: &Value, proposed: Value) -> Value {
    let body = json!({ "Pod": pod, "NodeNameToVictims": null, "NodeNameToMetaVictims": proposed });
    let (_, text) = world.call("/sublet/preempt", &body.to_string()).await;
    let mut answer: Value = serde_json::from_str(&text).unwrap();
    answer["NodeNameToMetaVictims"].take()
}

#[tokio::test]
async fn other_victims_are_offered_where_the_proposed_free_no_card() {
    let world = world(&[
        ("n1", 0, "a", 1, 8_138),
        ("n1", 0, "b", 2, 8_138),
        ("n1", 1, "c", 1, 8_138),
        ("n1", 1, "d", 2, 8_138),
        ("n2", 0, "e", 5, 16_276),
        ("n2", 1, "f", 9, 16_276),
    ]);
    let proposed = json!({ "n1": victims(&["a", "c"], 0), "n2": victims(&["e"], 3) });
    let offered = preempt(&world, &high(), proposed).await;
    assert_eq!(
        offered,
        json!({ "n1": victims(&["d", "c"], 0), "n2": victims(&["e"], 3) })
    );
    // Nobody of its own priority, whoever proposes it; and nothing where nobody helps.
    let mut equal = high();
    equal["spec"]["priority"] = json!(1);
    let offered = preempt(&world, &equal, json!({ "n1": victims(&["a"], 0) })).await;
    assert_eq!(offered, json!({}));
}

#[tokio::test]
async fn a_node_with_the_sum_free_but_no_card_is_offered_too() {
    let world = world(&[
        ("n1", 0, "lo", 1, 8_138),
        ("n1", 1, "me", 2, 8_138),
        ("n2", 0, "e", 5, 16_276),
        ("n2", 1, "f", 5, 16_276),
    ]);
    // The scheduler passes n1 on, whose sum is free, and then proposes nobody there.
    let refused = world.filter(&high(), &["n1"]).await;
    assert_eq!(refused["FailedNodes"]["n1"], "no GPU has 16276 MiB free");
    let proposed = || json!({ "n2": victims(&["f"], 0) });
    assert_eq!(
        preempt(&world, &high(), proposed()).await,
        json!({ "n1": victims(&["lo"], 0), "n2": victims(&["f"], 0) })
    );
    // In a later cycle n1 may be closed to the pod: only what was passed on counts.
    assert_eq!(preempt(&world, &high(), proposed()).await, proposed());
    world.filter(&pod("other", 16_276), &["n1"]).await;
    assert_eq!(preempt(&world, &high(), proposed()).await, proposed());
}

#[tokio::test]
async fn budgets_are_counted_for_the_victims_that_are_offered() {
    let world = world(&[
        ("n1", 0, "a", 1, 16_276),
        ("n1", 1, "b", 2, 16_276),
        ("n2", 0, "c", 1, 16_276),
        ("n2", 1, "d", 1, 16_276),
    ]);
    let budget = |names: &[&str]| {
        let budget = json!({
            "metadata": { "name": "b", "namespace": "default" },
            "spec": { "selector": { "matchExpressions": [
                { "key": "app", "operator": "In", "values": names } ] } },
            "status": { "disruptionsAllowed": 0 },
        });
        serde_json::from_value(budget).unwrap()
    };
    let mut listed = None;
    let mut change = |change| preempt::budgets(&world.scheduler, &mut listed, change);
    change(Change::ListBegins);
    change(Change::Set(budget(&["a", "c", "d"])));
    change(Change::ListEnds);
    let refused = world.filter(&high(), &["n1", "n2"]).await;
    assert_eq!(refused["NodeNames"], json!([]));
    let offered = preempt(&world, &high(), json!({})).await;
    assert_eq!(offered["n1"], victims(&["b"], 0), "guarded pods are spared");
    assert_eq!(offered["n2"]["NumPDBViolations"], 1, "{offered}");
    // A list without it: gone.
    change(Change::ListBegins);
    change(Change::ListEnds);
    world.filter(&high(), &["n1", "n2"]).await;
    let offered = preempt(&world, &high(), json!({})).await;
    assert_eq!(offered["n1"], victims(&["a"], 0));
    assert_eq!(offered["n2"]["NumPDBViolations"], 0, "{offered}");
}

#[tokio::test]
async fn victims_that_only_the_scheduler_knows_are_kept_where_they_free_a_card() {
    let world = World::of_three();
    let victims = |names: &[&str]| {
        let pods: Vec<_> = names.iter().map(|uid| json!({ "UID": uid })).collect();
        json!({ "Pods": pods, "NumPDBViolations": 0 })
    };
    let body = json!({ "Pod": pod("a", 16_276), "NodeNameToVictims": null, "NodeNameToMetaVictims": {
        "n1": victims(&["n1-0"]),
        "n2": victims(&[]),
        "n3": victims(&["unknown"]),
        "cpu": victims(&["n1-0"]),
        "gone": victims(&["n1-0"]),
    } });
    let (_, text) = world.call("/sublet/preempt", &body.to_string()).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        answer,
        json!({ "NodeNameToMetaVictims": { "n1": victims(&["n1-0"]) } })
    );
}
