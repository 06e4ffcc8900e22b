//! Work that is queued, and long kernels: what runs over is charged, and made up.

use anyhow::{Context, Result, ensure};
use sublet_e2e::one_machine::{Machine, until};

use super::{ONE, Window, by_second, has_its_share, one_of_three, shown};

/// Two stories at once, with kernels of 2 and of 10 ms. The one that never waits is alone for two
/// seconds at first, so that its queue is as deep as it may be.
#[test]
fn the_backlog_of_a_job_that_was_alone_is_short_and_made_up() -> Result<()> {
    one_of_three(|| {
        let (Some(short), Some(long)) = (Machine::new(ONE)?, Machine::new(ONE)?) else {
            return Ok(());
        };
        let window = Window::soon(10);
        let mut first = Vec::new();
        for (machine, us) in [(&short, 2000), (&long, 10_000)] {
            let kernels = format!("--microseconds {us} --kernels 1 --never-wait");
            first.push(window.start(machine, "--name first --compute 25%", &kernels)?);
        }
        for machine in [&short, &long] {
            until("the first at work", || {
                let used = shown(machine, "first")?;
                ensure!(used >= 90.0, "{used} %");
                Ok(())
            })?;
        }
        window.wait(1.0)?;
        let mut second = Vec::new();
        for machine in [&short, &long] {
            second.push(super::busy(machine, "--name second --compute 75%", 7, "")?);
        }
        for (second, us) in second.into_iter().zip([2000, 10_000]) {
            let seconds = by_second(&second.end()?.report()?)?;
            println!("beside kernels of {us} us: {seconds:?}");
            has_its_share(&seconds[1..], 75.0, 3.0)?;
        }
        for first in first {
            let report = first.end()?.report()?;
            let beyond = report["secondsBeyond"].as_f64().context("no end")?;
            ensure!(beyond <= 0.5, "{beyond} s beyond its end: {report}");
        }
        Ok(())
    })
}

/// Three kernels of 100 ms in a turn of 20: the debt outlives the moments in which the other rests.
#[test]
fn long_kernels_are_paid_for_though_the_other_rests_now_and_then() -> Result<()> {
    one_of_three(|| {
        let Some(machine) = Machine::new(ONE)? else {
            return Ok(());
        };
        let window = Window::soon(24);
        let kernels = "--microseconds 100000 --kernels 3";
        let long = window.start(&machine, "--name long --compute 25%", kernels)?;
        let other = window.start(&machine, "--name other --compute 75%", "")?;
        let other = by_second(&other.end()?.report()?)?;
        long.end()?.report()?;
        let mean = super::mean(&other, 0, other.len());
        ensure!((mean - 75.0).abs() <= 5.0, "{mean}: {other:?}");
        Ok(())
    })
}
