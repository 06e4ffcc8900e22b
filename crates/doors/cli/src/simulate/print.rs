//! The printer of all runs: a table, JSON or CSV as the user asked, and a file with curves. A
//! protocol says what is in them ([`Report`]); how figures are written is decided here.

use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use super::args::{Args, Output};
use super::input::Input;
use super::plot::{Chart, Kind};
use super::runs::peak_memory_mib;
use crate::align::columns;
use crate::answer::{Answer, NOT_DONE, document};

/// Runs of one protocol, as they are shown.
pub(super) trait Report {
    /// A run as programs see it.
    type View: Serialize;

    /// The text for people.
    fn table(&self) -> String;

    /// Views of all runs.
    fn views(&self) -> Vec<Self::View>;

    /// The heading and the lines for spreadsheets.
    fn csv(&self) -> Vec<String>;

    /// Curves of all runs, where there are any.
    fn chart(&self) -> Option<Chart> {
        None
    }

    /// Texts about runs that did not end as they must.
    fn faults(&self) -> Vec<String> {
        Vec::new()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<V> {
    runs: Vec<V>,
    #[serde(rename = "peakMemoryMiB", skip_serializing_if = "Option::is_none")]
    peak_memory_mib: Option<u64>,
}

/// The answer in the form that the user asked for; with errors, should a run not have ended as it
/// must.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn answer(args: &Args, input: &Input, report: &impl Report) -> anyhow::Result<Answer> {
    let mut notes = input.notes.clone();
    let mut plot = None;
    if let (Some(file), Some(chart)) = (&args.plot, report.chart()) {
        write(file, &chart.draw(Kind::of(file)?))?;
        let place = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        plot = Some(format!("plot: {}", place.display()));
    }
    let text = match args.output {
        // People read the end of a long table first.
        Output::Table => match plot.take() {
            Some(plot) => format!("{}\n{plot}\n", report.table()),
            None => report.table(),
        },
        Output::Json => {
            let peak = (!args.no_timing).then(peak_memory_mib);
            let runs = Document {
                runs: report.views(),
                peak_memory_mib: peak.flatten(),
            };
            document(&runs, false)?
        }
        Output::Csv => report.csv().join("\n") + "\n",
    };
    let faults = report.faults();
    let code = if faults.is_empty() { 0 } else { NOT_DONE };
    let faults = faults.into_iter().map(|fault| {
        format!("error: {fault}\nhint: this is a bug of sublet; please report it with both lists")
    });
    notes.extend(plot.into_iter().chain(faults));
    Ok(Answer { text, notes, code })
}

/// Writes a file that the user named.
///
/// # Errors
/// It cannot be written.
pub(super) fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Describes the input of the runs.
pub(super) fn head(args: &Args, input: &Input) -> String {
    let gpus = input.gpus();
    let (nodes, pods) = (input.nodes.rows.len(), input.pods.rows.len());
    let pods = match input.nodes.running.len() {
        0 => format!("{pods} pods in the list"),
        run => format!("{run} pods run, new ones are like {pods}"),
    };
    let load = match args.load {
        Some(load) => format!(" They ask {load} of its GPU time while they come."),
        None => String::new(),
    };
    format!("{nodes} nodes with {gpus} GPUs; {pods}.{load}")
}

/// A table with a last column of CPU time, which some users leave out.
pub(super) fn with_times(args: &Args, keys: &[&str], mut rows: Vec<Vec<String>>) -> String {
    let shown = keys.len() - usize::from(args.no_timing);
    for row in &mut rows {
        row.truncate(shown);
    }
    columns(&keys[..shown], &rows)
}

/// Rounds to four decimals: more would be noise.
pub(super) fn rounded(percent: f64) -> f64 {
    (percent * 1e4).round() / 1e4
}

/// A span of time as people say it.
pub(super) fn span(seconds: u64) -> String {
    let of = |unit: f64| seconds as f64 / unit;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{:.0} min", of(60.0)),
        7200..172_800 => format!("{:.1} h", of(3600.0)),
        _ => format!("{:.1} d", of(86_400.0)),
    }
}

/// Waiting times of pods, in seconds. Each figure is the wait of one pod: of ten waits the ninth is
/// the limit that 90 % did not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Waits {
    pub(super) p50: u64,
    pub(super) p90: u64,
    pub(super) p99: u64,
    pub(super) max: u64,
}

impl Waits {
    /// Makes the figures from sorted waits; `None` if no pod was placed.
    pub(super) fn of(waits: &[u64]) -> Option<Waits> {
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
