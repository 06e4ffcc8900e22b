//! `cargo xtask demo --cluster`: the published GPUShare examples, on stock components, in two minutes.
//!
//! Four nodes that KWOK plays, with pods that "already run" on them as the original gpushare
//! scheduler would have left them. Then our extender beside a second stock kube-scheduler,
//! started from `deploy/kubernetes/`. If this machine can run one, a real node joins them:
//! kubelet, containerd and our agent, with two cards described in a file. The demo decides
//! nothing itself: the product made every placement shown, through the stock scheduler.

use std::fmt::Write;
use std::io::{IsTerminal, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use sublet_testbed::{Cluster, ClusterOptions, Node, NodeOptions, deployed, free_port, kwok_node};

use crate::screen::heading;
use crate::setup::{Components, cargo, program, repository, run as run_command};

/// A card of the published examples, in MiB.
const CARD: u32 = 16_276;

/// The nodes, and the used memory of each card in MiB. n1 is full. n2 has 4,069 free on each
/// card: 8,138 together, and yet no room for a pod of 8,138. n3 has 8,138 on one card. n4 has
/// 12,207, 8,138, 4,069 and 16,276 free.
const NODES: [(&str, &[u32]); 4] = [
    ("n1", &[16_276, 16_276]),
    ("n2", &[12_207, 12_207]),
    ("n3", &[8_138, 16_276]),
    ("n4", &[4_069, 8_138, 12_207, 0]),
];

/// Requests: Deployment, MiB, the nodes it may use, and the expected result.
const ASKED: [Asked; 3] = [
    Asked {
        name: "three-nodes",
        mib: 8_138,
        nodes: &["n1", "n2", "n3"],
        expected: Some(("n3", "0")),
        why: "n1 is full; n2 has 8,138 MiB free, but 4,069 on each card; n3 has one card with room",
    },
    Asked {
        name: "four-cards",
        mib: 8_138,
        nodes: &["n4"],
        expected: Some(("n4", "1")),
        why: "free are 12,207, 8,138, 4,069 and 16,276 MiB: card 1 is the tightest fit",
    },
    Asked {
        name: "too-big",
        mib: 20_000,
        nodes: &["n1", "n2", "n3", "n4"],
        expected: None,
        why: "no card has more than 16,276 MiB, though n4 has more free in total",
    },
];

struct Asked<'a> {
    name: &'static str,
    mib: u32,
    nodes: &'a [&'a str],
    /// Node and card; `None` when it must be refused.
    expected: Option<(&'static str, &'static str)>,
    why: &'static str,
}

/// Runs the demo; `keep` makes it wait for Enter even without a terminal.
pub(crate) fn run(keep: bool) -> Result<()> {
    heading("components: Debian packages and the control plane (6 min once, then 1 s)");
    let components = Components::with_node()?;
    heading("the product (1 min cold)");
    run_command(&mut cargo(&["build", "--package", "sublet"])?)?;
    let sublet = program("debug", "sublet")?;

    heading("a stock Kubernetes on loopback, four nodes played by KWOK (10 s)");
    let mut options = ClusterOptions::new(components.binaries);
    options.users = deployed::accounts();
    let cluster = Cluster::start(options)?;
    cluster.apply(&nodes())?;
    // Before the policy stands that lets only Sublet write such annotations.
    cluster.apply(&running_pods())?;

    heading("Sublet's extender, and a second stock kube-scheduler that asks it (5 s)");
    deployed::apply(&cluster, repository()?)?;
    let port = deployed::start_extender(&cluster, &sublet, &[])?;
    deployed::start_kube_scheduler(&cluster, repository()?, port, &[])?;

    heading("three Deployments");
    for asked in &ASKED {
        println!(
            "{}: {} MiB on one of {}",
            asked.name,
            asked.mib,
            asked.nodes.join(", ")
        );
        cluster.apply(&deployment(asked))?;
    }
    for asked in &ASKED {
        let outcome = eventually(|| outcome(&cluster, asked)).map_err(|why| {
            let log = cluster.log_tail(deployed::EXTENDER);
            anyhow!("{why:#}; the end of the extender's log:\n{log}")
        })?;
        println!("{}: {outcome}\n    {}", asked.name, asked.why);
    }

    let real = real_node(&cluster, &sublet, components.no_node)?;

    heading("kubectl inspect gpushare");
    let plugins = plugins(&cluster, &sublet)?;
    let mut inspect = Command::new(cluster.binaries().cluster("kubectl"));
    inspect
        .args(["inspect", "gpushare"])
        .env("KUBECONFIG", cluster.dir().join("admin.kubeconfig"))
        .env("PATH", path_with(&plugins)?);
    run_command(&mut inspect)?;
    look_around(&cluster, &plugins, port);
    if keep || stdout().is_terminal() {
        wait_for_enter();
    }
    drop(real); // before the cluster, which it leaves
    Ok(())
}

/// A real node with our agent, and a pod on it that tells the card that it sees; `None`, with
/// a printed reason, if this machine cannot run one.
fn real_node(cluster: &Cluster, sublet: &Path, no_node: Option<String>) -> Result<Option<Node>> {
    let able = no_node.map_or_else(|| Node::available(cluster.binaries()), Err);
    if let Err(reason) = able {
        println!("no real node on this machine: {reason}");
        return Ok(None);
    }
    heading("a real node: kubelet, containerd, and Sublet's agent with two cards in a file (10 s)");
    let node = Node::start(cluster, &NodeOptions::default())?;
    let inventory = cluster.dir().join("gpus.yaml");
    std::fs::write(
        &inventory,
        format!("gpus: [{{memory: {CARD}MiB, count: 2}}]\n"),
    )?;
    deployed::start_agent(cluster, sublet, &node, &inventory, free_port()?, &[])?;
    let asked = Asked {
        name: "real",
        mib: 8_138,
        nodes: &[&node.name()],
        expected: None,
        why: "",
    };
    // One of the testbed's own images: no registry is asked.
    let real = deployment(&asked).replace(
        "image: none",
        "image: sublet.test/busybox:1\n        imagePullPolicy: Never\n        args: [sh, -c, exec sleep 100000]",
    );
    cluster.apply(&real)?;
    let seen = eventually(|| {
        let environment = cluster.kubectl(&["exec", "deployment/real", "--", "env"])?;
        let ours =
            |line: &&str| line.starts_with("NVIDIA_VISIBLE_DEVICES") || line.starts_with("ALIYUN");
        let mut lines: Vec<&str> = environment.lines().filter(ours).collect();
        lines.sort_unstable();
        ensure!(
            !lines.is_empty(),
            "the container has no GPU in its environment"
        );
        Ok(lines.join("\n    "))
    })?;
    println!(
        "real: a container on {} finds in its environment\n    {seen}",
        node.name()
    );
    Ok(Some(node))
}

fn nodes() -> String {
    let node = |(name, cards): &(&str, &[u32])| {
        let memory = (CARD * u32::try_from(cards.len()).unwrap_or_default()).to_string();
        let count = cards.len().to_string();
        kwok_node(
            name,
            &[],
            &[
                ("aliyun.com/gpu-mem", &memory),
                ("aliyun.com/gpu-count", &count),
            ],
        )
    };
    NODES.iter().map(node).collect()
}

/// Pods as the original scheduler leaves them: bound, with its annotations.
fn running_pods() -> String {
    let mut yaml = String::new();
    for (node, cards) in NODES {
        for (index, mib) in cards.iter().enumerate().filter(|(_, mib)| **mib > 0) {
            let _ = write!(
                yaml,
                "---
apiVersion: v1
kind: Pod
metadata:
  name: before-{node}-{index}
  annotations:
    ALIYUN_COM_GPU_MEM_IDX: '{index}'
    ALIYUN_COM_GPU_MEM_POD: '{mib}'
    ALIYUN_COM_GPU_MEM_DEV: '{CARD}'
    ALIYUN_COM_GPU_MEM_ASSIGNED: 'true'
    ALIYUN_COM_GPU_MEM_ASSUME_TIME: '1700000000000000000'
spec:
  nodeName: {node}
  containers:
  - name: main
    image: none
    resources: {{limits: {{aliyun.com/gpu-mem: {mib}}}}}
"
            );
        }
    }
    yaml
}

fn deployment(asked: &Asked) -> String {
    let Asked {
        name, mib, nodes, ..
    } = asked;
    let nodes = nodes.join(", ");
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      schedulerName: sublet-scheduler
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
            - matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [{nodes}]}}]
      containers:
      - name: main
        image: none
        resources: {{limits: {{aliyun.com/gpu-mem: {mib}}}}}
"
    )
}

/// The outcome of a Deployment's pod; an error while there is none.
fn outcome(cluster: &Cluster, asked: &Asked) -> Result<String> {
    let read = |path: &str| -> Result<String> {
        let template = format!("jsonpath={{.items[0].{path}}}");
        let label = format!("app={}", asked.name);
        cluster.kubectl(&["get", "pods", "--selector", &label, "--output", &template])
    };
    let node = read("spec.nodeName")?;
    if let Some((expected, card)) = asked.expected {
        ensure!(
            !node.is_empty(),
            "{} is not placed: {}",
            asked.name,
            read(UNSCHEDULABLE)?
        );
        let index = read("metadata.annotations.ALIYUN_COM_GPU_MEM_IDX")?;
        ensure!(
            (node.as_str(), index.as_str()) == (expected, card),
            "{} is on {node}, card {index}; expected {expected}, card {card}",
            asked.name
        );
        return Ok(format!("placed on {node}, card {index}"));
    }
    ensure!(
        node.is_empty(),
        "{} is on {node}, and must be refused",
        asked.name
    );
    let reason = read(UNSCHEDULABLE)?;
    ensure!(
        !reason.is_empty(),
        "{} waits, and nobody has said why",
        asked.name
    );
    Ok(format!("refused: {reason}"))
}

const UNSCHEDULABLE: &str = "status.conditions[?(@.reason==\"Unschedulable\")].message";

/// A folder for PATH with the names by which kubectl finds its plugins.
fn plugins(cluster: &Cluster, sublet: &Path) -> Result<PathBuf> {
    let dir = cluster.dir().join("bin");
    std::fs::create_dir(&dir)?;
    let kubectl = cluster.binaries().cluster("kubectl");
    for (program, name) in [
        (sublet, "kubectl-inspect-gpushare"),
        (sublet, "kubectl-sublet"),
        (sublet, "sublet"),
        (kubectl.as_path(), "kubectl"),
    ] {
        std::os::unix::fs::symlink(program, dir.join(name))?;
    }
    Ok(dir)
}

fn path_with(first: &Path) -> Result<std::ffi::OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(first.to_owned()).chain(std::env::split_paths(&path));
    std::env::join_paths(all).context("a folder of PATH holds a colon")
}

fn look_around(cluster: &Cluster, plugins: &Path, port: u16) {
    println!("\nLook around, in another terminal, while this runs:");
    println!(
        "  export KUBECONFIG={}",
        cluster.dir().join("admin.kubeconfig").display()
    );
    println!("  export PATH={}:$PATH", plugins.display());
    println!("  kubectl inspect gpushare -d                         each pod on its card");
    println!("  kubectl get pods -o wide                            what Kubernetes says");
    println!("  kubectl describe pod -l app=too-big                 why one was refused");
    println!("  kubectl scale deployment four-cards --replicas=3    more of them");
    println!("  curl http://127.0.0.1:{port}/metrics                   the extender's figures");
    println!("  ls {}", cluster.dir().join("log").display());
}

/// Ctrl-C ends it as well: the cluster's guard then does the cleaning.
fn wait_for_enter() {
    println!("\nPress Enter to stop and remove everything.");
    if !matches!(stdin().read_line(&mut String::new()), Ok(read) if read > 0) {
        // No terminal to press it on: `--keep` means until somebody ends this process.
        loop {
            std::thread::park();
        }
    }
}

/// Polls for a minute; the last answer is the error.
fn eventually(mut check: impl FnMut() -> Result<String>) -> Result<String> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match check() {
            Err(error) if Instant::now() > deadline => bail!(error),
            Err(_) => sleep(Duration::from_millis(200)),
            done => return done,
        }
    }
}
