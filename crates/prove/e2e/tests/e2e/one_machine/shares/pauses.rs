//! Programs that pause: what is owed to them stays theirs.

use anyhow::{Context, Result, ensure};
use sublet_e2e::one_machine::{Machine, Running};

use super::{ONE, Window, one_of_three};

/// Part of its pace alone that a program keeps which needs less than it was promised.
const PACE: f64 = 0.85;

/// Ten launches of half a millisecond, then 5 ms without any: alone it needs half of a card, and it
/// was promised three quarters.
#[test]
fn a_program_that_pauses_keeps_its_pace_beside_one_that_never_rests() -> Result<()> {
    one_of_three(|| {
        let (Some(machine), Some(quiet)) = (Machine::new(ONE)?, Machine::new(ONE)?) else {
            return Ok(());
        };
        let window = Window::soon(8);
        let pauses = "--kernels 10 --pause 0.005";
        // On another card at the same time: what else this machine does slows down both.
        let alone = window.start(&quiet, "--name alone --compute 75%", pauses)?;
        let busy = window.start(&machine, "--name busy --compute 25%", "")?;
        let paced = window.start(&machine, "--name paced --compute 75%", pauses)?;
        let (alone, paced) = (pace(alone)?, pace(paced)?);
        busy.end()?.report()?;
        ensure!(
            paced >= PACE * alone,
            "{paced} iterations a second, and {alone} alone"
        );
        Ok(())
    })
}

/// Iterations a second.
fn pace(program: Running) -> Result<f64> {
    let report = program.end()?.report()?;
    let pace = report["burstsPerSecond"].as_f64();
    pace.with_context(|| format!("no pace: {report}"))
}
