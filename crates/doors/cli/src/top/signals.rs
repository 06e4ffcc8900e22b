//! Signals for the live view. A thread of its own waits for them, because the view may be stuck: a
//! terminal that nobody reads takes no more bytes. Then the thread restores the terminal's settings
//! and ends the process.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator;
use signal_hook::low_level::emulate_default_handler;

/// Time limit for the view to end by itself. It draws within milliseconds.
const GRACE: Duration = Duration::from_secs(1);

/// The signals of this process from now on.
pub(super) struct Signals {
    /// Readable when one has arrived.
    news: UnixStream,
    /// The one that asks for the end; 0 for none.
    end: Arc<AtomicI32>,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Signals> {
        let (news, tell) = UnixStream::pair()?;
        news.set_nonblocking(true)?;
        tell.set_nonblocking(true)?;
        let end = Arc::new(AtomicI32::new(0));
        let mut arriving = iterator::Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH])?;
        let asked = Arc::clone(&end);
        thread::Builder::new()
            .name("sublet-signals".to_owned())
            .spawn(move || {
                for signal in arriving.forever() {
                    let is_end = signal != SIGWINCH;
                    if is_end {
                        asked.store(signal, Ordering::Release);
                    }
                    let _full_is_readable_too = (&tell).write(&[0]);
                    if is_end {
                        thread::sleep(GRACE);
                        let _gone = ratatui::crossterm::terminal::disable_raw_mode();
                        let _never_returns = emulate_default_handler(signal);
                    }
                }
            })?;
        Ok(Signals { news, end })
    }

    /// Takes the signals that have arrived. Returns the one that asks for the end, if any.
    pub(super) fn take(&mut self) -> Option<i32> {
        let mut bytes = [0; 64];
        while matches!(self.news.read(&mut bytes), Ok(1..)) {}
        match self.end.load(Ordering::Acquire) {
            0 => None,
            signal => Some(signal),
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}
