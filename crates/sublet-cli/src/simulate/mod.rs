//! `sublet simulate`: a trace through the scheduler's engine, no cluster.
//!
//! Runs of several policies and seeds go side by side. Each is `sublet_sim::inflate`,
//! `sublet_sim::timed` or `sublet_sim::replay`, which leave all decisions to the engine. This module reads files, shows
//! progress and prints.

mod compare;
mod defrag;
mod input;
mod plot;
mod print;
mod queue;
mod runs;
mod seeds;
mod snapshot;
#[cfg(test)]
mod tests;
mod timed;
mod what_if;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Context;
use clap::ValueEnum;
use sublet_model::Unit;
use sublet_plan::Policy;
use sublet_sim::Discipline;

use crate::answer::{Answer, BAD_INPUT};
use input::Input;
use seeds::Seeds;
use snapshot::BadObjects;
use timed::Load;
use what_if::Add;

/// Format of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs, whole.
    Json,
    /// For spreadsheets: a line for each run and percent of arrival, part of the time, or group of
    /// jobs that waited.
    Csv,
}

/// Protocol by which pods come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Protocol {
    /// Drawn at random, until they ask for a share of the cluster; none leaves.
    #[default]
    Inflation,
    /// At the times of the list; pods that find no place wait.
    Timed,
    /// The same as jobs of tenants with quotas, which may need several nodes, by each discipline of
    /// a queue.
    Queue,
}

impl Protocol {
    /// Its name on the command line.
    fn word(self) -> &'static str {
        match self {
            Protocol::Inflation => "inflation",
            Protocol::Timed => "timed",
            Protocol::Queue => "queue",
        }
    }
}

/// [`sublet_sim::BadLines`] on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum BadLinesArg {
    /// Stop at the first.
    #[default]
    Stop,
    /// Leave them out, and print their number.
    Count,
}

/// [`sublet_sim::CpuOnlyPods`] on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum CpuOnlyPodsArg {
    /// The policy.
    #[default]
    Policy,
    /// The stock scheduler, by its own scores.
    Stock,
}

/// Flags that go with some protocols: with which, and why not with the others.
#[rustfmt::skip]
const PICKY: [(&str, &[Protocol], &str); 12] = {
    use Protocol::{Inflation, Queue, Timed};
    [
        ("--load", &[Timed, Queue], "no pod leaves, so that no time passes"),
        ("--sequence", &[Inflation], "pods come in the order of their times"),
        ("--seed", &[Inflation], "nothing is drawn"),
        ("--arrive", &[Inflation], "all pods of the list come once; --load sets how densely"),
        ("--defrag", &[Inflation], "pods are moved at the end, and then none runs"),
        ("--placements", &[Inflation], "a pod's place is only for a time"),
        ("--plot", &[Inflation, Timed], "waits are no curve"),
        ("--snapshot", &[Inflation, Timed], "what runs has no tenant and no end"),
        ("--discipline", &[Queue], "only a queue has it"),
        ("--quotas", &[Queue], "only a queue has it"),
        ("--interval", &[Queue], "only a queue has it"),
        ("--cpu-only-pods stock", &[Inflation, Timed], "the queue places all pods"),
    ]
};

/// Arguments of `sublet simulate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet simulate --nodes nodes.csv --pods pods.csv.gz
  sublet simulate --nodes nodes.csv --pods pods.csv --policy fgd --policy best-fit --seed 1-10
  sublet simulate --nodes nodes.csv --pods pods.csv --policy fgd=0.7,best-fit=0.3 --plot curves.svg
  sublet simulate --nodes nodes.csv --pods pods.csv --sequence order.gz --placements placed.txt
  sublet simulate --nodes nodes.csv --pods jobs.ndjson --protocol timed --load 0.9
  sublet simulate --nodes nodes.csv --pods jobs.csv --protocol queue
  sublet simulate --nodes nodes.csv --pods jobs.csv --protocol queue --quotas quotas.csv \
      --discipline sublet --discipline backfill --interval 60 -o json
  kubectl get nodes,pods -A -o yaml | sublet simulate --snapshot - --policy tiling --policy fgd
  sublet simulate --snapshot cluster.yaml --add 10xgpu-node-3
  sublet simulate --snapshot cluster.yaml --defrag 20

With --protocol inflation pods are drawn from the list in random order until they ask for a
share of the cluster (--arrive); each is placed by the scheduler's own engine or dropped, and
never leaves (Weng et al., USENIX ATC 2023). With --protocol timed all come once, at their
times, and leave when they have run. Pods that find no place wait; whenever a pod leaves they
are tried again, by priority, then by arrival. Nothing is random: nodes of equal cost are taken
in the order in which a cluster's scheduler takes them.

With --protocol queue each row is a job. One of more GPUs than any node has is a gang: members as
large as the largest node and one for the rest, which start together. Each tenant has a quota.
Only `sublet` evicts, for quotas that others have borrowed; an evicted job loses its work, and
starts again from the beginning. A wait lasts until the start of the run in which the job ended.
No discipline knows how long a job runs. All place by the same policy; the rules of other
projects are implemented again here, and say so.

With --snapshot running pods stay where they are and count as arrived: with --arrive 130, they
and new ones together ask for 130 % of the GPUs. Taints and node selectors close nodes to pods.
The policy learns running pods first, as when a scheduler starts. Without --pods new ones are
drawn from the pods that run or wait, except static ones and those of DaemonSets; --placements
counts them from 0, in the order of the files.

With --defrag each pod fits at its new place before it leaves the old one. Moves that empty a
GPU come first, then those that make room for a larger pod. Static pods, pods of DaemonSets and
pods without a controller are not moved.

FILES (plain or gzip; other columns are ignored)
  CSV with a header line, or JSON with the same names: an array of objects, or an object on
  each line. Numbers may stand in strings; what is missing or null is empty.
  nodes  sn or name, cpu_milli, memory_mib, gpu or num_gpu, model (optional),
         gpu_memory_mib (optional)
  pods   num_gpu or num_gpus; the rest is optional: name, cpu_milli and memory_mib, gpu_milli
         (of each GPU; empty for whole ones), gpu_spec (models, A|B), priority; with
         gpu_memory_mib in both lists, parts of GPUs are asked in MiB
         for --protocol timed: creation_time or timestamp (seconds, or YYYY-MM-DD hh:mm:ss),
         and duration (seconds) or deletion_time
         for --protocol queue also: tenant or cluster (without it, `default`)
  quotas tenant or cluster, gpus (GPUs that are the tenant's own); every tenant of the jobs

EXIT CODES
  0  done        1  the accounts did not add up: a bug        2  bad arguments or input")]
pub struct Args {
    /// The cluster, as a list of its nodes
    #[arg(long, value_name = "FILE", required_unless_present = "snapshot")]
    nodes: Option<PathBuf>,
    /// The cluster as it runs, in place of --nodes: Kubernetes objects as for `sublet plan`,
    /// YAML or JSON; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "nodes")]
    snapshot: Option<PathBuf>,
    /// The pods that arrivals are drawn from; with --snapshot, unless given, the pods in it
    #[arg(long, value_name = "FILE", required_unless_present = "snapshot")]
    pods: Option<PathBuf>,
    /// Add copies of one node, called NODE-copy-1 and so on, to see the effect of a larger cluster.
    /// Can be given several times
    #[arg(long, value_name = "10xNODE")]
    add: Vec<Add>,
    /// List at most this many moves of pods that free whole GPUs or make room for larger pods, and
    /// the gain of each move. Nothing is moved. With --snapshot the cluster is taken as it runs,
    /// unless --arrive is given too
    #[arg(long, value_name = "MOVES", conflicts_with_all = ["placements", "plot"])]
    defrag: Option<usize>,
    /// Unit of aliyun.com/gpu-mem in a snapshot, MiB or GiB
    #[arg(long, default_value_t, conflicts_with = "nodes")]
    memory_unit: Unit,
    /// Order of arrival and ranks of nodes, in place of --seed and --arrive
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "arrive"])]
    sequence: Option<PathBuf>,
    #[arg(
        long, value_name = "POLICY", default_values_t = [Policy::default()],
        help = Policy::help("How to place; can be given several times")
    )]
    policy: Vec<Policy>,
    /// Protocol by which pods come and go
    #[arg(long, value_enum, default_value_t)]
    protocol: Protocol,
    /// Scale the times of arrival until pods ask for this share of the cluster's GPU time between
    /// the first arrival and the last, such as 0.9; goes with --protocol timed and queue
    #[arg(long, value_name = "SHARE")]
    load: Option<Load>,
    /// With --protocol queue, discipline of the queue; can be given several times [default: all]
    #[arg(long, value_name = "DISCIPLINE", value_parser = queue::discipline())]
    discipline: Vec<&'static dyn Discipline>,
    /// With --protocol queue, quotas of the tenants. Without it, each tenant's share of the cluster
    /// is its share of all GPU time that the jobs ask
    #[arg(long, value_name = "FILE")]
    quotas: Option<PathBuf>,
    /// With --protocol queue, least time between two decisions, in seconds of the trace; 0 decides
    /// at each arrival and each end [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    interval: Option<u64>,
    /// Seeds of the order of arrival, such as 42-51 or 1,2,5 [default: 42]
    #[arg(long, value_name = "SEEDS")]
    seed: Option<Seeds>,
    /// Amount of requests that arrive, in percent of the cluster's GPUs; running pods of a snapshot
    /// count [default: 130]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=1000))]
    arrive: Option<u32>,
    /// Scheduler of pods without GPU: the policy, as when they name Sublet's scheduler, or the
    /// stock scheduler, which spreads them
    #[arg(long, value_name = "WHO", value_enum, default_value_t)]
    cpu_only_pods: CpuOnlyPodsArg,
    /// Write each pod's place, a line for each arrival. Needs exactly one run
    #[arg(long, value_name = "FILE")]
    placements: Option<PathBuf>,
    /// Draw the curves of all policies
    #[arg(long, value_name = "FILE.svg|.html")]
    plot: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Leave out times and memory: the same input then gives the same bytes
    #[arg(long)]
    no_timing: bool,
    /// Treatment of lines that cannot be used
    #[arg(long, value_enum, default_value_t)]
    bad_lines: BadLinesArg,
    /// Runs at once [default: one per core]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
}

/// Answers `sublet simulate`.
///
/// # Errors
/// A file that cannot be read or written, or has something wrong in it.
pub fn run(args: &Args) -> anyhow::Result<Answer> {
    match simulate(args) {
        Err(error)
            if error.is::<input::BadInput>()
                || error.is::<runs::BadRequest>()
                || error.is::<what_if::AddError>()
                || error.is::<plot::NoKind>() =>
        {
            Ok(Answer {
                notes: vec![crate::answer::error_text(&error).trim_end().to_owned()],
                code: BAD_INPUT,
                ..Answer::default()
            })
        }
        Err(error) => {
            let BadObjects(lines) = error.downcast()?;
            Ok(Answer {
                notes: lines.iter().map(|line| format!("error: {line}")).collect(),
                code: BAD_INPUT,
                ..Answer::default()
            })
        }
        answer => answer,
    }
}

impl Args {
    /// Refuses options that have no meaning with the protocol.
    fn check_protocol(&self) -> Result<(), runs::BadRequest> {
        let wrong = |(flag, good, _): &&(&'static str, &[Protocol], &str)| {
            self.is_given(flag) && !good.contains(&self.protocol)
        };
        match PICKY.iter().find(wrong) {
            Some(&(flag, _, why)) => Err(runs::BadRequest::Protocol {
                flag,
                protocol: self.protocol.word(),
                why,
            }),
            None => Ok(()),
        }
    }

    /// Is one of the flags of [`PICKY`] there?
    fn is_given(&self, flag: &str) -> bool {
        match flag {
            "--load" => self.load.is_some(),
            "--sequence" => self.sequence.is_some(),
            "--seed" => self.seed.is_some(),
            "--arrive" => self.arrive.is_some(),
            "--defrag" => self.defrag.is_some(),
            "--placements" => self.placements.is_some(),
            "--plot" => self.plot.is_some(),
            "--snapshot" => self.snapshot.is_some(),
            "--discipline" => !self.discipline.is_empty(),
            "--quotas" => self.quotas.is_some(),
            "--interval" => self.interval.is_some(),
            _ => self.cpu_only_pods == CpuOnlyPodsArg::Stock,
        }
    }
}

fn simulate(args: &Args) -> anyhow::Result<Answer> {
    args.check_protocol()?;
    let input = Input::read(args)?;
    if args.protocol == Protocol::Queue {
        return queue::answer(args, input);
    }
    let plan = runs::plan(args)?;
    if args.placements.is_some() && plan.len() != 1 {
        let (flag, runs) = ("--placements", plan.len());
        return Err(runs::BadRequest::Several { flag, runs }.into());
    }
    let kind = args.plot.as_deref().map(plot::Kind::of).transpose()?;
    if args.protocol == Protocol::Timed {
        return timed::answer(args, &plan, input, kind);
    }
    if let Some(most) = args.defrag {
        return defrag::answer(args, &input, &plan, most);
    }
    let runs = runs::perform(args, &input, &plan);
    if let Some(file) = &args.placements {
        let text = print::placements(&input, &runs[0]);
        write(file, &text)?;
    }
    if let (Some(file), Some(kind)) = (&args.plot, kind) {
        write(file, &plot::chart(&runs).draw(kind))?;
    }
    let text = match args.output {
        Output::Table => print::table(&input, &runs, !args.no_timing),
        Output::Json => print::json(&runs, !args.no_timing)?,
        Output::Csv => print::csv(&runs),
    };
    let notes = input.notes;
    Ok(Answer {
        text,
        notes,
        ..Answer::default()
    })
}

fn write(file: &std::path::Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
