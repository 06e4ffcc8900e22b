//! The testbed itself: what it starts is real, and nothing of it is left, however it ends.
//!
//! Every other end-to-end test rests on this. The product takes no part here.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sublet_testbed::{APISERVER, Binaries, Cluster, ClusterOptions, Node, NodeOptions, User};
use sublet_testbed::{Signal, deployed, keeps_files, kwok_node};

/// Set in the copy of this test program that is to be killed.
const VICTIM: &str = "SUBLET_TESTBED_VICTIM";

const SCHEDULER: &str = "apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: \"@KUBECONFIG@\"}
leaderElection: {leaderElect: false}
";

fn binaries() -> Result<Option<Binaries>> {
    let binaries = Binaries::from_env()?;
    if binaries.is_none() {
        println!("skipped: SUBLET_CONTROL_PLANE is not set; run `cargo xtask test`");
    }
    Ok(binaries)
}

fn start_stock_scheduler(cluster: &Cluster) -> Result<()> {
    let kubeconfig = cluster.kubeconfig("system:kube-scheduler")?;
    let config = SCHEDULER.replace("@KUBECONFIG@", &kubeconfig.display().to_string());
    cluster.start_scheduler("stock-scheduler", &kubeconfig, &config, &[])
}

fn pod(name: &str, node: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeSelector: {{kubernetes.io/hostname: {node}}}
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
  - name: main
    image: sublet.test/busybox:1
    args: [sh, -c, 'echo hello from $WHO; exec sleep 1000']
    env: [{{name: WHO, value: {name}}}]
"
    )
}

/// Polls until the check passes; its last answer is the error.
fn eventually(mut check: impl FnMut() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match check() {
            Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(100)),
            last => return last,
        }
    }
}

fn expect(cluster: &Cluster, args: &[&str], wanted: &str) -> Result<()> {
    eventually(|| match cluster.kubectl(args)?.trim() {
        got if got == wanted => Ok(()),
        got => bail!("kubectl {}: `{got}`, not `{wanted}`", args.join(" ")),
    })
}

/// Every running process whose command line names one of these directories. A zombie has none.
fn processes(dirs: &[PathBuf]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let command = fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if dirs
            .iter()
            .any(|dir| command.contains(&*dir.to_string_lossy()))
        {
            found.push(command);
        }
    }
    Ok(found)
}

/// Processes, files, mounts, control groups: all of it is gone.
fn nothing_left(dirs: &[PathBuf], before: &BTreeSet<String>) -> Result<()> {
    let left = processes(dirs)?;
    ensure!(left.is_empty(), "processes left: {left:#?}");
    for dir in dirs {
        ensure!(keeps_files() || !dir.exists(), "{} is left", dir.display());
    }
    let traces: Vec<String> = traces()?.difference(before).cloned().collect();
    ensure!(traces.is_empty(), "left of a node: {traces:#?}");
    Ok(())
}

/// Traces that a node could leave on this machine outside its directory.
fn traces() -> Result<BTreeSet<String>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mut traces: BTreeSet<String> = mounts.lines().map(|line| format!("mount {line}")).collect();
    for entry in fs::read_dir("/sys/fs/cgroup")?.flatten() {
        for groups in [entry.path(), entry.path().join("kubepods")] {
            if groups.ends_with("kubepods") && groups.exists() {
                traces.insert(format!("control group {}", groups.display()));
            }
        }
    }
    for folder in [
        "/var/lib/kubelet",
        "/run/containerd",
        "/run/runc",
        "/etc/cni",
        "/var/log/pods",
    ] {
        if Path::new(folder).exists() {
            traces.insert(format!("folder {folder}"));
        }
    }
    for entry in fs::read_dir("/sys/class/net")?.flatten() {
        traces.insert(format!("network device {}", entry.file_name().display()));
    }
    Ok(traces)
}

#[test]
fn a_cluster_runs_pods_and_leaves_nothing() -> Result<()> {
    let Some(binaries) = binaries()? else {
        return Ok(());
    };
    let before = traces()?;
    let eve = User::service_account("default", "eve");
    let mut options = ClusterOptions::new(binaries);
    options.users.push(eve.clone());
    options.audit = true;
    let cluster = Cluster::start(options)?;
    start_stock_scheduler(&cluster)?;

    assert_eq!(cluster.kubectl(&["get", "--raw", "/readyz"])?, "ok");
    cluster.apply(&kwok_node("paper", &[], &[("aliyun.com/gpu-mem", "8138")]))?;
    cluster.apply(&pod("first", "paper"))?;
    expect(
        &cluster,
        &["get", "pod", "first", "-o", "jsonpath={.status.phase}"],
        "Running",
    )?;

    // A user has its own name and no more than its rights.
    let denied = cluster
        .kubectl_as(&eve.name, &["get", "pods"])
        .unwrap_err()
        .to_string();
    assert!(
        denied.contains("\"system:serviceaccount:default:eve\" cannot list"),
        "{denied}"
    );
    let audit = fs::read_to_string(cluster.audit_log())?;
    assert!(
        audit
            .lines()
            .any(|line| line.contains(&eve.name) && line.contains("\"code\":403"))
    );

    // The API server killed and started again is the same cluster.
    let old = cluster.pid(APISERVER)?;
    cluster.restart_apiserver()?;
    assert_ne!(cluster.pid(APISERVER)?, old);
    assert!(cluster.cpu_seconds(APISERVER)? > 0.0 && cluster.rss_mib(APISERVER)? > 50);
    cluster.apply(&pod("second", "paper"))?;
    expect(
        &cluster,
        &["get", "pod", "second", "-o", "jsonpath={.status.phase}"],
        "Running",
    )?;

    let dirs = [cluster.dir().to_owned()];
    assert!(processes(&dirs)?.len() >= 5, "{:#?}", processes(&dirs)?);
    drop(cluster);
    nothing_left(&dirs, &before)
}

#[test]
fn the_shipped_manifests_are_accepted_and_start_a_scheduler() -> Result<()> {
    let Some(binaries) = binaries()? else {
        return Ok(());
    };
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut options = ClusterOptions::new(binaries);
    options.users = deployed::accounts();
    let cluster = Cluster::start(options)?;
    deployed::apply(&cluster, &repository)?;
    let sublet = std::env::var_os("SUBLET_BIN").context("SUBLET_BIN is not set")?;
    let port = deployed::start_extender(&cluster, Path::new(&sublet), &[])?;
    deployed::start_kube_scheduler(&cluster, &repository, port, &[])?;
    cluster.apply(&kwok_node("paper", &[], &[]))?;
    let plain = pod("plain", "paper").replace("spec:", "spec:\n  schedulerName: sublet-scheduler");
    cluster.apply(&plain)?;
    expect(
        &cluster,
        &["get", "pod", "plain", "-o", "jsonpath={.status.phase}"],
        "Running",
    )?;
    // The account has the manifests' rights, and no more.
    let extender = deployed::account("sublet-scheduler").name;
    let may = ["auth", "can-i", "create", "pods", "--subresource=binding"];
    assert_eq!(cluster.kubectl_as(&extender, &may)?, "yes\n");
    assert!(
        cluster
            .kubectl_as(&extender, &["auth", "can-i", "delete", "pods"])
            .is_err()
    );
    Ok(())
}

#[test]
fn a_component_that_cannot_start_is_reported_and_leaves_nothing() -> Result<()> {
    let Some(binaries) = binaries()? else {
        return Ok(());
    };
    let mut options = ClusterOptions::new(binaries);
    options.flags.push((APISERVER, "--no-such-flag".to_owned()));
    let error = Cluster::start(options).unwrap_err().to_string();
    assert!(
        error.starts_with("`apiserver` has ended; the end of its log:\n"),
        "{error}"
    );
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
    Ok(())
}

#[test]
fn a_real_node_runs_a_container_and_leaves_nothing() -> Result<()> {
    let Some(binaries) = binaries()? else {
        return Ok(());
    };
    if let Err(reason) = Node::available(&binaries) {
        println!("skipped: {reason}");
        return Ok(());
    }
    let before = traces()?;
    let cluster = Cluster::start(ClusterOptions::new(binaries))?;
    start_stock_scheduler(&cluster)?;
    let node = Node::start(&cluster, &NodeOptions::default())?;
    cluster.apply(&pod("real", &node.name()))?;
    expect(
        &cluster,
        &["get", "pod", "real", "-o", "jsonpath={.status.phase}"],
        "Running",
    )?;
    expect(&cluster, &["logs", "real"], "hello from real")?;
    let inside = cluster.kubectl(&["exec", "real", "--", "env"])?;
    assert!(inside.lines().any(|line| line == "WHO=real"), "{inside}");
    assert!(node.device_plugins().join("kubelet.sock").exists());

    node.restart_kubelet()?;
    let count = [
        "get",
        "pod",
        "real",
        "-o",
        "jsonpath={.status.containerStatuses[0].restartCount}",
    ];
    assert_eq!(
        cluster.kubectl(&count)?,
        "0",
        "the container outlives the kubelet"
    );

    let dirs = [node.dir().to_owned(), cluster.dir().to_owned()];
    drop(node);
    let nodes = cluster.kubectl(&["get", "nodes", "-o", "name"])?;
    assert_eq!(nodes, "", "the node is gone from the cluster");
    drop(cluster);
    nothing_left(&dirs, &before)
}

/// The harness is killed in the middle of its work, together with nothing else.
#[test]
fn a_killed_harness_leaves_nothing() -> Result<()> {
    let Some(binaries) = binaries()? else {
        return Ok(());
    };
    if std::env::var_os(VICTIM).is_some() {
        return wait_to_be_killed(binaries);
    }
    let before = traces()?;
    let mut harness = Command::new(std::env::current_exe()?)
        .args([
            "testbed::a_killed_harness_leaves_nothing",
            "--exact",
            "--nocapture",
        ])
        .env(VICTIM, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = BufReader::new(harness.stdout.take().context("no output")?);
    let mut dirs = Vec::new();
    for line in stdout.lines() {
        let line = line?;
        if let Some((_, dir)) = line.split_once("victim in ") {
            dirs.push(PathBuf::from(dir));
        }
        if line.ends_with("victim ready") {
            break;
        }
    }
    assert!(!dirs.is_empty(), "the harness did not start a cluster");
    assert!(processes(&dirs)?.len() >= 4, "{:#?}", processes(&dirs)?);
    harness.kill()?;
    harness.wait()?;
    eventually(|| nothing_left(&dirs, &before))
}

fn wait_to_be_killed(binaries: Binaries) -> Result<()> {
    let real = Node::available(&binaries).is_ok();
    let cluster = Cluster::start(ClusterOptions::new(binaries))?;
    println!("victim in {}", cluster.dir().display());
    let mut node = None;
    if real {
        start_stock_scheduler(&cluster)?;
        let started = node.insert(Node::start(&cluster, &NodeOptions::default())?);
        println!("victim in {}", started.dir().display());
        cluster.apply(&pod("victim", &started.name()))?;
        let phase = ["get", "pod", "victim", "-o", "jsonpath={.status.phase}"];
        expect(&cluster, &phase, "Running")?;
    }
    // One that neither hears SIGTERM nor goes on by itself.
    let mut deaf = Command::new("sh");
    deaf.args(["-c", "trap '' TERM; sleep 1000"])
        .arg(cluster.dir());
    cluster.spawn("deaf", deaf)?;
    cluster.kill("deaf", Signal::STOP)?;
    println!("victim ready");
    // The parent never writes: it kills.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    bail!("nobody killed this harness; its node was {node:?}")
}
