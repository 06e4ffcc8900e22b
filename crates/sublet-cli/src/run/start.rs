//! The start of CMD in the job's place: with the job's environment, and behind our libraries.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use rustix::process::Pid;

use super::environment::{JobEnvironment, environment};
use super::program::ProgramError;
use super::setup::Setup;
use super::wait::PlacedJob;
use super::{Args, Failure};

/// Starts the command, whose file is `program`.
pub(super) fn start(
    args: &Args,
    program: &Path,
    setup: &Setup,
    job: &PlacedJob,
) -> Result<Pid, Failure> {
    // Whatever the command starts stays below us, by which the arbiter knows the job.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot become the subreaper of the command")?;
    let mounted = setup.mount();
    let driver = match (&mounted, &setup.mounts.real) {
        (Some(_), Some((cuda, nvml))) => (cuda, nvml),
        _ => (&setup.driver.0, &setup.driver.1),
    };
    let preload = std::env::var_os("LD_PRELOAD");
    let environment = environment(&JobEnvironment {
        placed: &job.placed,
        chosen: job.submit.cards.as_deref().unwrap_or_default(),
        mode: job.submit.mode,
        interposer: &setup.interposer,
        driver: (driver.0, driver.1),
        fake: setup.fake.as_deref(),
        preload: preload.as_deref(),
    });
    let child = spawn(program, &args.command, environment);
    // The command has the mounts now; we must not.
    drop(mounted);
    Ok(child?)
}

/// Starts CMD.
fn spawn(
    file: &Path,
    command: &[OsString],
    environment: Vec<(&'static str, OsString)>,
) -> Result<Pid, ProgramError> {
    let (name, arguments) = command.split_first().ok_or_else(|| {
        let nothing = String::new();
        ProgramError::NotInPath(nothing)
    })?;
    let child = Command::new(file)
        .arg0(name)
        .args(arguments)
        .envs(environment)
        .spawn()
        .map_err(|error| ProgramError::of(file, &error))?;
    Ok(Pid::from_child(&child))
}
