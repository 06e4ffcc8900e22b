//! Tests of the pods that the controller would evict, and of the pods that may not take the room.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sublet_api::{SYSTEM_NAMESPACES, keys, preempting_to_json};
use sublet_plan::{EngineOptions, NoRescue, Policy, StockRules};

use super::plans::{member, plan};
use super::world::{World, pod};
use crate::PreemptionVerdict;

/// A node of two cards, each with a pod of 9,000 MiB and no priority.
fn world() -> World {
    world_under(StockRules::Elsewhere)
}

fn world_under(stock: StockRules) -> World {
    let options = EngineOptions::of(Policy::binpack());
    let world = World::of_none(EngineOptions { stock, ..options });
    world.scheduler.state().node_rules = Some(BTreeMap::new());
    world.node("n1", 32_552, 2);
    world.bound("p", "n1", 0, 9_000);
    world.bound("q", "n1", 1, 9_000);
    world.ready();
    world
}

fn of_priority(name: &str, memory: u64, priority: i32) -> Value {
    let mut pod = pod(name, memory);
    pod["spec"]["priority"] = json!(priority);
    pod
}

fn preemption_verdict(world: &World, pod: &Value) -> PreemptionVerdict {
    let pod = serde_json::from_value(pod.clone()).unwrap();
    world.scheduler.preemption_verdict(&pod)
}

#[tokio::test]
async fn what_is_decided_for_one_pod_counts_for_the_others() {
    let world = world();
    let high = of_priority("high", 14_000, 9);
    let PreemptionVerdict::Possible(first) = preemption_verdict(&world, &high) else {
        panic!("nobody would go")
    };
    assert_eq!(first.victims.len(), 1);
    // Nothing was noted yet. It is found once more, and another pod waits for what comes free.
    assert!(
        matches!(preemption_verdict(&world, &high), PreemptionVerdict::Possible(again) if again.victims == first.victims)
    );
    let other = of_priority("other", 14_000, 9);
    assert_eq!(
        preemption_verdict(&world, &other),
        PreemptionVerdict::No(NoRescue::RoomComes)
    );
    world
        .scheduler
        .state()
        .forget(&sublet_model::PodUid::new("high").unwrap());
    assert!(matches!(
        preemption_verdict(&world, &other),
        PreemptionVerdict::Possible(_)
    ));
    let forget = |name| {
        let uid = sublet_model::PodUid::new(name).unwrap();
        world.scheduler.state().forget(&uid);
    };
    forget("other");
    // Nobody of the same priority goes, and nobody without a GPU.
    let equal = of_priority("equal", 14_000, 0);
    assert_eq!(
        preemption_verdict(&world, &equal),
        PreemptionVerdict::No(NoRescue::NobodyHelps)
    );
    assert_eq!(
        preemption_verdict(
            &world,
            &json!({"metadata": {"name": "x", "namespace": "d", "uid": "x"}})
        ),
        PreemptionVerdict::Unknown
    );
}

/// Each of two cards has a pod of 5,000 MiB and no priority.
fn queueing() -> World {
    let world = World::of_queue();
    world.scheduler.state().node_rules = Some(BTreeMap::new());
    world.node("n1", 32_552, 2);
    world.bound("p", "n1", 0, 5_000);
    world.bound("q", "n1", 1, 5_000);
    world.node("n2", 0, 0);
    world
}

#[tokio::test]
async fn nobody_is_evicted_for_room_that_a_plan_has() {
    let world = queueing();
    let high = of_priority("high", 14_000, 9);
    // A card of the gang is not free once somebody has gone, and no plan is evicted.
    world.plan(plan("a", 1, &[(0, "n1", 0, ""), (1, "n1", 1, "")]));
    assert_eq!(
        preemption_verdict(&world, &high),
        PreemptionVerdict::No(NoRescue::NobodyHelps)
    );
    world.plan(plan("a", 1, &[(0, "n1", 0, "")]));
    let PreemptionVerdict::Possible(decided) = preemption_verdict(&world, &high) else {
        panic!("the other card is nobody's")
    };
    let victims: Vec<&str> = decided.victims.iter().map(|one| one.uid.as_str()).collect();
    assert_eq!(victims, ["q"]);
}

/// The ledger that preemptor and queue share counts all that the stock scheduler does.
#[tokio::test]
async fn nobody_is_evicted_for_a_pod_that_the_stock_scheduler_would_refuse_then() {
    let world = world_under(StockRules::Here);
    let mut high = of_priority("high", 14_000, 9);
    assert!(matches!(
        preemption_verdict(&world, &high),
        PreemptionVerdict::Possible(_)
    ));
    high["spec"]["containers"][0]["resources"]["limits"]["example.com/nic"] = json!("1");
    assert_eq!(
        preemption_verdict(&world, &high),
        PreemptionVerdict::No(NoRescue::NobodyHelps)
    );
}

/// A member without its scheduling gate waits for the queue, whatever its scheduler says.
#[tokio::test]
async fn for_members_of_groups_only_the_queue_has_others_go() {
    let world = queueing();
    let mut parked = of_priority("parked", 14_000, 9);
    parked["metadata"]["labels"] = json!({ "pod-group.scheduling.sigs.k8s.io": "g" });
    assert_eq!(
        preemption_verdict(&world, &parked),
        PreemptionVerdict::Unknown
    );
    let mut placed = member("placed", "a", 0, "n1");
    placed["spec"]["priority"] = json!(9);
    assert_eq!(
        preemption_verdict(&world, &placed),
        PreemptionVerdict::Unknown
    );
    // A note of before it was one is not followed either.
    parked["metadata"]["annotations"] = json!({ keys::PREEMPTING: "{}" });
    assert_eq!(
        preemption_verdict(&world, &parked),
        PreemptionVerdict::Unknown
    );
    // Without a queue it is a pod as any other.
    let alone = self::world();
    parked["metadata"]["annotations"] = json!({});
    assert!(matches!(
        preemption_verdict(&alone, &parked),
        PreemptionVerdict::Possible(_)
    ));
}

/// The API server would refuse it each time: the policy has the same namespaces.
#[tokio::test]
async fn nobody_is_evicted_from_the_system_s_namespaces() {
    let policy = include_str!("../../../../../deploy/kubernetes/34-controller-policy.yaml");
    for namespace in SYSTEM_NAMESPACES {
        assert!(policy.contains(&format!("'{namespace}'")), "{namespace}");
        let world = World::of_none(EngineOptions::of(Policy::binpack()));
        world.scheduler.state().node_rules = Some(BTreeMap::new());
        world.node("n1", 16_276, 1);
        let mut system = pod("system", 9_000);
        system["metadata"]["namespace"] = json!(namespace);
        system["metadata"]["annotations"] = json!({ "ALIYUN_COM_GPU_MEM_IDX": "0" });
        system["spec"]["nodeName"] = json!("n1");
        let system = serde_json::from_value(system).unwrap();
        world.scheduler.state().set_pod(&system);
        world.ready();
        let high = of_priority("high", 14_000, 9);
        assert_eq!(
            preemption_verdict(&world, &high),
            PreemptionVerdict::No(NoRescue::Guarded)
        );
    }
}

#[tokio::test]
async fn a_note_is_followed_only_as_far_as_it_may_be() {
    let world = world();
    let mut high = of_priority("high", 14_000, 9);
    let PreemptionVerdict::Possible(decided) = preemption_verdict(&world, &high) else {
        panic!("nobody would go")
    };
    let note = |pod: &mut Value, text: &str| {
        pod["metadata"]["annotations"] = json!({ keys::PREEMPTING: text });
    };
    let text = preempting_to_json(&decided);
    note(&mut high, &text);
    let PreemptionVerdict::Decided(_, left) = preemption_verdict(&world, &high) else {
        panic!("the note is not read")
    };
    assert_eq!(left, decided.victims);
    // Of another node, of no lower priority, or no note at all.
    for (priority, text) in [
        (9, text.replace("n1", "n2")),
        (0, text.clone()),
        (9, text.replace(decided.victims[0].pod.name(), "somebody")),
    ] {
        let mut forged = of_priority("high", 14_000, priority);
        note(&mut forged, &text);
        assert!(
            matches!(preemption_verdict(&world, &forged), PreemptionVerdict::Decided(_, left) if left.is_empty()),
            "{text}"
        );
    }
    note(&mut high, "{}");
    assert_eq!(
        preemption_verdict(&world, &high),
        PreemptionVerdict::Unknown
    );
}

#[tokio::test]
async fn room_is_kept_from_pods_of_lower_priority() {
    let world = world();
    let mut high = of_priority("high", 14_000, 9);
    let PreemptionVerdict::Possible(decided) = preemption_verdict(&world, &high) else {
        panic!("nobody would go")
    };
    // The victim has gone, and its successor is asked about before the pod that waits.
    let victim = &decided.victims[0].uid;
    world.scheduler.state().forget(victim);
    let low = of_priority("low", 9_000, 0);
    let refused = world.filter(&low, &["n1"]).await;
    assert_eq!(
        refused["NodeNames"],
        json!(["n1"]),
        "the note alone counts, on the pod"
    );
    high["metadata"]["annotations"] = json!({ keys::PREEMPTING: preempting_to_json(&decided) });
    let seen = serde_json::from_value(high.clone()).unwrap();
    world.scheduler.state().set_pod(&seen);
    let refused = world.filter(&of_priority("low-2", 9_000, 0), &["n1"]).await;
    assert_eq!(
        refused["FailedNodes"]["n1"],
        "room on the node is kept for a pod of higher priority"
    );
    // One that leaves the room, one that matters as much, and the pod itself.
    for pod in [
        of_priority("small", 2_000, 0),
        of_priority("equal", 14_000, 9),
        high,
    ] {
        let passed = world.filter(&pod, &["n1"]).await;
        assert_eq!(passed["NodeNames"], json!(["n1"]), "{pod}");
    }
}
