//! `sublet inspect` and `kubectl inspect gpushare`: show the users of each card.
//!
//! Reads nodes and pods of a live cluster once and prints; it changes nothing.

mod json;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod view;

use std::path::PathBuf;

use clap::ValueEnum;
use sublet_api::flags;
use sublet_api::object::{Node, Pod};
use sublet_client::{Nodes, Pods, list};
use sublet_model::Unit;

use crate::answer::{Advised, Answer, DONE, api_error, connected, document};
use crate::top;

/// Output format of `sublet inspect`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum InspectFormat {
    /// As `kubectl inspect gpushare` always did: nodes that share by memory.
    #[default]
    Table,
    /// A line per GPU: health, sharing, identity tier, UUID; whole-GPU nodes too.
    Wide,
    /// For programs; memory always in MiB.
    Json,
    /// For programs, readable.
    Yaml,
}

/// Arguments of `sublet inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet inspect                     a line per node
  sublet inspect -d gpu-node-1       the pods of one node
  sublet inspect -o wide             a line per GPU, whole-GPU nodes too
  sublet inspect -o wide gpu-node-1  and what each container there uses now, by its agent
  sublet inspect -o json | jq '.nodes[] | {name, free: (.memoryMiB - .grantedMiB)}'
  kubectl inspect gpushare -d        the same, as a kubectl plugin

EXIT CODES
  0  printed
  1  no such node, or the API server cannot be asked
  2  wrong arguments")]
pub struct Args {
    /// Only this node
    #[arg(value_name = "NODE")]
    node: Option<String>,
    /// A line per pod (table only; the other forms have every pod anyway)
    #[arg(short)]
    details: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: InspectFormat,
    /// The kubeconfig file; otherwise KUBECONFIG or ~/.kube/config, as kubectl does
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Unit of aliyun.com/gpu-mem on nodes without an agent, MiB or GiB. Otherwise it is guessed:
    /// more than 100 a GPU are MiB
    #[arg(long, value_parser = flags::unit())]
    memory_unit: Option<Unit>,
}

/// Answers `sublet inspect`.
///
/// # Errors
/// The API server cannot be asked, or there is no such node.
pub async fn run(args: &Args) -> anyhow::Result<Answer> {
    let client = connected(args.kubeconfig.as_deref(), Some("plan")).await?;
    let (node_field, pod_field) = match &args.node {
        Some(name) => (
            Some(format!("metadata.name={name}")),
            Some(format!("spec.nodeName={name}")),
        ),
        None => (None, None),
    };
    let nodes = list::<Nodes>(&client, node_field.as_deref())
        .await
        .map_err(|error| api_error("cannot list nodes", error))?;
    if let Some(name) = args.node.as_ref().filter(|_| nodes.is_empty()) {
        return Err(Advised::new(
            format!("there is no node {name}"),
            "`kubectl get nodes` lists them; without a name all are shown",
        )
        .into());
    }
    let pods = list::<Pods>(&client, pod_field.as_deref())
        .await
        .map_err(|error| api_error("cannot list pods", error))?;
    let mut answer = print(&nodes, &pods, args.memory_unit, args.output, args.details)?;
    if let (InspectFormat::Wide, Some(node)) = (args.output, &args.node) {
        // What the cluster knows is shown without it.
        match top::node::look(&client, node).await {
            Ok(containers) => answer.text += &format!("\nmeasured by the agent:\n{containers}"),
            Err(error) => answer.notes.push(format!("use is not shown: {error}")),
        }
    }
    Ok(answer)
}

/// Answer of `sublet inspect` for these nodes and pods. `unit` applies to nodes that do not say
/// their unit; `None` guesses it.
///
/// # Errors
/// None that can happen: every view can be written.
pub fn print(
    nodes: &[Node],
    pods: &[Pod],
    unit: Option<Unit>,
    format: InspectFormat,
    details: bool,
) -> anyhow::Result<Answer> {
    let view = view::view(nodes, pods, unit);
    let text = match format {
        InspectFormat::Table if details => table::details(&view),
        InspectFormat::Table => table::summary(&view),
        InspectFormat::Wide => table::wide(&view),
        InspectFormat::Json => document(&json::inspect(&view), false)?,
        InspectFormat::Yaml => document(&json::inspect(&view), true)?,
    };
    Ok(Answer {
        text,
        notes: view.notes,
        code: DONE,
    })
}
