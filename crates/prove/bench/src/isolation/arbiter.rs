//! Figure: how much memory and CPU time the arbiter takes while many jobs hold memory and do
//! nothing.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;

use super::size::Size;
use crate::progress::progress;
use crate::report::{Report, Verdict, short};
use crate::stage::{PATIENCE, Shell, Stage, cpu_seconds, until};
use crate::world::memory_mib;

/// MiB of resident memory with all jobs (issue 5).
const TARGET: f64 = 25.0;

/// Contexts are small here so that the card holds many jobs.
const SPEC: &str = "1x80GiB,context=64MiB";
const FLAGS: &[&str] = &["--name", "idle", "--memory", "512MiB"];

const HOLDER: &str = "\"$BENCH_WORKLOAD\" alloc --reach \"$BENCH_REACH\" --size 64MiB --hold 600 &";

pub(super) fn measure(bin: &Path, size: Size, report: &mut Report) -> Result<()> {
    progress(&format!("the arbiter with {} jobs", size.jobs));
    let stage = Stage::new(bin, Some(SPEC))?;
    let mut jobs = vec![stage.shell(Some(FLAGS))?];
    let holder = jobs.first_mut().context("no job")?;
    let mut pids = vec![hold(holder)?];
    let arbiter = stage.arbiter()?;
    let with_one = memory(arbiter)?;
    for _ in 1..size.jobs {
        let mut job = stage.shell(Some(FLAGS))?;
        pids.push(hold(&mut job)?);
        jobs.push(job);
    }
    until("all jobs to be there", Duration::from_millis(50), || {
        let tenants = stage.snapshot()?.tenants;
        let holding = tenants.iter().filter(|row| row.memory_used_mib >= 64);
        ensure!(holding.count() == size.jobs, "not all of them hold memory");
        Ok(())
    })?;
    let (began, before) = (Instant::now(), cpu_seconds(arbiter)?);
    std::thread::sleep(Duration::from_secs(size.idle_seconds));
    let share = (cpu_seconds(arbiter)? - before) / began.elapsed().as_secs_f64();
    let with_all = memory(arbiter)?;
    for pid in pids {
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    drop(jobs);
    print(size, &with_one, &with_all, share, report);
    Ok(())
}

fn print(size: Size, with_one: &Memory, with_all: &Memory, share: f64, report: &mut Report) {
    report.say("## The arbiter");
    report.say(&format!(
        "Resident memory in MiB, with one job and with {} jobs of one process each that hold \
         memory and do nothing. With all of them it takes {:.2} % of a core, {} s measured; it \
         reads the fake driver five times a second.",
        size.jobs,
        share * 100.0,
        size.idle_seconds
    ));
    let head = ["", "all", "own", "files", "shared pages"];
    let row = |label: String, memory: &Memory| {
        let mut cells = vec![label];
        let figures = [memory.all, memory.own, memory.files, memory.shared];
        cells.extend(figures.map(short));
        cells
    };
    report.table(&[
        head.map(str::to_owned).to_vec(),
        row("1 job".to_owned(), with_one),
        row(format!("{} jobs", size.jobs), with_all),
    ]);
    report.verdicts(&[Verdict::at_most(
        &format!("resident memory with {} jobs", size.jobs),
        with_all.all,
        TARGET,
        "MiB",
    )]);
}

/// Starts a process that holds memory, and waits until it holds it.
fn hold(job: &mut Shell) -> Result<Pid> {
    job.tell(HOLDER)?;
    let report = job.hear_json(PATIENCE)?;
    let pid = report["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok());
    ensure!(report["ok"] == true, "no memory: {report}");
    pid.and_then(Pid::from_raw).context("no process")
}

/// Resident memory in MiB, as the kernel breaks it down.
struct Memory {
    all: f64,
    own: f64,
    files: f64,
    shared: f64,
}

fn memory(pid: Pid) -> Result<Memory> {
    let number = pid.as_raw_nonzero().get().unsigned_abs();
    let mib = |field: &str| memory_mib(number, field);
    Ok(Memory {
        all: mib("VmRSS")?,
        own: mib("RssAnon")?,
        files: mib("RssFile")?,
        shared: mib("RssShmem")?,
    })
}
