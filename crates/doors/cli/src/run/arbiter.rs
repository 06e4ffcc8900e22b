//! Starts an arbiter if none runs. It outlives the command that needed it first, so it runs in a
//! session of its own, with a log file in place of a terminal. An arbiter that cannot start is
//! reported with the end of that log.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sublet_abi::settings;
use sublet_arbiter::admin::Client;

use super::environment::without_ours;
use crate::answer::Advised;
use crate::machine::{ConnectError, Machine};
use crate::standalone::executable;

/// Time limit of an arbiter from its start to its first answer. Loading NVML on a machine with many
/// cards and no persistence daemon takes seconds.
const START_MAX: Duration = Duration::from_secs(30);
/// Interval between the tries to reach a starting arbiter.
const TRY_EVERY: Duration = Duration::from_millis(10);
/// Time limit for somebody else's arbiter to listen, after ours has ended.
const OTHER_MAX: Duration = Duration::from_secs(2);
/// A log longer than this is set aside before the next arbiter writes to it.
const LOG_MAX: u64 = 1 << 20;
/// Number of log lines that an error shows.
const LINES_SHOWN: usize = 10;

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
    let mut starting = Starting::begin(machine, options, lock)?;
    loop {
        match machine.connect() {
            Ok(client) => return Ok(client),
            // The socket is there before anybody answers; a wrong version stays wrong.
            Err(ConnectError::Client(_)) => {}
            Err(error) => return Err(machine.unusable(error).into()),
        }
        if let Some(error) = starting.failure(machine, Instant::now()) {
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
        Ok(lock) => Starting::begin(machine, options, lock).map(Some),
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

/// An arbiter that was started and does not answer yet.
pub(super) struct Starting {
    /// Readable when it has ended; `None` if it ended before we could open it.
    process: Option<OwnedFd>,
    began: Instant,
    ended: Option<Instant>,
    /// Offset in the log where its own lines begin.
    log_from: u64,
    /// Held until it answers.
    _lock: File,
}

impl Starting {
    fn begin(machine: &Machine, options: &LaunchOptions, lock: File) -> Result<Starting, Advised> {
        let failed = |cause: std::io::Error| {
            let what = format!("cannot start the arbiter of {}", machine.called());
            let hint = format!(
                "`{}` starts it in this terminal",
                machine.command("agent --standalone")
            );
            Advised::new(what, hint).caused_by(cause)
        };
        let (log, log_from) = open_log(machine).map_err(failed)?;
        let pid = launch(machine, options, log).map_err(failed)?;
        Ok(Starting {
            process: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
            began: Instant::now(),
            ended: None,
            log_from,
            _lock: lock,
        })
    }

    /// Returns the failure once nobody will answer; `None` while an arbiter still may.
    pub(super) fn failure(&mut self, machine: &Machine, now: Instant) -> Option<Advised> {
        if self.ended.is_none() && self.has_ended() {
            self.ended = Some(now);
        }
        // Another one may have been quicker: then ours ended, and that one listens soon.
        let nobody_else = || !machine.folder.lock_file().exists();
        match self.ended {
            Some(ended) if now - ended >= OTHER_MAX || nobody_else() => {
                Some(self.told(machine, "ended at once"))
            }
            _ if now - self.began >= START_MAX => {
                let seconds = START_MAX.as_secs();
                Some(self.told(machine, &format!("does not answer after {seconds} s")))
            }
            _ => None,
        }
    }

    /// Waits until it is worth looking again.
    pub(super) fn pause(&self) {
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: TRY_EVERY.subsec_nanos().into(),
        };
        // After its end the descriptor is readable for ever: then only time is waited for.
        let process = self.process.as_ref().filter(|_| self.ended.is_none());
        let mut fds: Vec<PollFd<'_>> = process
            .map(|process| PollFd::new(process, PollFlags::IN))
            .into_iter()
            .collect();
        let _woken = poll(&mut fds, Some(&limit));
    }

    fn has_ended(&self) -> bool {
        let Some(process) = &self.process else {
            return true;
        };
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&at_once)).is_ok_and(|n| n > 0)
    }

    fn told(&self, machine: &Machine, what: &str) -> Advised {
        let path = machine.folder.log_file();
        let said = read_from(&path, self.log_from).unwrap_or_default();
        let said = last_lines(&said, LINES_SHOWN);
        let log = path.display();
        let what = format!("the arbiter of {} {what}", machine.called());
        let hint = format!("its whole log is {log}");
        if said.is_empty() {
            return Advised::new(what, hint).caused_by("it wrote nothing to its log");
        }
        Advised::new(what, hint).caused_by(format!("its log ends with\n{said}"))
    }
}

/// The log, opened for appending, and its present length.
fn open_log(machine: &Machine) -> std::io::Result<(File, u64)> {
    let path = machine.folder.log_file();
    if path.metadata().is_ok_and(|about| about.len() > LOG_MAX) {
        std::fs::rename(&path, path.with_extension("log.old"))?;
    }
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&path)?;
    let length = log.metadata()?.len();
    Ok((log, length))
}

/// Starts `sublet agent --standalone --detached`. That process starts the arbiter in a session of
/// its own, writes its number and ends, so that the arbiter is nobody's child.
fn launch(machine: &Machine, options: &LaunchOptions, log: File) -> std::io::Result<Option<Pid>> {
    let mut command = Command::new(executable()?);
    command.args(arguments(machine));
    command
        .env("SUBLET_RUNTIME_DIR", machine.run_folder())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
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
    let mut launcher = command.spawn()?;
    let mut said = String::new();
    if let Some(mut output) = launcher.stdout.take() {
        output.read_to_string(&mut said)?;
    }
    launcher.wait()?;
    Ok(said.trim().parse().ok().and_then(Pid::from_raw))
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

fn read_from(path: &std::path::Path, from: u64) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(LOG_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last lines of a text, indented.
fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let shown = &lines[lines.len().saturating_sub(count)..];
    let indented = shown.iter().map(|line| format!("    {line}"));
    indented.collect::<Vec<_>>().join("\n")
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
    fn an_error_shows_the_end_of_a_long_log() {
        assert_eq!(last_lines("", 2), "");
        assert_eq!(last_lines("a\n\nb\nc\n", 2), "    b\n    c");
        assert_eq!(last_lines("a", 2), "    a");
    }

    #[test]
    fn a_long_log_is_set_aside_and_a_short_one_continued() {
        let base = tempfile::tempdir().unwrap();
        let machine = Machine::below(base.path(), None);
        machine.prepare().unwrap();
        std::fs::write(machine.folder.log_file(), "old\n").unwrap();
        let (_log, from) = open_log(&machine).unwrap();
        assert_eq!(from, 4);
        let length = usize::try_from(LOG_MAX).unwrap() + 1;
        std::fs::write(machine.folder.log_file(), vec![b'x'; length]).unwrap();
        let (_log, from) = open_log(&machine).unwrap();
        assert_eq!(from, 0);
        assert!(machine.file("arbiter.log.old").exists());
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

    #[test]
    fn an_arbiter_that_ended_is_reported_with_its_last_words() {
        let base = tempfile::tempdir().unwrap();
        let run_folder = base.path().join("run");
        let machine = Machine::below(&run_folder, None);
        let lock = lock(&machine, FlockOperation::LockExclusive).ok().unwrap();
        std::fs::write(machine.folder.log_file(), "before\nerror: no driver\n").unwrap();
        let began = Instant::now();
        let mut starting = Starting {
            process: None,
            began,
            ended: None,
            log_from: 7,
            _lock: lock,
        };
        // Somebody else's arbiter, which may be about to listen.
        std::fs::write(machine.folder.lock_file(), "").unwrap();
        assert!(starting.failure(&machine, began).is_none());
        assert!(starting.failure(&machine, began + OTHER_MAX).is_some());
        std::fs::remove_file(machine.folder.lock_file()).unwrap();
        let error = starting.failure(&machine, began).unwrap();
        let text = crate::error_text(&error.into());
        assert!(text.contains("ended at once"), "{text}");
        assert!(text.contains("\n    error: no driver\n"), "{text}");
        assert!(!text.contains("before"), "{text}");
    }
}
