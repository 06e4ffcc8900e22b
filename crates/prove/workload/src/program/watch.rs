//! Watches how much of a card is in use by NVML's count, until standard input is closed. Tests
//! compare other counts with it.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;

use crate::nvml;
use crate::report::{Failure, Report};

/// Arguments of `watch`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The driver's NVML library
    nvml: String,
}

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    let is_over = AtomicBool::new(false);
    let (mut looks, mut highest) = (0_u64, 0_u64);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            // The end of the input ends the watch, and so does an error.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            is_over.store(true, Ordering::Release);
        });
        nvml::used_again_and_again(&arguments.nvml, |used| {
            looks += 1;
            highest = highest.max(used);
            !is_over.load(Ordering::Acquire)
        })
    });
    report.set("looks", looks);
    report.set("highest", highest);
    outcome
}
