//! `sublet-bench agent`: how fast a node starts pods, on a real kubelet, containerd and runc.
//!
//! It measures how long pods wait for each other because the node has to tell them apart: pods that
//! look the same, by each way in which the agent can tell them apart, beside pods that all look
//! different.

mod asked;
mod takeover;
mod waits;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use sublet_e2e::{AGENT, GpuNode};
use sublet_testbed::{Binaries, bench};

use crate::machine;
use crate::report::{Report, Verdict, short};
use crate::stats::median;

/// Pods that are created at once. Ten of them fill a card of the node but for six units.
const PODS: usize = 20;
const PART: usize = 1_627;

/// If not all run after so long, something is wrong.
const STALL: Duration = Duration::from_secs(120);

/// The most that the agent may use with all its kinds of device: memory and cores.
const TARGET_RSS_MIB: f64 = 25.0;
const TARGET_CPUS: f64 = 0.1;

/// Interval between looks whether they run.
const LOOK: Duration = Duration::from_millis(100);

/// Measure the agent on a real node.
///
/// Prints Markdown. It takes about a quarter of an hour, and needs root for the node.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench agent --write    everything, kept in docs/benchmarks/agent.md
  cargo xtask bench agent --quick    one round: shows that it works (3 min)")]
pub(crate) struct Arguments {
    /// One round: shows that it works, the figures mean little
    #[arg(long)]
    quick: bool,
    /// Store the output in docs/benchmarks/agent.md
    #[arg(long)]
    write: bool,
}

/// The pods that are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// No two pods ask for the same amount.
    Different,
    /// All do, and the runtime says whose each container is.
    Nri,
    /// All do, and kubelet's checkpoint tells them apart.
    Checkpoint,
    /// All do, and each waits until the one before it has its devices.
    SizeAndOrder,
    /// None asks for a GPU.
    NoGpu,
}

const WAYS: [Way; 4] = [Way::Different, Way::Nri, Way::Checkpoint, Way::SizeAndOrder];

impl Way {
    fn label(self) -> &'static str {
        match self {
            Way::Different => "no two are equal (bound)",
            Way::Nri => "equal, told apart by `nri`",
            Way::Checkpoint => "equal, told apart by `kubelet-checkpoint`",
            Way::SizeAndOrder => "equal, told apart by `size-and-order`",
            Way::NoGpu => "no GPU",
        }
    }

    /// The agent's `--identity`, and what it reports.
    fn identity(self) -> &'static str {
        match self {
            Way::Nri | Way::NoGpu => "nri",
            Way::Different | Way::Checkpoint => "kubelet-checkpoint",
            Way::SizeAndOrder => "size-and-order",
        }
    }

    /// Limits of the pod of that number.
    fn limits(self, number: usize) -> Value {
        let units = match self {
            Way::Different => PART - number,
            Way::Nri | Way::Checkpoint | Way::SizeAndOrder => PART,
            Way::NoGpu => return json!({}),
        };
        json!({"aliyun.com/gpu-mem": units.to_string()})
    }
}

/// Measures and prints.
///
/// # Errors
/// When something could not be measured.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let binaries = Binaries::from_env()?
        .context("SUBLET_CONTROL_PLANE is not set: run `cargo xtask bench agent`")?;
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut report = Report::default();
    report.say("# The agent, on a real node");
    report.say("Written by `cargo xtask bench agent --write`.");
    report.say(&machine::description(&bench::AGENT, &binaries, &repository));
    let rounds = if arguments.quick { 1 } else { 3 };
    let node = GpuNode::start(&[])?.context("this machine cannot have a real node")?;
    equal_pods(&node, rounds, &mut report)?;
    waits::measure(&node, arguments.quick, &mut report)?;
    three_kinds(&node, arguments.quick, &mut report)?;
    drop(node);
    takeover::measure(arguments.quick, &mut report)?;
    report.misses();
    report.say(&format!("Load average at the end: {}", machine::load()));
    if arguments.write {
        report.store(&bench::AGENT, &repository)?;
    }
    Ok(())
}

fn equal_pods(node: &GpuNode, rounds: usize, report: &mut Report) -> Result<()> {
    report.say("## Equal pods");
    report.say(&format!(
        "{PODS} pods, each with a part of one of two cards, are created at once. Pods per second \
         from the first creation until all of their containers are ready, {rounds} rounds in turns: \
         the median, and the least and the most."
    ));
    let executor = tokio::runtime::Runtime::new().context("start threads")?;
    let mut found: Vec<Vec<f64>> = vec![Vec::new(); WAYS.len()];
    for round in 0..rounds {
        for (way, rates) in WAYS.into_iter().zip(&mut found) {
            eprintln!("bench: round {}, {}", round + 1, way.label());
            prepare(node, way)?;
            let seconds = executor.block_on(start_all(node, way))?;
            rates.push(PODS as f64 / seconds);
        }
    }
    let head = [
        "20 pods that start at once",
        "pods/s",
        "least",
        "most",
        "of the bound",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let bound = median(&found[0]);
    for (way, rates) in WAYS.into_iter().zip(&found) {
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rates.iter().copied().fold(0.0, f64::max);
        let row = [median(rates), least, most, median(rates) / bound].map(short);
        rows.push([way.label().to_owned()].into_iter().chain(row).collect());
    }
    report.table(&rows);
    Ok(())
}

/// Memory and CPU time of the agent's process with three kinds of device: memory of GPUs, whole
/// GPUs, and the files of a folder.
fn three_kinds(node: &GpuNode, quick: bool, report: &mut Report) -> Result<()> {
    let cluster = &node.world.cluster;
    cluster.stop(AGENT);
    // `/dev` has device files on every machine.
    let flags = ["--sharing", "both", "--device", "files:dev=/dev,times=4"];
    node.start_agent(&[&flags[..], &["--isolation", "on"]].concat())?;
    sublet_e2e::eventually(|| {
        ensure!(
            node.allocatable("nvidia.com/gpu")? == 2,
            "no whole cards yet"
        );
        ensure!(
            node.allocatable("sublet.dev/dev")? > 4,
            "no device files yet"
        );
        Ok(())
    })?;
    let idle = if quick { 5 } else { 60 };
    let cpu_of = |work: &dyn Fn() -> Result<()>| -> Result<f64> {
        let (begun, before) = (Instant::now(), cluster.cpu_seconds(AGENT)?);
        work()?;
        let used = cluster.cpu_seconds(AGENT)? - before;
        Ok(used / begun.elapsed().as_secs_f64())
    };
    let executor = tokio::runtime::Runtime::new().context("start threads")?;
    let pods = executor.block_on(started(node, Way::Checkpoint))?;
    let with_pods = cpu_of(&|| {
        std::thread::sleep(Duration::from_secs(idle));
        Ok(())
    })?;
    let memory =
        || Ok::<_, anyhow::Error>((cluster.rss_mib(AGENT)?, cluster.anonymous_mib(AGENT)?));
    let (resident, own) = memory()?;
    executor.block_on(delete_all(&pods))?;
    let starting = cpu_of(&|| {
        let pods = executor.block_on(started(node, Way::Checkpoint))?;
        executor.block_on(delete_all(&pods))
    })?;
    let (resident_after, own_after) = memory()?;
    report.say("## Three kinds of device");
    report.say(&format!(
        "One agent offers memory of two GPUs, whole GPUs and the device files of a folder, and holds \
         {PODS} pods to their parts. From `/proc` of its process; the arbiter is in it. What is not its \
         own are pages of `sublet` and of the C library, which each process of them shares and the \
         kernel takes back when it needs them."
    ));
    let row = |what: String, cpus: f64, resident: u64, own: u64| {
        vec![what, short(cpus), resident.to_string(), own.to_string()]
    };
    report.table(&[
        ["the agent's process", "CPUs", "resident MiB", "its own MiB"]
            .map(str::to_owned)
            .to_vec(),
        row(
            format!("{PODS} pods run, {idle} s"),
            with_pods,
            resident,
            own,
        ),
        row(
            format!("{PODS} pods start and are deleted"),
            starting,
            resident_after,
            own_after,
        ),
    ]);
    report.verdicts(&[
        Verdict::at_most("resident", resident as f64, TARGET_RSS_MIB, "MiB"),
        Verdict::at_most("pods run", with_pods, TARGET_CPUS, "CPUs"),
    ]);
    Ok(())
}

/// An agent that tells pods apart in that way, and says so.
fn prepare(node: &GpuNode, way: Way) -> Result<()> {
    node.world.cluster.stop(AGENT);
    node.start_agent(&["--identity", way.identity()])?;
    node.until_identity(way.identity())
}

/// Creates all pods, and returns the seconds until all run. Afterwards they are gone.
async fn start_all(node: &GpuNode, way: Way) -> Result<f64> {
    let begun = Instant::now();
    let pods = started(node, way).await?;
    let seconds = begun.elapsed().as_secs_f64();
    delete_all(&pods).await?;
    Ok(seconds)
}

/// Starts a pod, and returns when it is gone.
async fn run_alone(node: &GpuNode, way: Way, number: usize) -> Result<()> {
    let pods = pods_of(node).await?;
    let pod = pod(way, number)?;
    pods.create(&PostParams::default(), &pod).await?;
    until_running(&pods, 1).await?;
    delete_all(&pods).await
}

async fn pods_of(node: &GpuNode) -> Result<Api<Pod>> {
    let kubeconfig = node.world.cluster.kubeconfig("admin")?;
    let client = sublet_client::connect(Some(&kubeconfig)).await?;
    Ok(Api::namespaced(client, "default"))
}

/// Creates all pods, and waits until all run.
async fn started(node: &GpuNode, way: Way) -> Result<Api<Pod>> {
    let pods = pods_of(node).await?;
    let creations = (0..PODS).map(|number| {
        let pods = pods.clone();
        async move {
            pods.create(&PostParams::default(), &pod(way, number)?)
                .await
                .context("a pod")
        }
    });
    futures::future::try_join_all(creations).await?;
    until_running(&pods, PODS).await?;
    Ok(pods)
}

async fn until_running(pods: &Api<Pod>, count: usize) -> Result<()> {
    let begun = Instant::now();
    loop {
        let list = pods.list(&ListParams::default()).await?;
        let running = list.items.iter().filter(|pod| is_ready(pod)).count();
        if running == count {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < STALL,
            "after {STALL:?} {running} of {count} pods run: {}",
            states(&list.items)
        );
        tokio::time::sleep(LOOK).await;
    }
}

/// Status of each pod, for an error.
fn states(pods: &[Pod]) -> String {
    let state = |pod: &Pod| serde_json::to_string(&pod.status).unwrap_or_default();
    pods.iter().map(state).collect::<Vec<_>>().join("\n")
}

async fn delete_all(pods: &Api<Pod>) -> Result<()> {
    // Not by force: what a pod leaves running keeps its card from the next one.
    let delete = DeleteParams::default();
    pods.delete_collection(&delete, &ListParams::default())
        .await?;
    while !pods.list(&ListParams::default()).await?.items.is_empty() {
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

fn pod(way: Way, number: usize) -> Result<Pod> {
    let pod = json!({
        "metadata": {"name": format!("p{number}")},
        "spec": {
            "schedulerName": "sublet-scheduler",
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": "sublet.test/busybox:1",
                "imagePullPolicy": "Never",
                "command": ["sleep", "1000"],
                "resources": {"limits": way.limits(number)},
            }],
        },
    });
    Ok(serde_json::from_value(pod)?)
}

fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    containers.is_some_and(|all| !all.is_empty() && all.iter().all(|one| one.ready))
}
