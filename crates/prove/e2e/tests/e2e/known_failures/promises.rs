//! Row 10: memory that is promised must be there. We promise only as much as there is; a job that
//! wants more is told so, before or at the call, and can be given more while it runs.

use anyhow::{Context, Result, ensure};
use sublet_e2e::one_machine::{Ended, Machine, Running, mib, number, until};

use crate::known_failures::{EXACT, START};

fn limit(machine: &Machine, words: &str) -> Result<Ended> {
    Running::start(&mut machine.sublet(&format!("limit {words}")))?.end()
}

/// Twice the card was advertised, and the second half was a plain end of memory in the middle of
/// the work (HAMi#705, HAMi#1128, HAMi#2630). Here the sum of the jobs' memory is never above the
/// card, and a job that does not fit waits, or is refused.
#[test]
fn row_10_no_more_is_promised_than_there_is() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    for flags in ["--memory 17GiB", "--memory 16385MiB", "--memory 101%"] {
        let ended = Running::start(machine.run(flags).arg("true"))?.end()?;
        assert!(matches!(ended.code, Some(1 | 2)), "{flags}: {ended:?}");
        assert!(ended.errors.starts_with("error: "), "{flags}: {ended:?}");
    }
    let hold = "alloc --size 64MiB --hold stdin";
    let mut first = Running::start(&mut machine.job("--memory 10GiB --name first", hold))?;
    first.report()?;
    let refused = Running::start(&mut machine.job("--memory 10GiB --no-wait", hold))?.end()?;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.errors.contains("is refused: "), "{refused:?}");
    let mut second = Running::start(&mut machine.job("--memory 6GiB --name second", hold))?;
    second.report()?;
    // Neither can grow into the other, nor beyond the card.
    for words in [
        "first --memory 11GiB",
        "second --memory 7GiB",
        "second --memory 32GiB",
    ] {
        let ended = limit(&machine, words)?;
        assert_eq!(ended.code, Some(1), "{words}: {ended:?}");
    }
    let top = machine.top()?;
    assert_eq!(top["gpus"][0]["grantedMiB"], 16_384, "{top}");
    assert_eq!(top["gpus"][0]["freeMiB"], 0, "{top}");
    // What each was promised it gets, both at once.
    let mut jobs = [first, second];
    for job in &mut jobs {
        assert!(!job.has_ended()?);
    }
    let all = "alloc --until-oom --size 64MiB --hold stdin";
    for job in jobs {
        job.end()?;
    }
    let mut first = Running::start(&mut machine.job("--memory 10GiB", all))?;
    let mut second = Running::start(&mut machine.job("--memory 6GiB", all))?;
    assert_eq!(first.report()?["bytes"], mib(10 * 1024));
    assert_eq!(second.report()?["bytes"], mib(6 * 1024));
    assert_eq!(machine.card(0)?.used, mib(16 * 1024));
    first.end()?;
    second.end()?;
    Ok(())
}

/// More than the limit is a plain end of memory, nothing is taken for it, and the very next call
/// succeeds once the limit is raised: resizing a running job was asked for (HAMi#1224).
#[test]
fn row_10_a_limit_is_raised_and_lowered_while_the_program_runs() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut calls = machine.calls("--memory 1GiB --name job")?;
    calls.play(START)?;
    calls.play(
        "
        cuMemAlloc_v2 &a 2G -> 2
        cuMemAlloc_v2 &a 1G
        cuMemAlloc_v2 &b 1G -> 2
        ",
    )?;
    let row = machine.tenant("job")?;
    assert_eq!(row["usedMiB"], 1024, "{row}");
    let refusal = &row["perGpu"][0]["lastRefusal"];
    assert_eq!(number(&refusal["bytes"])?, mib(1024), "{row}");
    for (to, total) in [("2GiB", mib(2048)), ("25%", mib(4096))] {
        assert_eq!(
            limit(&machine, &format!("job --memory {to}"))?.code,
            Some(0)
        );
        let now = calls
            .number("cuMemGetInfo_v2 &free &total")
            .and_then(|code| {
                ensure!(code == 0, "{code}");
                calls.number("print total")
            })?;
        assert_eq!(now, total, "{to}");
    }
    calls.play("cuMemAlloc_v2 &b 3G\ncuMemAlloc_v2 &c 2M -> 2")?;
    let lowered = limit(&machine, "job --memory 2GiB")?;
    assert!(lowered.errors.contains("no new memory"), "{lowered:?}");
    // Above its limit nothing is taken away, and nothing is given.
    calls.play(
        "
        cuMemsetD32_v2 a 1 4
        cuMemAlloc_v2 &c 512 -> 2
        cuMemFree_v2 b
        cuMemAlloc_v2 &c 1G
        cuMemAlloc_v2 &d 512 -> 2
        ",
    )?;
    assert_eq!(machine.tenant("job")?["state"], "running");
    calls.end()
}

/// A process that is no job takes memory that was promised. The free memory that a program is then
/// told is the amount that it can get, not the rest of its limit.
#[test]
fn row_10_what_is_said_to_be_free_can_be_had() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut calls = machine.calls("--memory 12GiB --name job")?;
    calls.play(START)?;
    let mut stranger = machine.direct("alloc --size 10GiB --hold stdin");
    let mut stranger = Running::start(&mut stranger)?;
    stranger.report()?;
    calls.play("cuMemGetInfo_v2 &free &total\nprint total -> 12884901888")?;
    let free = calls.number("print free")?;
    assert_eq!(free, mib(6 * 1024));
    calls.play(&format!(
        "cuMemAlloc_v2 &a {free}\ncuMemAlloc_v2 &b 2M -> 2"
    ))?;
    // What the driver refused was not kept on the account.
    assert_eq!(machine.tenant("job")?["usedMiB"], 6 * 1024);
    // Nothing of it is given to others either.
    until("the stranger to be counted", || {
        let top = machine.top()?;
        ensure!(number(&top["gpus"][0]["keptMiB"])? >= 4 * 1024, "{top}");
        Ok(())
    })?;
    let refused = Running::start(&mut machine.job("--memory 1GiB --no-wait", "info"))?;
    let refused = refused.end().context("a job that does not fit")?;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    stranger.end()?;
    calls.play("cuMemAlloc_v2 &b 6G\ncuMemAlloc_v2 &c 2M -> 2")?;
    calls.end()
}
