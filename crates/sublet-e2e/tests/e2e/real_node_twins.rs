//! Twenty equal pods on a real node at the same time, and an agent that is killed while kubelet asks
//! about them: each container has the card, the limit and the account of its own pod.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::{GpuNode, audit, eventually};

use crate::real_node_isolation::{also, pod, stage, until_shown};

const MEMORY: &str = "aliyun.com/gpu-mem";
const CARD: u64 = 16_276;
const MIB: u64 = 1 << 20;

/// Ten of them fill a card but for six units.
const PART: u64 = 1_627;
const PODS: usize = 20;

/// Their Deployment: whoever fails is made anew.
fn deployment(stage: &Path) -> String {
    let one = pod(
        "x",
        &format!("{MEMORY}: {PART}"),
        stage,
        "/lib64/sublet-workload alloc \
        --reach libcuda.so.1 --size 10MiB --count 5 --check --hold 100000",
    );
    let (_, spec) = one.split_once("spec:\n").unwrap_or_default();
    let spec: String = spec.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: equal}}\nspec:\n  \
         replicas: {PODS}\n  selector: {{matchLabels: {{app: equal}}}}\n  template:\n    \
         metadata: {{labels: {{app: equal}}}}\n    spec:\n{spec}"
    )
}

/// The pods, but for those that failed.
fn live(node: &GpuNode) -> Result<Vec<Value>> {
    let pods = node.world.get(&["pods", "-l", "app=equal"])?;
    let mut pods = pods["items"].as_array().cloned().unwrap_or_default();
    pods.retain(|pod| {
        pod["status"]["phase"] != "Failed" && pod["metadata"]["deletionTimestamp"].is_null()
    });
    Ok(pods)
}

fn until_all_run(node: &GpuNode) -> Result<Vec<Value>> {
    eventually(|| {
        let pods = live(node)?;
        let runs = |pod: &&Value| pod["status"]["containerStatuses"][0]["ready"] == true;
        let running = pods.iter().filter(runs).count();
        ensure!(
            running == PODS && pods.len() == PODS,
            "{running} of {} run",
            pods.len()
        );
        Ok(pods)
    })
}

fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or_default()
}

/// What is found inside a container is what its own pod's annotation says, and kubelet's books and
/// the agent's figures agree.
fn check(node: &GpuNode, object: &Value) -> Result<u64> {
    let pod = name(object);
    let annotations = &object["metadata"]["annotations"];
    let text = annotations["sublet.dev/allocation"]
        .as_str()
        .context("no allocation")?;
    let grants: Vec<Value> = serde_json::from_str(text)?;
    let card = grants[0]["index"].as_u64().context("no index")?;
    let uuid = &node.uuids()[usize::try_from(card)?];
    let inside = node.environment(pod, "main")?;
    assert_eq!(inside["NVIDIA_VISIBLE_DEVICES"], *uuid, "{pod}");
    assert_eq!(inside["ALIYUN_COM_GPU_MEM_IDX"], card.to_string(), "{pod}");
    let devices = node.devices_of(object, "main")?;
    assert_eq!(devices.len() as u64, PART, "{pod}");
    let seen = also(node, pod, "info --nvml")?;
    let cuda = &seen["devices"][0];
    assert_eq!(cuda["totalMem"], PART * MIB, "{pod}: {seen}");
    until_shown(node, "memory_limit_bytes", pod, PART * MIB)?;
    eventually(|| {
        let now = node.world.get(&["pod", pod])?;
        let assigned = &now["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"];
        ensure!(assigned == "true", "{pod}: {assigned}");
        Ok(())
    })?;
    Ok(card)
}

/// The agent's figures have a line for each of these pods, and no line without a pod.
fn until_accounts_are(node: &GpuNode, pods: &[Value]) -> Result<()> {
    let wanted: BTreeSet<&str> = pods.iter().map(name).collect();
    eventually(|| {
        let page = node.metrics()?;
        let lines = page
            .lines()
            .filter(|line| line.starts_with("sublet_agent_tenant_memory_limit_bytes{"));
        let shown: Vec<&str> = lines
            .filter_map(|line| {
                line.split_once(",pod=\"")
                    .or(line.split_once("{pod=\""))?
                    .1
                    .split('"')
                    .next()
            })
            .collect();
        let names: BTreeSet<&str> = shown.iter().copied().collect();
        ensure!(
            names == wanted && shown.len() == wanted.len(),
            "{shown:?}, not {wanted:?}"
        );
        Ok(())
    })
}

fn until_identity(node: &GpuNode, wanted: &str) -> Result<()> {
    eventually(|| {
        let object = node.world.get(&["node", &node.name()])?;
        let report = object["metadata"]["annotations"]["sublet.dev/inventory"].as_str();
        let report: Value = serde_json::from_str(report.context("no inventory")?)?;
        ensure!(report["identity"] == wanted, "{}", report["identity"]);
        Ok(())
    })
}

#[test]
fn twenty_equal_pods_start_at_once_and_none_has_what_is_anothers() -> Result<()> {
    let Some(node) = GpuNode::start(&["--isolation", "on"])? else {
        return Ok(());
    };
    node.until_allocatable(MEMORY, 2 * CARD)?;
    until_identity(&node, "kubelet-checkpoint")?;
    let stage = stage(&node)?;
    let cluster = &node.world.cluster;
    let started = Instant::now();
    cluster.apply(&deployment(&stage))?;
    let pods = until_all_run(&node)?;
    let took = started.elapsed().as_secs_f64();
    println!("twenty equal pods, by kubelet's checkpoint: {took:.1} s");
    let log = cluster.log_tail("sublet-agent");
    println!(
        "{}",
        log.lines().rev().take(3).collect::<Vec<_>>().join("\n")
    );
    let mut cards = BTreeMap::new();
    for pod in &pods {
        *cards.entry(check(&node, pod)?).or_insert(0) += 1;
    }
    assert_eq!(cards, BTreeMap::from([(0, 10), (1, 10)]));
    until_accounts_are(&node, &pods)?;

    // Some go and others come, while those that stay keep what they have.
    let gone: Vec<&str> = pods.iter().step_by(2).map(name).collect();
    let args = ["delete", "pod", "--wait=false"];
    cluster.kubectl(&[&args[..], &gone].concat())?;
    // The agent dies while kubelet asks about the new ones.
    eventually(|| {
        let known: BTreeSet<&str> = pods.iter().map(name).collect();
        let new = live(&node)?;
        let bound = new
            .iter()
            .filter(|pod| !known.contains(name(pod)) && pod["spec"]["nodeName"].is_string());
        ensure!(bound.count() > 1, "none is bound yet");
        Ok(())
    })?;
    node.restart_agent()?;
    node.until_allocatable(MEMORY, 2 * CARD)?;
    let now = until_all_run(&node)?;
    for pod in &now {
        check(&node, pod)?;
    }
    until_accounts_are(&node, &now)?;
    let stayed = pods.iter().skip(1).step_by(2);
    for before in stayed {
        let after = now.iter().find(|pod| name(pod) == name(before));
        let after = after.with_context(|| format!("{} is gone", name(before)))?;
        let container = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
        assert_eq!(container(after), container(before));
    }
    println!(
        "with the agent killed: {:.1} s",
        started.elapsed().as_secs_f64()
    );
    assert!(started.elapsed() < Duration::from_secs(600));
    assert_eq!(audit::forbidden(cluster)?, []);
    Ok(())
}
