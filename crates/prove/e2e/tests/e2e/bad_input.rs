//! Bad input: wrong amounts, garbage annotations, forged results, a stolen token, nodes with
//! nothing and with very much. Each is answered, and nothing else is lost.

mod stolen;
mod stolen_controller;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sublet_e2e::{Placed, World, eventually, yaml};
use sublet_testbed::{deployed, kwok_node};

fn pod<'a>(name: &'a str, limits: &'a [&'a str]) -> yaml::Pod<'a> {
    yaml::Pod {
        name,
        limits,
        ..yaml::Pod::default()
    }
}

/// The error of something that must fail.
fn refused(outcome: Result<String>) -> Result<String> {
    match outcome {
        Ok(text) => bail!("was accepted: {text}"),
        Err(error) => Ok(format!("{error:#}")),
    }
}

/// Patches an object as the user of this kubeconfig, without reading it first as kubectl would: our
/// accounts have no right to. `object`: API version, kind, name with its namespace, subresource. A
/// list is a JSON patch; all else is merged. Returns the API server's answer, for good or as a dry
/// run.
fn patched(
    world: &World,
    kubeconfig: &Path,
    object: &str,
    change: &Value,
    as_if: bool,
) -> Result<String> {
    let mut words = object.split(' ');
    let mut word = || words.next().unwrap_or_default();
    let (version, kind, place) = (word(), word(), word());
    let (namespace, name) = place.split_once('/').unwrap_or(("", place));
    let file = json!({
        "apiVersion": version, "kind": kind, "metadata": { "name": name, "namespace": namespace },
    });
    let text = change.to_string();
    let mut args = vec!["patch", "--filename=-", "--output=json", "--patch", &text];
    // Strategic patches are of Kubernetes' own kinds.
    args.push(match change.is_array() {
        true => "--type=json",
        false if version.contains(".x-k8s.io") || version.contains(".sigs.k8s.io") => {
            "--type=merge"
        }
        false => "--type=strategic",
    });
    if word() == "status" {
        args.push("--subresource=status");
    }
    if as_if {
        args.push("--dry-run=server");
    }
    let cluster = &world.cluster;
    cluster.kubectl_by(kubeconfig, &args, Some(&file.to_string()))
}

/// One attempt: how it is called, the object as for [`patched`], the change, what the refusal says.
type Attack = (&'static str, &'static str, Value, &'static str);

/// Each of these is refused for that reason.
fn all_refused(world: &World, kubeconfig: &Path, attacks: &[Attack]) -> Result<()> {
    // The policies take effect within a second or so of being applied.
    eventually(|| {
        let mut through = Vec::new();
        for (attack, object, change, why) in attacks {
            match patched(world, kubeconfig, object, change, true) {
                Ok(_) => through.push(*attack),
                Err(error) => ensure!(format!("{error:#}").contains(why), "{attack}: {error:#}"),
            }
        }
        ensure!(through.is_empty(), "these went through: {through:#?}");
        Ok(())
    })
}

#[test]
fn wrong_amounts_are_refused_and_strange_ones_are_read() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    world.cluster.apply(&yaml::share_node("n1", 2, 32_552))?;
    world.cluster.apply(&yaml::share_node("none", 0, 0))?;
    for (amount, words) in [
        ("-1", "must be greater than or equal to 0"),
        ("0.5", "must be an integer"),
        ("500m", "must be an integer"),
    ] {
        let limits = format!("aliyun.com/gpu-mem: {amount}");
        let error = refused(world.cluster.apply(&pod("wrong", &[&limits]).yaml()))?;
        assert!(error.contains(words), "{amount}: {error}");
    }
    world
        .cluster
        .apply(&pod("zero", &["aliyun.com/gpu-mem: 0"]).yaml())?;
    world
        .cluster
        .apply(&pod("kilo", &["aliyun.com/gpu-mem: 8k"]).yaml())?;
    world
        .cluster
        .apply(&pod("huge", &["aliyun.com/gpu-mem: 8E"]).yaml())?;
    world.cluster.apply(&pod("plain", &["cpu: 1"]).yaml())?;
    assert_eq!(
        world.until_placed("kilo")?,
        Placed {
            node: "n1".into(),
            card: "0".into()
        }
    );
    for name in ["zero", "plain"] {
        world.until_placed(name)?;
        let annotations = world.get(&["pod", name])?["metadata"]["annotations"].clone();
        assert!(
            annotations["sublet.dev/allocation"].is_null(),
            "{name} is not ours: {annotations}"
        );
    }
    let event = world.until_event("huge", "aliyun.com/gpu-mem")?;
    assert!(event.contains("it is too large"), "{event}");
    Ok(())
}

#[test]
fn a_node_with_a_thousand_cards_and_one_whose_inventory_is_garbage() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    let amounts = [
        ("aliyun.com/gpu-mem", "16276000"),
        ("aliyun.com/gpu-count", "1000"),
    ];
    world
        .cluster
        .apply(&(kwok_node("big", &[], &amounts) + &kwok_node("odd", &[], &amounts)))?;
    let inventory = json!({ "version": 1, "gpus": "many" }).to_string();
    world.annotate_node_as_agent("odd", "sublet.dev/inventory", &inventory)?;
    let there = yaml::Pod {
        node: "odd",
        ..pod("odd", &["aliyun.com/gpu-mem: 1"])
    };
    world.cluster.apply(&there.yaml())?;
    let words = world.until_refused("odd")?;
    assert!(
        words.contains("its GPU inventory cannot be read"),
        "{words}"
    );
    let log = world.cluster.log_tail(deployed::EXTENDER);
    assert!(
        log.contains("annotation `sublet.dev/inventory`: not an inventory"),
        "{log}"
    );
    for number in 0..3 {
        let name = format!("p{number}");
        world
            .cluster
            .apply(&pod(&name, &["aliyun.com/gpu-mem: 16276"]).yaml())?;
        let card = number.to_string();
        assert_eq!(
            world.until_placed(&name)?,
            Placed {
                node: "big".into(),
                card
            }
        );
    }
    Ok(())
}

#[test]
fn garbage_on_bound_pods_harms_nobody_else() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    world.cluster.apply(&yaml::share_node("n1", 2, 32_552))?;
    for (name, annotations) in [
        ("letters", json!({ "ALIYUN_COM_GPU_MEM_IDX": "zero" })),
        ("range", json!({ "ALIYUN_COM_GPU_MEM_IDX": "7" })),
        ("negative", json!({ "ALIYUN_COM_GPU_MEM_IDX": "-1" })),
        ("json", json!({ "sublet.dev/allocation": "{" })),
        ("wrong", json!({ "sublet.dev/allocation": "[]" })),
    ] {
        let nobody = pod(name, &["aliyun.com/gpu-mem: 100"]).yaml();
        world
            .cluster
            .apply(&nobody.replace("sublet-scheduler", "nobody"))?;
        world.bind_by_hand(name, "n1", &annotations)?;
    }
    world
        .cluster
        .apply(&pod("good", &["aliyun.com/gpu-mem: 15876"]).yaml())?;
    world.until_placed("good")?;
    for name in ["letters", "negative", "json", "wrong"] {
        // Each may be on either card, where as much is kept free for it.
        world.until_event(name, "100 MiB of each GPU of node n1 is kept free")?;
    }
    let (code, table, error) = world.sublet(&["inspect", "-d"])?;
    assert_eq!(code, 0, "{error}");
    for name in ["letters", "range", "negative", "json", "wrong", "good"] {
        assert!(table.contains(name), "{name} is not in\n{table}");
    }
    let log = world.cluster.log_tail(deployed::EXTENDER);
    assert!(log.contains("does not say which GPU it has"), "{log}");
    Ok(())
}

/// Results as a user might write them.
const FORGED: &str = "annotations: {ALIYUN_COM_GPU_MEM_IDX: '1', sublet.dev/allocation: '[]'}";
const FORGERS_LIMITS: &[&str] = &["aliyun.com/gpu-mem: 100"];

#[test]
fn nobody_forges_a_result() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    world.cluster.apply(&yaml::share_node("n1", 2, 32_552))?;
    // The policies take effect within a second or so of being applied.
    eventually(|| {
        let error = creation_with_a_result_is_refused(&world)?;
        ensure!(error.contains("ALIYUN_COM_GPU_MEM_IDX"), "{error}");
        Ok(())
    })?;
    nobody_changes_the_result_of_a_pod(&world)?;
    nobody_writes_the_report_of_a_node(&world)?;
    a_value_forged_before_the_policy_is_overwritten_at_bind(&world)
}

fn creation_with_a_result_is_refused(world: &World) -> Result<String> {
    let create = yaml::Pod {
        metadata: FORGED,
        ..pod("forged", FORGERS_LIMITS)
    };
    let args = ["create", "--dry-run=server", "-f", "-"];
    refused(world.cluster.kubectl_with_input(&args, &create.yaml()))
}

/// Somebody else's pod: no key may be added, changed or removed; other edits pass.
fn nobody_changes_the_result_of_a_pod(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    cluster.apply(&pod("own", FORGERS_LIMITS).yaml())?;
    world.until_placed("own")?;
    for patch in [
        json!({ "ALIYUN_COM_GPU_MEM_IDX": "1" }),
        json!({ "ALIYUN_COM_GPU_MEM_IDX": null }),
        json!({ "sublet.dev/assigned": "[\"c0\"]" }),
        json!(null),
    ] {
        let patch = json!({ "metadata": { "annotations": patch } }).to_string();
        let error =
            refused(cluster.kubectl(&["patch", "pod", "own", "--type=merge", "-p", &patch]))?;
        assert!(error.contains("only Sublet"), "{error}");
    }
    cluster.kubectl(&["label", "pod", "own", "team=a"])?;
    cluster.kubectl(&["annotate", "pod", "own", "note=mine"])?;
    Ok(())
}

fn nobody_writes_the_report_of_a_node(world: &World) -> Result<()> {
    for key in [
        "sublet.dev/inventory",
        "sublet.dev/handed-over",
        "sublet.dev/measured-use",
        "sublet.dev/agent-away",
        "sublet.dev/not-isolated",
    ] {
        let annotation = format!("{key}=x");
        let annotate = ["annotate", "node", "n1", &annotation];
        let error = refused(world.cluster.kubectl(&annotate))?;
        assert!(error.contains(key), "{error}");
    }
    Ok(())
}

fn a_value_forged_before_the_policy_is_overwritten_at_bind(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    remove_the_policies(world)?;
    let early = yaml::Pod {
        metadata: FORGED,
        spec: "schedulingGates: [{name: example.org/later}]",
        ..pod("early", FORGERS_LIMITS)
    }
    .yaml();
    eventually(|| cluster.apply(&early))?;
    deployed::apply(
        cluster,
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../..")),
    )?;
    eventually(|| creation_with_a_result_is_refused(world))?;
    let free = r#"{"spec":{"schedulingGates":null}}"#;
    cluster.kubectl(&["patch", "pod", "early", "--type=merge", "-p", free])?;
    assert_eq!(
        world.until_placed("early")?,
        Placed {
            node: "n1".into(),
            card: "0".into()
        }
    );
    let annotations = world.get(&["pod", "early"])?["metadata"]["annotations"].clone();
    assert_eq!(
        annotations["sublet.dev/allocation"],
        r#"[{"container":"c0","index":0,"memoryMiB":100}]"#
    );
    Ok(())
}

fn remove_the_policies(world: &World) -> Result<()> {
    let bindings = world.get(&["validatingadmissionpolicybindings"])?;
    let names: Vec<&str> = bindings["items"]
        .as_array()
        .context("no list")?
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect();
    for name in names {
        let delete = ["delete", "validatingadmissionpolicybinding", name];
        world.cluster.kubectl(&delete)?;
    }
    Ok(())
}
