//! Several kinds of device from one agent on a real node: parts of GPUs, whole GPUs, and the device
//! files of a folder, such as a site's network cards. A container's devices are read from runc's
//! own spec and from inside. Kubelet and the API server show that devices are clean before another
//! pod has them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::{AGENT, GpuNode, audit, eventually, yaml};
use sublet_testbed::{Signal, free_port};

use crate::real_node_isolation::{pod, stage};

const MEMORY: &str = "aliyun.com/gpu-mem";
const CARD: u64 = 16_276;
const NIC: &str = "sublet.dev/nic";

fn command(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program).args(args).output();
    let output = output.with_context(|| format!("run {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {args:?}: {said}");
    Ok(())
}

/// A folder with two device files: the kernel's own `zero` and `full` play network cards.
fn make_cards(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for (name, minor) in [("port0", "5"), ("port1", "7")] {
        let path = folder.join(name).display().to_string();
        command("mknod", &[&path, "c", "1", minor])?;
    }
    // Not a device.
    fs::write(folder.join("readme"), "")?;
    Ok(())
}

/// Runc's specification of the container of a pod that has one.
fn runc_spec(node: &GpuNode, pod: &Value) -> Result<Value> {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str();
    let id = id.and_then(|id| id.strip_prefix("containerd://"));
    let state = node.run_folder().with_file_name("state");
    let bundle = state.join("io.containerd.runtime.v2.task/k8s.io");
    let file = bundle.join(id.context("no container")?).join("config.json");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    Ok(serde_json::from_str(&text)?)
}

/// Reason why a card is sick, as the node's report and `sublet inspect` say: empty if all are well.
fn sick(node: &GpuNode) -> Result<String> {
    let object = node.world.get(&["node", &node.name()])?;
    let report = object["metadata"]["annotations"]["sublet.dev/inventory"].as_str();
    let report: Value = serde_json::from_str(report.context("no report")?)?;
    let gpus = report["gpus"].as_array().context("no cards")?;
    let mut reasons = gpus.iter().filter_map(|gpu| gpu["sick"].as_str());
    let why = reasons.next().unwrap_or_default();
    let (code, wide, _) = node.world.sublet(&["inspect", "-o", "wide"])?;
    ensure!(code == 0 && wide.contains(why), "{wide}");
    Ok(why.to_owned())
}

/// Waits until a card is sick for that reason, and an event says so; returns the reason.
fn until_sick(node: &GpuNode, why: &str) -> Result<String> {
    eventually(|| {
        let now = sick(node)?;
        ensure!(now.contains(why), "not sick of `{why}`: `{now}`");
        let events = node.world.get(&["events", "-n", "default"])?;
        let mut all = events["items"].as_array().into_iter().flatten();
        let told = all.any(|event| {
            event["reason"] == "DeviceNotClean"
                && event["involvedObject"]["name"] == node.name().as_str()
                && event["message"]
                    .as_str()
                    .is_some_and(|text| text.contains(why))
        });
        ensure!(told, "no event: {events}");
        Ok(now)
    })
    .with_context(|| node.world.cluster.log_tail(AGENT))
}

fn until_well(node: &GpuNode) -> Result<()> {
    eventually(|| {
        let now = sick(node)?;
        ensure!(now.is_empty(), "still sick: {now}");
        Ok(())
    })
    .with_context(|| node.world.cluster.log_tail(AGENT))
}

#[test]
fn kinds_of_device_stand_beside_each_other_and_are_cleaned() -> Result<()> {
    let Some(node) = GpuNode::start(&["--isolation", "on"])? else {
        return Ok(());
    };
    let cluster = &node.world.cluster;
    let folder = cluster.dir().join("nics");
    make_cards(&folder)?;
    cluster.stop(AGENT);
    let files = format!("files:nic={},times=2", folder.display());
    let port = free_port()?;
    let top = format!("127.0.0.1:{port}");
    node.start_agent(&[
        "--isolation",
        "on",
        "--sharing",
        "both",
        "--device",
        &files,
        "--top-listen",
        &top,
    ])?;
    node.until_allocatable(NIC, 4)?;
    node.until_allocatable(MEMORY, 2 * CARD)?;
    node.until_allocatable("nvidia.com/gpu", 2)?;

    what_is_used_is_seen_from_afar(&node, port)?;
    beside_a_gpu(&node, &folder)?;
    fs::remove_file(folder.join("port1"))?;
    node.until_allocatable(NIC, 2)?;
    what_cannot_be_removed(&node)?;
    processes_that_outlive_their_pod(&node)?;
    println!("agent: {} MiB resident", cluster.rss_mib(AGENT)?);
    assert_eq!(audit::forbidden(cluster)?, []);
    Ok(())
}

/// A container asks for two of the files, and for a part of a card; it gets both files, by runc's spec
/// and from inside, and nothing of the other kind is missing.
fn beside_a_gpu(node: &GpuNode, folder: &Path) -> Result<()> {
    let cluster = &node.world.cluster;
    for (name, nics) in [("both", 2), ("one", 1)] {
        let limits = format!("{MEMORY}: 1000, {NIC}: {nics}");
        let pod = yaml::Pod {
            name,
            limits: &[&limits],
            ..yaml::Pod::default()
        };
        cluster.apply(&pod.yaml())?;
        let object = node.until_running(name)?;
        let spec = runc_spec(node, &object)?;
        let devices = spec["linux"]["devices"].as_array().into_iter().flatten();
        let paths = devices.filter_map(|device| device["path"].as_str().map(PathBuf::from));
        let ours: Vec<_> = paths.filter(|path| path.starts_with(folder)).collect();
        assert_eq!(ours.len(), nics, "{name}: {ours:?}");
        let place = folder.display().to_string();
        let inside = cluster.kubectl(&["exec", name, "--", "ls", &place])?;
        assert_eq!(inside.split_whitespace().count(), nics, "{inside}");
        let file = ours[0].display().to_string();
        let read = ["exec", name, "--", "head", "-c", "3", &file];
        assert_eq!(cluster.kubectl(&read)?, "\0\0\0");
        let environment = node.environment(name, "c0")?;
        assert_eq!(environment["NVIDIA_VISIBLE_DEVICES"], node.uuids()[0]);
    }
    Ok(())
}

/// Something in a container's folder cannot be removed: once the last pod of its card is gone, the
/// card is sick, nobody gets it, and it is well when the folder is gone.
fn what_cannot_be_removed(node: &GpuNode) -> Result<()> {
    let cluster = &node.world.cluster;
    let uid = node.world.get(&["pod", "both"])?["metadata"]["uid"].clone();
    let container = node.state_dir().join("containers");
    let container = container.join(uid.as_str().context("no UID")?);
    let busy = container.join("main-0/busy");
    fs::create_dir(&busy)?;
    let busy = busy.display().to_string();
    command("mount", &["-t", "tmpfs", "none", &busy])?;
    cluster.kubectl(&["delete", "pod", "both"])?;
    let third = yaml::Pod {
        name: "third",
        limits: &["aliyun.com/gpu-mem: 1000"],
        ..yaml::Pod::default()
    };
    // Its Allocate finds that `both` is gone; the card is in use, so nothing is cleaned.
    cluster.apply(&third.yaml())?;
    node.until_running("third")?;
    assert_eq!(sick(node)?, "");
    cluster.kubectl(&["delete", "pod", "one", "third"])?;
    let why = until_sick(node, "cannot be removed")?;
    assert!(why.contains("default/both/c0"), "{why}");
    // The other card takes what comes.
    cluster.apply(&third.yaml())?;
    node.until_running("third")?;
    let environment = node.environment("third", "c0")?;
    assert_eq!(environment["NVIDIA_VISIBLE_DEVICES"], node.uuids()[1]);
    cluster.kubectl(&["delete", "pod", "third"])?;
    command("umount", &[&busy])?;
    until_well(node)?;
    ensure!(
        !container.exists(),
        "{} is still there",
        container.display()
    );
    Ok(())
}

/// A pod that is deleted by force is gone at once. Its processes are not, while kubelet is busy.
fn processes_that_outlive_their_pod(node: &GpuNode) -> Result<()> {
    let cluster = &node.world.cluster;
    let whole = yaml::Pod {
        name: "whole",
        limits: &["nvidia.com/gpu: 1"],
        ..yaml::Pod::default()
    };
    cluster.apply(&whole.yaml())?;
    node.until_running("whole")?;
    node.signal_kubelet(Signal::STOP)?;
    cluster.kubectl(&["delete", "pod", "whole", "--force", "--grace-period=0"])?;
    let why = until_sick(node, "a pod that is gone still has processes")?;
    assert!(why.contains("(sleep)"), "{why}");
    node.signal_kubelet(Signal::CONT)?;
    until_well(node)
}

/// The agent's pod, for the agent of the test that runs beside it on the node: with the node's own
/// network, its loopback is the one where that agent listens. `ports`: its container's.
fn agents_pod(node: &GpuNode, ports: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: sublet-agent-x, namespace: sublet-system, \
         labels: {{app.kubernetes.io/name: sublet, app.kubernetes.io/component: agent}}}}\nspec:\n  \
         nodeName: {}\n  hostNetwork: true\n  automountServiceAccountToken: false\n  \
         terminationGracePeriodSeconds: 0\n  tolerations: [{{operator: Exists}}]\n  \
         containers:\n  - name: agent\n    image: sublet.test/busybox:1\n    \
         imagePullPolicy: Never\n    args: [sleep, \"100000\"]\n    ports: [{ports}]\n",
        node.name()
    )
}

/// Starts it, and waits until it runs.
fn replace_agents_pod(node: &GpuNode, ports: &str) -> Result<()> {
    let cluster = &node.world.cluster;
    let pod = ["pod", "sublet-agent-x", "-n", "sublet-system"];
    cluster.kubectl(&[&["delete", "--ignore-not-found"], &pod[..]].concat())?;
    cluster.apply(&agents_pod(node, ports))?;
    eventually(|| {
        let object = node.world.get(&pod)?;
        let status = &object["status"];
        ensure!(status["phase"] == "Running", "{status}");
        Ok(())
    })
}

/// `sublet top --node` and `sublet inspect -o wide` show what a container uses, through the API server
/// and kubelet; where they cannot, they say why.
fn what_is_used_is_seen_from_afar(node: &GpuNode, port: u16) -> Result<()> {
    let stage = stage(node)?;
    let workload = "/lib64/sublet-workload alloc --reach libcuda.so.1 --size 10MiB --count 5 \
                    --hold 100000";
    let limits = format!("{MEMORY}: 2000");
    node.world
        .cluster
        .apply(&pod("user", &limits, &stage, workload))?;
    node.until_running("user")?;
    let name = node.name();
    let top = ["top", "--node", &name];
    let refused = |args: &[&str], expected: &str| -> Result<()> {
        let (code, said, error) = node.world.sublet(args)?;
        ensure!(
            code == 1 && error.contains(expected),
            "{code} {said} {error}"
        );
        Ok(())
    };
    refused(&top, "no agent of Sublet runs on node")?;
    replace_agents_pod(node, "")?;
    refused(&top, "its pod has no port called `top`")?;
    let nobody = format!("{{name: top, containerPort: {}}}", free_port()?);
    replace_agents_pod(node, &nobody)?;
    refused(&top, "does not answer")?;
    replace_agents_pod(node, &format!("{{name: top, containerPort: {port}}}"))?;
    let viewer = viewers_kubeconfig(node)?;
    refused(
        &[&top[..], &["--kubeconfig", &viewer]].concat(),
        "pods/portforward",
    )?;

    eventually(|| {
        let (code, said, error) = node
            .world
            .sublet(&[&top[..], &["--history", "-o", "json"]].concat())?;
        ensure!(code == 0, "{error}");
        let seen: Value = serde_json::from_str(&said)?;
        let mut jobs = seen["jobs"].as_array().into_iter().flatten();
        let job = jobs.find(|job| job["name"] == "default/user/main");
        let used = job.and_then(|job| job["usedMiB"].as_u64());
        ensure!(
            used >= Some(50) && job.is_some_and(|job| job["limitMiB"] == 2000),
            "{seen}"
        );
        let points = seen["history"][0]["perGpu"][0]["usedMiB"].as_array();
        ensure!(
            points.is_some_and(|points| points.len() >= 2),
            "{}",
            seen["history"]
        );
        assert_eq!(seen["history"][0]["everyMs"], 10_000);
        Ok(())
    })?;
    for args in [&top[..], &["inspect", "-o", "wide", &name]] {
        let (code, said, error) = node.world.sublet(args)?;
        let line = said.lines().find(|line| line.contains("default/user/main"));
        ensure!(
            code == 0 && line.is_some_and(|line| line.contains("2000 MiB")),
            "{said} {error}"
        );
    }
    let cluster = &node.world.cluster;
    cluster.kubectl(&["delete", "pod", "user"])?;
    let pod = ["delete", "pod", "sublet-agent-x", "-n", "sublet-system"];
    cluster.kubectl(&pod).map(drop)
}

/// Kubeconfig of a user that may look at everything, and reach no pod.
fn viewers_kubeconfig(node: &GpuNode) -> Result<String> {
    let cluster = &node.world.cluster;
    cluster.kubectl(&["create", "serviceaccount", "viewer"])?;
    let binding = [
        "create",
        "clusterrolebinding",
        "viewer",
        "--clusterrole=view",
    ];
    cluster.kubectl(&[&binding[..], &["--serviceaccount=default:viewer"]].concat())?;
    let token = cluster.kubectl(&["create", "token", "viewer"])?;
    let admin = cluster.kubeconfig("admin")?;
    let text = fs::read_to_string(&admin)?;
    let old = text.split("token: ").nth(1).and_then(|rest| {
        let word = rest.split([' ', '\n', '}', ',']).next()?;
        (!word.is_empty()).then(|| word.to_owned())
    });
    let text = text.replace(&old.context(text.clone())?, token.trim());
    let path = admin.with_file_name("viewer.kubeconfig");
    fs::write(&path, text)?;
    Ok(path.display().to_string())
}
