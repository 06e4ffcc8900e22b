//! `cargo xtask libraries`: the libraries that go into others' containers.
//!
//! They are linked for the oldest glibc that current CUDA images have: an image with an older
//! glibc than a library asks for refuses to load it. The result is checked, not the request.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sublet_library::Needs;

use crate::linker;
use crate::setup::run as run_command;
use crate::step::Step;

/// Our packages, the files they become, and the names by which programs look for the files. The last
/// is no library: it is the demonstration's programs.
const LIBRARIES: [(&str, &str, Option<&str>); 6] = [
    ("sublet-libcuda", "libsublet_cuda.so", Some("libcuda.so.1")),
    (
        "sublet-libnvml",
        "libsublet_nvml.so",
        Some("libnvidia-ml.so.1"),
    ),
    ("sublet-preload", "libsublet_preload.so", None),
    (
        "sublet-fakecuda",
        "libsublet_fakecuda.so",
        Some("libcuda.so.1"),
    ),
    (
        "sublet-fakenvml",
        "libsublet_fakenvml.so",
        Some("libnvidia-ml.so.1"),
    ),
    ("sublet-workload", "sublet-workload", None),
];

/// Builds and checks them, and prints their place.
pub(crate) fn run() -> Result<()> {
    let folder = build()?;
    println!("{}", folder.display());
    Ok(())
}

/// Building and checking them, as a step of the tests.
pub(crate) fn step() -> Result<Step> {
    let mut command = Command::new(env::current_exe().context("find the running program")?);
    command.arg("libraries");
    Ok(Step {
        what: "libraries for old containers",
        usual: "2 min cold, and 100 MB once",
        command,
    })
}

/// Builds and checks them; the folder they are in.
pub(crate) fn build() -> Result<PathBuf> {
    let mut command = linker::build()?;
    for (package, ..) in LIBRARIES {
        command.args(["--package", package]);
    }
    run_command(&mut command)?;
    let folder = linker::built()?;
    for (_, file, soname) in LIBRARIES {
        let file = folder.join(file);
        let needs = check(&file)?;
        ensure!(
            needs.soname.as_deref() == soname,
            "{} is called {:?}, and must be {soname:?}",
            file.display(),
            needs.soname
        );
    }
    Ok(folder)
}

/// A program's or library's own needs, which any machine of the floor must meet.
pub(crate) fn check(file: &Path) -> Result<Needs> {
    let contents = fs::read(file).with_context(|| format!("read {}", file.display()))?;
    let needs = Needs::read(&contents).with_context(|| file.display().to_string())?;
    let wanted = needs.beyond_floor();
    ensure!(
        wanted.is_empty(),
        "{} wants {}, which a machine or an image may lack",
        file.display(),
        wanted.join(", ")
    );
    Ok(needs)
}
