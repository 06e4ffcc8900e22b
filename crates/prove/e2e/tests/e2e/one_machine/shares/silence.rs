//! An arbiter that is stopped for a while and goes on: nobody pays for the time in which it slept.

use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use sublet_e2e::one_machine::Machine;

use super::{ONE, Window, by_tenth, mean, monotonic, one_of_three};

/// Seconds of the window at which the arbiter stops and goes on.
const STOPS: f64 = 2.0;
const GOES_ON: f64 = 7.0;

#[test]
fn an_arbiter_that_was_stopped_charges_and_accuses_nobody_for_that_time() -> Result<()> {
    one_of_three(|| {
        let Some(machine) = Machine::new(ONE)? else {
            return Ok(());
        };
        let window = Window::soon(17);
        let low = window.start(&machine, "--name low --compute 25%", "")?;
        let high = window.start(&machine, "--name high --compute 75%", "")?;
        window.wait(STOPS)?;
        let arbiter = machine.arbiter()?;
        kill_process(arbiter, Signal::STOP)?;
        let waited = window.wait(GOES_ON);
        kill_process(arbiter, Signal::CONT)?;
        let back = window.tenth(monotonic());
        waited?;
        // The driver's figures of several seconds count, the silent ones among them.
        while monotonic() < window.end() - Duration::from_millis(500) {
            for name in ["low", "high"] {
                let row = machine.tenant(name)?;
                ensure!(row["reason"] == Value::Null, "it is accused: {row}");
            }
            std::thread::sleep(Duration::from_millis(250));
        }
        ensure!(machine.top()?["counters"]["overused"] == 0);
        let high = by_tenth(&high.end()?.report()?)?;
        let low = by_tenth(&low.end()?.report()?)?;
        println!(
            "from a second before the arbiter is back: {:?} and {:?}",
            &high[back - 10..],
            &low[back - 10..]
        );
        // Programs that wait for a core have less, and the card is idle: so of what both had.
        // `bench shares` has the figure of a quiet machine.
        let share = |from, to| {
            let (high, low) = (mean(&high, from, to), mean(&low, from, to));
            100.0 * high / (high + low).max(1.0)
        };
        let first = share(back + 3, back + 13);
        ensure!((first - 75.0).abs() <= 12.0, "{first} %");
        let rest = share(back + 3, high.len() - 2);
        ensure!((rest - 75.0).abs() <= 8.0, "{rest} %");
        Ok(())
    })
}
