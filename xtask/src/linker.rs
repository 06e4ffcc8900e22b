//! The linker for machines older than this one. A program linked here asks for the glibc of
//! this machine. Zig knows the symbols of every glibc, and `cargo zigbuild` has it link for the
//! oldest that we promise to serve. The user of this module checks the result, not the request.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use sublet_library::FLOOR;

use crate::cache;
use crate::pip;
use crate::setup::repository;

/// The linker's packages, as pip's list of wanted packages.
const LINKER: &str = "\
cargo-zigbuild==0.24.0 --hash=sha256:484412e39e4c6039474535ce97ee75a22bab22d58233056f8ec8a8f9034bb957
ziglang==0.17.1 --hash=sha256:ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54
";

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// `cargo build --profile dist` for old machines; the caller adds the packages to build.
pub(crate) fn build() -> Result<Command> {
    let linker = linker()?;
    let mut command = Command::new(linker.join("bin/cargo-zigbuild"));
    command
        .args(["zigbuild", "--profile", "dist", "--target"])
        .arg(format!("{TARGET}.{FLOOR}"))
        .env("CARGO_ZIGBUILD_ZIG_PATH", linker.join("ziglang/zig"))
        .env("CARGO_TARGET_DIR", target()?)
        .current_dir(repository()?);
    Ok(command)
}

/// The folder of the build's results.
pub(crate) fn built() -> Result<PathBuf> {
    Ok(target()?.join(TARGET).join("dist"))
}

fn target() -> Result<PathBuf> {
    Ok(repository()?.join("target/portable"))
}

/// The linker's folder, fetched once into the cache.
fn linker() -> Result<PathBuf> {
    let what = "a linker for old machines, by pip (100 MB, once)";
    cache::folder("linker", &pip::versions(LINKER), what, |into| {
        pip::check()?;
        pip::install(LINKER, into, |pip| pip)
    })
}
