//! Figure: how soon the memory of a killed process is free again.
//!
//! The clock starts when our own pidfd of the victim, not the arbiter's, says that the victim is
//! dead. It stops twice: when another process of the job, which asks all the time, gets memory
//! that only fits without the victim's; and when the arbiter no longer shows the victim.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use super::size::Size;
use crate::progress::progress;
use crate::report::{Report, Verdict, short};
use crate::stage::{PATIENCE, Shell, Stage, number, until};
use crate::stats::percentile;

/// Milliseconds (issue 5).
const TARGET: f64 = 50.0;

/// The victim holds more than half of this memory, and the other process asks for half of it.
const FLAGS: &[&str] = &["--name", "reclaim", "--memory", "8GiB"];
const VICTIM: &str = "\"$BENCH_WORKLOAD\" alloc --reach \"$BENCH_REACH\" --size 6GiB --hold 60 &";
const ASKER: &str = "\"$BENCH_WORKLOAD\" regain --reach \"$BENCH_REACH\" --size 4GiB &";
const VICTIM_MIB: u64 = 6 << 10;

/// Interval at which the arbiter is asked whether it still shows the victim.
const LOOK_EVERY: Duration = Duration::from_millis(1);

pub(super) fn measure(bin: &Path, size: Size, report: &mut Report) -> Result<()> {
    progress(&format!(
        "killing {} processes that hold memory",
        size.kills
    ));
    let stage = Stage::new(bin, Some("1x80GiB"))?;
    let mut job = stage.shell(Some(FLAGS))?;
    let (mut regained, mut shown) = (Vec::new(), Vec::new());
    for _ in 0..size.kills {
        let killed = kill_one(&stage, &mut job)?;
        regained.push(killed.regained);
        shown.push(killed.shown);
    }
    let own = stage.snapshot()?.counters.reclaim_us_max as f64 / 1e3;
    job.end()?;
    report.say("## Memory of a killed process");
    report.say(&format!(
        "{} processes with 6 GiB each, in a job of 8 GiB, killed by SIGKILL. Milliseconds from \
         the moment at which a pidfd reads dead, seen from outside. Another process of the job \
         asks for 4 GiB all the time; the arbiter is asked every millisecond. By the arbiter's \
         own count it never took longer than {} ms from noticing a death to the memory being \
         back.",
        size.kills,
        short(own)
    ));
    let row = |label: &str, values: &[f64]| {
        let mut cells = vec![label.to_owned()];
        cells.extend([0.5, 0.99, 1.0].map(|share| short(percentile(values, share))));
        cells
    };
    let head = ["until", "p50", "p99", "max"].map(str::to_owned).to_vec();
    report.table(&[
        head,
        row("another process gets the memory", &regained),
        row("`sublet top` shows it free", &shown),
    ]);
    let worst = |values: &[f64]| percentile(values, 1.0);
    report.verdicts(&[
        Verdict::at_most(
            "memory of a killed process can be reserved again, longest",
            worst(&regained),
            TARGET,
            "ms",
        ),
        Verdict::at_most("and is shown free, longest", worst(&shown), TARGET, "ms"),
    ]);
    Ok(())
}

/// The result of one kill, in milliseconds.
struct Killed {
    regained: f64,
    shown: f64,
}

fn kill_one(stage: &Stage, job: &mut Shell) -> Result<Killed> {
    job.tell(VICTIM)?;
    let victim = job.hear_json(PATIENCE)?;
    let number_of = victim["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok());
    let pid = number_of.and_then(Pid::from_raw).context("no process")?;
    ensure!(victim["ok"] == Value::Bool(true), "no victim: {victim}");
    job.tell(ASKER)?;
    ensure!(job.hear(PATIENCE)? == "ready", "the asker was not refused");
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    pidfd_send_signal(&pidfd, Signal::KILL)?;
    let limit = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    let ready = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit))?;
    let dead_ns = now_ns();
    ensure!(ready == 1, "the victim does not die");
    let victim_pid = pid.as_raw_nonzero().get().unsigned_abs();
    until("the arbiter to show the memory free", LOOK_EVERY, || {
        let row = stage.tenant("reclaim")?;
        let is_there = row.pids.contains(&victim_pid) || row.memory_used_mib >= VICTIM_MIB;
        ensure!(!is_there, "the arbiter still shows {row:?}");
        Ok(())
    })?;
    let shown_ns = now_ns();
    let asker = job.hear_json(PATIENCE)?;
    ensure!(asker["ok"] == Value::Bool(true), "not regained: {asker}");
    Ok(Killed {
        // Negative when the other process got the memory before we looked at the pidfd.
        regained: ((number(&asker, "/gotNs")? - dead_ns) / 1e6).max(0.0),
        shown: (shown_ns - dead_ns) / 1e6,
    })
}

/// The clock that the workload also reads. An `f64` holds some months of nanoseconds exactly.
fn now_ns() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}
