//! From the start of CMD to its end: passes on signals, follows its stops, keeps the job's
//! connection, tells of notices, and leaves the terminal as it was. Every process that CMD leaves
//! behind is waited for here (we are its subreaper), none is killed.

use std::time::Instant;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, WaitOptions, WaitStatus};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use signal_hook::consts::{SIGCONT, SIGINT, SIGTSTP, SIGTTIN, SIGTTOU};

use super::job_connection::JobConnection;
use super::notices::Notices;
use super::signals::{Arrived, Signals, send};

/// End of CMD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// By itself.
    Code(u8),
    /// By a signal.
    Signal(i32),
    /// By the interrupt key, which its caller wants to know of: a shell ends its loop then.
    Interrupted,
}

impl Ending {
    /// Makes the ending that a signal causes for a command that was never started.
    pub(super) fn before_start(arrived: Arrived) -> Ending {
        if arrived.is_interrupt_key() {
            Ending::Interrupted
        } else {
            Ending::Signal(arrived.signal)
        }
    }

    /// The exit code that a shell would give.
    pub(super) fn code(self) -> u8 {
        match self {
            Ending::Code(code) => code,
            Ending::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
            Ending::Interrupted => 130,
        }
    }
}

/// Result of one `wait` for CMD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Ended(Ending),
    Stopped(i32),
    Nothing,
}

impl From<WaitStatus> for Change {
    fn from(status: WaitStatus) -> Change {
        if let Some(code) = status.exit_status() {
            // The kernel keeps eight bits.
            Change::Ended(Ending::Code(u8::try_from(code & 0xff).unwrap_or(u8::MAX)))
        } else if let Some(signal) = status.terminating_signal() {
            Change::Ended(Ending::Signal(signal))
        } else {
            status
                .stopping_signal()
                .map_or(Change::Nothing, Change::Stopped)
        }
    }
}

/// Follows CMD until it has ended. `say` is given lines for people.
pub(super) fn follow(
    child: Pid,
    signals: &mut Signals,
    connection: &mut JobConnection<'_>,
    notices: &mut Notices,
    mut say: impl FnMut(&str),
) -> anyhow::Result<Ending> {
    let terminal = Terminal::now();
    let mut was_interrupted = false;
    loop {
        let mut has_continued = false;
        for arrived in signals.take() {
            was_interrupted |= arrived.is_interrupt_key();
            has_continued |= arrived.signal == SIGCONT;
            if arrived.is_for(child.as_raw_nonzero().get()) {
                send(child, arrived.signal);
            }
        }
        // A signal that arrives from here on makes `poll` return at once.
        match changes(child)? {
            Change::Ended(ending) => {
                if let (Ending::Signal(_), Some(terminal)) = (ending, &terminal) {
                    terminal.restore();
                }
                return Ok(match ending {
                    Ending::Signal(SIGINT) if was_interrupted => Ending::Interrupted,
                    ending => ending,
                });
            }
            // It stopped itself alone: our shell must hear it. Whoever has just been continued
            // sees a stop that is over.
            Change::Stopped(signal @ (SIGTSTP | SIGTTIN | SIGTTOU)) if !has_continued => {
                send(rustix::process::getpid(), signal);
                send(child, SIGCONT);
            }
            Change::Stopped(_) | Change::Nothing => {}
        }
        if let Some(news) = connection.serve(Instant::now()) {
            say(&news);
        }
        if let Some(line) = notices.serve() {
            say(line);
        }
        wait(signals, connection, notices);
    }
}

/// Takes note of every child that has changed. Returns the change of CMD.
fn changes(child: Pid) -> anyhow::Result<Change> {
    let mut change = Change::Nothing;
    loop {
        let waited = rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED);
        match waited.context("cannot wait for the command")? {
            None => return Ok(change),
            Some((pid, status)) if pid == child => {
                change = Change::from(status);
                if matches!(change, Change::Ended(_)) {
                    return Ok(change);
                }
            }
            // Left behind by CMD, or the launcher of an arbiter.
            Some(_) => {}
        }
    }
}

/// Waits for a signal, a word of the arbiter or of the fake driver, or the time to look for an
/// arbiter.
fn wait(signals: &Signals, connection: &JobConnection<'_>, notices: &Notices) {
    let limit = connection.wake_at().map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        }
    });
    let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
    let others = connection.fd().into_iter().chain(notices.fd());
    fds.extend(others.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    // A signal's handler interrupts it, and its byte is read in the next round.
    let _interrupted = poll(&mut fds, limit.as_ref());
}

/// The terminal's settings before CMD. A program that a signal ended had no time to restore them.
struct Terminal(Termios);

impl Terminal {
    fn now() -> Option<Terminal> {
        tcgetattr(std::io::stdin()).ok().map(Terminal)
    }

    /// Restores it; only in the foreground, since only then the terminal is ours to change.
    fn restore(&self) {
        let stdin = std::io::stdin();
        if tcgetpgrp(&stdin).is_ok_and(|group| group == rustix::process::getpgrp()) {
            let _hung_up = tcsetattr(&stdin, OptionalActions::Now, &self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_have_a_shell_s_codes() {
        assert_eq!(Ending::Code(3).code(), 3);
        assert_eq!(Ending::Signal(9).code(), 137);
        assert_eq!(Ending::Signal(15).code(), 143);
        assert_eq!(Ending::Signal(64).code(), 192);
        assert_eq!(Ending::Interrupted.code(), 130);
    }
}
