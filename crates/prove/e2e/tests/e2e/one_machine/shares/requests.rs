//! Programs that answer requests: how long one takes beside others and at a limit, and what they
//! leave to others.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::one_machine::{Machine, Running};

use super::{ONE, Window, by_second, has_its_share, one_of_three};

/// A request of 1 ms.
const REQUEST: &str = "serve --launches 20 --microseconds 50";

/// Milliseconds until a busy neighbour has drained: what it may have queued while somebody has
/// requests, and the kernel that runs.
const DRAIN: f64 = 2.5;

/// Starts a server as a job of 1 GiB.
fn serve(machine: &Machine, flags: &str, words: &str) -> Result<Running> {
    let flags = format!("--memory 1GiB --name server {flags}");
    Running::start(&mut machine.job(&flags, &format!("{REQUEST} {words}")))
}

fn number(report: &Value, path: &str) -> Result<f64> {
    let number = report.pointer(path).and_then(Value::as_f64);
    number.with_context(|| format!("no {path}: {report}"))
}

/// The middle and the slowest of ten, in milliseconds. The slowest of a hundred say how long the
/// other tests kept the arbiter and the neighbour from a processor: `cargo xtask bench shares` has
/// those, of a quiet machine.
fn latency(report: &Value) -> Result<(f64, f64)> {
    let of = |path| Ok::<_, anyhow::Error>(number(report, path)? / 1000.0);
    Ok((of("/latencyUs/p50")?, of("/latencyUs/p90")?))
}

/// Nine percent used of the fifty that were promised. The same requests arrive on a card of their
/// own at the same time: what else this machine does slows down both.
#[test]
fn a_request_waits_for_no_turn_of_a_busy_neighbour_but_for_a_drain() -> Result<()> {
    one_of_three(|| {
        let (Some(machine), Some(quiet)) = (Machine::new(ONE)?, Machine::new(ONE)?) else {
            return Ok(());
        };
        let window = Window::soon(10);
        let busy = window.start(&machine, "--name busy --compute 50%", "")?;
        window.wait(0.0)?;
        let arrivals = "--every 0.011 --seconds 8";
        let alone = serve(&quiet, "--compute 50%", arrivals)?;
        let beside = serve(&machine, "--compute 50%", arrivals)?;
        let (alone, beside) = (alone.end()?.report()?, beside.end()?.report()?);
        busy.end()?.report()?;
        let ((p50, p90), (p50_alone, p90_alone)) = (latency(&beside)?, latency(&alone)?);
        println!("p50 {p50} ms and alone {p50_alone}, p90 {p90} ms and alone {p90_alone}");
        ensure!(p50 <= 1.5 * p50_alone + DRAIN, "{beside} {alone}");
        ensure!(p90 <= 2.0 * p90_alone + DRAIN, "{beside} {alone}");
        Ok(())
    })
}

/// A request and 10 ms of quiet, which needs nine percent of the card.
#[test]
fn a_limit_is_spread_over_each_tenth_of_a_second() -> Result<()> {
    one_of_three(|| {
        let Some(machine) = Machine::new(ONE)? else {
            return Ok(());
        };
        let server = serve(&machine, "--compute 0%..5%", "--pause 0.01 --seconds 8")?;
        let report = server.end()?.report()?;
        let used = number(&report, "/requestsPerSecond")? * 0.001 * 100.0;
        // Each request is charged for the time until the arbiter has heard that it has ended, which
        // takes long on a machine with other things to do.
        ensure!((1.2..=5.5).contains(&used), "{used} %: {report}");
        let pause = number(&report, "/longestPauseUs")? / 1000.0;
        // A tenth of a second on a machine for itself; half a second and more with one burst a second.
        ensure!(pause <= 400.0, "nothing for {pause} ms: {report}");
        Ok(())
    })
}

/// Requests that need eight percent of the card leave ninety-two.
#[test]
fn an_opportunistic_program_has_what_a_server_leaves() -> Result<()> {
    one_of_three(|| {
        let Some(machine) = Machine::new(ONE)? else {
            return Ok(());
        };
        let window = Window::soon(8);
        let guest = window.start(&machine, "--name guest --class opportunistic", "")?;
        let words = format!("--every 0.0125 --seconds {}", window.seconds + 2);
        let server = serve(&machine, "--compute 50%", &words)?;
        let guest = by_second(&guest.end()?.report()?)?;
        let report = server.end()?.report()?;
        println!("the guest: {guest:?}; the server: {report}");
        // At most what the server leaves. On a quiet machine it is 88, once the server has been seen
        // to be as fast beside it; where processors are short, that is seen more seldom: beside a
        // cluster on the other core 58 to 70 were seen.
        has_its_share(&guest[2..], 72.0, 16.0)
    })
}
