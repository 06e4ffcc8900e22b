//! `sublet-bench scheduler`: the figures, their sizes and the clusters that they are measured in.
//!
//! Figures a, c, d and e share one loaded cluster; b has one whose nodes KWOK plays.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use sublet_testbed::{Binaries, bench};

use crate::report::Report;
use crate::world::{Load, NODES, PODS, World};
use crate::{latency, machine, objects, rate, startup, webhook};

/// One figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// Time of filter and prioritize
    A,
    /// Pods per second through the stock scheduler
    B,
    /// Restart to ready
    C,
    /// Memory
    D,
    /// Time of the webhook for pods
    E,
}

/// Measure the scheduler extender against a real API server.
///
/// Prints Markdown. At full size: a, c, d and e about 7 minutes together, b about 25.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench scheduler --write       everything, kept in docs/benchmarks/scheduler.md
  cargo xtask bench scheduler --quick       a small run to see that it works (1 min)
  cargo xtask bench scheduler --only a,c    filter latency and restart alone")]
pub(crate) struct Arguments {
    /// Small clusters and one round: shows that it works, the figures mean nothing
    #[arg(long)]
    quick: bool,
    /// Only these figures
    #[arg(long, value_delimiter = ',', value_name = "FIGURES")]
    only: Vec<Figure>,
    /// Rounds of b, each with every way of scheduling [default: 5, quick: 1]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Sizes of b's cluster, growing [default: 1000,5000, quick: 100,200]
    #[arg(long, value_delimiter = ',', value_name = "NODES")]
    nodes: Vec<usize>,
    /// Pods of each round of b [default: 2000, from 5000 nodes on 1000; quick: 200]
    #[arg(long, value_name = "N")]
    pods: Option<usize>,
    /// Calls of a for each extender and situation [default: 5000, quick: 300]
    #[arg(long, value_name = "N")]
    calls: Option<usize>,
    /// Store the output in docs/benchmarks/scheduler.md
    #[arg(long)]
    write: bool,
}

impl Arguments {
    fn wants(&self, figure: Figure) -> bool {
        self.only.is_empty() || self.only.contains(&figure)
    }

    fn load(&self) -> Load {
        let nodes = if self.quick { 200 } else { 5_000 };
        Load {
            nodes,
            pods: 4 * nodes,
            most_pods: 8 * nodes,
        }
    }

    fn sizes(&self) -> Vec<usize> {
        match (self.nodes.is_empty(), self.quick) {
            (false, _) => self.nodes.clone(),
            (true, false) => vec![1_000, 5_000],
            (true, true) => vec![100, 200],
        }
    }

    fn pods(&self, nodes: usize) -> usize {
        let usual = match nodes {
            _ if self.quick => 200,
            5_000.. => 1_000,
            _ => 2_000,
        };
        self.pods.unwrap_or(usual)
    }
}

/// Measures and prints.
///
/// # Errors
/// When something could not be measured. A missed target is not an error.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let binaries = Binaries::from_env()?
        .context("SUBLET_CONTROL_PLANE is not set: run `cargo xtask bench scheduler`")?;
    let sublet = sublet()?;
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    ensure!(
        arguments.sizes().is_sorted(),
        "--nodes must grow: nodes are added to those that are there"
    );
    let mut report = Report::default();
    report.say("# The scheduler extender");
    report.say(
        "Written by `cargo xtask bench scheduler --write`. Compare ratios, not absolute \
         figures: peers and bounds were measured in the same run, by the same code.",
    );
    report.say(&machine::description(
        &bench::SCHEDULER,
        &binaries,
        &repository,
    ));
    if arguments.quick {
        report.say("**A quick run: small clusters, one round. The figures mean nothing.**");
    }
    if [Figure::A, Figure::C, Figure::D, Figure::E]
        .iter()
        .any(|&f| arguments.wants(f))
    {
        loaded(arguments, &binaries, &sublet, &repository, &mut report)?;
    }
    if arguments.wants(Figure::B) {
        played(arguments, &binaries, &sublet, &repository, &mut report)?;
    }
    report.say(&format!("Load average at the end: {}", machine::load()));
    if arguments.write {
        report.store(&bench::SCHEDULER, &repository)?;
    }
    Ok(())
}

/// Figures a, c, d and e.
fn loaded(
    arguments: &Arguments,
    binaries: &Binaries,
    sublet: &Path,
    repository: &Path,
    report: &mut Report,
) -> Result<()> {
    let load = arguments.load();
    let mut world = World::start(binaries, sublet, false)?;
    world.progress.say(&format!(
        "loading a cluster: {} nodes, {} bound pods (full size: about 2 min)",
        load.nodes, load.pods
    ));
    let nodes = (0..load.nodes).map(|number| objects::node(number, false));
    world.create("nodes", NODES, nodes)?;
    let pods = |from: usize, to: usize| {
        (from..to).map(move |number| objects::bound_pod(number, load.nodes))
    };
    world.create("pods", PODS, pods(0, load.pods))?;
    let calls = arguments
        .calls
        .unwrap_or(if arguments.quick { 300 } else { 5_000 });
    if arguments.wants(Figure::A) {
        latency::measure(&mut world, load, calls, report)?;
    }
    if arguments.wants(Figure::C) {
        startup::restart(&mut world, load, report)?;
    }
    if arguments.wants(Figure::D) {
        world.create("pods", PODS, pods(load.pods, load.most_pods))?;
        startup::memory(&mut world, load, report)?;
    }
    if arguments.wants(Figure::E) {
        let pods = if arguments.wants(Figure::D) {
            load.most_pods
        } else {
            load.pods
        };
        // Last: from here on the API server asks about each pod.
        webhook::measure(&mut world, repository, pods, calls, report)?;
    }
    Ok(())
}

/// Figure b.
fn played(
    arguments: &Arguments,
    binaries: &Binaries,
    sublet: &Path,
    repository: &Path,
    report: &mut Report,
) -> Result<()> {
    let rounds = arguments
        .rounds
        .unwrap_or(if arguments.quick { 1 } else { 5 });
    let mut world = World::start(binaries, sublet, true)?;
    rate::prepare(&world, repository)?;
    report.say("## (b) Pods per second through the stock scheduler");
    report.say(&rate::method(rounds));
    let mut there = 0;
    for nodes in arguments.sizes() {
        let new = (there..nodes).map(|number| objects::node(number, true));
        world.create("nodes", NODES, new)?;
        world.wait_untainted(nodes)?;
        there = nodes;
        rate::measure(
            &mut world,
            repository,
            nodes,
            arguments.pods(nodes),
            rounds,
            report,
        )?;
    }
    Ok(())
}

/// The product's binary: the one that `SUBLET_BIN` names, or the one beside this program.
pub(crate) fn sublet() -> Result<PathBuf> {
    let path = match std::env::var_os("SUBLET_BIN") {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe()?.with_file_name("sublet"),
    };
    ensure!(
        path.exists(),
        "{} is not built: run `cargo xtask bench`, which builds it",
        path.display()
    );
    Ok(path)
}
