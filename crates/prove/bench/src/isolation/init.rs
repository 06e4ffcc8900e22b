//! Figure: how much longer a program takes to load the driver and to call `cuInit`, for one process
//! and for many at once.
//!
//! In `cuInit` a process meets its arbiter: it gets a socket, two pages of shared memory and a
//! slot. There our library loads the driver, too, which a program without us has loaded before. So
//! both are measured from before the load. Each start is a new process, because only the first call
//! in a process does any work.

use std::path::Path;

use anyhow::Result;

use super::size::Size;
use crate::progress::progress;
use crate::report::{Report, Verdict, short};
use crate::stage::{Shell, Stage, number};
use crate::stats::{median, percentile};

/// Milliseconds (issue 41).
const ADDED_TARGET: f64 = 0.5;

/// Milliseconds (issue 41).
const AT_ONCE_TARGET: f64 = 10.0;

const FLAGS: &[&str] = &["--name", "init", "--memory", "8GiB"];

pub(super) fn measure(bin: &Path, size: Size, report: &mut Report) -> Result<()> {
    progress(&format!(
        "Starts, {} times alone and {} times in {} processes at once, with and without us",
        size.starts, size.start_rounds, size.at_once
    ));
    let stage = Stage::new(bin, Some("1x80GiB"))?;
    let mut with = stage.shell(Some(FLAGS))?;
    let mut without = stage.shell(None)?;
    let mut alone = [Vec::new(), Vec::new()];
    let mut added = Vec::new();
    // The first process on a machine, and the first of a job, reads files that no cache holds yet.
    for shell in [&mut with, &mut without] {
        starts(shell, 1)?;
    }
    for _ in 0..size.starts {
        let ours = starts(&mut with, 1)?.p50;
        let bare = starts(&mut without, 1)?.p50;
        alone[0].push(ours);
        alone[1].push(bare);
        added.push(ours - bare);
    }
    let mut many: [Vec<Starts>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..size.start_rounds {
        many[0].push(starts(&mut with, size.at_once)?);
        many[1].push(starts(&mut without, size.at_once)?);
    }
    with.end()?;
    without.end()?;
    print(size, &alone, &many, report);
    let p99: Vec<f64> = many[0].iter().map(|round| round.p99).collect();
    report.verdicts(&[
        Verdict::at_most(
            "added to loading the driver and cuInit, one process, median",
            median(&added),
            ADDED_TARGET,
            "ms",
        ),
        Verdict::at_most(
            &format!("both with {} processes at once, p99", size.at_once),
            median(&p99),
            AT_ONCE_TARGET,
            "ms",
        ),
        Verdict::at_most(
            &format!(
                "the last of {} at once, beside the last without us",
                size.at_once
            ),
            worst(&many[0]),
            worst(&many[1]),
            "ms",
        ),
    ]);
    Ok(())
}

fn print(size: Size, alone: &[Vec<f64>; 2], many: &[Vec<Starts>; 2], report: &mut Report) {
    report.say("## Initialisation");
    report.say(&format!(
        "Milliseconds from before `libcuda.so.1` is loaded to the return of `cuInit`: with us, the \
         driver is loaded in `cuInit`. Alone: {} processes each, in turns. At once: {} processes \
         wait at one barrier before they load anything, {} round(s) each; the median round's \
         figures, and the worst round's longest.",
        size.starts, size.at_once, size.start_rounds
    ));
    let row = |label: &str, values: &[f64]| {
        let mut cells = vec![label.to_owned()];
        cells.extend([0.5, 0.99, 1.0].map(|share| short(percentile(values, share))));
        cells
    };
    let rounds = |label: String, list: &[Starts]| {
        let middle = |figure: fn(&Starts) -> f64| {
            let values: Vec<f64> = list.iter().map(figure).collect();
            short(median(&values))
        };
        vec![
            label,
            middle(|round| round.p50),
            middle(|round| round.p99),
            short(worst(list)),
        ]
    };
    let head = ["", "p50", "p99", "max"].map(str::to_owned).to_vec();
    report.table(&[
        head,
        row("**with us**, alone", &alone[0]),
        row("without us, alone", &alone[1]),
        rounds(format!("**with us**, {} at once", size.at_once), &many[0]),
        rounds(format!("without us, {} at once", size.at_once), &many[1]),
    ]);
}

/// Times of the calls of processes at once, in milliseconds.
struct Starts {
    p50: f64,
    p99: f64,
    max: f64,
}

/// The longest of all rounds.
fn worst(rounds: &[Starts]) -> f64 {
    rounds.iter().map(|round| round.max).fold(0.0, f64::max)
}

fn starts(shell: &mut Shell, processes: usize) -> Result<Starts> {
    let report = shell.ask(&format!(
        "\"$BENCH_WORKLOAD\" race --reach \"$BENCH_REACH\" --init-only --processes {processes}"
    ))?;
    let figure =
        |name: &str| -> Result<f64> { Ok(number(&report, &format!("/startUs/{name}"))? / 1e3) };
    let (p50, p99, max) = (figure("p50")?, figure("p99")?, figure("max")?);
    Ok(Starts { p50, p99, max })
}
