//! Packages that no distribution has, by the user's own `pip`: it finds them, and compares the
//! checksums that stand beside the pinned versions. They lie in folders of the cache, never in
//! the user's Python, and nothing of theirs is committed.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::setup::run as run_command;

/// Says what to install if there is no pip.
pub(crate) fn check() -> Result<()> {
    let pip = Command::new("python3")
        .args(["-m", "pip", "--version"])
        .output()
        .context("no python3; Debian's python3-pip brings it and its pip")?;
    ensure!(
        pip.status.success(),
        "python3 has no pip; Debian's python3-pip brings it"
    );
    Ok(())
}

/// The versions of a list of wanted packages, as a folder's name: other versions are another
/// folder.
pub(crate) fn versions(wanted: &str) -> String {
    let names = wanted.lines().filter(|line| line.contains("=="));
    let names = names.filter_map(|line| line.split(' ').next());
    names.collect::<Vec<_>>().join("-").replace("==", "-")
}

/// `pip install` of such a list into a folder, beside which the list then lies; more may be said
/// of it before it runs.
pub(crate) fn install(
    wanted: &str,
    into: &Path,
    more: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<()> {
    let list = into.with_extension("txt");
    fs::write(&list, wanted).with_context(|| format!("write {}", list.display()))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps"])
        .args(["--disable-pip-version-check", "--only-binary=:all:"])
        .args(["--require-hashes", "--requirement"])
        .arg(&list)
        .arg("--target")
        .arg(into)
        // It warns root of a harm that a folder of its own does not know.
        .env("PIP_ROOT_USER_ACTION", "ignore");
    run_command(more(&mut pip))
}
