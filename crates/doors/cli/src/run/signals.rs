//! Signals that reach `sublet run`, and their treatment. CMD is in the same process group, so
//! signals of the terminal reach both. Signals sent to `sublet run` alone are passed on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::process::{Pid, Signal};
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

/// Signals that are passed on. Signals that stop a process are left to the kernel: they stop both.
const PASSED_ON: [i32; 9] = [
    SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM, SIGALRM, SIGWINCH, SIGCONT,
];

/// Sender of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    /// The kernel: the terminal, a timer, a dead child.
    Kernel,
    /// A process.
    Process(i32),
}

/// A signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrived {
    /// Its number.
    pub(super) signal: i32,
    /// Sender of the signal.
    pub(super) sender: Sender,
}

impl Arrived {
    /// Pressed on the keyboard.
    pub(super) fn is_interrupt_key(self) -> bool {
        self.signal == SIGINT && self.sender == Sender::Kernel
    }

    /// Does it end a wait in the queue?
    pub(super) fn ends_waiting(self) -> bool {
        matches!(self.signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM)
    }

    /// Must CMD be told, or has it heard already?
    pub(super) fn is_for(self, child: i32) -> bool {
        match self.sender {
            // To the whole process group of the terminal, CMD with it.
            Sender::Kernel => matches!(self.signal, SIGALRM),
            // What CMD sends to us was not meant for itself.
            Sender::Process(sender) => self.signal != SIGCHLD && sender != child,
        }
    }
}

impl From<Origin> for Arrived {
    fn from(origin: Origin) -> Arrived {
        let sender = match (origin.cause, origin.process) {
            (Cause::Sent(_), Some(process)) => Sender::Process(process.pid),
            _ => Sender::Kernel,
        };
        Arrived {
            signal: origin.signal,
            sender,
        }
    }
}

/// The signals of this process from now on.
pub(super) struct Signals {
    arriving: SignalDelivery<UnixStream, WithOrigin>,
    /// Mask of ignored signals.
    ignored: u64,
}

impl Signals {
    /// Catches them, except the signals that our parent wants ignored: `nohup` does that with
    /// SIGHUP, and CMD must inherit it.
    pub(super) fn listen() -> io::Result<Signals> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let ignored = ignored(&status);
        let caught = PASSED_ON
            .into_iter()
            .filter(|signal| ignored & bit(*signal) == 0)
            .chain([SIGCHLD]);
        let (read, write) = UnixStream::pair()?;
        let arriving = SignalDelivery::with_pipe(read, write, WithOrigin::default(), caught)?;
        Ok(Signals { arriving, ignored })
    }

    /// True for a signal that our parent wants ignored.
    pub(super) fn ignore(&self, signal: i32) -> bool {
        self.ignored & bit(signal) != 0
    }

    /// Returns the signals that have arrived; never waits.
    pub(super) fn take(&mut self) -> Vec<Arrived> {
        self.arriving.pending().map(Arrived::from).collect()
    }
}

/// Readable when a signal has arrived.
impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.arriving.get_read().as_fd()
    }
}

/// Sends a signal; a process that is gone already has no use for it.
pub(super) fn send(to: Pid, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        let _gone = rustix::process::kill_process(to, signal);
    }
}

/// A signal's place in the kernel's masks.
fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The mask of ignored signals in `/proc/self/status`.
fn ignored(status: &str) -> u64 {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .map(str::trim);
    mask.and_then(|mask| u64::from_str_radix(mask, 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cmd_has_not_heard_is_passed_on() {
        let check = |signal, sender| Arrived { signal, sender }.is_for(7);
        for signal in [SIGTERM, SIGHUP, SIGUSR1, SIGWINCH, SIGINT, SIGQUIT, SIGCONT] {
            assert!(check(signal, Sender::Process(1)), "{signal}");
            assert!(!check(signal, Sender::Kernel), "{signal}");
            assert!(!check(signal, Sender::Process(7)), "{signal}");
        }
        assert!(!check(SIGCHLD, Sender::Process(1)));
        assert!(check(SIGALRM, Sender::Kernel));
    }

    #[test]
    fn some_signals_end_a_wait() {
        let check = |signal, sender| {
            let arrived = Arrived { signal, sender };
            (arrived.ends_waiting(), arrived.is_interrupt_key())
        };
        assert_eq!(check(SIGINT, Sender::Kernel), (true, true));
        assert_eq!(check(SIGINT, Sender::Process(1)), (true, false));
        assert_eq!(check(SIGTERM, Sender::Process(1)), (true, false));
        assert_eq!(check(SIGWINCH, Sender::Kernel), (false, false));
        assert_eq!(check(SIGUSR1, Sender::Process(1)), (false, false));
    }

    #[test]
    fn ignored_signals_are_read_from_the_kernel_s_words() {
        assert_eq!(ignored("SigBlk:\t1\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored(""), 0);
        assert_eq!(ignored("SigIgn:\tx"), 0);
    }

    #[test]
    fn a_signal_tells_who_sent_it() {
        let mut signals = Signals::listen().unwrap();
        let own = rustix::process::getpid();
        send(own, SIGWINCH);
        let mut fds = [rustix::event::PollFd::new(
            &signals,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, None).unwrap();
        let arrived: Vec<Arrived> = signals.take();
        let sender = Sender::Process(own.as_raw_nonzero().get());
        assert!(
            arrived.contains(&Arrived {
                signal: SIGWINCH,
                sender
            }),
            "{arrived:?}"
        );
    }
}
