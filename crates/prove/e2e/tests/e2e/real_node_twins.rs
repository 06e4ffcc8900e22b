//! Twenty equal pods on a real node at the same time, and an agent that is killed while kubelet asks
//! about them: each container has the card, the limit and the account of its own pod.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::{AGENT, GpuNode, audit, eventually};
use sublet_testbed::Signal;

use crate::real_node_isolation::{also, pod, stage, until_shown};

pub(crate) const MEMORY: &str = "aliyun.com/gpu-mem";
pub(crate) const CARD: u64 = 16_276;
const MIB: u64 = 1 << 20;

/// Ten of them fill a card but for six units.
const PART: u64 = 1_627;
pub(crate) const PODS: usize = 20;

/// Their Deployment: a pod that fails is made anew.
pub(crate) fn deployment(stage: &Path) -> String {
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
pub(crate) fn live(node: &GpuNode) -> Result<Vec<Value>> {
    let pods = node.world.get(&["pods", "-l", "app=equal"])?;
    let mut pods = pods["items"].as_array().cloned().unwrap_or_default();
    pods.retain(|pod| {
        pod["status"]["phase"] != "Failed" && pod["metadata"]["deletionTimestamp"].is_null()
    });
    Ok(pods)
}

pub(crate) fn until_all_run(node: &GpuNode) -> Result<Vec<Value>> {
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

pub(crate) fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or_default()
}

/// runc makes the device file of the container's card and of no other, and lets it be used.
fn check_devices(node: &GpuNode, pod: &Value, card: u64) -> Result<()> {
    let spec = node.runc_spec(pod, "main")?;
    let linux = &spec["linux"];
    let devices = linux["devices"].as_array().into_iter().flatten();
    let ours: Vec<&Value> = devices
        .filter(|one| {
            one["path"]
                .as_str()
                .is_some_and(|path| path.starts_with("/dev/sublet-fake"))
        })
        .collect();
    assert_eq!(ours.len(), 1, "{ours:?}");
    assert_eq!(ours[0]["path"], format!("/dev/sublet-fake{card}"));
    let rules = linux["resources"]["devices"]
        .as_array()
        .into_iter()
        .flatten();
    let allowed = rules.filter(|rule| {
        rule["allow"] == true
            && rule["major"] == ours[0]["major"]
            && rule["minor"] == ours[0]["minor"]
    });
    assert!(allowed.count() > 0, "{}", linux["resources"]["devices"]);
    Ok(())
}

/// Checks that a container finds inside what its own pod's annotation says, and that kubelet's
/// books and the agent's figures agree.
pub(crate) fn check(node: &GpuNode, object: &Value) -> Result<u64> {
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
    check_devices(node, object, card)?;
    let seen = also(node, pod, "info --nvml")?;
    let cuda = &seen["devices"][0];
    assert_eq!(cuda["totalMem"], PART * MIB, "{pod}: {seen}");
    until_shown(node, "gpu_memory_limit_bytes", pod, PART * MIB)?;
    eventually(|| {
        let now = node.world.get(&["pod", pod])?;
        let assigned = &now["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"];
        ensure!(assigned == "true", "{pod}: {assigned}");
        Ok(())
    })?;
    Ok(card)
}

/// The agent's figures have a line for each of these pods, and no line without a pod.
pub(crate) fn until_accounts_are(node: &GpuNode, pods: &[Value]) -> Result<()> {
    let wanted: BTreeSet<&str> = pods.iter().map(name).collect();
    eventually(|| {
        let page = node.metrics()?;
        let lines = page
            .lines()
            .filter(|line| line.starts_with("sublet_agent_container_gpu_memory_limit_bytes{"));
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

/// Number of containers that were served when kubelet could mean several pods.
pub(crate) fn seats(node: &GpuNode) -> Result<usize> {
    let folders = fs::read_dir(node.state_dir().join("containers"))?;
    let names = folders.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<Result<Vec<String>>>()?;
    Ok(names
        .iter()
        .filter(|name| name.starts_with("seat-"))
        .count())
}

/// When each pod was bound, in seconds after the first was made, in order.
pub(crate) fn bound_after(pods: &[Value]) -> Result<Vec<i64>> {
    let time = |value: &Value| -> Result<jiff::Timestamp> {
        Ok(value.as_str().context("no time")?.parse()?)
    };
    let made = pods
        .iter()
        .map(|pod| time(&pod["metadata"]["creationTimestamp"]));
    let first = made
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .min()
        .context("no pod")?;
    let bound = pods.iter().map(|pod| {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let mut scheduled = conditions.filter(|one| one["type"] == "PodScheduled");
        let at = time(&scheduled.next().context("not bound")?["lastTransitionTime"])?;
        Ok(at.duration_since(first).as_secs())
    });
    let mut bound = bound.collect::<Result<Vec<i64>>>()?;
    bound.sort_unstable();
    Ok(bound)
}

/// Waits until more than one pod is bound that is none of these.
pub(crate) fn until_bound(node: &GpuNode, but: &[Value]) -> Result<()> {
    let known: BTreeSet<&str> = but.iter().map(name).collect();
    eventually(|| {
        let all = live(node)?;
        let bound =
            |pod: &&Value| !known.contains(name(pod)) && pod["spec"]["nodeName"].is_string();
        let bound = all.iter().filter(bound).count();
        ensure!(bound > 1, "{bound} bound");
        Ok(())
    })
}

#[test]
fn twenty_equal_pods_start_at_once_and_none_has_what_is_anothers() -> Result<()> {
    let Some(node) = GpuNode::start(&["--isolation", "on", "--identity", "kubelet-checkpoint"])?
    else {
        return Ok(());
    };
    node.until_allocatable(MEMORY, 2 * CARD)?;
    node.until_identity("kubelet-checkpoint")?;
    let stage = stage(&node)?;
    let cluster = &node.world.cluster;
    let started = Instant::now();
    // Several wait for the first answer, so that it is one in doubt.
    cluster.kill(AGENT, Signal::STOP)?;
    cluster.apply(&deployment(&stage))?;
    until_bound(&node, &[])?;
    cluster.kill(AGENT, Signal::CONT)?;
    let pods = until_all_run(&node)?;
    let took = started.elapsed().as_secs_f64();
    println!("twenty equal pods, by kubelet's checkpoint: {took:.1} s");
    let doubts = seats(&node)?;
    println!("{doubts} of them were served in doubt");
    assert!(doubts > 0);
    println!("seconds until they were bound: {:?}", bound_after(&pods)?);
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
    // The agent dies while kubelet asks about the new ones: the first call has no answer yet, and
    // more pods wait.
    cluster.kill(AGENT, Signal::STOP)?;
    until_bound(&node, &pods)?;
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
