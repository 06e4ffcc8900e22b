//! Figure: allocating and freeing while several processes of one job do the same.
//!
//! The processes contend for one word of the job's ledger. With more processes than cores each
//! also waits for a core, which is not our cost. So the median of short blocks is what counts,
//! and the same race straight on the driver stands beside it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::size::Size;
use super::ways::{FLAGS, MAKERS, ensure_managed, pair};
use crate::progress::progress;
use crate::report::{Report, short};
use crate::stage::{PATIENCE, Shell, Stage, number};
use crate::stats::median;

/// Numbers of processes that race.
const RACERS: [usize; 4] = [1, 2, 4, 8];

pub(super) fn measure(stage: &Stage, null: &Path, size: Size, report: &mut Report) -> Result<()> {
    let rounds = 2 * MAKERS.len() * RACERS.len();
    let seconds = size.race_seconds * rounds as f64;
    progress(&format!(
        "memory while processes race (about {seconds:.0} s)"
    ));
    let mut shell = stage.shell(Some(FLAGS))?;
    let mut table = vec![head()];
    for (place, maker) in MAKERS.iter().enumerate() {
        let mut cells = Vec::new();
        for racers in RACERS {
            let through = race(&mut shell, null, size, racers, &[*maker], "through")?;
            let direct = race(&mut shell, null, size, racers, &[*maker], "direct")?;
            ensure!(through.call == direct.call, "the ways ran different calls");
            if cells.is_empty() {
                cells.push(format!("`{}`", through.call));
            }
            let added = through.p50 - direct.p50;
            cells.push(format!(
                "{} ({})",
                short(added / 1e3),
                short(through.p99 / 1e3)
            ));
        }
        progress(&format!("{} of {} raced", place + 1, MAKERS.len()));
        table.push(cells);
    }
    ensure_managed(stage, MAKERS.len() * RACERS.iter().sum::<usize>())?;
    shell.end()?;
    report.say(&format!(
        "The same while several processes of one job do nothing else: microseconds added (the \
         difference of the medians of blocks of 50, the same race straight on the driver \
         subtracted), and in brackets the p99 of the blocks by way of us, in which waiting for \
         one of {} cores shows.",
        std::thread::available_parallelism().map_or(0, std::num::NonZero::get)
    ));
    report.table(&table);
    Ok(())
}

fn head() -> Vec<String> {
    let mut head = vec!["call".to_owned()];
    head.extend(RACERS.map(|racers| match racers {
        1 => "1 process".to_owned(),
        many => format!("{many} processes"),
    }));
    head
}

/// The result of one race, in nanoseconds: medians over its processes.
struct Raced {
    call: String,
    p50: f64,
    p99: f64,
}

fn race(
    shell: &mut Shell,
    null: &Path,
    size: Size,
    racers: usize,
    calls: &[&str],
    side: &str,
) -> Result<Raced> {
    let one = pair(null, size.race_seconds, calls);
    // Each process writes to its own file: lines of several writers can mix in a pipe.
    let line = format!(
        "for i in $(seq {racers}); do {one} --side {side} >racer.$i & done; wait; \
         for i in $(seq {racers}); do cat racer.$i; done"
    );
    let reports = shell.run(&line, PATIENCE + Duration::from_secs_f64(size.race_seconds))?;
    ensure!(
        reports.len() == racers,
        "{} of {racers} processes reported",
        reports.len()
    );
    let middle = |path: &str| -> Result<f64> {
        let values: Result<Vec<f64>> = reports.iter().map(|one| number(one, path)).collect();
        Ok(median(&values?))
    };
    let name = reports.first().map(|one| &one["calls"][0]["call"]);
    Ok(Raced {
        call: name.and_then(Value::as_str).unwrap_or_default().to_owned(),
        p50: middle("/calls/0/ns/p50")?,
        p99: middle("/calls/0/ns/p99")?,
    })
}
