//! `sublet-bench queue`: what the job queue costs.
//!
//! Five parts: the pure engine (engine, with its cluster of memory); releases on the real API server
//! beside Kueue's (api, on the shape of work, with account for what it cost); suspended Jobs with the
//! stock Job controller (jobs); thousands that wait (waiting); gangs from end to end (gangs). bare is
//! the loop that stands beside ours, releases the referee.

mod account;
mod api;
mod bare;
mod cluster;
mod engine;
mod gangs;
mod jobs;
mod releases;
mod shape;
mod waiting;
mod work;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use sublet_testbed::{Binaries, Kueue, Progress, bench};

use self::api::Stand;
use self::cluster::Scale;
use self::shape::WorkShape;
use crate::machine;
use crate::report::Report;
use crate::scheduler::sublet;

/// One part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The pure engine: no API server
    Engine,
    /// Releases of suspended Jobs on the real API server, beside Kueue
    Api,
    /// Suspended Jobs with the stock Job controller
    Jobs,
    /// Thousands of suspended Jobs that wait
    Waiting,
    /// Gangs from end to end, with KWOK
    Kwok,
}

/// Measure the job queue: its decisions alone, and on a real API server beside Kueue.
///
/// Prints Markdown. All of it about 25 minutes: engine 2, api 11, jobs 1, waiting 6, kwok 4. Kueue is
/// built from its Go module the first time (3 to 8 minutes more).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench queue --write                everything, kept in docs/benchmarks/queue.md
  cargo xtask bench queue --only engine          without a cluster
  cargo xtask bench queue --only api --fraction 1
                                                 all 15,000 workloads of Kueue's test (an hour)
  cargo xtask bench queue --only api --shape my.yaml
                                                 other work, in the form of Kueue's test")]
pub(crate) struct Arguments {
    /// Only these parts
    #[arg(long, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<Part>,
    /// engine: nodes, of 8 GPUs each
    #[arg(long, default_value_t = 1_000)]
    nodes: usize,
    /// engine: groups that wait or run
    #[arg(long, default_value_t = 50_000)]
    groups: usize,
    /// engine: quotas that have groups
    #[arg(long, default_value_t = 100)]
    quotas: usize,
    /// engine: ticks, each after one event
    #[arg(long, default_value_t = 1_000)]
    ticks: usize,
    /// api: what work comes, in the form of Kueue's performance test [default: that of Kueue's own
    /// performance test]
    #[arg(long, value_name = "FILE")]
    shape: Option<PathBuf>,
    /// api: one part in so many of each set of the file's workloads
    #[arg(long, default_value_t = 5, value_name = "N")]
    fraction: usize,
    /// jobs: how many
    #[arg(long, default_value_t = 1_000)]
    jobs: usize,
    /// waiting: how many
    #[arg(long, default_value_t = 5_000, value_name = "JOBS")]
    waiting: usize,
    /// kwok: sizes of the cluster, growing
    #[arg(long, value_delimiter = ',', default_values_t = [100, 500], value_name = "NODES")]
    played: Vec<usize>,
    /// kwok: pods of a gang
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64, 512], value_name = "PODS")]
    gangs: Vec<usize>,
    /// kwok: pods of each round
    #[arg(long, default_value_t = 512)]
    pods: usize,
    /// Store the output in docs/benchmarks/
    #[arg(long)]
    write: bool,
}

impl Arguments {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    fn check(&self) -> Result<()> {
        let engine = [self.nodes, self.groups, self.quotas, self.ticks];
        ensure!(
            engine.iter().all(|count| *count > 0),
            "the queue wants at least one node, one group, one quota and one tick"
        );
        ensure!(self.fraction > 0, "--fraction must be at least 1");
        ensure!(
            (2..=20_000).contains(&self.jobs),
            "--jobs must be 2 to 20000"
        );
        ensure!(
            (100..=20_000).contains(&self.waiting),
            "--waiting must be 100 to 20000"
        );
        ensure!(
            self.played.is_sorted() && self.played.first().is_some_and(|nodes| *nodes > 0),
            "--played must grow: nodes are added to those that are there"
        );
        let fit = |gang: &usize| *gang > 0 && self.pods.is_multiple_of(*gang);
        ensure!(
            self.pods > 1 && self.gangs.iter().all(fit),
            "--pods must be a multiple of the size of every gang, and more than one"
        );
        Ok(())
    }
}

/// Measures and prints.
///
/// # Errors
/// When something could not be measured. A missed target is not an error.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    arguments.check()?;
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut report = Report::default();
    report.say("# What the job queue costs");
    report.say(
        "Written by `cargo xtask bench queue --write`. Compare ratios, not absolute figures: peers \
         and bounds were measured in the same run.",
    );
    let on_cluster = [Part::Api, Part::Jobs, Part::Waiting, Part::Kwok]
        .iter()
        .any(|part| arguments.wants(*part));
    match on_cluster {
        true => on_clusters(arguments, &repository, &mut report)?,
        false => {
            report.say(&machine::described(
                &bench::QUEUE,
                &repository,
                &[],
                "One thread.",
            ));
            engine(arguments, &repository, &mut report)?;
        }
    }
    report.misses();
    report.say(&format!("Load average at the end: {}", machine::load()));
    if arguments.write {
        report.store(&bench::QUEUE, &repository)?;
    }
    Ok(())
}

fn engine(arguments: &Arguments, repository: &Path, report: &mut Report) -> Result<()> {
    let scale = Scale {
        nodes: arguments.nodes,
        groups: arguments.groups,
        quotas: arguments.quotas,
    };
    engine::measure(repository, scale, arguments.ticks, report)
}

fn on_clusters(arguments: &Arguments, repository: &Path, report: &mut Report) -> Result<()> {
    let binaries = Binaries::from_env()?
        .context("SUBLET_CONTROL_PLANE is not set: run `cargo xtask bench queue`")?;
    let sublet = sublet()?;
    // Before anything is measured: a build would share the cores.
    let kueue = match arguments.wants(Part::Api) {
        true => Some(Kueue::build(repository, &mut Progress::new())?),
        false => None,
    };
    report.say(&machine::description(&bench::QUEUE, &binaries, repository));
    if arguments.wants(Part::Engine) {
        engine(arguments, repository, report)?;
    }
    let stand = Stand {
        binaries: &binaries,
        sublet: &sublet,
        repository,
    };
    if let Some(kueue) = &kueue {
        let file = arguments
            .shape
            .clone()
            .unwrap_or_else(|| kueue.shape.clone());
        let shape = WorkShape::read(&file, arguments.fraction)?;
        api::measure(&stand, kueue, &shape, report)?;
    }
    if arguments.wants(Part::Jobs) {
        jobs::measure(&stand, arguments.jobs, report)?;
    }
    if arguments.wants(Part::Waiting) {
        waiting::measure(&stand, arguments.waiting, report)?;
    }
    if arguments.wants(Part::Kwok) {
        let (played, gangs) = (&arguments.played, &arguments.gangs);
        gangs::measure(&stand, played, gangs, arguments.pods, report)?;
    }
    Ok(())
}
