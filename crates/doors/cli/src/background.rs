//! Processes that a command starts and that outlive it: the arbiter, and the one that serves data
//! sets. Each runs in a session of its own, with a log file in place of a terminal. One that cannot
//! start is reported with the end of that log.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::answer::Advised;

/// Time limit of a process from its start to its first answer. Loading NVML on a machine with many
/// cards and no persistence daemon takes seconds.
const START_MAX: Duration = Duration::from_secs(30);
/// Interval between the tries to reach a starting process.
const TRY_EVERY: Duration = Duration::from_millis(10);
/// Time limit for somebody else's process to listen, after ours has ended.
const OTHER_MAX: Duration = Duration::from_secs(2);
/// A log longer than this is set aside before the next process writes to it.
const LOG_MAX: u64 = 1 << 20;
/// Number of log lines that an error shows.
const LINES_SHOWN: usize = 10;

/// A process that can be started.
#[derive(Debug, Clone)]
pub(crate) struct Background {
    /// Its name in sentences.
    pub(crate) called: String,
    /// Advice for one that cannot be started.
    pub(crate) hint: String,
    /// Its log.
    pub(crate) log: PathBuf,
    /// File that is there while another such process may be starting.
    pub(crate) claim: PathBuf,
}

impl Background {
    /// Starts it. `lock` is held until it answers; `launch` is given the log.
    ///
    /// # Errors
    /// The log cannot be written, or the program not be started.
    pub(crate) fn begin(
        self,
        lock: File,
        launch: impl FnOnce(File) -> std::io::Result<Option<Pid>>,
    ) -> Result<Starting, Advised> {
        let failed = |cause: std::io::Error| {
            let what = format!("cannot start {}", self.called);
            Advised::new(what, self.hint.clone()).caused_by(cause)
        };
        let (log, log_from) = open_log(&self.log).map_err(failed)?;
        let pid = launch(log).map_err(failed)?;
        Ok(Starting {
            process: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
            began: Instant::now(),
            ended: None,
            log_from,
            background: self,
            _lock: lock,
        })
    }
}

/// A process that was started and does not answer yet.
pub(crate) struct Starting {
    background: Background,
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
    /// Returns the failure once nobody will answer; `None` while one still may.
    pub(crate) fn failure(&mut self, now: Instant) -> Option<Advised> {
        if self.ended.is_none() && self.has_ended() {
            self.ended = Some(now);
        }
        // Another one may have been quicker: then ours ended, and that one listens soon.
        let claim = self.background.claim.clone();
        let nobody_else = || !claim.exists();
        match self.ended {
            Some(ended) if now - ended >= OTHER_MAX || nobody_else() => {
                Some(self.told("ended at once"))
            }
            _ if now - self.began >= START_MAX => {
                let seconds = START_MAX.as_secs();
                Some(self.told(&format!("does not answer after {seconds} s")))
            }
            _ => None,
        }
    }

    /// Waits until it is worth looking again.
    pub(crate) fn pause(&self) {
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

    fn told(&self, what: &str) -> Advised {
        let path = &self.background.log;
        let said = read_from(path, self.log_from).unwrap_or_default();
        let said = last_lines(&said, LINES_SHOWN);
        let log = path.display();
        let what = format!("{} {what}", self.background.called);
        let hint = format!("its whole log is {log}");
        if said.is_empty() {
            return Advised::new(what, hint).caused_by("it wrote nothing to its log");
        }
        Advised::new(what, hint).caused_by(format!("its log ends with\n{said}"))
    }
}

/// Runs a launcher, which starts the process in a session of its own, writes its number and ends, so
/// that the process is nobody's child.
pub(crate) fn launch_detached(mut launcher: Command, log: File) -> std::io::Result<Option<Pid>> {
    launcher
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    let mut launcher = launcher.spawn()?;
    let mut said = String::new();
    if let Some(mut output) = launcher.stdout.take() {
        output.read_to_string(&mut said)?;
    }
    launcher.wait()?;
    Ok(said.trim().parse().ok().and_then(Pid::from_raw))
}

/// The log, opened for appending, and its present length.
fn open_log(path: &Path) -> std::io::Result<(File, u64)> {
    if path.metadata().is_ok_and(|about| about.len() > LOG_MAX) {
        std::fs::rename(path, path.with_extension("log.old"))?;
    }
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)?;
    let length = log.metadata()?.len();
    Ok((log, length))
}

fn read_from(path: &Path, from: u64) -> std::io::Result<String> {
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
    use super::*;

    #[test]
    fn an_error_shows_the_end_of_a_long_log() {
        assert_eq!(last_lines("", 2), "");
        assert_eq!(last_lines("a\n\nb\nc\n", 2), "    b\n    c");
        assert_eq!(last_lines("a", 2), "    a");
    }

    #[test]
    fn a_long_log_is_set_aside_and_a_short_one_continued() {
        let base = tempfile::tempdir().unwrap();
        let log = base.path().join("a.log");
        std::fs::write(&log, "old\n").unwrap();
        let (_log, from) = open_log(&log).unwrap();
        assert_eq!(from, 4);
        let length = usize::try_from(LOG_MAX).unwrap() + 1;
        std::fs::write(&log, vec![b'x'; length]).unwrap();
        let (_log, from) = open_log(&log).unwrap();
        assert_eq!(from, 0);
        assert!(base.path().join("a.log.old").exists());
    }

    #[test]
    fn a_process_that_ended_is_reported_with_its_last_words() {
        let base = tempfile::tempdir().unwrap();
        let background = Background {
            called: "the arbiter".to_owned(),
            hint: String::new(),
            log: base.path().join("a.log"),
            claim: base.path().join("claim"),
        };
        std::fs::write(&background.log, "before\nerror: no driver\n").unwrap();
        let began = Instant::now();
        let mut starting = Starting {
            process: None,
            began,
            ended: None,
            log_from: 7,
            background: background.clone(),
            _lock: File::open(&background.log).unwrap(),
        };
        // Somebody else's, which may be about to listen.
        std::fs::write(&background.claim, "").unwrap();
        assert!(starting.failure(began).is_none());
        assert!(starting.failure(began + OTHER_MAX).is_some());
        std::fs::remove_file(&background.claim).unwrap();
        let error = starting.failure(began).unwrap();
        let text = crate::error_text(&error.into());
        assert!(text.contains("ended at once"), "{text}");
        assert!(text.contains("\n    error: no driver\n"), "{text}");
        assert!(!text.contains("before"), "{text}");
    }
}
