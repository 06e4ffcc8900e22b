//! SharePods of KubeShare 1 on the real control plane: its README's timeline, tags and virtual
//! GPUs, refusals, and pods that go, come again and go with their SharePods. Cases by the numbers
//! s1 to s7, in our words.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::{World, eventually, yaml};
use sublet_testbed::{Signal, deployed};

/// A SharePod that asks for this part of a card. `more`: annotations under `kubeshare/`.
fn share_pod(name: &str, request: &str, more: &str) -> Value {
    let asked = [
        ("gpu_request", request),
        ("gpu_limit", "1.0"),
        ("gpu_mem", "1073741824"),
    ];
    let more = more
        .split_whitespace()
        .filter_map(|word| word.split_once('='));
    let annotation = |(key, value): (&str, &str)| (format!("kubeshare/{key}"), json!(value));
    let annotations = asked.into_iter().chain(more).map(annotation);
    json!({
        "apiVersion": "kubeshare.nthu/v1", "kind": "SharePod",
        "metadata": {
            "name": name,
            "annotations": annotations.collect::<serde_json::Map<String, Value>>(),
        },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "containers": [{"name": "cuda", "image": "sublet.test/busybox:1"}],
        },
    })
}

fn apply(world: &World, object: &Value) -> Result<()> {
    world.cluster.apply(&object.to_string()).map(drop)
}

/// The card of a SharePod, as its status says it.
fn card(world: &World, name: &str) -> Result<String> {
    let card = eventually(|| {
        let object = world.get(&["sharepod", name])?;
        let card = object["status"]["BoundDeviceID"].as_str();
        let card = card.filter(|card| !card.is_empty());
        Ok(card.with_context(|| object.to_string())?.to_owned())
    })?;
    // The referee is the pod: it has a node and that card.
    world.until_placed(name)?;
    let pod = world.get(&["pod", name])?;
    let got = pod["metadata"]["annotations"]["sublet.dev/allocation"].as_str();
    ensure!(got.is_some_and(|got| got.contains(&card)), "{pod}");
    Ok(card)
}

fn new(world: &World, name: &str, request: &str, more: &str) -> Result<String> {
    apply(world, &share_pod(name, request, more))?;
    card(world, name)
}

/// s7: the garbage collector takes the pods with their SharePods, and so the cards.
fn remove(world: &World, names: &[&str]) -> Result<()> {
    let cluster = &world.cluster;
    cluster.kubectl(&[&["delete", "sharepod"], names].concat())?;
    let gone = ["--for=delete", "--timeout=60s"];
    cluster
        .kubectl(&[&["wait", "pod"], names, &gone].concat())
        .map(drop)
}

#[test]
fn share_pods_run_as_kubeshare_ran_them() -> Result<()> {
    let Some(world) = World::start()? else {
        return Ok(());
    };
    let (node, inventory) = yaml::agent_node("n1", 2, 16_276)?;
    world.cluster.apply(&node)?;
    world.annotate_node_as_agent("n1", "sublet.dev/inventory", &inventory)?;
    world.start_controller(&[])?;
    let definition = "crd/sharepods.kubeshare.nthu";
    let wait = [
        "wait",
        definition,
        "--for=condition=Established",
        "--timeout=60s",
    ];
    world.cluster.kubectl(&wait)?;

    timeline(&world)?;
    tags_and_names(&world)?;
    is_refused_when_it_is_created(&world)?;
    comes_again_and_goes(&world)?;
    a_pod_in_its_way_is_told(&world)?;

    // Without the webhook, and by another leader.
    world.cluster.kill(deployed::CONTROLLER, Signal::KILL)?;
    apply(&world, &share_pod("late", "0.1", ""))?;
    apply(&world, &share_pod("wrong", "2", ""))?;
    world.start_controller(&[])?;
    card(&world, "late")?;
    until_failed(&world, "wrong", "`kubeshare/gpu_request` is `2`")
}

/// s1: 0.2, 0.3 and 0.4 share, and what goes leaves its room.
fn timeline(world: &World) -> Result<()> {
    let first = new(world, "pod1", "0.2", "")?;
    let second = new(world, "pod2", "0.3", "")?;
    let third = new(world, "pod3", "0.4", "")?;
    assert_eq!((&second, &third), (&first, &first), "binpack");
    let fourth = new(world, "pod4", "0.5", "")?;
    assert_ne!(
        fourth, first,
        "no card is promised twice: 0.2 + 0.3 + 0.4 + 0.5"
    );
    remove(world, &["pod2"])?;
    assert_eq!(new(world, "pod5", "0.4", "")?, first);

    let object = world.get(&["sharepod", "pod1"])?;
    let status = &object["status"];
    assert_eq!(status["PodManagerPort"], 0);
    let pod = world.get(&["pod", "pod1"])?;
    assert_eq!(status["PodObjectMeta"]["uid"], pod["metadata"]["uid"]);
    let phase =
        || anyhow::Ok(world.get(&["sharepod", "pod1"])?["status"]["PodStatus"]["phase"].clone());
    eventually(|| {
        ensure!(phase()? == "Running", "{}", phase()?);
        Ok(())
    })?;
    remove(world, &["pod1", "pod3", "pod4", "pod5"])
}

/// s2, s3, s4, s6.
fn tags_and_names(world: &World) -> Result<()> {
    let red = new(world, "red1", "0.1", "sched_affinity=red")?;
    let alone = new(world, "only1", "0.1", "sched_exclusion=blue")?;
    assert_ne!(alone, red);
    assert_eq!(new(world, "red2", "0.1", "sched_affinity=red")?, red);
    assert_eq!(new(world, "only2", "0.1", "sched_exclusion=blue")?, alone);
    // A card by its UUID, and one by a name that pods give it.
    assert_eq!(new(world, "by-uuid", "0.1", &format!("GPUID={red}"))?, red);
    remove(world, &["only1", "only2"])?;
    let named = |name: &str, gpu: &str| {
        let mut object = share_pod(name, "0.1", &format!("GPUID={gpu}"));
        object["spec"]["nodeName"] = "n1".into();
        object
    };
    apply(world, &named("v1", "zxcvb"))?;
    let virtual_gpu = card(world, "v1")?;
    assert_ne!(virtual_gpu, red, "a new name is a card that nobody is on");
    apply(world, &named("v2", "zxcvb"))?;
    assert_eq!(card(world, "v2")?, virtual_gpu);
    apply(world, &named("v3", "qwert"))?;
    world.until_event("v3", "it is not the virtual GPU `qwert` that the pod wants")?;
    let mut nowhere = share_pod("v4", "0.1", "");
    nowhere["spec"]["nodeName"] = "n9".into();
    apply(world, &nowhere)?;
    world.until_refused("v4")?;
    remove(world, &["v1", "v2", "v3", "v4", "red1", "red2", "by-uuid"])
}

/// s5, once the API server asks the webhook.
fn is_refused_when_it_is_created(world: &World) -> Result<()> {
    let wrong = share_pod("wrong", "1.5", "");
    eventually(|| {
        let args = ["create", "--dry-run=server", "--filename", "-"];
        let refused = world.cluster.kubectl_with_input(&args, &wrong.to_string());
        let refused = refused.err().context("the webhook is not asked yet")?;
        let words = "sharepods.sublet.dev\" denied the request: `kubeshare/gpu_request` is `1.5`";
        ensure!(refused.to_string().contains(words), "{refused}");
        Ok(())
    })?;
    let mut empty = share_pod("empty", "0.5", "");
    empty["spec"]["containers"] = json!([]);
    let refused = apply(world, &empty)
        .expect_err("the definition refuses it")
        .to_string();
    ensure!(refused.contains("spec.containers"), "{refused}");
    Ok(())
}

fn comes_again_and_goes(world: &World) -> Result<()> {
    let first = new(world, "again", "0.5", "")?;
    let uid = |world: &World| -> Result<Value> {
        Ok(world.get(&["pod", "again"])?["metadata"]["uid"].clone())
    };
    let before = uid(world)?;
    world
        .cluster
        .kubectl(&["delete", "pod", "again", "--now"])?;
    eventually(|| {
        ensure!(uid(world)? != before, "it is not there again");
        Ok(())
    })?;
    assert_eq!(card(world, "again")?, first);
    remove(world, &["again"])
}

fn a_pod_in_its_way_is_told(world: &World) -> Result<()> {
    let pod = yaml::Pod {
        name: "taken",
        limits: &["cpu: 10m"],
        ..yaml::Pod::default()
    };
    world.cluster.apply(&pod.yaml())?;
    apply(world, &share_pod("taken", "0.1", ""))?;
    until_failed(world, "taken", "there is a pod of this name already")?;
    // What the API server refuses is told in its words.
    let mut odd = share_pod("odd", "0.1", "");
    odd["spec"]["containers"][0]["imagePullPolicy"] = "Sometimes".into();
    apply(world, &odd)?;
    until_failed(
        world,
        "odd",
        "imagePullPolicy: Unsupported value: \"Sometimes\"",
    )?;
    // So is what a policy refuses, until somebody allows it to the namespace.
    let mut rooted = share_pod("rooted", "0.1", "");
    rooted["spec"]["hostPID"] = true.into();
    apply(world, &rooted)?;
    until_failed(
        world,
        "rooted",
        "the pod of a SharePod may not have hostPID",
    )?;
    let label = "sublet.dev/privileged-sharepods";
    let allowed = format!("{label}=allowed");
    let cluster = &world.cluster;
    cluster.kubectl(&["label", "namespace", "default", &allowed])?;
    card(world, "rooted")?;
    let no_more = format!("{label}-");
    cluster.kubectl(&["label", "namespace", "default", &no_more])?;
    remove(world, &["rooted"])
}

fn until_failed(world: &World, name: &str, words: &str) -> Result<()> {
    let fields =
        format!("involvedObject.kind=SharePod,involvedObject.name={name},reason=FailedCreate");
    eventually(|| {
        let events = world
            .cluster
            .kubectl(&["get", "events", "--field-selector", &fields])?;
        ensure!(events.contains(words), "events: {events}");
        Ok(())
    })
}
