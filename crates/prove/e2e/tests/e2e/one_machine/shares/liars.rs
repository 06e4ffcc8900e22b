//! Jobs whose processes write what they like on the page that says when they work.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use sublet_e2e::one_machine::{Machine, Running, until};

use super::{ONE, Window, by_second, mean, monotonic, shown};

/// Words of a liar that has its processes say nothing at all.
const SILENT: &[&str] = &["--silent"];

/// A job of 1 GiB that lies all the time about a program with these arguments. Its gate holds.
fn lies(machine: &Machine, flags: &str, how: &[&str], words: &str) -> Result<Running> {
    let liar = machine.compile("liar.c", &["-ldl"])?;
    let mut job = machine.run(&format!("--memory 1GiB --name liar {flags}"));
    job.arg(liar)
        .args(how)
        .arg(machine.built("sublet-workload"));
    Running::start(job.args(words.split_whitespace()))
}

/// Percent of the card in the last second, by the driver's own NVML.
fn seen_by_nvml(machine: &Machine) -> Result<f64> {
    let mut referee = machine.command(machine.built("sublet-workload"));
    referee.env("SUBLET_FAKE_GPU", machine.spec());
    referee.args(["utilisation", "--seconds", "0.1"]);
    referee.arg(machine.built("libsublet_fakenvml.so"));
    let report = Running::start(&mut referee)?.end()?.report()?;
    let processes = report["perTenth"].as_object().context("no processes")?;
    let last = processes.values().filter_map(|tenths| tenths[0].as_f64());
    Ok(last.sum())
}

/// A job whose processes say that they rest and do not: its long kernels run in the neighbour's
/// time, and its own turns cost it nothing, until the driver's figures show it. From then on it
/// pays, and the neighbour has what it was promised.
#[test]
fn a_job_that_lies_about_its_turns_is_found_and_its_neighbour_has_its_share() -> Result<()> {
    let Some(machine) = Machine::new(ONE)? else {
        return Ok(());
    };
    const SECONDS: usize = 24;
    let window = Window::soon(SECONDS as u32);
    let honest = window.start(&machine, "--name honest --compute 75%", "")?;
    let words = window.steady("--microseconds 50000 --kernels 1");
    let liar = lies(&machine, "--compute 25%", &[], &words)?;
    let found = until("the liar to be found", || {
        let row = machine.tenant("liar")?;
        let why = row["reason"].as_str().unwrap_or_default();
        ensure!(why.contains("its turns explain"), "{row}");
        Ok(why.to_owned())
    })?;
    println!("the liar: {found}");
    assert_eq!(machine.top()?["counters"]["overused"], 1);
    assert_eq!(machine.tenant("honest")?["reason"], Value::Null);
    let log = machine.log();
    let said = "a job works on a card for longer than its turns explain";
    assert!(log.contains(said), "{log}");
    let (honest, liar) = (honest.end()?.report()?, liar.end()?.report()?);
    let (honest, liar) = (by_second(&honest)?, by_second(&liar)?);
    println!("second by second, the honest one: {honest:?}; the liar: {liar:?}");
    // Two programs that nobody holds back have a half each: the lie does harm at first.
    let worst = honest.iter().fold(100.0, |least: f64, one| least.min(*one));
    assert!(worst < 55.0, "{honest:?}");
    // A machine with other things to do loses some of the card's time: of what both had.
    let had = |seconds: &[f64]| mean(seconds, SECONDS / 2, seconds.len());
    let (honest, liar) = (had(&honest), had(&liar));
    assert!(honest >= 0.6 * (honest + liar), "{honest} beside {liar}");
    Ok(())
}

/// A job whose processes say that they neither work nor wait: nobody is kept out for it, and it
/// waits for nobody. What the driver sees of it is charged, and collected by its own gate.
#[test]
fn a_job_that_clears_its_flags_pays_for_what_it_used() -> Result<()> {
    let Some(machine) = Machine::new(ONE)? else {
        return Ok(());
    };
    let window = Window::soon(24);
    let honest = window.start(&machine, "--name honest --compute 75%", "")?;
    let liar = lies(&machine, "--compute 25%", SILENT, &window.steady(""))?;
    let (honest, liar) = (honest.end()?.report()?, liar.end()?.report()?);
    let (honest, liar) = (by_second(&honest)?, by_second(&liar)?);
    println!("the honest one: {honest:?}; the liar: {liar:?}");
    let last = mean(&liar, 15, liar.len());
    ensure!(last <= 30.0, "{last} % from 15 s on");
    Ok(())
}

/// The same alone with a limit of two percent, in pieces that are small enough to begin while the
/// gate is open: 14 % if nobody counts.
#[test]
fn a_liar_s_small_pieces_are_seen_and_its_limit_of_two_percent_holds() -> Result<()> {
    let Some(machine) = Machine::new(ONE)? else {
        return Ok(());
    };
    let window = Window::soon(25);
    let pieces = window.steady("--microseconds 1000 --kernels 1 --pause 0.006");
    let liar = lies(&machine, "--compute 0%..2%", SILENT, &pieces)?;
    window.wait(0.0)?;
    let begin = monotonic();
    let seen = until("its time to be shown", || {
        let (shown, used) = (shown(&machine, "liar")?, seen_by_nvml(&machine)?);
        ensure!(
            used > 0.0 && (shown - used).abs() <= 2.0,
            "{shown}, not {used}"
        );
        Ok(shown)
    })?;
    let time = monotonic() - begin;
    ensure!(time <= Duration::from_secs(5), "shown after {time:?}");
    window.wait(20.0)?;
    let mut last = Vec::new();
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(500));
        last.push(seen_by_nvml(&machine)?);
    }
    println!("the liar from 20 s on: {last:?}; shown as {seen} after {time:?}");
    let mean = last.iter().sum::<f64>() / last.len() as f64;
    ensure!(mean <= 4.0, "{mean} % from 20 s on");
    // It stands at its gate until it has paid.
    liar.signal(Signal::KILL)?;
    liar.end()?;
    Ok(())
}
