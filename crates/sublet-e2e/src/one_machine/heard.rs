//! Signals that whoever started the tests has ignored: `nohup` does, and a shell's `&`.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;

/// Has the programs that tests start hear them all the same. A program inherits what is ignored,
/// and not what is handled: the tests handle these signals by doing nothing.
///
/// # Errors
/// The system does not say what is ignored.
pub(super) fn by_programs() -> Result<()> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(line.context("no SigIgn")?.trim(), 16)?;
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        if ignored >> (signal - 1) & 1 == 1 {
            flag::register(signal, Arc::new(AtomicBool::new(false)))?;
        }
    }
    Ok(())
}
