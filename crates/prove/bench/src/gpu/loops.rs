//! Figure: launches, graphs, copies and allocations in a loop, by way of us and straight into
//! the driver, in one process in turns.
//!
//! The kernels do nothing, which is the worst case for a library that stands between: a loop of
//! real kernels hides what a launch costs.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::findings::Findings;
use crate::progress::progress;
use crate::report::{Verdict, short};
use crate::stage::{PATIENCE, Stage, number};

/// Times as long (issue 5).
pub(super) const SOLO_TARGET: f64 = 1.005;

const CALLS: [&str; 7] = [
    "launch-kernel",
    "launch-kernel-ex",
    "graph-launch",
    "memcpy-async",
    "mem-alloc",
    "mem-alloc-async",
    "mem-create",
];

/// Number of calls that have a target: launches and graphs.
const LOOPS: usize = 3;

pub(super) fn measure(stage: &Stage, seconds: f64, findings: &mut Findings) -> Result<()> {
    let all = seconds * CALLS.len() as f64;
    progress(&format!("loops of calls (about {all:.0} s)"));
    let mut job = stage.shell(Some(&["--name", "loops", "--memory", "50%"]))?;
    let calls: String = CALLS.iter().map(|call| format!(" --call {call}")).collect();
    let line = format!(
        "\"$BENCH_WORKLOAD\" pair --reach \"$BENCH_REACH\" --direct \"$SUBLET_DRIVER_CUDA\" \
         --seconds {seconds}{calls}"
    );
    let said = job.run(&line, PATIENCE + Duration::from_secs_f64(all))?;
    job.end()?;
    let report = said.into_iter().next_back().context("no report")?;
    let rows = report["calls"].as_array().context("no calls")?;
    let report_to = &mut findings.report;
    report_to.say("## Calls in a loop");
    report_to.say(&format!(
        "Half of the card's memory is the limit. Nanoseconds a call until it returns, medians of \
         blocks; and the time of a whole block until the card has done it all, as a multiple of \
         the same straight into the driver (median over pairs of blocks). Kernels do nothing, a \
         graph has ten of them, memory is 2 MiB. {seconds} s for each call.",
    ));
    report_to.table(&table(rows)?);
    let verdicts: Result<Vec<Verdict>> = rows.iter().take(LOOPS).map(verdict).collect();
    report_to.verdicts(&verdicts?);
    findings.keep("loops", report);
    Ok(())
}

fn table(rows: &[Value]) -> Result<Vec<Vec<String>>> {
    let head = ["call", "straight", "by way of us", "added", "whole block"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let mut cells = vec![format!("`{}`", name_of(row))];
        for figure in ["/directNs/p50", "/throughNs/p50", "/addedNs/p50"] {
            cells.push(short(number(row, figure)?));
        }
        cells.push(format!("{:.4} ×", number(row, "/wholeRatio")?));
        table.push(cells);
    }
    Ok(table)
}

fn verdict(row: &Value) -> Result<Verdict> {
    let what = format!("a loop of {}, solo", name_of(row));
    let ratio = number(row, "/wholeRatio")?;
    Ok(Verdict::at_most_times(&what, ratio, SOLO_TARGET))
}

fn name_of(row: &Value) -> &str {
    row["call"].as_str().unwrap_or_default()
}
