//! Figure: shares where something does not do as it should: programs that lie about their work, and
//! an arbiter that stops for a while.
//!
//! Peers have no row: nothing is said to them, and nothing of them can stop.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use sublet_script::cc_text;

use super::tenants::{Ask, HEAD_START, Job, Way, percent_of, share_of};
use crate::progress::progress;
use crate::report::{Report, Verdict, short};
use crate::stage::{Stages, soon};

/// Percent of the card that a liar has at most, and seconds after which (issue 41).
const LIAR: (f64, usize) = (30.0, 15);
const LIMITED_LIAR: (f64, usize) = (4.0, 20);

/// The program that lies; a machine with a real card may have no repository.
const SOURCE: &str = include_str!("../../../e2e/c/liar.c");

/// Pieces of a millisecond that need 14 % of the card.
const PIECES: &str = "--microseconds 1000 --kernels 1 --pause 0.006";

/// Seconds for which the arbiter is stopped, and tenths of a second from its return until shares
/// are right.
const STOPPED: u64 = 5;
const RIGHT_AFTER: usize = 2;

pub(super) fn measure(stages: &Stages, is_quick: bool, report: &mut Report) -> Result<()> {
    let (after, limited_after) = match is_quick {
        true => (2, 2),
        false => (LIAR.1, LIMITED_LIAR.1),
    };
    report.say("## Liars, and an arbiter that stops");
    let mut rows = vec![["", "percent of the card"].map(str::to_owned).to_vec()];
    let mut verdicts = Vec::new();
    if Command::new("cc").arg("--version").output().is_ok() {
        progress("a liar beside a busy program");
        let liar = lies(stages, "25%", "", after, true)?;
        progress("a liar with a limit of 2 %");
        let limited = lies(stages, "0%..2%", PIECES, limited_after, false)?;
        let row = format!("25 % and lies, beside 75 %, from {after} s on");
        rows.push(vec![row, short(liar)]);
        let row = format!("at most 2 %, lies, alone, wants 14 %, from {limited_after} s on");
        rows.push(vec![row, short(limited)]);
        verdicts.push(Verdict::at_most("a liar of 25 %", liar, LIAR.0, "%"));
        let what = "a liar of at most 2 %";
        verdicts.push(Verdict::at_most(what, limited, LIMITED_LIAR.0, "%"));
    } else {
        report.say("Liars were not measured: this machine has no C compiler.");
    }
    progress("an arbiter that stops");
    let share = stopped(stages, if is_quick { 1 } else { STOPPED })?;
    let row = format!(
        "75 % beside 25 %, for a second from {RIGHT_AFTER}00 ms after an arbiter that was stopped \
         is back"
    );
    rows.push(vec![row, short(share)]);
    let error = (share - 75.0).abs();
    let what = "error after the arbiter is back";
    verdicts.push(Verdict::at_most(what, error, 5.0, "points"));
    report.table(&rows);
    report.verdicts(&verdicts);
    Ok(())
}

/// Percent of the card that a liar has from a second on, for four seconds.
fn lies(stages: &Stages, compute: &str, words: &str, after: usize, is_beside: bool) -> Result<f64> {
    let stage = stages.open()?;
    let program = stage.path().join("liar");
    cc_text(SOURCE, &program, &["-ldl"])?;
    let seconds = after + 4;
    let steady = steady(soon(HEAD_START), seconds as u64);
    let busy = Job::new("busy", Ask::Share(75), steady.as_str());
    let busy = is_beside
        .then(|| busy.start(&stage, Way::Ours))
        .transpose()?;
    let flags = ["--name", "liar", "--memory", "1GiB", "--compute", compute];
    let mut liar = stage.job(&flags, program);
    liar.arg("--silent").arg(stage.built("sublet-workload"));
    liar.args(steady.split_whitespace());
    liar.args(words.split_whitespace());
    let liar = liar.stdout(Stdio::piped()).stdin(Stdio::null()).spawn();
    let report = report_of(liar.context("cannot start the liar")?)?;
    if let Some(busy) = busy {
        busy.report()?;
    }
    share_of(&[report], after)
}

fn report_of(program: Child) -> Result<Value> {
    let output = program.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "a program failed: {text}");
    let line = text.lines().next_back().context("a program said nothing")?;
    Ok(serde_json::from_str(line)?)
}

/// A program that always has work, and its window.
fn steady(from: Duration, seconds: u64) -> String {
    format!("steady --from {} --seconds {seconds}", from.as_nanos())
}

/// Percent of the card of the greater one of two, in the second after the arbiter is back.
fn stopped(stages: &Stages, seconds: u64) -> Result<f64> {
    let stage = stages.open()?;
    let from = soon(HEAD_START);
    let steady = steady(from, seconds + 5);
    let start = |percent| {
        let job = Job::new("busy", Ask::Share(percent), steady.as_str());
        job.start(&stage, Way::Ours)
    };
    let (low, high) = (start(25)?, start(75)?);
    std::thread::sleep(HEAD_START + Duration::from_secs(2));
    let arbiter = stage.arbiter()?;
    kill_process(arbiter, Signal::STOP)?;
    std::thread::sleep(Duration::from_secs(seconds));
    kill_process(arbiter, Signal::CONT)?;
    let back = (soon(Duration::ZERO).saturating_sub(from).as_millis() / 100) as usize;
    let tenths = high.per_tenth()?;
    low.per_tenth()?;
    let first = back + 1 + RIGHT_AFTER;
    let second = tenths.get(first..first + 10);
    Ok(percent_of(second.context("it ended too early")?, 500))
}
