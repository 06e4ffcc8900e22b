//! Programs of a container that is held to its part, started with an environment that says
//! otherwise, or with none, as sudo, cron and sshd start them; and a setuid program, which obeys
//! nobody's environment.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sublet_e2e::GpuNode;

use super::check_taken;

/// Says that it is loaded, and with whose rights.
const EVIL: &str = r#"
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
    printf("evil code runs with euid %d\n", geteuid());
    fflush(stdout);
}
"#;

/// The variable by which the fake driver finds its cards. A real one finds them without.
const CARDS: &str = "SUBLET_FAKE_GPU=/usr/local/sublet/machine";

/// In the staged folder, which is in every container: code that only the container's user wants to
/// run, and a program that runs as root for every user.
pub(super) fn stage_evil(stage: &Path) -> Result<()> {
    let source = stage.with_file_name("evil.c");
    fs::write(&source, EVIL)?;
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&stage.join("evil.so"), &source])
        .status();
    ensure!(
        built.context("run cc")?.success(),
        "evil.c does not compile"
    );
    let program = stage.join("setuid-workload");
    fs::copy(stage.join("sublet-workload"), &program)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755))?;
    Ok(())
}

/// Whatever the environment says, a program has what its container has left.
pub(super) fn does_not_decide(node: &GpuNode, pod: &str, memory: u64) -> Result<()> {
    let nowhere = ["SUBLET_DIR=/lib64", "SUBLET_MODE=compat"];
    let evil = ["LIB_CUDA", "LIB_NVML", "DRIVER_CUDA", "DRIVER_NVML"]
        .map(|name| format!("SUBLET_{name}=/lib64/evil.so"));
    let evil: Vec<&str> = evil.iter().map(String::as_str).collect();
    let (plain, setuid) = ("/lib64/sublet-workload", "/lib64/setuid-workload");
    for (program, environment) in [
        (plain, vec!["env", "-i", CARDS]),
        (plain, [vec!["env"], nowhere.to_vec()].concat()),
        (plain, vec!["env", "SUBLET_DIR=", "SUBLET_MODE="]),
        (setuid, vec!["env", "-i", CARDS]),
        (setuid, [vec!["env"], nowhere.to_vec(), evil].concat()),
    ] {
        for reach in ["libcuda.so.1", "libcuda.so"] {
            let command = [&environment[..], &[program]].concat();
            let said = check_taken(node, pod, memory, &command, reach)?;
            ensure!(!said.contains("evil"), "{command:?}, {reach}: {said}");
        }
    }
    Ok(())
}
