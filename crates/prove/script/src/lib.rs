//! Programs that follow a test's script. A test of a driver, or of a library in front of one, tells
//! a C program which call to make with which arguments, and reads the call's result.
//!
//! Read [`Calls`] (the script), then [`Running`] (any program that a test has started). [`cc`]
//! compiles the other programs and libraries of tests. The interpreter itself is `calls.c`: it is C
//! so that it is built without our crates and reaches the driver as programs do. Nothing here knows
//! which driver that is.
//!
//! # Modules
//! A C program that makes the driver's calls it is told, one a line, and the side that tells it
//! (`Calls`). It is built without our crates and reaches the driver as programs do. The tests of
//! `sublet-libcuda`, `sublet-libnvml` and `sublet-e2e` play their scripts on it. Tests of the fake driver itself
//! call it from Rust, with the header's types.

mod arguments;
mod calls;
mod running;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

pub use calls::{Calls, compile};
pub use running::{Ended, Running};

/// Time that anything may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Compiles a file of C.
///
/// # Errors
/// There is no C compiler, or it refused.
pub fn cc(source: &Path, into: &Path, arguments: &[&str]) -> Result<()> {
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(into).arg(source).args(arguments);
    let output = compiler.output().context("cc")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", source.display());
    Ok(())
}

/// Compiles a text of C, which is written beside the result.
///
/// # Errors
/// As [`cc`], or nothing can be written there.
pub fn cc_text(text: &str, into: &Path, arguments: &[&str]) -> Result<()> {
    let source = into.with_extension("c");
    fs::write(&source, text).with_context(|| source.display().to_string())?;
    cc(&source, into, arguments)
}

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
