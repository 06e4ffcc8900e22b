//! Compute time at the command line: how it is asked, shown, refused, changed and kept.

use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::one_machine::{Ended, Machine, Running, until};

const ONE: &str = "1x16GiB,context=0MiB";
const HOLD: &str = "alloc --size 64MiB --hold stdin";

fn end(command: &mut Command) -> Result<Ended> {
    Running::start(command)?.end()
}

/// A job of 1 GiB that holds its place until it is told to end.
fn start(machine: &Machine, flags: &str) -> Result<Running> {
    Running::start(&mut machine.job(&format!("--memory 1GiB {flags}"), HOLD))
}

/// Class, promise and limit of a job.
fn asked(machine: &Machine, name: &str) -> Result<Value> {
    let row = machine.tenant(name)?;
    let keys = ["class", "computeRequestPercent", "computeLimitPercent"];
    Ok(json!(keys.map(|key| row[key].clone())))
}

#[test]
fn what_is_promised_is_shown_and_promised_once() -> Result<()> {
    let Some(machine) = Machine::new(ONE)? else {
        return Ok(());
    };
    let mut plain = start(&machine, "--name plain")?;
    plain.report()?;
    // Nobody shares compute time, and no table speaks of it; programs find all fields.
    let ps = end(&mut machine.sublet("ps"))?.lines;
    assert!(!ps[0].contains("COMPUTE"), "{ps:?}");
    let row = machine.tenant("plain")?;
    assert_eq!(asked(&machine, "plain")?, json!(["guaranteed", 0.0, 100.0]));
    for key in ["computeUsedPercent", "turnWaitPercent"] {
        assert!(
            row.as_object().is_some_and(|row| row.contains_key(key)),
            "{row}"
        );
    }
    let mut some = start(&machine, "--name some --compute 30%")?;
    some.report()?;
    let mut most = start(
        &machine,
        "--name most --compute 50.5%..80% --class guaranteed",
    )?;
    most.report()?;
    let mut rest = start(
        &machine,
        "--name rest --class opportunistic --compute 0%..40%",
    )?;
    rest.report()?;
    assert_eq!(asked(&machine, "some")?, json!(["guaranteed", 30.0, 100.0]));
    assert_eq!(asked(&machine, "most")?, json!(["guaranteed", 50.5, 80.0]));
    assert_eq!(
        asked(&machine, "rest")?,
        json!(["opportunistic", 0.0, 40.0])
    );
    assert_eq!(machine.top()?["gpus"][0]["computeGrantedPercent"], 80.5);
    let ps = end(&mut machine.sublet("ps"))?.lines.join("\n");
    for part in [
        "CLASS",
        "30 %",
        "50.5 %, at most 80 %",
        "opportunistic",
        "at most 40 %",
    ] {
        assert!(ps.contains(part), "{part}: {ps}");
    }
    let refused = end(&mut machine.job("--memory 1GiB --compute 20% --no-wait", HOLD))?;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let why = "GPU 0 lacks 0.5 % of its compute time: 20 % asked, and 19.5 % is left there";
    assert!(refused.errors.contains(why), "{refused:?}");
    let refused = end(&mut machine.job("--memory 1GiB --compute 100% --no-wait", HOLD))?;
    assert!(
        refused.errors.contains("of its compute time: 100 % asked"),
        "{refused:?}"
    );
    let flags = "--memory 1GiB --class opportunistic --compute 30%";
    let refused = end(&mut machine.job(flags, HOLD))?;
    assert!(
        refused.errors.contains("hint: write `0%..30%`"),
        "{refused:?}"
    );
    for job in [plain, some, most, rest] {
        assert_eq!(job.end()?.code, Some(0));
    }
    Ok(())
}

#[test]
fn compute_time_moves_between_jobs_and_outlives_the_arbiter() -> Result<()> {
    let Some(machine) = Machine::new(ONE)? else {
        return Ok(());
    };
    let mut first = start(&machine, "--name first --compute 80%")?;
    first.report()?;
    let mut second = start(&machine, "--name second --compute 30%..60%")?;
    second.until_error("GPU 0 lacks 10 % of its compute time")?;
    let wrong = end(&mut machine.sublet("limit first --compute 80%..60%"))?;
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    let limited = end(&mut machine.sublet("limit first --compute 70%"))?;
    assert_eq!(limited.code, Some(0), "{limited:?}");
    assert!(
        limited
            .lines
            .contains(&"job 1: compute time 70 %".to_owned()),
        "{limited:?}"
    );
    second.report()?;
    let kept = end(&mut machine.sublet("limit first --compute 71%"))?;
    let why = "job 1 keeps its compute time: GPU 0 lacks 1 % of its compute time";
    assert!(
        kept.errors.contains(why) && kept.code == Some(1),
        "{kept:?}"
    );
    machine.kill_arbiter()?;
    until("both jobs with what they had", || {
        let (first, second) = (asked(&machine, "first")?, asked(&machine, "second")?);
        ensure!(first == json!(["guaranteed", 70.0, 100.0]), "{first}");
        ensure!(second == json!(["guaranteed", 30.0, 60.0]), "{second}");
        Ok(())
    })?;
    for job in [first, second] {
        assert_eq!(job.end()?.code, Some(0));
    }
    Ok(())
}
