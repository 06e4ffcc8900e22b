//! Signals that the tests ignore because their parent process did: `nohup` does, and a shell's `&`.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;

/// Makes the programs that tests start receive these signals all the same. A program inherits
/// which signals are ignored, but not which are handled. So the tests handle these signals, and
/// the handler does nothing.
///
/// # Errors
/// The system does not say which signals are ignored.
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
