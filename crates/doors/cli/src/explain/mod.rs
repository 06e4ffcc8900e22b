//! `sublet explain pod NAME`: explains why a pod waits, or which GPUs it got. `sublet explain job
//! NAME` asks the queue.
//!
//! Reads nodes and pods of a live cluster once and answers with the scheduler's own engine;
//! it changes nothing.

mod print;
mod state;
#[cfg(test)]
pub(crate) mod tests;

use std::path::PathBuf;

use sublet_api::{flags, unhealthy_gpus};
use sublet_client::{ConfigMaps, Nodes, Pods, Quotas, list};
use sublet_model::Unit;

use state::{ClusterObjects, ExplainOptions};

use crate::answer::{Answer, DONE, Format, NOT_DONE, api_error, connected, document};
use crate::queue::{self, ScopeArgs};
use state::State;
use sublet_plan::Policy;

/// Arguments of `sublet explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet explain pod trainer-0
  sublet explain pod trainer-0 -n team-a -o json
  sublet explain job train           a Job or another kind, a PodGroup or a gang
  kubectl sublet explain pod trainer-0

EXIT CODES
  0  explained
  1  no such pod or job, or the API server cannot be asked
  2  wrong arguments")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

/// Object to explain.
#[derive(Debug, clap::Subcommand)]
enum What {
    /// Explain why a pod waits, or which GPUs it got
    Pod(PodArgs),
    /// Explain why a job or a gang waits in the queue, or where its members run
    Job(JobArgs),
}

/// Arguments of `sublet explain job`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet explain job train           a Job or another kind, a PodGroup or a gang
  sublet explain job train -n team-a -o json
  sublet explain job tfjob/team-a/train")]
struct JobArgs {
    /// The name of the job, PodGroup or gang; or all of it, such as tfjob/team-a/train
    #[arg(value_name = "GROUP")]
    name: String,
    /// Its namespace; otherwise the current context's
    #[arg(short, long)]
    namespace: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    #[command(flatten)]
    scope: ScopeArgs,
}

/// Arguments of `sublet explain pod`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet explain pod trainer-0
  sublet explain pod trainer-0 -n team-a -o json
  kubectl sublet explain pod trainer-0")]
struct PodArgs {
    /// The pod's name
    #[arg(value_name = "POD")]
    name: String,
    /// Its namespace; otherwise the current context's
    #[arg(short, long)]
    namespace: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// The kubeconfig file; otherwise KUBECONFIG or ~/.kube/config, as kubectl does
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// A scheduler that asks Sublet; can be given several times
    #[arg(long, value_name = "NAME", default_value = "sublet-scheduler")]
    scheduler_name: Vec<String>,
    /// Unit of aliyun.com/gpu-mem, MiB or GiB, as set for the scheduler
    #[arg(long, default_value_t, value_parser = flags::unit())]
    memory_unit: Unit,
}

/// Answers `sublet explain`.
///
/// # Errors
/// The API server cannot be asked.
pub async fn run(args: &Args) -> anyhow::Result<Answer> {
    let args = match &args.what {
        What::Pod(args) => args,
        What::Job(job) => {
            let namespace = job.namespace.as_deref();
            return queue::explain(&job.name, namespace, &job.scope, job.output).await;
        }
    };
    let client = connected(args.kubeconfig.as_deref(), Some("plan")).await?;
    let namespace = args.namespace.as_deref();
    let namespace = namespace.unwrap_or(client.default_namespace()).to_owned();
    let nodes = list::<Nodes>(&client, None)
        .await
        .map_err(|error| api_error("cannot list nodes", error))?;
    let pods = list::<Pods>(&client, None)
        .await
        .map_err(|error| api_error("cannot list pods", error))?;
    // The scheduler avoids the cards that an operator listed, and counts quotas. Without the right
    // to read these there is still an answer.
    let mut unread = Vec::new();
    let maps = list::<ConfigMaps>(&client, Some("metadata.namespace=kube-system")).await;
    let maps = maps.unwrap_or_else(|error| {
        unread.push(format!(
            "warning: lists of unhealthy GPUs cannot be read: {error}"
        ));
        Vec::new()
    });
    let of_it = format!("metadata.namespace={namespace}");
    let quotas = list::<Quotas>(&client, Some(&of_it)).await;
    let quotas = quotas.unwrap_or_else(|error| {
        unread.push(format!("warning: quotas cannot be read: {error}"));
        Vec::new()
    });
    let sick = maps.iter().filter_map(unhealthy_gpus).collect();
    let options = ExplainOptions {
        schedulers: args.scheduler_name.clone(),
        unit: args.memory_unit,
        policy: Policy::default(),
    };
    let objects = ClusterObjects {
        nodes,
        pods,
        sick,
        quotas,
    };
    let mut answer = explain_pod(&objects, &namespace, &args.name, &options, args.output)?;
    answer.notes.extend(unread);
    Ok(answer)
}

/// Explains why the pod waits, or which GPUs it got.
///
/// # Errors
/// None that can happen: every explanation can be written.
fn explain_pod(
    objects: &ClusterObjects,
    namespace: &str,
    name: &str,
    options: &ExplainOptions,
    format: Format,
) -> anyhow::Result<Answer> {
    let (state, mut notes) = state::state(objects, namespace, name, options);
    if let State::NotFound { similar } = &state {
        notes.push(format!("error: there is no pod {namespace}/{name}"));
        notes.push(if similar.is_empty() {
            "hint: `kubectl get pods -A` lists all pods; -n gives the namespace".to_owned()
        } else {
            format!("hint: similar names: {}", similar.join(", "))
        });
    }
    if let State::OtherScheduler { .. } = state {
        let ours = options.schedulers.join(" or ");
        notes.push(format!(
            "hint: set schedulerName: {ours} in the pod, or give --scheduler-name if that \
             scheduler does ask Sublet"
        ));
    }
    if let State::Bound {
        doubt: Some(doubt), ..
    }
    | State::Over {
        doubt: Some(doubt), ..
    } = &state
    {
        notes.push(format!("hint: {}", doubt.cure));
    }
    let found = !matches!(state, State::NotFound { .. });
    let text = match format {
        Format::Table if !found => String::new(),
        Format::Table => print::text(namespace, name, &state),
        Format::Json => document(&print::json(namespace, name, &state), false)?,
        Format::Yaml => document(&print::json(namespace, name, &state), true)?,
    };
    Ok(Answer {
        text,
        notes,
        code: if found { DONE } else { NOT_DONE },
    })
}
