//! Programs that follow a test's script. A test of a driver, or of a library in front of one, tells
//! a C program which call to make with which arguments, and reads the call's result.
//!
//! Read [`Calls`] (the script), then [`Running`] (any program that a test has started). The
//! interpreter itself is `calls.c`: it is C so that it is built without our crates and reaches
//! the driver as programs do. Nothing here knows which driver that is.

mod arguments;
mod calls;
mod running;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

pub use calls::{Calls, compile};
pub use running::{Ended, Running};

/// Time that anything may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Polls until the check passes, and returns its result.
///
/// # Errors
/// The check's last error after [`PATIENCE`].
pub fn until<T>(what: &str, mut check: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match check() {
            Err(_) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            last => return last.with_context(|| format!("waited for {what}")),
        }
    }
}
