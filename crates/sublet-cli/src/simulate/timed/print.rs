//! Results of runs in which pods come and go, as a table, as JSON and as CSV.

use std::fmt::Write as _;

use serde::Serialize;
use sublet_sim::{Reasons, TimedOutcome};

use super::super::input::Input;
use super::super::print::{aligned, cluster, document, rounded};
use super::{Load, TimedRun};

/// Parts of the time that are shown one by one.
const PARTS: usize = 20;

/// Waiting times of pods, in seconds. Each figure is the wait of one pod: of ten waits the ninth is
/// the limit that 90 % did not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(in crate::simulate) struct Waits {
    pub(in crate::simulate) p50: u64,
    pub(in crate::simulate) p90: u64,
    pub(in crate::simulate) p99: u64,
    pub(in crate::simulate) max: u64,
}

impl Waits {
    /// Makes the figures from sorted waits; `None` if no pod was placed.
    pub(in crate::simulate) fn of(waits: &[u64]) -> Option<Waits> {
        let max = *waits.last()?;
        let at = |percent: usize| waits[(waits.len() * percent).div_ceil(100) - 1];
        Some(Waits {
            p50: at(50),
            p90: at(90),
            p99: at(99),
            max,
        })
    }
}

/// A span of time as people say it.
pub(in crate::simulate) fn span(seconds: u64) -> String {
    let of = |unit: f64| seconds as f64 / unit;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{:.0} min", of(60.0)),
        7200..172_800 => format!("{:.1} h", of(3600.0)),
        _ => format!("{:.1} d", of(86_400.0)),
    }
}

pub(super) fn table(input: &Input, load: Option<Load>, runs: &[TimedRun], timing: bool) -> String {
    let mut text = format!("{}.", cluster(input));
    if let Some(load) = load {
        let _ = write!(text, " They ask {load} of its GPU time while they come.");
    }
    text.push('\n');
    // No policy can place these, so that any run tells.
    if let Some(run) = runs.first() {
        text += &left_out(&run.outcome);
    }
    let mut heading = vec![
        "POLICY",
        "PLACED",
        "WAIT P50",
        "P90",
        "P99",
        "MAX",
        "GPUS IN USE",
        "MAKESPAN",
    ];
    if timing {
        heading.push("CPU SECONDS");
    }
    let mut rows = vec![heading.into_iter().map(str::to_owned).collect()];
    for run in runs {
        let outcome = &run.outcome;
        let waits = Waits::of(&outcome.waits);
        let wait = |of: fn(Waits) -> u64| waits.map_or("-".to_owned(), |waits| span(of(waits)));
        let mut row = vec![
            run.policy.to_string(),
            outcome.waits.len().to_string(),
            wait(|waits| waits.p50),
            wait(|waits| waits.p90),
            wait(|waits| waits.p99),
            wait(|waits| waits.max),
            format!("{:.2} %", outcome.usage.mean_percent()),
            span(outcome.makespan),
        ];
        if timing {
            row.push(format!("{:.2}", run.cpu.as_secs_f64()));
        }
        rows.push(row);
    }
    text.push('\n');
    text += &aligned(&rows);
    text += "\nGPU share in use, percent, by parts of the makespan\n";
    text + &over_time(runs)
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

fn over_time(runs: &[TimedRun]) -> String {
    let names = runs.iter().map(|run| run.policy.to_string());
    let mut rows = vec![std::iter::once("PART".to_owned()).chain(names).collect()];
    let parts = runs
        .iter()
        .map(|run| run.outcome.usage.parts_percent(PARTS));
    let parts: Vec<Vec<f64>> = parts.collect();
    for part in 0..PARTS {
        let step = 100 / PARTS;
        let label = format!("{}-{} %", part * step, (part + 1) * step);
        let figures = parts.iter().map(|parts| format!("{:.2}", parts[part]));
        rows.push(std::iter::once(label).chain(figures).collect());
    }
    aligned(&rows)
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
    gpu_percent: f64,
    gpu_percent_over_time: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_seconds: Option<f64>,
}

pub(super) fn json(input: &Input, runs: &[TimedRun], timing: bool) -> anyhow::Result<String> {
    let view = |run: &TimedRun| {
        let outcome = &run.outcome;
        let parts = outcome.usage.parts_percent(PARTS);
        TimedView {
            policy: run.policy.to_string(),
            protocol: "timed",
            pods: input.pods.rows.len(),
            placed: outcome.waits.len(),
            unsupported: outcome.too_large,
            never_placeable: outcome.never.clone(),
            wait_seconds: Waits::of(&outcome.waits),
            makespan_seconds: outcome.makespan,
            gpu_percent: rounded(outcome.usage.mean_percent()),
            gpu_percent_over_time: parts.into_iter().map(rounded).collect(),
            cpu_seconds: timing.then_some(run.cpu.as_secs_f64()),
        }
    };
    document(runs.iter().map(view).collect(), timing)
}

pub(super) fn csv(runs: &[TimedRun]) -> String {
    let mut text = "policy,from_seconds,to_seconds,gpu_percent\n".to_owned();
    for run in runs {
        // A mix has commas in its name.
        let policy = run.policy.to_string();
        let parts = run.outcome.usage.parts_percent(PARTS);
        let at = |part: usize| run.outcome.makespan as f64 * part as f64 / PARTS as f64;
        for (part, percent) in parts.into_iter().enumerate() {
            let (from, to) = (at(part), at(part + 1));
            let _ = writeln!(text, "\"{policy}\",{from:.2},{to:.2},{percent:.4}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_waits_that_somebody_had() {
        assert_eq!(Waits::of(&[]), None);
        let of = |waits: &[u64]| {
            let waits = Waits::of(waits).unwrap();
            [waits.p50, waits.p90, waits.p99, waits.max]
        };
        assert_eq!(of(&[7]), [7, 7, 7, 7]);
        assert_eq!(of(&[1, 2, 3, 4]), [2, 4, 4, 4]);
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(of(&hundred), [50, 90, 99, 100]);
    }

    #[test]
    fn spans_are_said_in_the_unit_that_suits() {
        let said = [
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7200, "2.0 h"),
            (171_000, "47.5 h"),
            (172_800, "2.0 d"),
        ];
        for (seconds, text) in said {
            assert_eq!(span(seconds), text);
        }
    }
}
