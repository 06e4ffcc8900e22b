//! A job that writes into the page on which it counts itself: it is found out by the driver's
//! count, shown, ended where the operator says so, and takes nothing from others.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::Signal;
use sublet_e2e::one_machine::{Machine, Running, mib, number, until};

/// Contexts cost what they usually do.
const USUAL: &str = "1x16GiB";

/// Starts a job of 1 GiB that cooks its books until it has so many.
fn cook(machine: &Machine, what: &str, gib: u64) -> Result<Running> {
    let program = machine.compile("cook.c", &["-ldl"])?;
    let mut run = machine.run("--memory 1GiB --name cook");
    let mut job = Running::start(run.arg(program).args([what, &gib.to_string()]))?;
    let said = job.line()?;
    let has = mib(gib << 10);
    ensure!(said == format!("has {has}"), "{what}: {said}");
    Ok(job)
}

#[test]
fn cooked_books_are_found_within_two_readings() -> Result<()> {
    for what in ["total", "all"] {
        let Some(machine) = Machine::new(USUAL)? else {
            return Ok(());
        };
        let job = cook(&machine, what, 8)?;
        let begin = Instant::now();
        let row = until("it to be found", || {
            let row = machine.tenant("cook")?;
            ensure!(row["state"] == "over", "{row}");
            ensure!(number(&row["memoryUsedMiB"])? >= 8192, "{row}");
            Ok(row)
        })?;
        // Two readings are 400 ms; the rest is the time that `top` takes.
        let time = begin.elapsed();
        println!("{what}: found in {time:?}: {}", row["reason"]);
        ensure!(time < Duration::from_secs(2), "{what}: {time:?}");
        // What is on the card, nobody else gets; what is not, others do.
        let other = machine.report("--memory 7GiB", "alloc --until-oom")?;
        assert_eq!(other["bytes"], mib(7168 - 480), "{what}: {other}");
        job.end()?;
    }
    Ok(())
}

#[test]
fn a_spoiled_page_keeps_nobody_from_starting() -> Result<()> {
    let Some(machine) = Machine::new(USUAL)? else {
        return Ok(());
    };
    // Its page says more than the card has: nonsense is as good as any number.
    let program = machine.compile("cook.c", &["-ldl", "-DFILL=0x3f"])?;
    for what in ["total", "all"] {
        let mut run = machine.run("--memory 1GiB --name cook");
        let mut job = Running::start(run.arg(&program).args([what, "1"]))?;
        job.line()?;
        until("it to be read", || {
            let row = machine.tenant("cook")?;
            ensure!(row["state"] == "over", "{row}");
            Ok(())
        })?;
        let other = machine.report("--memory 15GiB", "alloc --until-oom")?;
        assert_eq!(other["bytes"], mib(15_360 - 480), "{what}: {other}");
        job.end()?;
    }
    assert_eq!(machine.top()?["gpus"][0]["contextMiB"], 480);
    Ok(())
}

#[test]
fn a_job_beyond_its_limit_is_ended_where_the_operator_says_so_and_no_other_is() -> Result<()> {
    let Some(machine) = Machine::new(USUAL)? else {
        return Ok(());
    };
    let agent = Running::start(&mut machine.sublet("agent --standalone --evict-over"))?;
    until("the arbiter", || machine.top().map(drop))?;
    // One at its limit, whose limit is then lowered under it.
    let words = "alloc --until-oom --hold stdin";
    let mut honest = Running::start(&mut machine.job("--memory 2GiB --name honest", words))?;
    honest.report()?;
    let mut limit = machine.sublet("limit honest --memory 1GiB");
    assert_eq!(Running::start(&mut limit)?.end()?.code, Some(0));
    let mut job = cook(&machine, "total", 8)?;
    until("it to be ended", || {
        let has_ended = job.has_ended()?;
        ensure!(has_ended, "it still runs");
        Ok(())
    })?;
    let ended = job.end()?;
    assert_eq!(ended.code, Some(128 + 15), "{ended:?}");
    let row = machine.tenant("honest")?;
    assert_eq!(
        (&row["state"], &row["memoryUsedMiB"]),
        (&"over".into(), &2048.into())
    );
    let top = machine.top()?;
    assert_eq!(top["counters"]["evicted"], 1, "{top}");
    honest.end()?;
    agent.signal(Signal::TERM)?;
    assert_eq!(agent.end()?.code, Some(0));
    Ok(())
}
