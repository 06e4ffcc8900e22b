//! `sublet queue`: shows the jobs that wait for GPUs, their order, and the resources that would
//! start them.
//!
//! There are three kinds of queue: the jobs of this machine (`line`), a live cluster, and files.
//! The last two ask the queue's own engine (`forecast`).

mod forecast;
pub(crate) mod line;
mod live;
mod print;
mod promised;
#[cfg(test)]
pub(crate) mod tests;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use sublet_api::flags::{self, QueueRuleArgs};
use sublet_api::group::QueueScope;
use sublet_model::{Time, Unit};
use sublet_plan::Policy;

use crate::answer::{Answer, BAD_INPUT, Format};
use crate::machine::{Machine, MachineArgs};
use crate::paste;
use crate::plan::Input;
use forecast::ForecastOptions;
use print::{Printing, Shown};

/// Arguments of `sublet queue`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet queue                       who waits on this machine, and for what
  sublet queue --cluster             quotas and groups of the cluster of this kubeconfig
  kubectl get nodes,pods,pdb,namespaces,priorityclasses,jobs,podgroups,elasticquotas -A -o yaml |
      sublet queue -f -
  sublet queue --fake-gpu 2x16GiB    on a fake machine
  sublet queue -o json | jq '.waiting[] | {position, name, startsWhen}'

ON THIS MACHINE jobs of `sublet run` wait in one line: higher priority first, then users who
have less of the GPUs, then the order of arrival. Nobody passes the first of the line. Who has
waited ten minutes goes by age alone, before all others of its priority that have not. GPUS
are what a user's jobs have of all GPUs together: of each the larger of memory and
promised compute time. Several users share a line where root runs
`sublet agent --standalone --shared`.

IN A CLUSTER (--cluster, or files with -f) it shows what each quota has, and every group of
pods that starts together: those of Jobs and other kinds, of PodGroups and gangs, and single
pods. What it says of them is what the queue's engine decides for these objects now: which
start and where, and why the others wait, by the same flags as the controller was given. Room
that is kept, back-off, and since when a min has had room are the controller's and are not looked
at. Places of a GangPlan count as taken. Quotas with a
tree-id have their tree behind their name, and share what that has. A quota whose parent is not
there, or that is above itself, stands at the top, as the controller has it. Tables show amounts
as kubectl does; in JSON and YAML they are whole numbers: CPU in thousandths of a core, all else
in its base unit. LENT is what of its min a quota does not ask for, BORROWED what it uses beyond
it.

EXIT CODES
  0  printed
  1  no driver, or an arbiter that does not answer; no cluster; an object cannot be read
  2  wrong arguments, or files that cannot be read")]
pub struct Args {
    /// The cluster's, and not this machine's
    #[arg(long, conflicts_with_all = ["fake_gpu", "file"])]
    cluster: bool,
    /// File with Kubernetes objects; - is standard input. Can be given several times
    #[arg(
        short,
        long = "filename",
        value_name = "FILE",
        conflicts_with = "fake_gpu"
    )]
    file: Vec<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    scope: ScopeArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Options for the cluster and for the objects that count.
#[derive(Debug, clap::Args)]
pub(crate) struct ScopeArgs {
    /// The kubeconfig file; otherwise KUBECONFIG or ~/.kube/config, as kubectl does
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// A scheduler that asks Sublet; can be given several times
    #[arg(long, value_name = "NAME", default_value = "sublet-scheduler")]
    pub(crate) scheduler_name: Vec<String>,
    /// Unit of aliyun.com/gpu-mem, MiB or GiB
    #[arg(long, default_value_t, value_parser = flags::unit())]
    pub(crate) memory_unit: Unit,
    /// Scheduler for GPU pods that name none, as set for the controller. A namespace's label
    /// sublet.dev/assign-scheduler wins over it
    #[arg(long, value_name = "NAME")]
    pub(crate) assign_scheduler: Option<String>,
    /// Policy among places that fit, as the controller is told; or a mix, such as
    /// fgd=0.7,best-fit=0.3
    #[arg(long, default_value_t, value_name = "POLICY", value_parser = flags::policy())]
    pub(crate) policy: Policy,
    #[command(flatten)]
    pub(crate) queue_rules: QueueRuleArgs,
}

impl Args {
    /// Is a live cluster meant?
    #[must_use]
    pub fn is_of_cluster(&self) -> bool {
        self.cluster
    }
}

/// Answers `sublet queue` of this machine or of files.
///
/// # Errors
/// There is no driver, or an arbiter that does not answer.
pub fn run(args: &Args) -> anyhow::Result<Answer> {
    if let Some(file) = &args.scope.kubeconfig {
        return Ok(no_cluster_meant(file, args.file.is_empty()));
    }
    if args.file.is_empty() {
        return line::show(&Machine::of(&args.machine)?, args.output);
    }
    let shown = Shown::All { places: false };
    answer(Input::of_files(&args.file), &args.scope, args.output, shown)
}

/// The user names a cluster, and asks about something else.
fn no_cluster_meant(kubeconfig: &Path, of_machine: bool) -> Answer {
    let asked = match of_machine {
        true => "without --cluster the jobs of this machine are shown",
        false => "with -f the objects of files are shown",
    };
    let program = paste::program();
    let file = paste::word(kubeconfig);
    Answer {
        text: String::new(),
        notes: vec![
            format!("error: --kubeconfig names a cluster, and {asked}"),
            format!(
                "hint: `{program} queue --cluster --kubeconfig {file}` shows that cluster's queue"
            ),
        ],
        code: BAD_INPUT,
    }
}

/// Answers it of a live cluster.
///
/// # Errors
/// The API server cannot be asked.
pub async fn on_cluster(args: &Args) -> anyhow::Result<Answer> {
    let (input, _) = live::read(args.scope.kubeconfig.as_deref()).await?;
    let shown = Shown::All { places: false };
    answer(input, &args.scope, args.output, shown)
}

/// Answers `sublet plan --queue`.
///
/// # Errors
/// This machine's clock stands before 1970.
pub(crate) fn planned(input: Input, scope: &ScopeArgs, format: Format) -> anyhow::Result<Answer> {
    answer(input, scope, format, Shown::All { places: true })
}

/// Answers `sublet explain job`.
///
/// # Errors
/// The API server cannot be asked.
pub(crate) async fn explain(
    name: &str,
    namespace: Option<&str>,
    scope: &ScopeArgs,
    format: Format,
) -> anyhow::Result<Answer> {
    let (input, default) = live::read(scope.kubeconfig.as_deref()).await?;
    let namespace = namespace.unwrap_or(&default);
    answer(input, scope, format, Shown::One { namespace, name })
}

fn answer(
    input: Input,
    scope: &ScopeArgs,
    format: Format,
    shown: Shown<'_>,
) -> anyhow::Result<Answer> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("this machine's clock stands before 1970")?;
    let now = Time::from_ms(u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
    let options = ForecastOptions {
        scope: QueueScope {
            schedulers: scope.scheduler_name.iter().cloned().collect(),
            assign: scope.assign_scheduler.clone(),
            unit: scope.memory_unit,
        },
        policy: scope.policy.clone(),
        rules: scope.queue_rules.rules(),
        now,
    };
    let forecast = forecast::forecast(input, &options);
    print::answer(&forecast, Printing { format, now, shown })
}
