//! Runs in which pods come and go: one for each policy, side by side.
//!
//! `sublet_sim::timed` does the runs; this module starts them, checks them and shows their results.

pub(super) mod print;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sublet_plan::Policy;
use sublet_sim::{Timed, TimedError, TimedOutcome, timed};

use super::input::Input;
use super::plot::{Chart, Kind};
use super::runs::{self, Planned, Progress};
use super::{Args, Output};
use crate::answer::{Answer, NOT_DONE};

/// Requested part of the cluster's GPU time, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load(pub(super) u64);

/// Reason why a text is no load.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no load: give a number above 0 and up to 1000, such as 0.9")]
pub(super) struct LoadError(String);

impl FromStr for Load {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<Load, LoadError> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let sizes = (1..=4).contains(&whole.len()) && (1..=6).contains(&part.len());
        if !sizes || !digits(whole) || !digits(part) {
            return Err(LoadError(text.to_owned()));
        }
        let millionths: Option<u64> = format!("{whole}{part:0<6}").parse().ok();
        millionths
            .filter(|millionths| (1..=1_000_000_000).contains(millionths))
            .map(Load)
            .ok_or_else(|| LoadError(text.to_owned()))
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = format!("{:06}", self.0 % 1_000_000);
        match part.trim_end_matches('0') {
            "" => write!(f, "{}", self.0 / 1_000_000),
            part => write!(f, "{}.{part}", self.0 / 1_000_000),
        }
    }
}

/// One run that was done.
#[derive(Debug)]
struct TimedRun {
    policy: Policy,
    outcome: TimedOutcome,
    /// CPU time of the run's thread.
    cpu: Duration,
}

/// Does the runs, one for each policy, and shows their results.
///
/// # Errors
/// Pods that have no times, or a file that cannot be written.
pub(super) fn answer(
    args: &Args,
    plan: &[Planned],
    input: Input,
    plot: Option<Kind>,
) -> anyhow::Result<Answer> {
    let done = runs::side_by_side(args, plan, |planned, progress| {
        one(args, &input, planned, progress)
    });
    let runs: Result<Vec<TimedRun>, TimedError> = done.into_iter().collect();
    let runs = runs.map_err(runs::BadRequest::Timed)?;
    if let (Some(file), Some(kind)) = (&args.plot, plot) {
        super::write(file, &chart(&runs).draw(kind))?;
    }
    let timing = !args.no_timing;
    let text = match args.output {
        Output::Table => print::table(&input, args.load, &runs, timing),
        Output::Json => print::json(&input, &runs, timing)?,
        Output::Csv => print::csv(&runs),
    };
    Ok(checked(text, input.notes, &runs))
}

/// The answer; with an error, should a run not have ended as it must.
fn checked(text: String, mut notes: Vec<String>, runs: &[TimedRun]) -> Answer {
    let wrong = runs.iter().filter(|run| !run.outcome.ends_empty);
    let wrong: Vec<String> = wrong
        .map(|run| {
            format!(
                "error: {}: when the last pod had gone, the ledger was not empty\n\
                 hint: this is a bug of sublet; please report it with both lists",
                run.policy
            )
        })
        .collect();
    let code = if wrong.is_empty() { 0 } else { NOT_DONE };
    notes.extend(wrong);
    Answer { text, notes, code }
}

fn one(
    args: &Args,
    input: &Input,
    planned: &Planned,
    progress: &Progress,
) -> Result<TimedRun, TimedError> {
    let begin = runs::cpu_time();
    let run = Timed {
        nodes: &input.nodes,
        pods: &input.pods,
        policy: &planned.policy,
        cpu_only: runs::cpu_only(args),
        load: args.load.map(|Load(millionths)| millionths),
    };
    let all = 2 * input.pods.rows.len();
    let outcome = timed(run, |number| progress.arrived(number, all))?;
    Ok(TimedRun {
        policy: planned.policy.clone(),
        outcome,
        cpu: runs::cpu_time().saturating_sub(begin),
    })
}

/// Points of a curve: as many as can be told apart.
const POINTS: usize = 200;

/// GPU share in use over time.
fn chart(runs: &[TimedRun]) -> Chart {
    let longest = runs.iter().map(|run| run.outcome.makespan).max();
    let (unit, seconds) = match longest.unwrap_or(0) {
        0..7200 => ("minutes", 60.0),
        7200..172_800 => ("hours", 3600.0),
        _ => ("days", 86_400.0),
    };
    let curve = |run: &TimedRun| {
        let length = run.outcome.makespan as f64 / seconds / POINTS as f64;
        let parts = run.outcome.usage.parts_percent(POINTS);
        // A point stands in the middle of its part.
        let at = |part: usize| (part as f64 + 0.5) * length;
        let points = parts.into_iter().enumerate();
        let points = points.map(|(part, percent)| (at(part), percent)).collect();
        (run.policy.to_string(), points)
    };
    Chart {
        title: "GPUs in use over time",
        curves: runs.iter().map(curve).collect(),
        from: 0.0,
        across: format!("Time since the first arrival, {unit}"),
        across_unit: "",
        up: "GPU share in use, percent of the cluster",
    }
}

#[cfg(test)]
mod tests;
