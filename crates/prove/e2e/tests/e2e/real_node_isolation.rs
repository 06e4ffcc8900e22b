//! Containers on a real node are held to their parts: kubelet, containerd and runc start them,
//! the agent's mounts bring the interposer in, and programs that nobody changed get as much of
//! a card as their pod asked for and not a byte more. The cards are played by the fake driver.
//!
//! The programs are dynamically linked. Their loader and libraries are this machine's, mounted
//! from a folder, because the only image there is has none.

mod environment;
mod mps;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use sublet_e2e::{AGENT, GpuNode, audit, eventually};

const MEMORY: &str = "aliyun.com/gpu-mem";
const COMPUTE: &str = "aliyun.com/gpu-core.percentage";
const CARD: u64 = 16_276;
const MIB: u64 = 1 << 20;

/// Memory of the first context of a process on a fake card (`sublet_fakegpu::spec`).
const CONTEXT: u64 = 480;

/// Memory that each pod's holding program takes beside its context: little, because the arbiter
/// learns what a context costs from processes that have little else (`sublet_share::reading`).
const HELD: u64 = 50;

/// A program with all that its loader wants, in one folder.
pub(crate) fn stage(node: &GpuNode) -> Result<PathBuf> {
    stage_below(&node.state_dir(), node.world.sublet_path())
}

/// The same below any folder of the node, from the files that were built beside `sublet`.
pub(crate) fn stage_below(state: &Path, sublet: &Path) -> Result<PathBuf> {
    let built = sublet.parent().context("no folder")?;
    let program = built.join("sublet-workload");
    ensure!(
        program.is_file(),
        "{} is missing; `cargo build --workspace` makes it",
        program.display()
    );
    let folder = state.join("stage");
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
pub(crate) fn pod(name: &str, limits: &str, stage: &Path, workload: &str) -> String {
    pod_with(name, "", limits, stage, workload)
}

/// The same with labels or annotations, such as `labels: {a: b}`.
pub(crate) fn pod_with(
    name: &str,
    metadata: &str,
    limits: &str,
    stage: &Path,
    workload: &str,
) -> String {
    let words: Vec<String> = workload
        .split_whitespace()
        .map(|word| format!("'{word}'"))
        .collect();
    let stage = stage.display();
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, {metadata}}}\nspec:\n  \
         schedulerName: sublet-scheduler\n  terminationGracePeriodSeconds: 1\n  \
         automountServiceAccountToken: false\n  \
         volumes: [{{name: stage, hostPath: {{path: {stage}, type: Directory}}}}]\n  \
         containers:\n  - name: main\n    image: sublet.test/busybox:1\n    \
         imagePullPolicy: Never\n    command: [{}]\n    \
         securityContext: {{runAsUser: 65534, readOnlyRootFilesystem: true}}\n    \
         volumeMounts:\n    - {{name: stage, mountPath: /lib64, readOnly: true}}\n    \
         - {{name: stage, mountPath: /lib, readOnly: true}}\n    \
         resources: {{limits: {{{limits}}}}}\n",
        words.join(", ")
    )
}

/// A program that takes memory and keeps it, and one more beside its pod's container. They
/// reach the driver by the name that a preload answers to, and by one that needs the shim.
fn holder(name: &str, memory: u64, stage: &Path, reach: &str) -> String {
    let workload = format!(
        "/lib64/sublet-workload alloc --reach {reach} --size 10MiB --count 5 --check --hold 100000"
    );
    pod(name, &format!("{MEMORY}: {memory}"), stage, &workload)
}

/// The JSON line of the last program in a pod's log.
fn line_of(node: &GpuNode, pod: &str) -> Result<Value> {
    eventually(|| line_in(&node.world.cluster.kubectl(&["logs", pod])?))
}

/// Runs one more workload in a pod's container and returns its line.
pub(crate) fn also(node: &GpuNode, pod: &str, workload: &str) -> Result<Value> {
    let mut args = vec!["exec", pod, "--", "/lib64/sublet-workload"];
    args.extend(workload.split_whitespace());
    line_in(&node.world.cluster.kubectl(&args)?)
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
    until_shown(node, "gpu_memory_used_bytes", pod, (HELD + CONTEXT) * MIB)?;
    check_taken(
        node,
        pod,
        memory,
        &["/lib64/sublet-workload"],
        "libcuda.so.1",
    )?;

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

/// Runs a program beside the first one, which takes what that has left and not a byte more. Returns
/// all that it said.
fn check_taken(
    node: &GpuNode,
    pod: &str,
    memory: u64,
    command: &[&str],
    reach: &str,
) -> Result<String> {
    let words = "alloc --size 2MiB --until-oom --down-to 512 --reach";
    let words = words.split_whitespace().chain([reach]);
    let command = command.iter().copied();
    let args = ["exec", pod, "--"].into_iter().chain(command).chain(words);
    let args: Vec<&str> = args.collect();
    let said = node.world.cluster.kubectl(&args)?;
    let took = line_in(&said)?;
    assert_eq!(took["refused"]["code"], 2, "{args:?}: {took}");
    assert_eq!(took["totalMem"], memory * MIB, "{args:?}: {took}");
    let left = (memory - HELD - 2 * CONTEXT) * MIB;
    assert_eq!(took["memoryBefore"]["free"], left, "{args:?}: {took}");
    assert_eq!(took["bytes"], left, "{args:?}: {took}");
    assert_eq!(took["memory"]["free"], 0, "{args:?}: {took}");
    Ok(said)
}

/// The JSON line of what a program said.
fn line_in(said: &str) -> Result<Value> {
    let line = said.lines().find(|line| line.starts_with('{'));
    Ok(serde_json::from_str(line.context(said.to_owned())?)?)
}

/// Value that the agent's metrics show of a pod.
fn shown<T>(node: &GpuNode, metric: &str, pod: &str) -> Result<Option<T>>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    let page = node.metrics()?;
    let pod = format!("pod=\"{pod}\"");
    let name = format!("sublet_agent_container_{metric}{{");
    let mut lines = page.lines();
    let line = lines.find(|line| line.starts_with(&name) && line.contains(&pod));
    let value = line.and_then(|line| line.rsplit(' ').next());
    Ok(value.map(str::parse).transpose()?)
}

pub(crate) fn until_shown(node: &GpuNode, metric: &str, pod: &str, value: u64) -> Result<()> {
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
    node.until_allocatable(COMPUTE, 2 * 100)?;
    let stage = stage(&node)?;
    environment::stage_evil(&stage)?;
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
        until_shown(&node, "gpu_memory_limit_bytes", name, memory * MIB)?;
        until_shown(&node, "refusals_total", name, 1)?;
    }
    environment::does_not_decide(&node, "a", 2_000)?;

    // The programs that hold memory go on, and what they hold still counts.
    node.restart_agent()?;
    for (name, memory, _) in pods {
        check_limit(&node, name, memory)?;
    }
    for (name, _, _) in pods {
        let restarts = &node.world.get(&["pod", name])?["status"]["containerStatuses"][0];
        assert_eq!(restarts["restartCount"], 0);
    }
    parts_wait_for_the_arbiter(&node, &stage)?;
    gone_with_its_pod(&node, &stage)?;
    shares_of_one_card(&node, &stage)?;
    mps::limits_and_a_lost_daemon(&node, &stage)?;
    without_isolation(&node, &stage)?;
    println!("agent: {} MiB resident", cluster.rss_mib(AGENT)?);
    assert_eq!(audit::forbidden(cluster)?, []);
    Ok(())
}

/// An agent without a running arbiter hands out no part of a card, whichever scheduler bound the
/// pod. When the arbiter starts, the container does, and earlier containers have their limits.
fn parts_wait_for_the_arbiter(node: &GpuNode, stage: &Path) -> Result<()> {
    let cluster = &node.world.cluster;
    // It is bound while all is well, and cannot start before it has another image.
    let memory = 2_500;
    let early = holder("e", memory, stage, "libcuda.so.1").replace("busybox", "nothing");
    cluster.apply(&early)?;
    let folder = node.state_dir().join("containers");
    eventually(|| {
        let pod = node.world.get(&["pod", "e"])?;
        let uid = pod["metadata"]["uid"].as_str().context("no UID")?;
        ensure!(folder.join(uid).exists(), "not prepared");
        // Kubelet has asked the agent, so that no question is lost when that is killed.
        let status = &pod["status"];
        let waiting = &status["containerStatuses"][0]["state"]["waiting"]["reason"];
        ensure!(waiting == "ErrImageNeverPull", "{status}");
        Ok(())
    })?;
    // A file is where the folder of all containers was, which is the only thing that changes.
    let aside = node.state_dir().join("aside");
    fs::write(&aside, "no folder")?;
    let exchange = || renameat_with(CWD, &aside, CWD, &folder, RenameFlags::EXCHANGE);
    exchange()?;
    node.restart_agent()?;
    let image = r#"[{"op": "replace", "path": "/spec/containers/0/image", "value": "sublet.test/busybox:1"}]"#;
    cluster.kubectl(&["patch", "pod", "e", "--type=json", "-p", image])?;
    eventually(|| {
        let pod = node.world.get(&["pod", "e"])?;
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        let message = waiting["message"].as_str().unwrap_or_default();
        let words = "cannot be held to its part: making ";
        ensure!(message.contains(words), "{}", pod["status"]);
        Ok(())
    })?;
    let object = node.world.get(&["node", &node.name()])?;
    let note = &object["metadata"]["annotations"]["sublet.dev/not-isolated"];
    let note = note.as_str().unwrap_or_default();
    assert!(note.starts_with("pending: making "), "{note}");
    exchange()?;
    node.until_running("e")?;
    check_limit(node, "e", memory)?;
    check_limit(node, "a", 2_000)?;
    cluster.kubectl(&["delete", "pod", "e"])?;
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
        let now = shown::<u64>(node, "gpu_memory_limit_bytes", "b")?;
        ensure!(now.is_none(), "still shown: {now:?}");
        Ok(())
    })
}

/// Two pods that want all of a card, and what each of them is promised.
const SHARES: [(&str, u32); 2] = [("low", 25), ("high", 75)];

/// Pods get the share of their card's time that they ask for. Their own programs count the share,
/// from their own kernels, tenth by tenth of a second.
fn shares_of_one_card(node: &GpuNode, stage: &Path) -> Result<()> {
    const SECONDS: u64 = 15;
    // Images are there and nodes are idle, so that both run by then as a rule.
    let from = clock_gettime(ClockId::Monotonic).tv_sec + 6;
    let workload = format!(
        "/lib64/sublet-workload steady --reach libcuda.so.1 --from {from}000000000 \
         --seconds {SECONDS}"
    );
    for (name, percent) in SHARES {
        let limits = format!("{MEMORY}: 1000, {COMPUTE}: {percent}");
        let once = pod(name, &limits, stage, &workload);
        let once = once.replace("spec:\n", "spec:\n  restartPolicy: Never\n");
        node.world.cluster.apply(&once)?;
    }
    for (name, _) in SHARES {
        let pod = node.until_running(name)?;
        let card = &pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"];
        assert_eq!(card, "1", "the other one is full");
    }
    shares_are_counted(node)?;
    let lines = [line_of(node, "low")?, line_of(node, "high")?];
    let tenths = lines.each_ref().map(|line| {
        let tenths = line["perTenth"].as_array().into_iter().flatten();
        tenths.filter_map(Value::as_f64).collect::<Vec<f64>>()
    });
    assert_eq!(tenths[0].len() as u64, 10 * SECONDS, "{lines:?}");
    // The machine has other things to do, so some of the card's time is lost, and one window of
    // five seconds will do.
    let in_window = |tenths: &[f64]| tenths.iter().sum::<f64>();
    let [low, high] = tenths
        .each_ref()
        .map(|tenths| tenths.windows(50).map(in_window));
    let shares = low.zip(high).map(|(low, high)| 100.0 * low / (low + high));
    let shares: Vec<f64> = shares.collect();
    let seen: Vec<_> = shares.iter().step_by(10).collect();
    println!("the low share of each five seconds, one second apart: {seen:.1?}");
    let asked = f64::from(SHARES[0].1);
    let is_as_asked = |share: &f64| (share - asked).abs() <= 3.0;
    assert!(shares.iter().any(is_as_asked), "{seen:.1?}");
    // Kernels of 500 us.
    let both: f64 = tenths.iter().flatten().sum::<f64>() * 500e-6;
    assert!(
        both >= 0.7 * SECONDS as f64,
        "of {SECONDS} s both had {both}"
    );
    for (name, _) in SHARES {
        node.world.cluster.kubectl(&["delete", "pod", name])?;
    }
    Ok(())
}

/// While they run, the agent counts what each of them used and waited.
fn shares_are_counted(node: &GpuNode) -> Result<()> {
    let of = |metric: &str| -> Result<[f64; 2]> {
        let [low, high] = SHARES.map(|(name, _)| shown(node, metric, name));
        Ok([low?, high?].map(|seconds| seconds.unwrap_or(0.0)))
    };
    eventually(|| {
        let [low, high] = of("compute_used_seconds_total")?;
        ensure!(low >= 0.5 && high >= 1.5, "used {low} and {high} s");
        let [low, high] = of("turn_wait_seconds_total")?;
        ensure!(low >= 1.0 && high < low, "waited {low} and {high} s");
        Ok(())
    })?;
    // They have no limits.
    assert_eq!(of("throttled_seconds_total")?, [0.0, 0.0]);
    Ok(())
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
        &format!("{MEMORY}: 700"),
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
