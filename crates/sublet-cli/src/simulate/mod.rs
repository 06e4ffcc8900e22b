//! `sublet simulate`: a trace through the scheduler's engine, no cluster.
//!
//! Runs of several policies and seeds go side by side; each is `sublet_sim::inflate`, which
//! is the engine and nothing else. What is here reads files, shows progress and prints.

mod compare;
mod input;
mod plot;
mod print;
mod runs;
mod seeds;
#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Context;
use clap::ValueEnum;
use sublet_plan::Policy;

use crate::answer::{Answer, BAD_INPUT};
use input::Input;
use seeds::Seeds;

/// How the answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs, whole.
    Json,
    /// For spreadsheets: a line for each run and percent of arrival.
    Csv,
}

/// What to do with lines that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum BadLines {
    /// Stop at the first.
    #[default]
    Stop,
    /// Leave them out, and say how many they were.
    Count,
}

/// Arguments of `sublet simulate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet simulate --nodes nodes.csv --pods pods.csv.gz
  sublet simulate --nodes nodes.csv --pods pods.csv --policy fgd --policy best-fit --seed 1-10
  sublet simulate --nodes nodes.csv --pods pods.csv --policy fgd=0.7,best-fit=0.3 --plot curves.svg
  sublet simulate --nodes nodes.csv --pods pods.csv --sequence order.gz --placements placed.txt

Pods are drawn from the list in random order until they ask for a share of the cluster
(--arrive); each is placed by the scheduler's own engine or dropped, and never leaves (Weng et
al., USENIX ATC 2023).

FILES (CSV with a header line, plain or gzip; other columns are passed over)
  nodes  sn or name, cpu_milli, memory_mib, gpu, model, gpu_memory_mib (optional)
  pods   name, cpu_milli, memory_mib, num_gpu, gpu_milli (of each GPU), gpu_spec (models, A|B);
         with gpu_memory_mib in both lists, parts of GPUs are asked in MiB

EXIT CODES
  0  done        2  bad arguments or input")]
pub struct Args {
    /// The cluster
    #[arg(long, value_name = "FILE")]
    nodes: PathBuf,
    /// The pods that arrivals are drawn from
    #[arg(long, value_name = "FILE")]
    pods: PathBuf,
    /// Order of arrival and ranks of nodes, in place of --seed and --arrive
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "arrive"])]
    sequence: Option<PathBuf>,
    /// How to place; a comma mixes policies. Can be given several times
    #[arg(long, value_name = "POLICY", default_values_t = [Policy::default()])]
    policy: Vec<Policy>,
    /// Seeds of the order of arrival, such as 42-51 or 1,2,5
    #[arg(long, value_name = "SEEDS", default_value_t)]
    seed: Seeds,
    /// How much arrives, in percent of the cluster's GPUs
    #[arg(long, value_name = "PERCENT", default_value_t = 130, value_parser = clap::value_parser!(u32).range(0..=1000))]
    arrive: u32,
    /// Where each pod went: a line for each arrival. Needs exactly one run
    #[arg(long, value_name = "FILE")]
    placements: Option<PathBuf>,
    /// Draw the curves of all policies
    #[arg(long, value_name = "FILE.svg|.html")]
    plot: Option<PathBuf>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Leave out times and memory: the same input then gives the same bytes
    #[arg(long)]
    no_timing: bool,
    /// What to do with lines that cannot be used
    #[arg(long, value_enum, default_value_t)]
    bad_lines: BadLines,
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
                || error.is::<plot::NoKind>() =>
        {
            Ok(Answer {
                notes: vec![crate::answer::error_text(&error).trim_end().to_owned()],
                code: BAD_INPUT,
                ..Answer::default()
            })
        }
        answer => answer,
    }
}

fn simulate(args: &Args) -> anyhow::Result<Answer> {
    let input = Input::read(args)?;
    let plan = runs::plan(args)?;
    if args.placements.is_some() && plan.len() != 1 {
        return Err(runs::BadRequest::Placements(plan.len()).into());
    }
    let kind = args.plot.as_deref().map(plot::Kind::of).transpose()?;
    let runs = runs::perform(args, &input, &plan);
    if let Some(file) = &args.placements {
        let text = print::placements(&input, &runs[0]);
        write(file, &text)?;
    }
    if let (Some(file), Some(kind)) = (&args.plot, kind) {
        write(file, &plot::draw(&runs, kind))?;
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
