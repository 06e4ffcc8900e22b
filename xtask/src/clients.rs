//! Programs and packages that real users look at GPUs with, for the tests of `sublet run`:
//! nvidia-ml-py, gpustat, nvitop, cuda-bindings and numba, in one folder of the cache. They are
//! as their authors made them, and the tests know which versions they meet.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cache;
use crate::pip;

/// The clients and their dependencies, as pip's list of wanted packages.
const WANTED: &str = include_str!("clients/wanted.txt");

/// Tools that build gpustat, which comes as source.
const TOOLS: &str = include_str!("clients/tools.txt");

const WHAT: &str = "real clients of GPUs, by pip (100 MB, 1 min, once)";

/// The folder that Python finds them in; fetched when the cache does not have it.
pub(crate) fn folder() -> Result<PathBuf> {
    pip::check()?;
    let name = format!("{}-{}", python()?, pip::versions(WANTED));
    cache::folder("clients", &name, WHAT, |into| {
        let tools = into.with_file_name("tools");
        pip::install(TOOLS, &tools, |pip| pip)?;
        pip::install(WANTED, into, |pip| {
            pip.args(["--no-binary=gpustat", "--no-build-isolation"])
                .env("PYTHONPATH", &tools)
        })
    })
}

/// The Python that the packages are for: another's are others.
fn python() -> Result<String> {
    let python = Command::new("python3")
        .args(["-c", "import sys; print(sys.implementation.cache_tag)"])
        .output()
        .context("python3")?;
    ensure!(python.status.success(), "python3 does not say what it is");
    let python = String::from_utf8(python.stdout).context("what python3 is")?;
    Ok(python.trim().to_owned())
}
