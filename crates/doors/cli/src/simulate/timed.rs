//! Pods that come and go: a run for each policy.
//!
//! `sublet_sim::timed` does the runs; this module starts them, and says what there is to show.

use std::fmt::Write as _;

use serde::Serialize;
use sublet_sim::{Reasons, Timed, TimedOutcome, timed};

use super::args::Args;
use super::input::Input;
use super::load::Load;
use super::plot::Chart;
use super::print::{self, Report, Waits, head, rounded, span, with_times};
use super::runs::{self, Planned};
use crate::align::table;
use crate::answer::Answer;

type Run<'a> = runs::Run<'a, Planned, TimedOutcome>;

struct TimedRuns<'a> {
    args: &'a Args,
    input: &'a Input,
    runs: Vec<Run<'a>>,
}

/// Parts of the time that are shown one by one.
const PARTS: usize = 20;

/// Points of a curve: as many as can be told apart.
const POINTS: usize = 200;

/// Does the runs, one for each policy, and shows their results.
///
/// # Errors
/// Pods that have no times, or a file that cannot be written.
pub(super) fn answer(args: &Args, input: &Input, plan: &[Planned]) -> anyhow::Result<Answer> {
    let all = 2 * input.pods.rows.len();
    let runs = runs::side_by_side(args, plan, |planned, progress| {
        let run = Timed {
            nodes: &input.nodes,
            pods: &input.pods,
            policy: &planned.policy,
            cpu_only: runs::cpu_only(args),
            load: args.load.map(|Load(millionths)| millionths),
        };
        Ok(timed(run, |number| progress.arrived(number, all))?)
    })?;
    print::answer(args, input, &TimedRuns { args, input, runs })
}

impl Report for TimedRuns<'_> {
    type View = TimedView;

    fn table(&self) -> String {
        let mut text = head(self.args, self.input) + "\n";
        // No policy can place these, so that any run tells.
        if let Some(run) = self.runs.first() {
            text += &left_out(&run.outcome);
        }
        let row = |run: &Run<'_>| {
            let outcome = &run.outcome;
            let waits = Waits::of(&outcome.waits);
            let wait = |of: fn(Waits) -> u64| waits.map_or("-".to_owned(), |waits| span(of(waits)));
            vec![
                run.planned.policy.to_string(),
                outcome.waits.len().to_string(),
                wait(|waits| waits.p50),
                wait(|waits| waits.p90),
                wait(|waits| waits.p99),
                wait(|waits| waits.max),
                format!("{:.2} %", outcome.usage.mean_percent()),
                span(outcome.makespan),
                format!("{:.2} s", run.cpu.as_secs_f64()),
            ]
        };
        let keys = [
            "policy",
            "placed",
            "waitSeconds.p50",
            "waitSeconds.p90",
            "waitSeconds.p99",
            "waitSeconds.max",
            "allocatedPercent",
            "makespanSeconds",
            "cpuSeconds",
        ];
        text.push('\n');
        text += &with_times(self.args, &keys, self.runs.iter().map(row).collect());
        text += "\nAllocated GPU share, percent, by parts of the makespan\n";
        text + &over_time(&self.runs)
    }

    fn views(&self) -> Vec<TimedView> {
        let view = |run: &Run<'_>| {
            let outcome = &run.outcome;
            let parts = outcome.usage.parts_percent(PARTS);
            TimedView {
                policy: run.planned.policy.to_string(),
                protocol: "timed",
                pods: self.input.pods.rows.len(),
                placed: outcome.waits.len(),
                unsupported: outcome.too_large,
                never_placeable: outcome.never.clone(),
                wait_seconds: Waits::of(&outcome.waits),
                makespan_seconds: outcome.makespan,
                allocated_percent: rounded(outcome.usage.mean_percent()),
                allocated_by_part_percent: parts.into_iter().map(rounded).collect(),
                cpu_seconds: (!self.args.no_timing).then_some(run.cpu.as_secs_f64()),
            }
        };
        self.runs.iter().map(view).collect()
    }

    fn csv(&self) -> Vec<String> {
        let mut lines = vec!["policy,from_seconds,to_seconds,allocated_percent".to_owned()];
        for run in &self.runs {
            // A mix has commas in its name.
            let policy = &run.planned.policy;
            let parts = run.outcome.usage.parts_percent(PARTS);
            let at = |part: usize| run.outcome.makespan as f64 * part as f64 / PARTS as f64;
            lines.extend(parts.into_iter().enumerate().map(|(part, percent)| {
                let (from, to) = (at(part), at(part + 1));
                format!("\"{policy}\",{from:.2},{to:.2},{percent:.4}")
            }));
        }
        lines
    }

    /// Allocated GPU share over time.
    fn chart(&self) -> Option<Chart> {
        let longest = self.runs.iter().map(|run| run.outcome.makespan).max();
        let (unit, seconds) = match longest.unwrap_or(0) {
            0..7200 => ("minutes", 60.0),
            7200..172_800 => ("hours", 3600.0),
            _ => ("days", 86_400.0),
        };
        let curve = |run: &Run<'_>| {
            let length = run.outcome.makespan as f64 / seconds / POINTS as f64;
            let parts = run.outcome.usage.parts_percent(POINTS);
            // A point stands in the middle of its part.
            let at = |part: usize| (part as f64 + 0.5) * length;
            let points = parts.into_iter().enumerate();
            let points = points.map(|(part, percent)| (at(part), percent)).collect();
            (run.planned.policy.to_string(), points)
        };
        Some(Chart {
            title: "Allocated GPUs over time",
            curves: self.runs.iter().map(curve).collect(),
            from: 0.0,
            across: format!("Time since the first arrival, {unit}"),
            across_unit: "",
            up: "Allocated GPU share, percent of the cluster",
        })
    }

    fn faults(&self) -> Vec<String> {
        let wrong = self.runs.iter().filter(|run| !run.outcome.ends_empty);
        let faults = wrong.map(|run| {
            let policy = &run.planned.policy;
            format!("{policy}: when the last pod had gone, the ledger was not empty")
        });
        faults.collect()
    }
}

/// Pods that were never tried; empty if there are none.
fn left_out(outcome: &TimedOutcome) -> String {
    let mut text = String::new();
    if outcome.too_large > 0 {
        let _ = writeln!(
            text,
            "{} pods are not supported: they ask more GPUs than any node has.",
            outcome.too_large
        );
    }
    let never: u32 = outcome.never.values().sum();
    if never > 0 {
        let reasons = outcome.never.iter();
        let reasons: Vec<String> = reasons
            .map(|(label, count)| format!("{count} {label}"))
            .collect();
        let _ = writeln!(
            text,
            "{never} pods can never be placed. What they lack: {}.",
            reasons.join(", ")
        );
    }
    text
}

fn over_time(runs: &[Run<'_>]) -> String {
    let names: Vec<String> = runs
        .iter()
        .map(|run| run.planned.policy.to_string())
        .collect();
    let heading: Vec<&str> = std::iter::once("PART")
        .chain(names.iter().map(String::as_str))
        .collect();
    let parts = runs
        .iter()
        .map(|run| run.outcome.usage.parts_percent(PARTS));
    let parts: Vec<Vec<f64>> = parts.collect();
    let row = |part: usize| {
        let step = 100 / PARTS;
        let label = format!("{}-{} %", part * step, (part + 1) * step);
        let figures = parts.iter().map(|parts| format!("{:.2}", parts[part]));
        std::iter::once(label).chain(figures).collect()
    };
    let rows: Vec<Vec<String>> = (0..PARTS).map(row).collect();
    table(&heading, &rows)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TimedView {
    policy: String,
    protocol: &'static str,
    pods: usize,
    placed: usize,
    unsupported: u32,
    never_placeable: Reasons,
    wait_seconds: Option<Waits>,
    makespan_seconds: u64,
    allocated_percent: f64,
    allocated_by_part_percent: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_seconds: Option<f64>,
}

#[cfg(test)]
mod tests;
