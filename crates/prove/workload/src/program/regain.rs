//! Asks for memory that another process has, again and again, until it gets it.
//!
//! It prints `ready` after the first refusal: from then on the other process may free the memory.
//! The report has the time at which it got the memory, by a clock that all processes share. So the
//! process that freed it can compute how long that took.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::Args;

use crate::arguments::{Bytes, Common, seconds};
use crate::driver::Driver;
use crate::report::{Failure, Report};

/// Arguments of `regain`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Bytes to ask for
    #[arg(long, default_value = "1GiB")]
    size: Bytes,
    /// Give up after this time
    #[arg(long, default_value = "30", value_parser = seconds)]
    seconds: Duration,
}

impl Arguments {
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.size.0 == 0 {
            return Err("--size must be more than nothing".to_owned());
        }
        Ok(())
    }
}

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    let driver = Driver::start(&arguments.common, report)?;
    let context = driver.context(arguments.common.device)?;
    let begin = Instant::now();
    let mut refusals = 0_u64;
    let mut address = 0;
    loop {
        let asked_at = now_ns();
        // SAFETY: the pointer is to a live value.
        let answer = unsafe {
            context
                .raw()
                .cuMemAlloc_v2(&raw mut address, arguments.size.0)
        };
        match answer {
            Ok(()) => break,
            Err(why) if why.is_out_of_memory() && begin.elapsed() < arguments.seconds => {}
            Err(why) => return Err(why),
        }
        if refusals == 0 {
            say_ready()?;
        }
        refusals += 1;
        report.set("refusals", refusals);
        report.set("lastRefusedNs", asked_at);
    }
    report.set("gotNs", now_ns());
    report.set("memory", context.memory()?.to_json());
    // SAFETY: the driver gave it.
    unsafe { context.raw().cuMemFree_v2(address) }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which is the same clock for all processes.
fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the struct it is given; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn say_ready() -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "ready")
        .and_then(|()| out.flush())
        .map_err(Failure::system("saying that it was refused"))
}

#[cfg(test)]
mod tests {
    use super::now_ns;

    #[test]
    fn the_clock_goes_forward() {
        let first = now_ns();
        assert!(first > 0 && now_ns() >= first);
    }
}
