//! `sublet plan`: where would these pods go? The scheduler's engine on files, no cluster.
//!
//! Reads nothing but the files named, writes nothing but its answer.

mod field;
mod input;
mod print;
mod schedule;
#[cfg(test)]
mod tests;

use std::io::Read;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;

pub use input::{Input, Located, Origin};
pub use print::print;
pub use schedule::{Plan, PlanOptions, plan};
pub(crate) use schedule::{bad_pod, settle};
use sublet_plan::Policy;

use crate::MemoryUnit;
use crate::answer::{Answer, BAD_INPUT, Format};

/// Arguments of `sublet plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet plan -f cluster.yaml -f new-pods.yaml
  kubectl get nodes,pods -A -o yaml | sublet plan -f - -f new-pods.yaml -o json
  sublet plan -f cluster.yaml --policy spread --show-annotations

Input are Kubernetes objects as kubectl prints them, YAML or JSON, many documents and lists
too: nodes, pods that run (spec.nodeName, annotations), pods that wait. Waiting pods are
taken by priority, then age, then order of the files. GPUs and hard taints decide; other
rules of the scheduler (CPU, affinity, volumes) are not looked at.

EXIT CODES
  0  every waiting pod is placed (gated ones aside)
  1  something is not placed
  2  bad input; a line for each bad object names file, document and field")]
pub struct Args {
    /// File with Kubernetes objects; - is standard input. Can be given several times
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    file: Vec<PathBuf>,
    /// How to print the plan
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// How to choose among places that fit
    #[arg(long, default_value_t, value_name = "POLICY")]
    policy: Policy,
    /// What one aliyun.com/gpu-mem is
    #[arg(long, value_enum, ignore_case = true, default_value_t)]
    memory_unit: MemoryUnit,
    /// Show the annotations that each pod would get (JSON and YAML always have them)
    #[arg(long)]
    show_annotations: bool,
}

/// Answers `sublet plan`.
///
/// # Errors
/// The clock stands before 1970. Files that cannot be read are in the answer.
pub fn run(args: &Args) -> anyhow::Result<Answer> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("this machine's clock stands before 1970")?;
    let mut input = Input::default();
    for file in &args.file {
        let name = if file.as_os_str() == "-" {
            "standard input".to_owned()
        } else {
            file.display().to_string()
        };
        match read(file) {
            Ok(text) => input.read(&name, &text),
            Err(error) => input
                .errors
                .push(format!("{name}: cannot be read: {error}")),
        }
    }
    let options = PlanOptions {
        policy: args.policy.clone(),
        unit: args.memory_unit.into(),
        now_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
    };
    answer(input, &options, args.output, args.show_annotations)
}

/// The plan for what was read, or what is wrong with it.
///
/// # Errors
/// None that can happen: every plan can be written.
pub fn answer(
    mut input: Input,
    options: &PlanOptions,
    format: Format,
    with_annotations: bool,
) -> anyhow::Result<Answer> {
    let mut notes = std::mem::take(&mut input.notes);
    match plan(input, options) {
        Ok(plan) => {
            let mut answer = print(&plan, format, with_annotations)?;
            notes.append(&mut answer.notes);
            Ok(Answer { notes, ..answer })
        }
        Err(errors) => {
            notes.extend(errors.iter().map(|error| format!("error: {error}")));
            Ok(Answer {
                text: String::new(),
                notes,
                code: BAD_INPUT,
            })
        }
    }
}

fn read(file: &PathBuf) -> std::io::Result<String> {
    if file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text)?;
        Ok(text)
    } else {
        std::fs::read_to_string(file)
    }
}
