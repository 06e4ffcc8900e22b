//! The start of CMD in the job's place: with the job's environment, and behind our libraries.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use rustix::process::Pid;

use super::args::Args;
use super::datasets::HeldDatasets;
use super::environment::{JobEnvironment, environment};
use super::notices::Notices;
use super::program::ProgramError;
use super::setup::Setup;
use super::wait::PlacedJob;
use crate::answer::Advised;

/// Starts the command from the file `program`; the fake driver's notices go to `notices`.
pub(super) fn start(
    args: &Args,
    program: &Path,
    setup: &Setup,
    job: &PlacedJob,
    notices: &Notices,
    datasets: &HeldDatasets,
) -> Result<Pid, Failure> {
    // Whatever the command starts stays below us, by which the arbiter knows the job.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot become the subreaper of the command")?;
    let preload = std::env::var_os("LD_PRELOAD");
    let given = |cuda, nvml| JobEnvironment {
        placed: &job.placed,
        chosen: job.submit.cards.as_deref().unwrap_or_default(),
        mode: job.submit.mode,
        interposer: &setup.interposer,
        driver: (cuda, nvml),
        fake: setup.fake.as_deref(),
        notices: notices.place(),
        preload: preload.as_deref(),
    };
    let kept = setup.mounts.real.as_ref().unwrap_or(&setup.driver);
    let binds = datasets.binds();
    let mounted = match setup.mount(&given(&kept.0, &kept.1), &binds) {
        Err(error) if !binds.is_empty() => {
            let hint = "without `=FOLDER` a variable says where the data set is";
            let failed = Advised::new("the job's data sets cannot be mounted", hint);
            return Err(failed.caused_by(error).into());
        }
        mounted => mounted.ok(),
    };
    let driver = if mounted.is_some() {
        kept
    } else {
        &setup.driver
    };
    let ours = environment(&given(&driver.0, &driver.1));
    let ours = ours
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    let child = spawn(program, &args.command, ours.chain(datasets.variables()));
    // The command has the mounts now; we must not.
    drop(mounted);
    Ok(child?)
}

/// Starts CMD.
fn spawn(
    file: &Path,
    command: &[OsString],
    environment: impl Iterator<Item = (String, OsString)>,
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

/// Reason why a job did not run.
pub(super) enum Failure {
    /// Its command cannot be started, for which shells have exit codes.
    Program(ProgramError),
    Other(anyhow::Error),
}

impl From<ProgramError> for Failure {
    fn from(error: ProgramError) -> Failure {
        Failure::Program(error)
    }
}

impl From<Advised> for Failure {
    fn from(error: Advised) -> Failure {
        Failure::Other(error.into())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::Other(error)
    }
}
