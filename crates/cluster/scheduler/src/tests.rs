//! The extender over its own router and against an API server that misbehaves: no socket,
//! no cluster, the production routes and client.

mod events;
mod host_only;
mod office;
mod plans;
mod preemption;
mod quotas;
mod rescue;
mod world;

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::{Value, json};
use sublet_model::{PodUid, Standing, Unit};
use sublet_plan::EngineOptions;

use self::world::{Answer, World, pod};
use crate::state::Scheduler;

#[tokio::test]
async fn the_published_filter_example() {
    let world = World::of_three();
    let answer = world.filter(&pod("a", 8_138), &["n1", "n2", "n3"]).await;
    assert_eq!(
        answer,
        json!({
        "NodeNames": ["n3"], "FailedNodes": {}, "FailedAndUnresolvableNodes": {} })
    );
}

#[tokio::test]
async fn refusals_have_few_texts_and_tell_never_from_not_now() {
    let world = World::of_three();
    let answer = world
        .filter(&pod("a", 9_000), &["n1", "n2", "n3", "cpu", "new"])
        .await;
    let full = "no GPU has 9000 MiB free";
    assert_eq!(
        answer,
        json!({
        "NodeNames": [],
        "FailedNodes": { "n1": full, "n2": full, "n3": full,
            "new": "the node is not known, or its GPU inventory cannot be read" },
        "FailedAndUnresolvableNodes": { "cpu": "the node has no GPU" } })
    );
    let answer = world.filter(&pod("b", 16_277), &["n1", "n2"]).await;
    assert_eq!(answer["FailedNodes"], json!({}));
    assert_eq!(
        answer["FailedAndUnresolvableNodes"]["n1"],
        "no GPU is as large as 16277 MiB"
    );
}

#[tokio::test]
async fn an_opportunistic_pod_is_offered_the_node_that_was_least_busy() {
    let world = World::of_none(EngineOptions {
        few: 1,
        ..EngineOptions::default()
    });
    let measured = |name: &str, text: &str| {
        let inventory = r#"{"version":1,"unit":"MiB","sharing":"memory","identity":"nri","advertise":"units","gpus":[{"index":0,"memoryMiB":16276}]}"#;
        let annotations = json!({
            "sublet.dev/inventory": inventory, "sublet.dev/measured-use": text });
        let node = json!({ "metadata": { "name": name, "annotations": annotations } });
        let node = serde_json::from_value(node).unwrap();
        world.scheduler.state().set_node(&node);
    };
    world.ready();
    let mut low = pod("low", 100);
    low["metadata"]["labels"] = json!({ "sublet.dev/class": "opportunistic" });
    let percent = |percent: u8| format!(r#"{{"0":{{"percent":{percent},"pods":0}}}}"#);
    for (number, (n1, n2, best)) in [
        (percent(70), percent(20), "n2"),
        (percent(10), percent(20), "n1"),
        (percent(10), percent(0), "n2"),
        // What cannot be read is as good as nothing: no pod is on that card.
        ("[]".to_owned(), percent(1), "n1"),
    ]
    .into_iter()
    .enumerate()
    {
        measured("n1", &n1);
        measured("n2", &n2);
        low["metadata"]["uid"] = json!(format!("low-{number}"));
        let answer = world.filter(&low, &["n1", "n2"]).await;
        assert_eq!(answer["NodeNames"], json!([best]), "{n1} {n2}");
        let uid = PodUid::new(&format!("low-{number}")).unwrap();
        world.scheduler.state().forget(&uid);
    }
}

#[tokio::test]
async fn a_pod_that_cannot_be_understood_is_refused_everywhere_with_the_reason() {
    let world = World::of_three();
    let mut mixed = pod("a", 1);
    mixed["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = json!("1");
    let answer = world.filter(&mixed, &["n1", "n3"]).await;
    let why = answer["FailedAndUnresolvableNodes"]["n3"].as_str().unwrap();
    assert!(
        why.contains("a pod can use one way of asking for GPUs"),
        "{why}"
    );
    let none = json!({ "metadata": { "name": "x", "uid": "x" }, "spec": { "containers": [] } });
    let answer = world.filter(&none, &["n1", "other"]).await;
    assert_eq!(
        answer["NodeNames"],
        json!(["n1", "other"]),
        "pods without a GPU are not ours"
    );
}

#[tokio::test]
async fn bad_calls_get_an_error_and_nothing_else_is_lost() {
    let world = World::of_three();
    for body in [
        "{",
        "[]",
        r#"{"Pod":{}}"#,
        r#"{"Pod":{},"NodeNames":["a\u0041"]}"#,
        "\u{7f}",
    ] {
        let (code, text) = world.call("/sublet/filter", body).await;
        assert_eq!(code, StatusCode::OK);
        let answer: Value = serde_json::from_str(&text).unwrap();
        let error = answer["Error"].as_str().unwrap_or_default();
        assert!(!error.is_empty(), "{body} → {text}");
    }
    assert_eq!(
        world.call("/sublet/prioritize", "{").await.0,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(
        world.call("/sublet/preempt", "{").await.0,
        StatusCode::BAD_REQUEST
    );
    assert!(world.bind("", "n3").await.contains("must not be empty"));
    assert_eq!(world.call("/nowhere", "").await.0, StatusCode::NOT_FOUND);
    let answer = world.filter(&pod("a", 1), &["n3"]).await;
    assert_eq!(answer["NodeNames"], json!(["n3"]));
}

#[tokio::test]
async fn nothing_is_decided_before_the_ledger_is_complete() {
    let world = World::of_three();
    let early = World {
        api: world.api.clone(),
        scheduler: Arc::new(Scheduler::new(
            world.api.clone().client(),
            EngineOptions::default(),
            vec!["sublet".to_owned()],
        )),
    };
    early.node("n1", 32_552, 2);
    assert_eq!(
        early.call("/readyz", "").await.0,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(early.call("/healthz", "").await.0, StatusCode::OK);
    let answer = early.filter(&pod("a", 1), &["n1"]).await;
    assert_eq!(answer["Error"], "the ledger of GPUs is not complete yet");
    assert!(early.bind("a", "n1").await.contains("not complete yet"));
    early.ready();
    assert_eq!(early.call("/readyz", "").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_pod_refused_again_is_looked_at_once_more_when_room_appears_meanwhile() {
    let world = World::of_three();
    let late = pod("late", 8_138);
    let refused = world.filter(&late, &["n1", "n2"]).await;
    assert_eq!(refused["NodeNames"], json!([]));
    // The kube-scheduler already knows that n2-1 is gone; our watch hears of it during the call,
    // after something else.
    let scheduler = world.scheduler.clone();
    let news = tokio::spawn(async move {
        tokio::task::yield_now().await;
        scheduler.freed.send_replace(());
        tokio::task::yield_now().await;
        scheduler.state().forget(&PodUid::new("n2-1").unwrap());
        scheduler.freed.send_replace(());
    });
    let answer = world.filter(&late, &["n1", "n2"]).await;
    news.await.unwrap();
    assert_eq!(answer["NodeNames"], json!(["n2"]));
    // Without news it is refused. Half a second of that in a row, and nobody waits any more.
    let other = pod("other", 16_276);
    world.filter(&other, &["n1"]).await;
    let mut waits = 0;
    while world.scheduler.may_catch_up() {
        world.filter(&other, &["n1"]).await;
        waits += 1;
    }
    assert!((3..=6).contains(&waits), "{waits}");
    // A clock that was set back takes the patience of nobody.
    world
        .scheduler
        .caught_up(std::time::Duration::from_secs(3600));
    assert!(world.scheduler.may_catch_up());
}

#[tokio::test]
async fn a_binding_is_one_write_with_everything_in_it() {
    let world = World::of_three();
    world.waiting("a", 4_069);
    assert_eq!(world.bind("a", "n2").await, "");
    let bindings = world.api.bindings.lock().unwrap().clone();
    assert_eq!(bindings.len(), 1);
    assert_eq!(bindings[0]["metadata"]["uid"], "a", "only that very pod");
    assert_eq!(bindings[0]["target"]["name"], "n2");
    let written = &bindings[0]["metadata"]["annotations"];
    assert_eq!(written["ALIYUN_COM_GPU_MEM_IDX"], "0");
    assert_eq!(written["ALIYUN_COM_GPU_MEM_DEV"], "16276");
    assert_eq!(
        written["sublet.dev/allocation"],
        r#"[{"container":"main","index":0,"memoryMiB":4069}]"#
    );
    assert_eq!(
        world.standing("a"),
        Some(Standing::Reserved),
        "until the watch confirms"
    );
    let seen = world.api.pod.lock().unwrap().clone().unwrap();
    world
        .scheduler
        .state()
        .set_pod(&serde_json::from_value(seen).unwrap());
    assert_eq!(world.standing("a"), Some(Standing::Bound));
}

#[tokio::test]
async fn every_way_a_binding_can_fail() {
    // What the API server does, is the pod bound in the end, does the ledger keep it?
    for (answer, error, kept) in [
        (Answer::Status(404), "no (404)", false),
        (Answer::Status(403), "no (403)", false),
        (Answer::Status(409), "no", false),
        (Answer::Break, "connection broken", false),
        (Answer::Status(500), "no", false),
        (Answer::AcceptAndBreak, "", true),
        (Answer::AcceptAndTimeOut, "", true),
        (Answer::AcceptLater, "", true),
    ] {
        let world = World::of_three();
        world.waiting("a", 4_069);
        world.api.script.lock().unwrap().push_back(answer);
        let got = world.bind("a", "n2").await;
        if error.is_empty() {
            assert_eq!(got, "", "{answer:?}");
        } else {
            assert!(got.contains(error), "{answer:?} → {got}");
        }
        assert_eq!(world.standing("a").is_some(), kept, "{answer:?}");
        assert_eq!(
            world.api.bindings.lock().unwrap().len(),
            1,
            "{answer:?}: never posted twice"
        );
        assert!(world.scheduler.state().engine.ledger().is_conserved());
    }
}

#[tokio::test]
async fn a_conflict_that_is_our_own_echo_is_a_success() {
    let world = World::of_three();
    world.waiting("a", 4_069);
    // An earlier process wrote it and was killed before the watch showed it to this one: the
    // API server says "already bound", and it is so, as asked.
    let allocation = r#"[{"container":"main","index":0,"memoryMiB":4069}]"#;
    let earlier = json!({ "target": { "name": "n2" },
        "metadata": { "annotations": { "sublet.dev/allocation": allocation } } });
    world.api.write(&earlier);
    world
        .api
        .script
        .lock()
        .unwrap()
        .push_back(Answer::Status(409));
    assert_eq!(world.bind("a", "n2").await, "");
    // The kube-scheduler hung up before our answer and tries again: the place stays.
    assert_eq!(world.bind("a", "n2").await, "");
    assert_eq!(world.api.bindings.lock().unwrap().len(), 1);
    let elsewhere = world.bind("a", "n3").await;
    assert!(
        elsewhere.contains("already has a place on node n2"),
        "{elsewhere}"
    );
    assert!(world.standing("a").is_some());
    // Bound by somebody else, who said nothing of cards.
    world.waiting("b", 4_069);
    let other = json!({ "target": { "name": "n1" }, "metadata": { "annotations": {} } });
    world.api.write(&other);
    world
        .api
        .script
        .lock()
        .unwrap()
        .push_back(Answer::Status(409));
    assert_eq!(
        world.bind("b", "n2").await,
        "somebody else bound the pod, to n1"
    );
    assert!(world.standing("b").is_none());
    world.waiting("c", 4_069);
    *world.api.pod.lock().unwrap() = None;
    world
        .api
        .script
        .lock()
        .unwrap()
        .push_back(Answer::Status(409));
    assert_eq!(world.bind("c", "n2").await, "the pod is gone");
}

#[tokio::test]
async fn soft_taints_come_last_and_sick_cards_get_nothing() {
    let world = World::of_three();
    let tainted = json!({ "metadata": { "name": "n0" },
        "spec": { "taints": [{ "key": "old", "effect": "PreferNoSchedule" }] },
        "status": { "capacity": { "aliyun.com/gpu-mem": "4069", "aliyun.com/gpu-count": "1" } } });
    world
        .scheduler
        .state()
        .set_node(&serde_json::from_value(tainted).unwrap());
    let answer = world.filter(&pod("a", 4_069), &["n0", "n2", "n3"]).await;
    assert_eq!(
        answer["NodeNames"],
        json!(["n2", "n3", "n0"]),
        "best fit, but tainted"
    );
    let n3 = sublet_model::NodeName::new("n3").unwrap();
    let sick = [sublet_model::GpuIndex(0)].into();
    world.scheduler.state().set_sick(&n3, sick);
    let answer = world.filter(&pod("b", 8_138), &["n3"]).await;
    assert_eq!(answer["FailedNodes"]["n3"], "no GPU has 8138 MiB free");
    world.scheduler.state().set_sick(&n3, [].into());
    let answer = world.filter(&pod("c", 8_138), &["n3"]).await;
    assert_eq!(answer["NodeNames"], json!(["n3"]));
}

#[tokio::test]
async fn the_original_s_routes_answer_as_it_does() {
    let world = World::of_three();
    assert_eq!(world.call("/version", "").await.1, "0.1.0");
    let (_, page) = world.call("/gpushare-scheduler/inspect/n3", "").await;
    assert_eq!(
        page,
        concat!(
            r#"{"nodes":[{"name":"n3","totalGPU":32552,"usedGPU":24414,"devs":["#,
            r#"{"id":0,"totalGPU":16276,"usedGPU":8138,"pods":[{"name":"n3-0","namespace":"default","usedGPU":8138}]},"#,
            r#"{"id":1,"totalGPU":16276,"usedGPU":16276,"pods":[{"name":"n3-1","namespace":"default","usedGPU":16276}]}]}]}"#
        )
    );
    let (_, page) = world.call("/gpushare-scheduler/inspect/x", "").await;
    assert_eq!(page, r#"{"nodes":[],"error":"node \"x\" not found"}"#);
    let all: Value =
        serde_json::from_str(&world.call("/gpushare-scheduler/inspect", "").await.1).unwrap();
    assert_eq!(all["nodes"].as_array().unwrap().len(), 4);
    let args = r#"{"PodName":"p","PodNamespace":"default","PodUID":"u","Node":"n1"}"#;
    let (code, text) = world.call("/gpushare-scheduler/bind", args).await;
    assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(text, r#"{"Error":"the pod is gone"}"#);
}

#[tokio::test]
async fn whole_nodes_and_names_in_any_case_are_read_as_the_original_does() {
    let world = World::of_three();
    let node = |name: &str| json!({ "metadata": { "name": name }, "status": { "images": [] } });
    let call = json!({ "pod": pod("a", 8_138), "nodenames": null,
        "nodes": { "metadata": {}, "items": [node("n1"), node("n3")] } });
    let (_, text) = world
        .call("/gpushare-scheduler/filter", &call.to_string())
        .await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        answer,
        json!({ "NodeNames": ["n3"], "Nodes": { "items": [node("n3")] },
            "FailedNodes": {}, "FailedAndUnresolvableNodes": {} })
    );
    let (_, scores) = world.call("/sublet/prioritize", &call.to_string()).await;
    assert_eq!(
        scores,
        r#"[{"Host":"n1","Score":0},{"Host":"n3","Score":10}]"#
    );
    let none = json!({ "Pod": { "metadata": { "uid": "x" } }, "Nodes": call["nodes"] });
    let (_, text) = world
        .call("/gpushare-scheduler/filter", &none.to_string())
        .await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        answer["Nodes"],
        json!({ "items": [node("n1"), node("n3")] })
    );
    world.waiting("b", 4_069);
    let bind = r#"{"podName":"b","podNamespace":"default","podUID":"b","node":"n2"}"#;
    let (code, text) = world.call("/gpushare-scheduler/bind", bind).await;
    assert_eq!((code, text.as_str()), (StatusCode::OK, r#"{"Error":""}"#));
    // Whole pods to preempt are read by their UIDs.
    let victims = json!({ "Pods": [pod("n1-0", 16_276)], "NumPDBViolations": 2 });
    let call = json!({ "Pod": pod("c", 16_276), "NodeNameToVictims": { "n1": victims } });
    let (_, text) = world.call("/sublet/preempt", &call.to_string()).await;
    assert_eq!(
        text,
        r#"{"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"n1-0"}],"NumPDBViolations":2}}}"#
    );
}

#[tokio::test]
async fn metrics_tell_latency_refusals_and_memory_per_node() {
    let world = World::of_three();
    world.filter(&pod("a", 9_000), &["n1"]).await;
    let (_, page) = world.call("/metrics", "").await;
    for line in [
        "sublet_extender_call_seconds_count{verb=\"filter\"} 1",
        "sublet_refusals_total{reason=\"no_room\"} 1",
        "sublet_gpu_memory_free_bytes{node=\"n3\"} 8533311488.0",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
}

#[tokio::test]
async fn a_pod_keeps_its_memory_until_its_containers_are_gone() {
    let world = World::of_three();
    let mut pod = pod("n3-0", 8_138);
    pod["spec"]["nodeName"] = json!("n3");
    pod["metadata"]["annotations"] = json!({ "ALIYUN_COM_GPU_MEM_IDX": "0" });
    pod["metadata"]["deletionTimestamp"] = json!("2026-11-22T00:00:00Z");
    let mut check = |patch: Value| {
        pod["status"] = patch;
        world
            .scheduler
            .state()
            .set_pod(&serde_json::from_value(pod.clone()).unwrap());
        world.standing("n3-0").is_some()
    };
    let running = json!([{ "name": "main", "state": { "running": {} } }]);
    assert!(check(json!({ "phase": "Running" })), "marked for deletion");
    assert!(
        check(json!({ "phase": "Failed", "containerStatuses": running })),
        "still running"
    );
    assert!(!check(
        json!({ "phase": "Failed", "containerStatuses": [] })
    ));
    assert_eq!(
        Unit::default(),
        world.scheduler.state().engine.options().unit
    );
}
