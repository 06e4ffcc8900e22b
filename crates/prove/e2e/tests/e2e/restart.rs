//! The arbiter is killed and comes back while jobs work: limits hold, jobs go on, nothing is lost
//! and nothing is gained; and what happens to programs that begin while it is away.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use sublet_e2e::one_machine::{Machine, Running, mib, number, pid_of, until};

/// Contexts that cost nothing, so that every byte on a card is one that a program asked for.
const EXACT: &str = "1x16GiB,context=0MiB";

/// While this lives, nobody starts an arbiter: a command that wants to waits for its turn.
struct Away {
    _lock: File,
}

impl Away {
    /// Kills the arbiter and keeps it away.
    fn begin(machine: &Machine) -> Result<Away> {
        let lock = File::options()
            .append(true)
            .open(machine.folder()?.join("start.lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        machine.kill_arbiter()?;
        Ok(Away { _lock: lock })
    }
}

/// A job of these names is there with one process each, and uses this much.
fn shows(machine: &Machine, jobs: &[(&str, u64)]) -> Result<Value> {
    let top = machine.top()?;
    let rows = top["jobs"].as_array().context("no tenants")?;
    ensure!(rows.len() == jobs.len(), "{top}");
    for (name, used) in jobs {
        let row = rows.iter().find(|row| row["name"] == *name);
        let row = row.with_context(|| format!("no {name} in {top}"))?;
        ensure!(row["pids"].as_array().map(Vec::len) == Some(1), "{top}");
        ensure!(row["usedMiB"] == *used, "{name}: {top}");
        ensure!(row["state"] == "running", "{name}: {top}");
    }
    Ok(top)
}

/// Jobs that are there while the arbiter is killed. `hammer` may end by itself; the others do not.
const JOBS: [&str; 3] = ["hammer", "holder", "train"];

#[test]
fn limits_hold_and_jobs_go_on_when_the_arbiter_is_killed_under_load() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let hammer = "threads --threads 4 --rounds 100000000 --size 16MiB --hold 8";
    let mut hammer = Running::start(&mut machine.job("--memory 128MiB --name hammer", hammer))?;
    let hold = "alloc --size 256MiB --hold stdin";
    let mut holder = Running::start(&mut machine.job("--memory 512MiB --name holder", hold))?;
    holder.report()?;
    let train = "train --steps 100000000 --kernels 1 --microseconds 50 --keep 64MiB";
    let train = Running::start(&mut machine.job("--memory 128MiB --name train", train))?;
    // One that meets no arbiter at its start is refused, and that is another test.
    until("all jobs to have begun", || {
        let top = machine.top()?;
        let rows = top["jobs"].as_array().context("no list")?;
        let begun = |row: &&Value| row["pids"].as_array().is_some_and(|pids| pids.len() == 1);
        ensure!(rows.iter().filter(begun).count() == JOBS.len(), "{top}");
        Ok(())
    })?;
    let mut times = Vec::new();
    let mut is_hammering = true;
    for round in 0..4 {
        let signal = if round % 2 == 0 {
            Signal::KILL
        } else {
            Signal::TERM
        };
        let begin = Instant::now();
        let top = all_come_back_after(&machine, signal, &mut hammer, &mut is_hammering)?;
        times.push(begin.elapsed().as_millis());
        limits_hold(&machine, &top, round)?;
    }
    println!("killed to all jobs shown again, ms: {times:?}; still hammering: {is_hammering}");
    if !is_hammering {
        anyhow::bail!(
            "the load ended before the last restart: {:?}",
            hammer.end()?
        );
    }
    for job in [&hammer, &train] {
        job.signal(Signal::TERM)?;
    }
    assert_eq!(hammer.end()?.code, Some(143));
    assert_eq!(train.end()?.code, Some(143));
    assert_eq!(holder.end()?.code, Some(0));
    until("an empty machine", || shows(&machine, &[]).map(drop))?;
    assert_eq!(machine.card(0)?.used, 0);
    Ok(())
}

/// Ends the arbiter and returns what the next one shows. It takes no command to bring it back: the
/// jobs do.
fn all_come_back_after(
    machine: &Machine,
    signal: Signal,
    hammer: &mut Running,
    is_hammering: &mut bool,
) -> Result<Value> {
    let before = machine.arbiter()?;
    kill_process(before, signal)?;
    until("all jobs to be back in top", || {
        ensure!(machine.arbiter()? != before, "the old one");
        let top = machine.top()?;
        *is_hammering &= !hammer.has_ended()?;
        for name in JOBS {
            if name == "hammer" && !*is_hammering {
                continue;
            }
            let mut rows = top["jobs"].as_array().into_iter().flatten();
            let row = rows.find(|row| row["name"] == name);
            let row = row.with_context(|| format!("no {name} in {top}"))?;
            ensure!(row["pids"].as_array().map(Vec::len) == Some(1), "{top}");
        }
        Ok(top)
    })
}

/// No job has more than its limit, and a new job gets what it asks for, less what a context is
/// thought to cost by then.
fn limits_hold(machine: &Machine, top: &Value, round: u32) -> Result<()> {
    for row in top["jobs"].as_array().into_iter().flatten() {
        let (used, limit) = (&row["usedMiB"], &row["limitMiB"]);
        assert!(number(used)? <= number(limit)?, "{row}");
    }
    assert_eq!(machine.tenant("holder")?["usedMiB"], 256);
    assert!(machine.card(0)?.used <= mib(128 + 256 + 128));
    let next = machine.report("--memory 256MiB", "alloc --until-oom")?;
    let bytes = number(&next["bytes"])?;
    assert!(
        (mib(128)..=mib(256)).contains(&bytes),
        "round {round}: {next}"
    );
    Ok(())
}

#[test]
fn a_changed_limit_outlives_the_arbiter_and_its_successor_can_change_it() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let workload = machine.built("sublet-workload").display().to_string();
    let script = format!(
        "{workload} alloc --size 64MiB --hold 600 & for i in 1 2; do read line; \
         {workload} alloc --until-oom --size 2MiB; done; kill $!"
    );
    let mut run = machine.run("--memory 256MiB --name job");
    let mut job = Running::start(run.args(["sh", "-c", &script]))?;
    let first = pid_of(&job.report()?["pid"])?;
    let limit = |words: &str| -> Result<()> {
        let ended = Running::start(&mut machine.sublet(words))?.end()?;
        ensure!(ended.code == Some(0), "{ended:?}");
        Ok(())
    };
    limit("limit job --memory 512MiB")?;
    machine.kill_arbiter()?;
    let top = until("the job", || shows(&machine, &[("job", 64)]))?;
    assert_eq!(top["jobs"][0]["limitMiB"], 512, "{top}");
    let pid = first.as_raw_nonzero().get();
    assert_eq!(top["jobs"][0]["pids"], json!([pid]), "{top}");
    job.say("")?;
    assert_eq!(job.report()?["bytes"], mib(512 - 64));
    limit("limit job --memory 128MiB")?;
    job.say("")?;
    assert_eq!(job.report()?["bytes"], mib(128 - 64));
    job.end()?;
    Ok(())
}

#[test]
fn what_died_while_the_arbiter_was_away_is_free() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let workload = machine.built("sublet-workload").display().to_string();
    let script = format!(
        "{workload} alloc --size 256MiB --hold 600 & {workload} alloc --size 128MiB --hold 600 & \
         read line; {workload} alloc --until-oom"
    );
    let mut run = machine.run("--memory 512MiB --name job");
    let mut job = Running::start(run.args(["sh", "-c", &script]))?;
    let mut large = None;
    for _ in 0..2 {
        let report = job.report()?;
        if report["bytes"] == mib(256) {
            large = Some(pid_of(&report["pid"])?);
        }
    }
    let away = Away::begin(&machine)?;
    kill_process(large.context("no large one")?, Signal::KILL)?;
    drop(away);
    until("the job with what is left", || {
        shows(&machine, &[("job", 128)]).map(drop)
    })?;
    job.say("")?;
    assert_eq!(job.report()?["bytes"], mib(512 - 128));
    job.signal(Signal::KILL)?;
    Ok(())
}

/// Programs of a job that begin while nobody listens.
#[test]
fn a_program_that_begins_while_the_arbiter_is_away() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let workload = machine.built("sublet-workload").display().to_string();
    let script = format!(
        "{workload} alloc --size 64MiB; read line; {workload} alloc --size 64MiB --hold stdin"
    );
    let mut jobs = Vec::new();
    for mode in ["strict", "compat"] {
        let mut run = machine.run(&format!("--memory 256MiB --name {mode} --{mode}"));
        let mut job = Running::start(run.args(["sh", "-c", &script]))?;
        assert_eq!(job.report()?["ok"], true);
        jobs.push(job);
    }
    let away = Away::begin(&machine)?;
    let [strict, compat] = jobs.as_mut_slice() else {
        anyhow::bail!("two jobs");
    };
    strict.say("")?;
    let begin = Instant::now();
    let refused = strict.report()?;
    println!(
        "strict, no arbiter: {} after {:?}",
        refused["error"],
        begin.elapsed()
    );
    assert_eq!(
        refused["error"]["name"], "CUDA_ERROR_NOT_PERMITTED",
        "{refused}"
    );
    assert_eq!(refused["error"]["call"], "cuInit", "{refused}");
    compat.say("")?;
    let report = compat.report()?;
    assert_eq!(
        (&report["ok"], &report["bytes"]),
        (&json!(true), &json!(mib(64)))
    );
    drop(away);
    let begin = Instant::now();
    let row = until("the program to be reported", || {
        let top = machine.top()?;
        let mut rows = top["jobs"].as_array().into_iter().flatten();
        let row = rows.find(|row| row["state"] == "unmanaged");
        row.cloned().with_context(|| top.to_string())
    })?;
    println!(
        "compat, no arbiter: reported {:?} after one was allowed",
        begin.elapsed()
    );
    assert_eq!(row["pids"], json!([report["pid"]]), "{row}");
    assert_eq!(row["usedMiB"], 64, "{row}");
    let mut codes = Vec::new();
    for job in jobs {
        codes.push(job.end()?.code);
    }
    assert_eq!(codes, [Some(1), Some(0)]);
    Ok(())
}

#[test]
fn a_waiting_job_joins_the_next_arbiter_s_queue() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let hold = "alloc --size 64MiB --hold stdin";
    let mut first = Running::start(&mut machine.job("--memory 12GiB --name first", hold))?;
    first.report()?;
    let mut second = Running::start(&mut machine.job("--memory 8GiB --name second", hold))?;
    second.until_error("waiting, next")?;
    machine.kill_arbiter()?;
    second.until_error("joining the queue again")?;
    until("both in top", || {
        let top = machine.top()?;
        let states: Vec<&Value> = (0..2).map(|row| &top["jobs"][row]["state"]).collect();
        ensure!(states == ["running", "waiting"], "{top}");
        Ok(())
    })?;
    assert_eq!(first.end()?.code, Some(0));
    second.report()?;
    assert_eq!(second.end()?.code, Some(0));
    Ok(())
}

/// An arbiter that stands still holds up no job that is there already.
#[test]
fn memory_is_taken_and_given_while_the_arbiter_stands_still() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let threads = "threads --threads 2 --rounds 20000 --size 8MiB";
    let mut job = Running::start(&mut machine.job("--memory 32MiB --name job", threads))?;
    until("it to work", || {
        let row = machine.tenant("job")?;
        ensure!(number(&row["usedMiB"])? > 0, "{row}");
        Ok(())
    })?;
    let arbiter = machine.arbiter()?;
    kill_process(arbiter, Signal::STOP)?;
    let begin = Instant::now();
    let report = job.report();
    let time = begin.elapsed();
    kill_process(arbiter, Signal::CONT)?;
    let report = report?;
    println!("it went on for {time:?} without an answer from the arbiter");
    assert!(number(&report["highestBytes"])? <= mib(32), "{report}");
    assert_eq!(report["leftBytes"], 0, "{report}");
    assert!(time < Duration::from_secs(20), "{time:?}");
    assert_eq!(job.end()?.code, Some(0));
    Ok(())
}
