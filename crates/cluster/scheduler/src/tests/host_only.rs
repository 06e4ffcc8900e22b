//! Pods of no GPU: placed by a policy that sees CPU, left to the stock scheduler by one that
//! does not, and never refused for a reason of ours. Also what such a policy learns meanwhile.

use std::time::Duration;

use serde_json::{Value, json};
use sublet_client::Change;
use sublet_model::{MilliCpu, Standing};
use sublet_plan::{EngineOptions, Policy};

use super::world::{Answer, World};
use crate::watches;

/// `gpu`: two cards and 16 cores; `cpu`: 16 cores alone.
fn world(policy: &str, few: usize) -> World {
    let policy: Policy = policy.parse().unwrap();
    let world = World::of_none(EngineOptions {
        few,
        ..EngineOptions::of(policy)
    });
    for (name, cards) in [("gpu", 2), ("cpu", 0)] {
        let amounts = json!({ "cpu": "16", "memory": "64Gi",
            "aliyun.com/gpu-mem": (16_276 * cards).to_string(),
            "aliyun.com/gpu-count": cards.to_string() });
        let node = json!({ "metadata": { "name": name },
            "status": { "capacity": amounts, "allocatable": amounts } });
        let node = serde_json::from_value(node).unwrap();
        world.scheduler.state().set_node(&node);
    }
    world.ready();
    world
}

fn pod(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "default", "uid": name },
        "spec": { "containers": [{ "name": "main", "resources": { "requests": { "cpu": "9" } } }] },
    })
}

fn seen(world: &World, pod: &Value) {
    let pod = serde_json::from_value(pod.clone()).unwrap();
    world.scheduler.state().set_pod(&pod);
}

async fn scores(world: &World, pod: &Value, names: &[&str]) -> Value {
    let body = json!({ "Pod": pod, "NodeNames": names }).to_string();
    serde_json::from_str(&world.call("/sublet/prioritize", &body).await.1).unwrap()
}

fn cpu_left(world: &World, node: &str) -> MilliCpu {
    let state = world.scheduler.state();
    let ledger = state.engine.ledger();
    ledger.book(ledger.find(node).unwrap()).host_left().cpu
}

#[tokio::test]
async fn a_policy_that_sees_cpu_keeps_it_for_gpus() {
    let world = world("tiling", 16);
    let names = ["gpu", "cpu", "new"];
    let answer = world.filter(&pod("a"), &names).await;
    // The one that only the stock scheduler knows comes last.
    assert_eq!(answer["NodeNames"], json!(["cpu", "gpu", "new"]));
    assert_eq!(
        scores(&world, &pod("a"), &names).await,
        json!([
            { "Host": "gpu", "Score": 0 },
            { "Host": "cpu", "Score": 10 },
        ])
    );
    // Its CPU is taken by the bind, before any watch tells; the API server is not asked for a
    // pod that the watch has shown.
    seen(&world, &pod("a"));
    assert_eq!(world.bind("a", "cpu").await, "");
    assert_eq!(world.standing("a"), Some(Standing::Reserved));
    assert_eq!(cpu_left(&world, "cpu"), MilliCpu::new(7_000));
    let bindings = world.api.bindings.lock().unwrap().clone();
    assert_eq!(bindings[0]["target"]["name"], "cpu");
    assert_eq!(bindings[0]["metadata"]["annotations"], json!({}));
}

#[tokio::test]
async fn a_policy_of_memory_leaves_them_to_the_stock_scheduler() {
    let world = world("binpack", 1);
    let names = ["gpu", "new", "cpu"];
    let answer = world.filter(&pod("a"), &names).await;
    assert_eq!(answer["NodeNames"], json!(names));
    let scores = scores(&world, &pod("a"), &names).await;
    let all = scores.as_array().unwrap();
    assert!(
        all.len() == 3 && all.iter().all(|node| node["Score"] == 0),
        "{scores}"
    );
    // Bound by us all the same: the kube-scheduler leaves every Binding to its extender.
    seen(&world, &pod("a"));
    assert_eq!(world.bind("a", "gpu").await, "");
    assert_eq!(cpu_left(&world, "gpu"), MilliCpu::new(7_000));
}

#[tokio::test]
async fn what_the_stock_scheduler_lets_through_is_not_refused() {
    let world = world("tiling", 1);
    // No node of these is known, such as one whose inventory cannot be read.
    let answer = world.filter(&pod("a"), &["new", "newer"]).await;
    assert_eq!(answer["NodeNames"], json!(["new", "newer"]));
    seen(&world, &pod("a"));
    assert_eq!(world.bind("a", "new").await, "");
    assert_eq!(world.standing("a"), None);
    // CPU is the stock scheduler's affair, which may know of a pod that has just gone.
    for name in ["b", "c"] {
        let answer = world.filter(&pod(name), &["cpu", "gpu", "new"]).await;
        assert_eq!(
            answer["NodeNames"],
            json!(["cpu"]),
            "the best one is enough"
        );
        seen(&world, &pod(name));
        assert_eq!(world.bind(name, "cpu").await, "");
    }
    // Asked about again, it gets all there are.
    world.filter(&pod("d"), &["cpu", "new"]).await;
    let answer = world.filter(&pod("d"), &["cpu", "gpu", "new"]).await;
    assert_eq!(answer["NodeNames"].as_array().unwrap().len(), 3);
    // Whom to evict for CPU is for the stock scheduler to say.
    let victims = json!({ "cpu": { "Pods": [{ "UID": "b" }], "NumPDBViolations": 0 },
        "new": { "Pods": [], "NumPDBViolations": 0 } });
    let body = json!({ "Pod": pod("d"), "NodeNameToMetaVictims": victims }).to_string();
    let answer: Value =
        serde_json::from_str(&world.call("/sublet/preempt", &body).await.1).unwrap();
    assert_eq!(answer["NodeNameToMetaVictims"], victims);
}

#[tokio::test]
async fn a_lost_answer_is_looked_up_as_for_any_pod() {
    for (answer, error) in [
        (Answer::AcceptAndBreak, ""),
        (Answer::Break, "connection broken"),
        (Answer::Status(403), "no (403)"),
    ] {
        let world = world("tiling", 16);
        *world.api.pod.lock().unwrap() = Some(pod("a"));
        seen(&world, &pod("a"));
        world.api.script.lock().unwrap().push_back(answer);
        let got = world.bind("a", "cpu").await;
        assert!(
            got.contains(error) && got.is_empty() == error.is_empty(),
            "{got}"
        );
        assert_eq!(
            world.standing("a").is_some(),
            error.is_empty(),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn a_pod_that_the_watch_has_not_shown_is_read() {
    let world = world("tiling", 16);
    assert_eq!(world.bind("a", "cpu").await, "the pod is gone");
    *world.api.pod.lock().unwrap() = Some(pod("a"));
    assert_eq!(world.bind("a", "cpu").await, "");
    assert_eq!(world.standing("a"), Some(Standing::Reserved));
}

#[tokio::test]
async fn what_was_learnt_is_worked_out_before_the_next_call() {
    let world = world("tiling", 16);
    world.filter(&pod("a"), &["gpu", "cpu"]).await;
    let stale = || world.scheduler.state().engine.refresh_costs(0);
    assert!(!world.scheduler.state().engine.refresh_costs(1_000));
    for number in 0..20 {
        let mut value = pod(&format!("p{number}"));
        let resources = &mut value["spec"]["containers"][0]["resources"];
        resources["limits"] = json!({ "aliyun.com/gpu-mem": "8138" });
        let change = Change::Set(serde_json::from_value(value).unwrap());
        watches::pods(&world.scheduler, &mut None, &change);
    }
    assert!(stale(), "other tables than before any pod of a GPU came");
    let until_done = async {
        while stale() {
            tokio::task::yield_now().await;
        }
    };
    let until_done = tokio::time::timeout(Duration::from_secs(60), until_done);
    tokio::select! {
        never = watches::refresh_costs(&world.scheduler) => match never {},
        done = until_done => assert_eq!(done, Ok(()), "nothing was worked out"),
    }
}

/// The shapes that are learnt must not depend on which watch is faster, ours or the stock
/// scheduler's.
#[tokio::test]
async fn a_pod_is_learnt_once_and_before_it_is_placed() {
    let world = world("tiling", 16);
    let learnt = || world.scheduler.state().engine.learnt_pods();
    world.filter(&pod("a"), &["gpu", "cpu"]).await;
    assert_eq!(learnt(), 1, "before the watch told of it");
    world.filter(&pod("a"), &["gpu", "cpu"]).await;
    seen(&world, &pod("a"));
    seen(&world, &pod("b"));
    world.filter(&pod("b"), &["gpu", "cpu"]).await;
    assert_eq!(learnt(), 2);
    let gone = |name: &str| {
        let change = Change::Gone(serde_json::from_value(pod(name)).unwrap());
        watches::pods(&world.scheduler, &mut None, &change);
    };
    world.filter(&pod("c"), &["gpu", "cpu"]).await;
    gone("c");
    gone("a");
    assert_eq!(learnt(), 1);
    // Those that were gone when they were asked about are never told of.
    for number in 0..100 {
        world
            .filter(&pod(&format!("ghost{number}")), &["gpu"])
            .await;
    }
    assert_eq!(learnt(), 1 + 64);
}
