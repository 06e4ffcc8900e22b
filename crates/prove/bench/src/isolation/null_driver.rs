//! Compiles the driver that does nothing, when a figure needs it.
//!
//! It is written in C because its functions must have C names, and they hold almost no code. A
//! machine that can link Rust has a C compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

const SOURCE: &str = include_str!("../../c/null_driver.c");

/// Compiles the driver into a folder; returns the library's path.
pub(super) fn build(folder: &Path) -> Result<PathBuf> {
    let (source, library) = (folder.join("null_driver.c"), folder.join("null_driver.so"));
    fs::write(&source, SOURCE)?;
    let status = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()
        .context("cannot run cc, which compiles the driver that does nothing")?;
    ensure!(status.success(), "cc did not compile null_driver.c");
    Ok(library)
}
