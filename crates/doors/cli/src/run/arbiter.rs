//! Starts an arbiter if none runs. It outlives the command that needed it first (`background`).

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use rustix::fs::FlockOperation;
use rustix::process::Pid;
use sublet_abi::settings;
use sublet_arbiter::admin::Client;

use super::environment::without_ours;
use crate::answer::Advised;
use crate::background::{Background, Starting, launch_detached};
use crate::machine::{ConnectError, Machine};
use crate::standalone::executable;

/// Options for the start of an arbiter.
#[derive(Debug, Clone, Default)]
pub(super) struct LaunchOptions {
    /// The real driver's two libraries: CUDA and NVML.
    pub(super) driver: Option<(PathBuf, PathBuf)>,
}

/// A connection to the machine's arbiter, which is started if none runs.
pub(super) fn open(machine: &Machine, options: &LaunchOptions) -> anyhow::Result<Client> {
    match machine.connect() {
        Ok(client) => return Ok(client),
        Err(error) if error.may_start() => {}
        Err(error) => return Err(machine.unusable(error).into()),
    }
    let lock = lock(machine, FlockOperation::LockExclusive)?;
    // Whoever had the lock before us has started one.
    match machine.connect() {
        Ok(client) => return Ok(client),
        Err(error) if error.may_start() => {}
        Err(error) => return Err(machine.unusable(error).into()),
    }
    let mut starting = begin_locked(machine, options, lock)?;
    loop {
        match machine.connect() {
            Ok(client) => return Ok(client),
            // The socket is there before anybody answers; a wrong version stays wrong.
            Err(ConnectError::Client(_)) => {}
            Err(error) => return Err(machine.unusable(error).into()),
        }
        if let Some(error) = starting.failure(Instant::now()) {
            return Err(error.into());
        }
        starting.pause();
    }
}

/// Begins to start one, unless another process is starting one.
pub(super) fn begin(
    machine: &Machine,
    options: &LaunchOptions,
) -> Result<Option<Starting>, Advised> {
    match lock(machine, FlockOperation::NonBlockingLockExclusive) {
        Ok(lock) => begin_locked(machine, options, lock).map(Some),
        Err(error) if error.is_busy => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The lock that lets one command start an arbiter while the others wait for it.
fn lock(machine: &Machine, operation: FlockOperation) -> Result<File, LockError> {
    let failed = |advised| LockError {
        advised,
        is_busy: false,
    };
    machine.prepare().map_err(failed)?;
    let path = machine.file("start.lock");
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&path);
    let refused = |cause: std::io::Error, is_busy| LockError {
        advised: Advised::new(
            format!("cannot lock {}", path.display()),
            "is the folder on a file system with locks?",
        )
        .caused_by(cause),
        is_busy,
    };
    let file = file.map_err(|cause| refused(cause, false))?;
    match rustix::fs::flock(&file, operation) {
        Ok(()) => Ok(file),
        Err(error) => Err(refused(
            error.into(),
            error == rustix::io::Errno::WOULDBLOCK,
        )),
    }
}

struct LockError {
    advised: Advised,
    is_busy: bool,
}

impl From<LockError> for Advised {
    fn from(error: LockError) -> Advised {
        error.advised
    }
}

impl From<LockError> for anyhow::Error {
    fn from(error: LockError) -> anyhow::Error {
        error.advised.into()
    }
}

/// Begins to start an arbiter, under the lock of those who start one.
fn begin_locked(
    machine: &Machine,
    options: &LaunchOptions,
    lock: File,
) -> Result<Starting, Advised> {
    let command = machine.command("agent --standalone");
    let background = Background {
        called: format!("the arbiter of {}", machine.called()),
        hint: format!("`{command}` starts it in this terminal"),
        log: machine.folder.log_file(),
        claim: machine.folder.lock_file(),
    };
    background.begin(lock, |log| launch(machine, options, log))
}

/// Starts `sublet agent --standalone --detached`. That process starts the arbiter in a session of
/// its own, writes its number and ends, so that the arbiter is nobody's child.
fn launch(machine: &Machine, options: &LaunchOptions, log: File) -> std::io::Result<Option<Pid>> {
    let mut command = Command::new(executable()?);
    command.args(arguments(machine));
    command
        .env("SUBLET_RUNTIME_DIR", machine.run_folder())
        .current_dir("/");
    // It serves all jobs and is part of none.
    for name in [
        settings::DIRECTORY,
        settings::MODE,
        settings::DRIVER_CUDA,
        settings::DRIVER_NVML,
        sublet_fakegpu::machine::VARIABLE,
        sublet_fakegpu::notice::VARIABLE,
        "LD_PRELOAD",
    ] {
        command.env_remove(name);
    }
    if let Some(preload) = without_ours(std::env::var_os("LD_PRELOAD").as_deref()) {
        command.env("LD_PRELOAD", preload);
    }
    if let Some((cuda, nvml)) = &options.driver {
        command.env(settings::DRIVER_CUDA, cuda);
        command.env(settings::DRIVER_NVML, nvml);
    }
    launch_detached(command, log)
}

/// Arguments for the launcher.
fn arguments(machine: &Machine) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["agent", "--standalone", "--detached", "--idle-exit"]
        .map(OsString::from)
        .into();
    if let Some(fake) = &machine.fake {
        arguments.extend(["--fake-gpu".into(), fake.text().into()]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::machine::FakeGpu;

    #[test]
    fn the_arbiter_is_told_which_machine() {
        let check = |fake: Option<&str>| {
            let fake = fake.map(|text| FakeGpu::read(text).unwrap());
            let words = arguments(&Machine::below(Path::new("/r"), fake));
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        let start = "agent --standalone --detached --idle-exit";
        assert_eq!(check(None), start);
        assert_eq!(check(Some("1x1GiB")), format!("{start} --fake-gpu 1x1GiB"));
    }

    #[test]
    fn one_command_at_a_time_starts_an_arbiter() {
        let base = tempfile::tempdir().unwrap();
        let run_folder = base.path().join("run");
        let machine = Machine::below(&run_folder, None);
        let held = lock(&machine, FlockOperation::LockExclusive).ok().unwrap();
        let second = lock(&machine, FlockOperation::NonBlockingLockExclusive);
        assert!(second.err().unwrap().is_busy);
        drop(held);
        assert!(lock(&machine, FlockOperation::NonBlockingLockExclusive).is_ok());
    }
}
