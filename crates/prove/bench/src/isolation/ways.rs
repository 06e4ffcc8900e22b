//! Figures: how long a launch and an allocation take through the interposer, beside the same
//! call straight into the driver.
//!
//! The driver does nothing, so the whole difference is our cost. The arbiter runs, and the
//! process has a slot with it like any other. One process makes its calls both ways, in turns.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::size::Size;
use crate::progress::progress;
use crate::report::{Report, Verdict, short};
use crate::stage::{PATIENCE, Stage, number};
use crate::stats::median;

/// Nanoseconds (issue 5).
const LAUNCH_TARGET: f64 = 10.0;

/// Nanoseconds, the same at an open gate while others want the card or the job has a limit
/// (issue 16).
const CONTENDED_TARGET: f64 = 150.0;

/// Calls that pass the gate.
const GATED: [&str; 4] = [
    "launch-kernel",
    "launch-kernel-ex",
    "graph-launch",
    "memcpy-async",
];

/// Calls that only go through the table of targets.
const FORWARDED: [&str; 1] = ["event-record"];

/// Calls that allocate memory; each block is freed again.
pub(super) const MAKERS: [&str; 3] = ["mem-alloc", "mem-alloc-async", "mem-create"];

/// The flags of the jobs in which calls are measured.
pub(super) const FLAGS: &[&str] = &["--name", JOB, "--memory", "8GiB"];

/// The flags of a job that tells the arbiter when its work begins and when it ends.
const LIMITED: &[&str] = &["--name", JOB, "--memory", "8GiB", "--compute", "0%..90%"];

const JOB: &str = "calls";

/// The start of a shell line that measures calls on the driver that does nothing. Root's file of
/// settings, which names another one, is taken away where there is one.
pub(super) fn pair(null: &Path, seconds: f64, calls: &[&str]) -> String {
    let null = null.display();
    let calls: String = calls.iter().map(|call| format!(" --call {call}")).collect();
    format!(
        "umount /run/sublet-job 2>/dev/null; SUBLET_DRIVER_CUDA={null} \"$BENCH_WORKLOAD\" pair \
         --reach \"$BENCH_REACH\" --direct {null} --seconds {seconds}{calls}"
    )
}

/// Time added to launches.
pub(super) fn launches(stage: &Stage, null: &Path, size: Size, report: &mut Report) -> Result<()> {
    let calls = [&GATED[..], &FORWARDED].concat();
    let n_calls = (calls.len() + GATED.len()) * size.launch_runs;
    let seconds = size.call_seconds * n_calls as f64;
    progress(&format!("time added to launches (about {seconds:.0} s)"));
    let rows = measured(stage, null, FLAGS, size, &calls)?;
    report.say("## Launches");
    report.say(&format!(
        "Nanoseconds a call, on a driver whose functions only return. Each figure is the median \
         over {} process(es) of the median over blocks of 500 calls, {} s each; `added` is the \
         median of the differences between a block by way of us and the block beside it straight \
         into the driver. All but the last pass the gate.",
        size.launch_runs, size.call_seconds
    ));
    report.table(&table(&rows, 1.0));
    let verdicts = rows.iter().take(GATED.len()).map(|row| {
        let what = format!("added to {}, uncontended", row.call);
        Verdict::at_most(&what, row.added, LAUNCH_TARGET, "ns")
    });
    report.verdicts(&verdicts.collect::<Vec<_>>());
    let rows = measured(stage, null, LIMITED, size, &GATED)?;
    report.say(
        "The same in a job with a limit of 90 % (`--compute 0%..90%`): it tells the arbiter when it \
         works, and may be held. The median leaves out blocks in which it was.",
    );
    report.table(&table(&rows, 1.0));
    let verdicts = rows.iter().map(|row| {
        let what = format!("added to {}, contended and open", row.call);
        Verdict::at_most(&what, row.added, CONTENDED_TARGET, "ns")
    });
    report.verdicts(&verdicts.collect::<Vec<_>>());
    Ok(())
}

/// Time added to allocating and freeing, alone.
pub(super) fn memory(stage: &Stage, null: &Path, size: Size, report: &mut Report) -> Result<()> {
    progress("time added to memory, one process");
    let once = Size {
        launch_runs: 1,
        ..size
    };
    let rows = measured(stage, null, FLAGS, once, &MAKERS)?;
    report.say("## Memory");
    report.say(
        "Microseconds for 2 MiB made and given back, on the same driver: reserving in the shared \
         ledger, remembering the address, and paying back. There is no target; a real driver \
         takes some microseconds to some hundred for these.",
    );
    report.table(&table(&rows, 1e3));
    Ok(())
}

/// Without a slot, a process's calls would be passed through and would cost nothing.
pub(super) fn ensure_managed(stage: &Stage, processes: usize) -> Result<()> {
    let joined = stage.snapshot()?.counters.joined;
    ensure!(
        joined >= processes as u64,
        "only {joined} of {processes} processes had a slot"
    );
    Ok(())
}

/// One call both ways, in nanoseconds.
struct Row {
    call: String,
    direct: f64,
    through: f64,
    added: f64,
    /// Nine of ten differences are at most this.
    added_p90: f64,
}

/// Measures the calls in so many processes of a job, one after another.
fn measured(
    stage: &Stage,
    null: &Path,
    flags: &[&str],
    size: Size,
    calls: &[&str],
) -> Result<Vec<Row>> {
    let (runs, seconds) = (size.launch_runs, size.call_seconds);
    let before = stage.snapshot().map_or(0, |all| all.counters.joined);
    let mut shell = stage.shell(Some(flags))?;
    let line = pair(null, seconds, calls);
    let patience = PATIENCE + Duration::from_secs_f64(seconds * calls.len() as f64);
    let mut reports = Vec::new();
    for _ in 0..runs {
        let said = shell.run(&line, patience)?;
        reports.push(said.into_iter().next_back().context("no report")?);
    }
    ensure_managed(stage, before as usize + runs)?;
    let worked = stage.tenant(JOB)?.per_gpu[0].compute_used_seconds;
    ensure!(
        flags != LIMITED || worked > Some(0.0),
        "the job with a limit never reported any work"
    );
    shell.end()?;
    (0..calls.len()).map(|place| row(&reports, place)).collect()
}

fn row(reports: &[Value], place: usize) -> Result<Row> {
    let middle = |figure: &str| -> Result<f64> {
        let path = format!("/calls/{place}/{figure}");
        let values: Result<Vec<f64>> = reports.iter().map(|one| number(one, &path)).collect();
        Ok(median(&values?))
    };
    let name = reports.first().map(|one| &one["calls"][place]["call"]);
    Ok(Row {
        call: name.and_then(Value::as_str).unwrap_or_default().to_owned(),
        direct: middle("directNs/p50")?,
        through: middle("throughNs/p50")?,
        added: middle("addedNs/p50")?,
        added_p90: middle("addedNs/p90")?,
    })
}

fn table(rows: &[Row], unit: f64) -> Vec<Vec<String>> {
    let head = ["call", "straight", "by way of us", "added", "added, p90"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    table.extend(rows.iter().map(|row| {
        let figures = [row.direct, row.through, row.added, row.added_p90];
        let mut cells = vec![format!("`{}`", row.call)];
        cells.extend(figures.map(|figure| short(figure / unit)));
        cells
    }));
    table
}
