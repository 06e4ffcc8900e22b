//! The referee: how much of a card is in use by NVML's count, looked at again and again until
//! standard input is closed.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;

use crate::nvml;
use crate::report::{Failure, Report};

/// What `watch` is told.
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
            // However it ends, it is the end.
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
