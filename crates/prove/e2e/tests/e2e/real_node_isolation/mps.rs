//! Containers of a node with MPS by the operator's choice. There is no server of MPS behind this,
//! which would need a card: the control program is a stand-in, and with `cargo xtask test --all`
//! NVIDIA's own too. So the test shows only our side.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sublet_e2e::real_driver::{DeviceFile, RealDriver};
use sublet_e2e::{AGENT, GpuNode, MpsControl, eventually};

use super::{HELD, check_limit, pod_with};

const NAME: &str = "under-mps";
const MEMORY_MIB: u64 = 1_500;
/// Request of the pod, in our own dialect: a share that is promised and, beside, a limit.
const LIMITS: &str = "sublet.dev/gpu: 1, sublet.dev/gpu-memory: 1500Mi, sublet.dev/gpu-compute: 20, \
                      sublet.dev/gpu-slot: 1";
const ANNOTATIONS: &str = "annotations: {sublet.dev/compute-limit: '40'}";

/// A pod gets MPS's folder and its limits in MPS's words, and is still held to its memory by us. When
/// the daemon dies, it is told apart from those that begin under the next one.
pub(super) fn limits_and_a_lost_daemon(node: &GpuNode, stage: &Path) -> Result<()> {
    under(node, stage, &MpsControl::StandIn)?;
    let device = DeviceFile::as_it_is();
    if let Some(newest) = RealDriver::beside_a_stand_in().pop() {
        println!("again, with the control program of {}", newest.version());
        under(node, stage, &MpsControl::Nvidias(newest))?;
    }
    device.is_untouched()
}

fn under(node: &GpuNode, stage: &Path, control: &MpsControl) -> Result<()> {
    let cluster = &node.world.cluster;
    cluster.stop(AGENT);
    let control = program(node, control)?;
    let flags = ["--isolation", "on", &format!("--mps={control}")];
    node.start_agent(&flags)?;

    let workload = "/lib64/sublet-workload alloc --reach libcuda.so.1 --size 10MiB --count 5 --check \
                    --hold 100000";
    cluster.apply(&pod_with(NAME, ANNOTATIONS, LIMITS, stage, workload))?;
    let pod = node.until_running(NAME)?;
    let inside = node.environment(NAME, "main")?;
    assert_eq!(inside["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "40");
    assert_eq!(inside["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], "0=1500M");
    let pipe = &inside["CUDA_MPS_PIPE_DIRECTORY"];
    let sockets = cluster.kubectl(&["exec", NAME, "--", "ls", pipe])?;
    ensure!(sockets.lines().any(|name| name == "control"), "{sockets}");
    // Client and server meet in the node's own shared memory.
    let spec = node.runc_spec(&pod, "main")?;
    let mounts = spec["mounts"].as_array().into_iter().flatten();
    let shared: Vec<&Value> = mounts
        .filter(|mount| mount["destination"] == "/dev/shm")
        .map(|mount| &mount["source"])
        .collect();
    assert_eq!(shared, ["/dev/shm"], "{spec}");
    let line = super::line_of(node, NAME)?;
    assert_eq!(line["bytes"], HELD << 20, "{line}");
    check_limit(node, NAME, MEMORY_MIB)?;

    assert_eq!(standing(node)?, "serving");
    let daemon = arbiter_says(node)?["mps"]["pid"]
        .as_i64()
        .context("no daemon")?;
    let daemon = Pid::from_raw(i32::try_from(daemon)?).context("no daemon")?;
    kill_process(daemon, Signal::KILL)?;
    eventually(|| {
        let now = standing(node)?;
        ensure!(now == "lost", "{now}");
        Ok(())
    })?;
    eventually(|| {
        let mps = arbiter_says(node)?["mps"].clone();
        ensure!(mps["state"] == "serving", "{mps}");
        Ok(())
    })?;
    assert_eq!(standing(node)?, "lost", "it began under the first");
    check_limit_again(node)?;
    cluster.kubectl(&["delete", "pod", NAME])?;
    cluster.stop(AGENT);
    node.start_agent(&["--isolation", "on"])
}

/// The accounts of memory go on without the daemon.
fn check_limit_again(node: &GpuNode) -> Result<()> {
    let too_much = format!("alloc --size {MEMORY_MIB}MiB --until-oom");
    let refused = super::also(node, NAME, &too_much)?;
    assert_eq!(refused["refused"]["code"], 2, "{refused}");
    Ok(())
}

/// A script that is the control program.
fn program(node: &GpuNode, control: &MpsControl) -> Result<String> {
    let folder = node.state_dir();
    let script = folder.join("mps-control");
    let workload = node.world.sublet_path().with_file_name("sublet-workload");
    let text = control.script(&workload, &folder.join("mps-record"));
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(script.display().to_string())
}

/// Standing of a pod's container with MPS.
fn standing(node: &GpuNode) -> Result<Value> {
    let said = arbiter_says(node)?;
    let rows = said["jobs"].as_array().into_iter().flatten();
    let is_ours = |row: &&Value| row["name"].as_str().is_some_and(|name| name.contains(NAME));
    let row = rows.into_iter().find(is_ours);
    let row = row.with_context(|| format!("no {NAME} in {said}"))?;
    Ok(row["mps"].clone())
}

/// Output of `sublet top` on the node, for programs.
fn arbiter_says(node: &GpuNode) -> Result<Value> {
    let machines = fs::read_dir(node.run_folder().join("machines"))?;
    let machine = machines.last().context("no machine")??.path();
    let said = Command::new(node.world.sublet_path())
        .args(["top", "--once", "--output", "json", "--fake-gpu"])
        .arg(machine)
        .env("SUBLET_RUNTIME_DIR", node.run_folder())
        .output()?;
    let text = String::from_utf8_lossy(&said.stdout);
    let why = String::from_utf8_lossy(&said.stderr);
    serde_json::from_str(&text).with_context(|| format!("{text}{why}"))
}
