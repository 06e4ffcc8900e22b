//! `sublet top`: a machine's cards and jobs, once or live; with `--node`, the cards and jobs of a
//! cluster's node, through its agent.

mod columns;
mod keys;
mod live;
pub mod node;
mod screen;
mod signals;

use std::io::IsTerminal;
use std::path::PathBuf;

use sublet_arbiter::admin::Snapshot;

use crate::answer::{Answer, DONE, Format, document};
use crate::jobs;
use crate::look;
use crate::machine::{Machine, MachineArgs};

/// Arguments of `sublet top`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet top                         live, until q or Ctrl-C
  sublet top --once                  print and end
  sublet top --fake-gpu 2x16GiB      a fake machine
  sublet top --node gpu-node-1       a node of a cluster, through its agent
  sublet top --node gpu-node-1 --history -o json    an hour of it, each ten seconds
  sublet top --once -o json | jq '.gpus[] | {gpu, freeMiB}'

Without a terminal, and for programs (-o json, -o yaml), it prints once. NO_COLOR is heeded.
It starts nothing. Where no arbiter runs that this user may ask, it reads the driver.
A GPU's `contextMiB` and `packing` are then left out of its JSON, as where an arbiter could not
measure them.

EXIT CODES
  0  printed, or ended by the user
  1  no driver, or an arbiter that does not answer; no agent on that node, or no right to it
  2  wrong arguments")]
pub struct Args {
    /// Print and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    machine: MachineArgs,
    /// This node of the cluster, as its agent sees it; prints once
    #[arg(long, value_name = "NODE", conflicts_with = "fake_gpu")]
    node: Option<String>,
    /// Also show the usage of each container over the last hour
    #[arg(long, requires = "node")]
    history: bool,
    /// The kubeconfig file; otherwise KUBECONFIG or ~/.kube/config, as kubectl does
    #[arg(long, value_name = "FILE", requires = "node")]
    kubeconfig: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl Args {
    /// The node of a cluster that is asked about, if it is one.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }
}

/// Answers `sublet top`; live, the answer is empty when the user has seen enough.
///
/// # Errors
/// There is no driver, or an arbiter that does not answer; live, the terminal cannot be used.
pub fn run(args: &Args) -> anyhow::Result<Answer> {
    let machine = Machine::of(&args.machine)?;
    let is_live = args.output == Format::Table
        && !args.once
        && std::io::stdout().is_terminal()
        && std::io::stdin().is_terminal();
    if is_live {
        live::show(&machine)?;
        return Ok(Answer::default());
    }
    let look = look::at(&machine)?;
    Ok(Answer {
        text: print(&look.snapshot, args.output)?,
        notes: look.note.into_iter().collect(),
        code: DONE,
    })
}

/// A machine in text. Programs get the arbiter's own form: fields are added, never renamed or taken
/// away.
fn print(snapshot: &Snapshot, format: Format) -> anyhow::Result<String> {
    match format {
        Format::Table => Ok(jobs::text(snapshot, true)),
        Format::Json => document(snapshot, false),
        Format::Yaml => document(snapshot, true),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::jobs::tests::{example, example_of_shares};

    /// Table and JSON of an example.
    pub(crate) fn answers() -> Vec<[String; 2]> {
        let of = |form| print(&example_of_shares(), form).unwrap();
        vec![[Format::Table, Format::Json].map(of)]
    }

    /// These names are a promise: scripts read them.
    #[test]
    fn programs_find_the_promised_fields() {
        let json = print(&example(), Format::Json).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let gpu = json["gpus"][0].as_object().unwrap();
        for field in [
            "gpu",
            "uuid",
            "memoryMiB",
            "usedMiB",
            "grantedMiB",
            "freeMiB",
        ] {
            assert!(gpu.contains_key(field), "{field}: {gpu:?}");
        }
        let job = json["jobs"][0].as_object().unwrap();
        for field in [
            "id",
            "name",
            "pids",
            "gpus",
            "requestMiB",
            "limitMiB",
            "usedMiB",
            "pinnedLimitMiB",
            "pinnedUsedMiB",
            "state",
        ] {
            assert!(job.contains_key(field), "{field}: {job:?}");
        }
        let expected = serde_json::json!([11, 12]);
        assert_eq!(json["jobs"][0]["pids"], expected);
        assert_eq!(json["jobs"][3]["id"], serde_json::Value::Null);
    }

    #[test]
    fn people_see_cards_and_jobs() {
        let text = print(&example(), Format::Table).unwrap();
        assert!(text.starts_with("GPU  MODEL"), "{text}");
        assert!(text.contains("\n\nID  NAME"), "{text}");
    }
}
