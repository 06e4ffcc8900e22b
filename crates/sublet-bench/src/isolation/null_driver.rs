//! The driver that does nothing, compiled where it is needed.
//!
//! It is C because the functions have C's names and nothing else: a C compiler is there wherever
//! Rust can link.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

const SOURCE: &str = include_str!("../../c/null_driver.c");

/// Compiles it into a folder.
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
