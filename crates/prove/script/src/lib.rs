//! Programs that follow a test's script. A test of a driver, or of a library in front of one, tells
//! a C program which call to make with which arguments, and reads the call's result.
//!
//! Read [`Calls`] (the script), then [`Running`] (any program that a test has started). The
//! interpreter itself is `calls.c`: it is C so that it is built without our crates and reaches
//! the driver as programs do. Nothing here knows which driver that is.
//!
//! # Modules
//! A C program that makes the driver's calls it is told, one a line, and the side that tells it
//! (`Calls`). It is built without our crates and reaches the driver as programs do. The tests of
//! `sublet-libcuda` and `sublet-e2e` play their scripts on it. Tests of the fake driver itself
//! call it from Rust, with the header's types.

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
