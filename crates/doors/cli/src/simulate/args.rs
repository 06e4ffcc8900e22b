//! Arguments of `sublet simulate`, and the requests that make no sense.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use sublet_api::flags;
use sublet_model::Unit;
use sublet_plan::Policy;
use sublet_queue::QueueProfile;
use sublet_sim::{DISCIPLINES, Discipline, ReplayError, RunTimes, TimedError};

use super::load::Load;
use super::seeds::Seeds;
use super::what_if::Add;

/// Format of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum Output {
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
pub(super) enum Protocol {
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
pub(super) enum BadLinesArg {
    /// Stop at the first.
    #[default]
    Stop,
    /// Leave them out, and print their number.
    Count,
}

/// [`RunTimes`] on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum RunTimesArg {
    /// It knows nothing.
    #[default]
    Unknown,
    /// It guesses by the last jobs of the same quota and size that have ended.
    Learnt,
    /// Each job says it, and is right.
    Declared,
}

impl From<RunTimesArg> for RunTimes {
    fn from(arg: RunTimesArg) -> RunTimes {
        match arg {
            RunTimesArg::Unknown => RunTimes::Unknown,
            RunTimesArg::Learnt => RunTimes::Learnt,
            RunTimesArg::Declared => RunTimes::Declared,
        }
    }
}

/// [`sublet_sim::CpuOnlyPods`] on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum CpuOnlyPodsArg {
    /// The policy.
    #[default]
    Policy,
    /// The stock scheduler, by its own scores.
    Stock,
}

/// Flags that go with some protocols: with which, and why not with the others.
#[rustfmt::skip]
const PICKY: [(&str, &[Protocol], &str); 16] = {
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
        ("--queue-profile", &[Queue], "only a queue has it"),
        ("--min-within", &[Queue], "only a queue has it"),
        ("--checkpoint-every", &[Queue], "only a queue has it"),
        ("--run-times", &[Queue], "only a queue has it"),
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
No discipline but `easy` knows how long a job runs. All place by the same policy; the rules of
other projects are implemented again here, and say so. Each quota is compared with a partition of
its own: nodes for its min, rounded up to whole ones, on which its jobs start by backfill. The
sharing incentive counts quotas with a min of 4 GPUs and more that wait on average no longer than
there; the lag is GPU time that the partition had given by then, in time of the min. Slowdowns are
bounded by a run time of 10 s (Feitelson).

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
    pub(super) nodes: Option<PathBuf>,
    /// The cluster as it runs, in place of --nodes: Kubernetes objects as for `sublet plan`,
    /// YAML or JSON; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "nodes")]
    pub(super) snapshot: Option<PathBuf>,
    /// The pods that arrivals are drawn from; with --snapshot, unless given, the pods in it
    #[arg(long, value_name = "FILE", required_unless_present = "snapshot")]
    pub(super) pods: Option<PathBuf>,
    /// Add copies of one node, called NODE-copy-1 and so on, to see the effect of a larger cluster.
    /// Can be given several times
    #[arg(long, value_name = "10xNODE")]
    pub(super) add: Vec<Add>,
    /// List at most this many moves of pods that free whole GPUs or make room for larger pods, and
    /// the gain of each move. Nothing is moved. With --snapshot the cluster is taken as it runs,
    /// unless --arrive is given too
    #[arg(long, value_name = "MOVES", conflicts_with_all = ["placements", "plot"])]
    pub(super) defrag: Option<usize>,
    /// Unit of aliyun.com/gpu-mem in a snapshot, MiB or GiB
    #[arg(long, default_value_t, value_parser = flags::unit(), conflicts_with = "nodes")]
    pub(super) memory_unit: Unit,
    /// Order of arrival and ranks of nodes, in place of --seed and --arrive
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "arrive"])]
    pub(super) sequence: Option<PathBuf>,
    /// How to place: a policy, or a mix, such as fgd=0.7,best-fit=0.3; can be given several times
    #[arg(long, value_name = "POLICY", default_values_t = [Policy::default()],
          value_parser = flags::policy())]
    pub(super) policy: Vec<Policy>,
    /// Protocol by which pods come and go
    #[arg(long, value_enum, default_value_t)]
    pub(super) protocol: Protocol,
    /// Scale the times of arrival until pods ask for this share of the cluster's GPU time between
    /// the first arrival and the last, such as 0.9; goes with --protocol timed and queue
    #[arg(long, value_name = "SHARE")]
    pub(super) load: Option<Load>,
    /// With --protocol queue, discipline of the queue; can be given several times [default: all]
    #[arg(long, value_name = "DISCIPLINE", value_parser = discipline())]
    pub(super) discipline: Vec<&'static dyn Discipline>,
    /// With --protocol queue, quotas of the tenants. Without it, each tenant's share of the cluster
    /// is its share of all GPU time that the jobs ask
    #[arg(long, value_name = "FILE")]
    pub(super) quotas: Option<PathBuf>,
    /// With --protocol queue, least time between two decisions, in seconds of the trace; 0 decides
    /// at each arrival and each end [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub(super) interval: Option<u64>,
    /// With --protocol queue, profile of this queue
    #[arg(long, value_name = "PROFILE", value_parser = flags::queue_profile())]
    pub(super) queue_profile: Option<QueueProfile>,
    /// With --protocol queue, seconds within which a job has its place that the min of its tenant
    /// has room for, by the profiles that keep such a time [default: 3600]
    #[arg(long, value_name = "SECONDS")]
    pub(super) min_within: Option<u64>,
    /// With --protocol queue, jobs write a checkpoint each time so many seconds of their run have
    /// passed, and lose no more if they are evicted
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) checkpoint_every: Option<u64>,
    /// With --protocol queue, knowledge of how long jobs run that Sublet's queue has [default:
    /// unknown]
    #[arg(long, value_name = "KNOWN", value_enum)]
    pub(super) run_times: Option<RunTimesArg>,
    /// Seeds of the order of arrival, such as 42-51 or 1,2,5 [default: 42]
    #[arg(long, value_name = "SEEDS")]
    pub(super) seed: Option<Seeds>,
    /// Amount of requests that arrive, in percent of the cluster's GPUs; running pods of a snapshot
    /// count [default: 130]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(super) arrive: Option<u32>,
    /// Scheduler of pods without GPU: the policy, as when they name Sublet's scheduler, or the
    /// stock scheduler, which spreads them
    #[arg(long, value_name = "WHO", value_enum, default_value_t)]
    pub(super) cpu_only_pods: CpuOnlyPodsArg,
    /// Write each pod's place, a line for each arrival. Needs exactly one run
    #[arg(long, value_name = "FILE")]
    pub(super) placements: Option<PathBuf>,
    /// Draw the curves of all policies
    #[arg(long, value_name = "FILE.svg|.html")]
    pub(super) plot: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: Output,
    /// Leave out times and memory: the same input then gives the same bytes
    #[arg(long)]
    pub(super) no_timing: bool,
    /// Treatment of lines that cannot be used
    #[arg(long, value_enum, default_value_t)]
    pub(super) bad_lines: BadLinesArg,
    /// Runs at once [default: one per core]
    #[arg(short = 'j', long, value_name = "N")]
    pub(super) threads: Option<NonZeroUsize>,
}

/// Reads the name of a discipline.
fn discipline() -> impl TypedValueParser<Value = &'static dyn Discipline> {
    let value =
        |known: &&'static dyn Discipline| PossibleValue::new(known.name()).help(known.about());
    let values = DISCIPLINES.iter().map(value);
    // The parser lets no other name pass.
    PossibleValuesParser::new(values).map(|name| {
        let mut all = DISCIPLINES.iter().copied();
        let known = all.find(|known| known.name() == name);
        known.unwrap_or(DISCIPLINES[0])
    })
}

/// A request that makes no sense.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadRequest {
    #[error("{flag} needs exactly one run, and these arguments ask for {runs}")]
    Several { flag: &'static str, runs: usize },
    #[error("--defrag answers as a table or as JSON")]
    NoCsv,
    #[error("policy {0} is given twice")]
    Twice(String),
    #[error("{flag} has no meaning with --protocol {protocol}: {why}")]
    Protocol {
        flag: &'static str,
        protocol: &'static str,
        why: &'static str,
    },
    #[error("--protocol timed: {0}")]
    Timed(#[from] TimedError),
    #[error("--protocol queue: {0}")]
    Replay(#[from] ReplayError),
    #[error("discipline {0} is given twice")]
    DisciplineTwice(&'static str),
    #[error("--protocol queue compares disciplines, which all place by one policy; {0} are given")]
    Policies(usize),
}

impl Args {
    /// Refuses options that have no meaning with the protocol.
    pub(super) fn check_protocol(&self) -> Result<(), BadRequest> {
        let wrong = |(flag, good, _): &&(&'static str, &[Protocol], &str)| {
            self.is_given(flag) && !good.contains(&self.protocol)
        };
        match PICKY.iter().find(wrong) {
            Some(&(flag, _, why)) => Err(BadRequest::Protocol {
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
            "--queue-profile" => self.queue_profile.is_some(),
            "--min-within" => self.min_within.is_some(),
            "--checkpoint-every" => self.checkpoint_every.is_some(),
            "--run-times" => self.run_times.is_some(),
            _ => self.cpu_only_pods == CpuOnlyPodsArg::Stock,
        }
    }
}
