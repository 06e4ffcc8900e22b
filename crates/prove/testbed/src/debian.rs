//! The few programs from the distribution that the real node needs.
//!
//! They are found by what they do, not by package, so any distribution will do. They are named and
//! installed as Debian packages: only by root, and only after a message.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::progress::Progress;

/// The Debian packages that are missing for the real node; empty when it can be built.
#[must_use]
pub fn missing() -> Vec<&'static str> {
    let mut missing = Vec::new();
    if find("cc").is_none() {
        missing.push("gcc");
    }
    if find("pkg-config").is_none() {
        missing.push("pkg-config");
    }
    if !succeeds("pkg-config", &["--exists", "libseccomp"]) {
        missing.push("libseccomp-dev");
    }
    if busybox().is_err() {
        missing.push("busybox-static");
    }
    missing
}

/// Packages without which tests say less: the node can be built, and a referee is missing.
fn wished() -> Vec<&'static str> {
    match find("fsck.erofs") {
        Some(_) => Vec::new(),
        None => vec!["erofs-utils"],
    }
}

/// Installs the missing packages if possible; otherwise the error is the reason.
///
/// # Errors
/// The text says what is missing and the command that installs it.
pub fn prepare(progress: &mut Progress) -> Result<(), String> {
    let mut packages = missing();
    let may_install = rustix::process::geteuid().is_root() && find("apt-get").is_some();
    if may_install {
        packages.extend(wished());
    }
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    let command = format!("apt-get update && apt-get install --yes {list}");
    if !rustix::process::geteuid().is_root() {
        return Err(format!("missing: {list}; as root run: {command}"));
    }
    if find("apt-get").is_none() {
        return Err(format!(
            "missing: {list}, by Debian's names; install your distribution's"
        ));
    }
    progress.say(&format!(
        "installing Debian packages for the real node: {command}"
    ));
    let installed = install(&packages).map_err(|why| format!("missing: {list}; {why:#}"));
    let still = missing();
    if still.is_empty() {
        // What is only wished for keeps nobody from anything.
        return Ok(());
    }
    installed?;
    Err(format!("installed, but still missing: {}", still.join(" ")))
}

fn install(packages: &[&str]) -> Result<()> {
    let install = ["install", "--yes", "--no-install-recommends"];
    for args in [vec!["update"], [&install, packages].concat()] {
        let output = Command::new("apt-get")
            .args(&args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .output()
            .context("run apt-get")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "apt-get {} failed: {}",
            args.join(" "),
            errors.trim()
        );
    }
    Ok(())
}

/// A static busybox, for an image without libraries.
///
/// # Errors
/// When there is no busybox, or only a dynamically linked one.
pub fn busybox() -> Result<PathBuf> {
    let path = find("busybox").context("no busybox: install busybox-static")?;
    let program = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    // A dynamically linked program names its loader within its first page.
    let head = &program[..program.len().min(4096)];
    let dynamic = head.windows(4).any(|bytes| bytes == b"/ld-");
    ensure!(
        !dynamic,
        "{} is not static: install busybox-static",
        path.display()
    );
    Ok(path)
}

fn succeeds(program: &str, args: &[&str]) -> bool {
    let quiet = Command::new(program)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    quiet.is_ok_and(|status| status.success())
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_path() {
        assert!(find("sh").is_some_and(|path| path.ends_with("sh")));
        assert_eq!(find("no-such-program-here"), None);
        assert!(succeeds("sh", &["-c", "exit 0"]) && !succeeds("sh", &["-c", "exit 1"]));
    }
}
