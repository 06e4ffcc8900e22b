//! `sublet plan`: where would these pods go? The scheduler's engine on files, no cluster.
//!
//! Reads nothing but the files named, writes nothing but its answer.

mod coming;
mod input;
mod print;
mod schedule;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;

use coming::Arrival;
pub use input::{Input, Located, Origin, Unreadable};
use print::Printing;
use schedule::{Plan, PlanOptions, plan};
pub(crate) use schedule::{name_of, settle};
use sublet_api::flags::{self, QueueRuleArgs};
use sublet_model::Unit;
use sublet_plan::Policy;

use crate::answer::{BAD_INPUT, Format, print_notes, to_stdout};
use crate::queue::{self, ScopeArgs};

/// Arguments of `sublet plan`.
#[derive(Debug, clap::Args)]
#[command(group = QueueRuleArgs::need_queue())]
#[command(after_help = "\
EXAMPLES
  sublet plan -f cluster.yaml -f new-pods.yaml
  kubectl get nodes,pods -A -o yaml | sublet plan -f - -f new-pods.yaml -o json
  sublet plan -f cluster.yaml --policy spread --show-annotations
  sublet plan -f cluster.yaml -f job.yaml --queue    jobs, gangs and quotas

Input are Kubernetes objects as kubectl prints them, YAML or JSON, many documents and lists
too: nodes, pods that run (spec.nodeName, annotations), pods that wait. A Deployment,
StatefulSet, ReplicaSet, DaemonSet or job without creationTimestamp is planned by the pods
that it will have; of one in the cluster its pods count. PriorityClasses give new pods their
numbers. If a file leaves out a node's CPU, memory or number of pods, these are unlimited.

Waiting pods of the cluster (with creationTimestamp) come first, by priority, then age. New
ones come after them one by one, in the order of the files; with --arrival together all come
at once, by priority.

A pod is placed where the stock scheduler with Sublet's extender would place it: by GPUs,
resources, pods per node, host ports, node selector and node affinity, taints, cordons, by
what ResourceQuotas say of GPUs (limits.nvidia.com/gpumem and gpucores), and by the scores of
both. What plan does not look at makes a pod conditional, with the reason:
pod affinity and anti-affinity (of running pods, too), hard topology spread, volumes that may
belong to some nodes, resource claims, eviction of pods of lower priority, and a scheduler
that does not ask Sublet. Its place is kept for it while the pods after it are placed.

A pod without creationTimestamp is not created yet: it is planned with the slot resource
that the webhook of `sublet controller` adds, and a note says so.

If the scheduler would pick one of several nodes with equal scores at random, plan names one,
and lists the others under alternatives. A policy that learns (tiling, fgd-online) knows only
the pods in the files, and new ones as --arrival says. In a cluster it also remembers pods
that have gone, and may prefer another of the places that fit.

An object that cannot be read is named with file, document and field, and all others are
planned.

EXIT CODES
  0  every waiting pod is placed, but for those held back by a scheduling gate
  1  something is not placed, or conditional, or may be a waiting pod that cannot be read
  2  bad arguments, a file that cannot be read or has nothing in it; with --strict also any
     object that cannot be read")]
pub struct Args {
    /// File with Kubernetes objects; - is standard input. Can be given several times
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    file: Vec<PathBuf>,
    /// Output format of the plan
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Policy among places that fit, or a mix, such as fgd=0.7,best-fit=0.3
    #[arg(long, default_value_t, value_name = "POLICY", value_parser = flags::policy())]
    policy: Policy,
    /// Order in which new pods come to the scheduler. Waiting pods of the cluster are there from
    /// the start
    #[arg(long, value_enum, default_value_t, conflicts_with = "queue")]
    arrival: Arrival,
    /// Unit of aliyun.com/gpu-mem, MiB or GiB
    #[arg(long, default_value_t, value_parser = flags::unit())]
    memory_unit: Unit,
    /// A scheduler that asks Sublet; can be given several times
    #[arg(long, value_name = "NAME", default_value = "sublet-scheduler")]
    scheduler_name: Vec<String>,
    /// With --queue: scheduler for GPU pods that name none, as set for the controller
    #[arg(long, value_name = "NAME", requires = "queue")]
    assign_scheduler: Option<String>,
    #[command(flatten)]
    queue_rules: QueueRuleArgs,
    /// Show the annotations that each pod would get (JSON and YAML always have them)
    #[arg(long)]
    show_annotations: bool,
    /// Plan as the queue does: quotas, jobs and gangs whose pods start together or not at all.
    /// Shows each group's places, the pods it would evict, and why other groups wait, as `sublet
    /// queue -f` does
    #[arg(long, conflicts_with_all = ["show_annotations", "strict"])]
    queue: bool,
    /// Exit with 2 if any object cannot be read
    #[arg(long)]
    strict: bool,
}

/// Answers `sublet plan` and returns the exit code. Files that cannot be read are in the answer.
///
/// # Errors
/// The clock stands before 1970, or standard output cannot be written.
pub fn run(args: &Args) -> anyhow::Result<u8> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("this machine's clock stands before 1970")?;
    let input = Input::of_files(&args.file);
    if args.queue {
        let scope = ScopeArgs {
            kubeconfig: None,
            scheduler_name: args.scheduler_name.clone(),
            memory_unit: args.memory_unit,
            assign_scheduler: args.assign_scheduler.clone(),
            policy: args.policy.clone(),
            queue_rules: args.queue_rules.clone(),
        };
        return queue::planned(input, &scope, args.output)?.print();
    }
    let options = PlanOptions {
        policy: args.policy.clone(),
        arrival: args.arrival,
        unit: args.memory_unit,
        schedulers: args.scheduler_name.clone(),
        now_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
    };
    let how = Printing {
        format: args.output,
        annotations: args.show_annotations,
        strict: args.strict,
    };
    let planned = Planned::of(input, &options, how);
    print_notes(&planned.notes);
    to_stdout(|out| planned.write(out))?;
    Ok(planned.code)
}

/// The answer. Its text is made while it is written, because a plan for a full cluster has a line
/// for each pod and node.
struct Planned {
    /// `None` if nothing could be read.
    plan: Option<Plan>,
    how: Printing,
    notes: Vec<String>,
    code: u8,
}

impl Planned {
    /// The plan for the input, with its faults.
    fn of(mut input: Input, options: &PlanOptions, how: Printing) -> Planned {
        coming::expand(&mut input);
        let quotas = input.quotas.iter();
        let passed = quotas.map(|quota| passed_over(&quota.origin));
        input.notes.extend(passed);
        let passed: Vec<String> = input.queued.iter().map(queue_only).collect();
        input.notes.extend(passed);
        let mut notes = std::mem::take(&mut input.notes);
        if input.is_hopeless() {
            let odd = input.unreadable.iter().map(|odd| format!("error: {odd}"));
            let errors = input.errors.iter().map(|error| format!("error: {error}"));
            notes.extend(odd.chain(errors));
            return Planned {
                plan: None,
                how,
                notes,
                code: BAD_INPUT,
            };
        }
        let plan = plan(input, options);
        let (more, code) = print::verdict(&plan, how);
        notes.extend(more);
        Planned {
            plan: Some(plan),
            how,
            notes,
            code,
        }
    }

    fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        match &self.plan {
            Some(plan) => print::write(plan, self.how, out),
            None => Ok(()),
        }
    }
}

/// Note about a quota, for commands that do not use quotas.
pub(crate) fn passed_over(origin: &Origin) -> String {
    format!("note: {origin}: passed over, its kind is ElasticQuota; `sublet quota plan` reads it")
}

/// Note about an object that only the queue reads.
pub(crate) fn queue_only(object: &Located<serde_json::Value>) -> String {
    let kind = object.object["kind"].as_str().unwrap_or("(none)");
    format!(
        "note: {}: passed over, its kind is {kind}; `sublet queue -f` reads it",
        object.origin
    )
}
