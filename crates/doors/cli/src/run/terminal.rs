//! The terminal at which a job waits. When it is gone (its window was closed, its connection lost)
//! nobody waits for the job any more. Usually a signal says so, but some terminals end without one.
//! A job in the background, and one that ignores hang-ups (`nohup`), continues to wait.

use std::io::IsTerminal;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::termios::tcgetpgrp;

/// The user's terminal.
pub(super) struct Terminal {
    fd: Option<BorrowedFd<'static>>,
    /// It keeps an order among jobs; one of them is in the foreground.
    controls: bool,
}

impl Terminal {
    /// The terminal of standard input, or else that of standard error, where messages about the
    /// wait go.
    pub(super) fn of_this_process(ignores_hang_up: bool) -> Terminal {
        let places = [rustix::stdio::stdin(), rustix::stdio::stderr()];
        let fd = places.into_iter().find(BorrowedFd::is_terminal);
        let fd = fd.filter(|_| !ignores_hang_up);
        // A job that its shell left behind is told the same later, and must not be taken for
        // one that somebody gave a terminal without a shell.
        let controls = fd.is_some_and(|fd| tcgetpgrp(fd) != Err(Errno::NOTTY));
        Terminal { fd, controls }
    }

    /// File descriptor to poll for the terminal's end, while the job is in the foreground.
    pub(super) fn fd(&self) -> Option<PollFd<'static>> {
        let fd = self.fd?;
        let is_ours = tcgetpgrp(fd).is_ok_and(|group| group == rustix::process::getpgrp());
        // Nothing is asked for: its end is told anyway.
        let polled = PollFd::from_borrowed_fd(fd, PollFlags::empty());
        (is_ours || !self.controls).then_some(polled)
    }

    /// Does the result of `poll` for [`Terminal::fd`] mean its end?
    pub(super) fn is_gone(polled: &PollFd<'_>) -> bool {
        let news = polled.revents();
        news.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
    }
}
