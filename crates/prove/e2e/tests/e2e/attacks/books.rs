//! A job that writes into the page on which it counts itself: it is found out by the driver's
//! count, shown, ended where the operator says so, and takes nothing from others.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use sublet_e2e::one_machine::{Machine, Running, mib, number, until};

use crate::known_failures::START;

/// Contexts cost what they usually do.
const USUAL: &str = "1x16GiB";

/// Offset in bytes of the word of the first card in the page, behind its stamp.
const HEADS: u64 = 64;

/// Starts a job of 1 GiB that cooks its books while it takes so many: it overwrites its card's
/// `total`, or `all` but the page's stamp. With zeros it gets all that it asks for.
fn cook(machine: &Machine, what: &str, byte: u8, gib: u64) -> Result<Running> {
    let mut calls = machine.calls("--memory 1GiB --name cook")?;
    calls.play(START)?;
    let maps = fs::read_to_string(format!("/proc/{}/maps", calls.call("getpid")?))?;
    let page = maps.lines().find(|line| line.contains("sublet-ledger"));
    let range = page.and_then(|line| line.split(' ').next()?.split_once('-'));
    let (start, end) = range.with_context(|| format!("no ledger in {maps}"))?;
    let heads = u64::from_str_radix(start, 16)? + HEADS;
    let bytes = match what {
        "total" => 8,
        _ => u64::from_str_radix(end, 16)? - heads,
    };
    let spoil = format!("memset {heads} {byte} {bytes}");
    for _ in 0..2 * gib {
        calls.call(&spoil)?;
        let got = calls.call("cuMemAlloc_v2 &a 512M")?;
        ensure!(byte != 0 || got == "0", "{what}: {got}");
    }
    calls.call(&spoil)?;
    Ok(calls.into_running())
}

#[test]
fn cooked_books_are_found_within_two_readings() -> Result<()> {
    for what in ["total", "all"] {
        let Some(machine) = Machine::new(USUAL)? else {
            return Ok(());
        };
        let job = cook(&machine, what, 0, 8)?;
        let begin = Instant::now();
        let row = until("it to be found", || {
            let row = machine.tenant("cook")?;
            ensure!(row["state"] == "over", "{row}");
            ensure!(number(&row["usedMiB"])? >= 8192, "{row}");
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
    for what in ["total", "all"] {
        let job = cook(&machine, what, 0x3f, 1)?;
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
    until("the arbiter", || machine.arbiter())?;
    // One at its limit, whose limit is then lowered under it.
    let words = "alloc --until-oom --hold stdin";
    let mut honest = Running::start(&mut machine.job("--memory 2GiB --name honest", words))?;
    honest.report()?;
    let mut limit = machine.sublet("limit honest --memory 1GiB");
    assert_eq!(Running::start(&mut limit)?.end()?.code, Some(0));
    let mut job = cook(&machine, "total", 0, 8)?;
    until("it to be ended", || {
        let has_ended = job.has_ended()?;
        ensure!(has_ended, "it still runs");
        Ok(())
    })?;
    let ended = job.end()?;
    assert_eq!(ended.code, Some(128 + 15), "{ended:?}");
    let row = machine.tenant("honest")?;
    assert_eq!(
        (&row["state"], &row["usedMiB"]),
        (&"over".into(), &2048.into())
    );
    let top = machine.top()?;
    assert_eq!(top["counters"]["evicted"], 1, "{top}");
    honest.end()?;
    agent.signal(Signal::TERM)?;
    assert_eq!(agent.end()?.code, Some(0));
    Ok(())
}
