//! What links for machines older than this one. A program linked here asks for the glibc of
//! this machine; zig knows the symbols of every glibc, and `cargo zigbuild` has it link for the
//! oldest that we promise to serve. What came out is checked by its user, not what was asked
//! for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use anyhow::{Context, Result};
use sublet_library::FLOOR;
use sublet_testbed::default_cache;

use crate::screen::heading;
use crate::setup::{repository, run as run_command};

/// What links, as pip's list of wanted packages.
const LINKER: &str = "\
cargo-zigbuild==0.24.0 --hash=sha256:484412e39e4c6039474535ce97ee75a22bab22d58233056f8ec8a8f9034bb957
ziglang==0.17.1 --hash=sha256:ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54
";

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Why it cannot be had here, if so.
pub(crate) fn missing() -> Option<String> {
    let pip = Command::new("python3")
        .args(["-m", "pip", "--version"])
        .output();
    match pip {
        Ok(output) if output.status.success() => None,
        Ok(_) => Some("python3 has no pip, which brings the linker".to_owned()),
        Err(error) => Some(format!("python3, whose pip brings the linker: {error}")),
    }
}

/// `cargo build --release` for old machines; what to build is still to be said.
pub(crate) fn build() -> Result<Command> {
    let linker = linker()?;
    let mut command = Command::new(linker.join("bin/cargo-zigbuild"));
    command
        .args(["zigbuild", "--release", "--target"])
        .arg(format!("{TARGET}.{FLOOR}"))
        .env("CARGO_ZIGBUILD_ZIG_PATH", linker.join("ziglang/zig"))
        .env("CARGO_TARGET_DIR", target()?)
        .current_dir(repository()?);
    Ok(command)
}

/// Where that leaves what it has built.
pub(crate) fn built() -> Result<PathBuf> {
    Ok(target()?.join(TARGET).join("release"))
}

fn target() -> Result<PathBuf> {
    Ok(repository()?.join("target/portable"))
}

/// The linker's folder, fetched once into the cache.
fn linker() -> Result<PathBuf> {
    let cache = default_cache()?.join("linker");
    // Named by what is in it: another version is another folder.
    let versions = LINKER.lines().filter_map(|line| line.split(' ').next());
    let place = cache.join(versions.collect::<Vec<_>>().join("-").replace("==", "-"));
    if place.is_dir() {
        return Ok(place);
    }
    heading("a linker for old machines, by pip (100 MB, once)");
    let work = cache.join(format!("work-{}", process::id()));
    fs::create_dir_all(&work).with_context(|| format!("make {}", work.display()))?;
    let fetched = fetch(&work, &place);
    fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
    fetched.map(|()| place)
}

/// Installs the linker in one folder, and moves it to its place when complete.
fn fetch(work: &Path, place: &Path) -> Result<()> {
    let wanted = work.join("wanted.txt");
    fs::write(&wanted, LINKER)?;
    let unpacked = work.join("unpacked");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps"])
        .args(["--disable-pip-version-check", "--only-binary=:all:"])
        .args(["--require-hashes", "--requirement"])
        .arg(&wanted)
        .arg("--target")
        .arg(&unpacked);
    run_command(&mut pip)?;
    fs::rename(&unpacked, place).with_context(|| format!("make {}", place.display()))
}
