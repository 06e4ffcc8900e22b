//! `sublet-bench agent`: how fast a node starts pods, on a real kubelet, containerd and runc.
//!
//! It measures how long pods wait for each other because the node has to tell them apart: pods that
//! look the same, by each way in which the agent can tell them apart, beside pods that all look
//! different.

mod asked;
mod pods;
mod takeover;
mod waits;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sublet_e2e::{AGENT, GpuNode};
use sublet_testbed::{Binaries, bench};

use self::pods::{PODS, WAYS, Way, delete_all, started};
use crate::machine;
use crate::report::{Report, Verdict, short};
use crate::stats::median;

/// The most that the agent may use with all its kinds of device: memory and cores.
const TARGET_RSS_MIB: f64 = 25.0;
const TARGET_CPUS: f64 = 0.1;

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
