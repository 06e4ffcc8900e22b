//! Containers on a real node are held to their parts: kubelet, containerd and runc start them,
//! the agent's mounts bring the interposer in, and programs that nobody changed get as much of
//! a card as their pod asked for and not a byte more. The cards are played by the fake driver.
//!
//! The programs are dynamically linked. Their loader and libraries are this machine's, mounted
//! from a folder, because the only image there is has none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::{AGENT, GpuNode, audit, eventually};

const MEMORY: &str = "aliyun.com/gpu-mem";
const CARD: u64 = 16_276;
const MIB: u64 = 1 << 20;

/// What the first context of a process takes on a fake card (`sublet_fakegpu::spec`).
const CONTEXT: u64 = 480;

/// What the holding program of each pod takes beside its context: little, because the arbiter
/// learns what a context costs from processes that have little else (`sublet_share::reading`).
const HELD: u64 = 50;

/// A program with all that its loader wants, in one folder.
fn stage(node: &GpuNode) -> Result<PathBuf> {
    let built = node.world.sublet_path().parent().context("no folder")?;
    let program = built.join("sublet-workload");
    ensure!(
        program.is_file(),
        "{} is missing; `cargo build --workspace` makes it",
        program.display()
    );
    let folder = node.state_dir().join("stage");
    fs::create_dir_all(&folder)?;
    let mut wanted = vec![program.clone()];
    for file in ["libsublet_cuda.so", "libsublet_fakecuda.so"] {
        wanted.push(built.join(file));
    }
    for file in wanted {
        let listed = Command::new("ldd").arg(&file).output().context("run ldd")?;
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            let word = line.split_whitespace().find(|word| word.starts_with('/'));
            let Some(library) = word.map(Path::new) else {
                continue;
            };
            fs::copy(
                library,
                folder.join(library.file_name().context("no name")?),
            )?;
        }
    }
    fs::copy(&program, folder.join("sublet-workload"))?;
    Ok(folder)
}

/// A pod whose only container runs a workload.
fn pod(name: &str, memory: u64, stage: &Path, workload: &str) -> String {
    let words: Vec<String> = workload
        .split_whitespace()
        .map(|word| format!("'{word}'"))
        .collect();
    let stage = stage.display();
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  \
         schedulerName: sublet-scheduler\n  terminationGracePeriodSeconds: 1\n  \
         automountServiceAccountToken: false\n  \
         volumes: [{{name: stage, hostPath: {{path: {stage}, type: Directory}}}}]\n  \
         containers:\n  - name: main\n    image: sublet.test/busybox:1\n    \
         imagePullPolicy: Never\n    command: [{}]\n    \
         securityContext: {{runAsUser: 65534, readOnlyRootFilesystem: true}}\n    \
         volumeMounts:\n    - {{name: stage, mountPath: /lib64, readOnly: true}}\n    \
         - {{name: stage, mountPath: /lib, readOnly: true}}\n    \
         resources: {{limits: {{{MEMORY}: {memory}}}}}\n",
        words.join(", ")
    )
}

/// A program that takes memory and keeps it, and one more beside its pod's container. They
/// reach the driver by the name that a preload answers to, and by one that needs the shim.
fn holder(name: &str, memory: u64, stage: &Path, reach: &str) -> String {
    let workload = format!(
        "/lib64/sublet-workload alloc --reach {reach} --size 10MiB --count 5 --check --hold 100000"
    );
    pod(name, memory, stage, &workload)
}

/// The JSON line of the last program in a pod's log.
fn line_of(node: &GpuNode, pod: &str) -> Result<Value> {
    eventually(|| {
        let log = node.world.cluster.kubectl(&["logs", pod])?;
        let line = log.lines().find(|line| line.starts_with('{'));
        Ok(serde_json::from_str(line.context(log.clone())?)?)
    })
}

/// Runs one more workload in a pod's container and returns its line.
fn also(node: &GpuNode, pod: &str, workload: &str) -> Result<Value> {
    let mut args = vec!["exec", pod, "--", "/lib64/sublet-workload"];
    args.extend(workload.split_whitespace());
    let output = node.world.cluster.kubectl(&args)?;
    let line = output.lines().find(|line| line.starts_with('{'));
    Ok(serde_json::from_str(line.context(output.clone())?)?)
}

/// The processes that NVML has shown to a workload.
fn pids(seen: &Value) -> Vec<u64> {
    let devices = seen["nvml"]["devices"].as_array().into_iter().flatten();
    let processes = devices.filter_map(|device| device["processes"].as_array());
    let pids = processes.flatten().map(|process| process["pid"].as_u64());
    pids.map(|pid| pid.unwrap_or(0)).collect()
}

/// A second program of the pod gets what the first one left, and not a byte more; neither of
/// them is told of anybody else.
fn check_limit(node: &GpuNode, pod: &str, memory: u64) -> Result<()> {
    // The context is counted when the driver has been read twice.
    until_shown(node, "memory_used_bytes", pod, (HELD + CONTEXT) * MIB)?;
    let took = also(node, pod, "alloc --size 2MiB --until-oom --down-to 512")?;
    assert_eq!(took["refused"]["code"], 2, "{took}");
    assert_eq!(took["totalMem"], memory * MIB, "{took}");
    let left = (memory - HELD - 2 * CONTEXT) * MIB;
    assert_eq!(took["memoryBefore"]["free"], left, "{took}");
    assert_eq!(took["bytes"], left, "{took}");
    assert_eq!(took["memory"]["free"], 0, "{took}");

    let seen = also(node, pod, "info --nvml")?;
    let cuda = seen["devices"].as_array().context("no devices")?;
    let nvml = seen["nvml"]["devices"].as_array().context("no devices")?;
    assert_eq!((cuda.len(), nvml.len()), (1, 1), "{seen}");
    assert_eq!(cuda[0]["uuid"], nvml[0]["uuid"], "{seen}");
    assert_eq!(cuda[0]["totalMem"], memory * MIB, "{seen}");
    assert_eq!(nvml[0]["memory"]["total"], memory * MIB, "{seen}");
    let used = (HELD + CONTEXT) * MIB;
    assert_eq!(nvml[0]["memory"]["used"], used, "{seen}");
    // Nobody but the holder, which its container knows as its first process; another pod's has
    // memory on the same card.
    assert_eq!(pids(&seen), [1], "{seen}");
    Ok(())
}

/// What the agent's metrics say of a pod.
fn shown(node: &GpuNode, metric: &str, pod: &str) -> Result<Option<u64>> {
    let page = node.metrics()?;
    let pod = format!("pod=\"{pod}\"");
    let name = format!("sublet_agent_tenant_{metric}{{");
    let mut lines = page.lines();
    let line = lines.find(|line| line.starts_with(&name) && line.contains(&pod));
    let value = line.and_then(|line| line.rsplit(' ').next());
    Ok(value.map(str::parse).transpose()?)
}

fn until_shown(node: &GpuNode, metric: &str, pod: &str, value: u64) -> Result<()> {
    eventually(|| {
        let now = shown(node, metric, pod)?;
        ensure!(
            now == Some(value),
            "{metric} of {pod}: {now:?}, not {value}"
        );
        Ok(())
    })
}

#[test]
fn pods_meet_their_own_limits_while_the_agent_restarts() -> Result<()> {
    let Some(node) = GpuNode::start(&["--isolation", "on"])? else {
        return Ok(());
    };
    node.until_allocatable(MEMORY, 2 * CARD)?;
    let stage = stage(&node)?;
    let cluster = &node.world.cluster;
    let pods = [("a", 2_000, "libcuda.so.1"), ("b", 3_000, "libcuda.so")];
    for (name, memory, reach) in pods {
        cluster.apply(&holder(name, memory, &stage, reach))?;
        node.until_running(name)?;
        let line = line_of(&node, name)?;
        assert_eq!(line["bytes"], HELD * MIB, "{line}");
        let inside = node.environment(name, "main")?;
        assert!(!inside.contains_key("LD_PRELOAD"), "{inside:?}");
        assert_eq!(inside["NVIDIA_VISIBLE_DEVICES"], node.uuids()[0]);
    }
    for (name, memory, _) in pods {
        check_limit(&node, name, memory)?;
        until_shown(&node, "memory_limit_bytes", name, memory * MIB)?;
        until_shown(&node, "refusals_total", name, 1)?;
    }

    // The programs that hold memory go on, and what they hold still counts.
    node.restart_agent()?;
    for (name, memory, _) in pods {
        check_limit(&node, name, memory)?;
    }
    for (name, _, _) in pods {
        let restarts = &node.world.get(&["pod", name])?["status"]["containerStatuses"][0];
        assert_eq!(restarts["restartCount"], 0);
    }
    gone_with_its_pod(&node, &stage)?;
    without_isolation(&node, &stage)?;
    println!("agent: {} MiB resident", cluster.rss_mib(AGENT)?);
    assert_eq!(audit::forbidden(cluster)?, []);
    Ok(())
}

/// A pod that is gone leaves nothing, and another one has its memory.
fn gone_with_its_pod(node: &GpuNode, stage: &Path) -> Result<()> {
    let cluster = &node.world.cluster;
    let uid = node.world.get(&["pod", "b"])?["metadata"]["uid"].clone();
    let folder = node.state_dir().join("containers");
    let folder = folder.join(uid.as_str().context("no UID")?);
    assert!(folder.join("main-0/tenant/tenant.sock").exists());
    cluster.kubectl(&["delete", "pod", "b"])?;
    // With `a` on the same card this is more than the card has beside `b`.
    cluster.apply(&holder("c", 14_000, stage, "libcuda.so.1"))?;
    node.until_running("c")?;
    assert_eq!(
        node.environment("c", "main")?["NVIDIA_VISIBLE_DEVICES"],
        node.uuids()[0]
    );
    check_limit(node, "c", 14_000)?;
    assert!(!folder.exists());
    eventually(|| {
        let now = shown(node, "memory_limit_bytes", "b")?;
        ensure!(now.is_none(), "still shown: {now:?}");
        Ok(())
    })
}

/// Aliyun's label on the node: containers get their cards and nothing of ours.
fn without_isolation(node: &GpuNode, stage: &Path) -> Result<()> {
    let cluster = &node.world.cluster;
    let label = ["label", "node", &node.name(), "cgpu.disable.isolation=true"];
    cluster.kubectl(&label)?;
    // It reads its node when it starts, and else twice a minute.
    node.restart_agent()?;
    node.until_allocatable(MEMORY, 2 * CARD)?;
    cluster.apply(&pod(
        "d",
        700,
        stage,
        "/lib64/sublet-workload info --reach preloaded",
    ))?;
    let object = eventually(|| {
        let object = node.world.get(&["pod", "d"])?;
        let status = &object["status"]["containerStatuses"][0];
        ensure!(status["restartCount"].as_u64() > Some(0), "{status}");
        Ok(object)
    })?;
    // Nothing is preloaded, so the program finds no driver.
    eventually(|| {
        // Kubelet keeps one dead container: while the next one dies there is none to read.
        let log = cluster.kubectl(&["logs", "d", "--previous"])?;
        ensure!(log.contains("\"ok\":false"), "{log}");
        Ok(())
    })?;
    let uid = object["metadata"]["uid"].as_str().context("no UID")?;
    assert!(!node.state_dir().join("containers").join(uid).exists());
    // Those of before are still held to their parts.
    check_limit(node, "a", 2_000)
}
