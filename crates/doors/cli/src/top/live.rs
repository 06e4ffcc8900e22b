//! The live view: the terminal in raw mode, one connection that brings a snapshot every half
//! second, a few keys. Any end (a key, a signal, the end of the terminal, an error, a panic)
//! restores the terminal.

use std::io;
use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui::DefaultTerminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use signal_hook::consts::SIGHUP;
use signal_hook::low_level::emulate_default_handler;
use sublet_arbiter::admin::{Client, ClientError, Reply, Request};

use super::keys::{Keys, Wish};
use super::screen::{Seen, draw};
use super::signals::Signals;
use crate::machine::Machine;

/// Between two snapshots.
const EVERY_MS: u64 = 500;
/// Longest time without a redraw of the screen.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time limit for the rest of a key to arrive.
const KEY_MAX: Duration = Duration::from_millis(50);
/// Between two attempts to find a lost arbiter.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Reason why the view ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The user has seen enough.
    Asked,
    /// A signal, or a key that would have sent one.
    Signal(i32),
}

/// Shows the machine until the user has seen enough.
///
/// # Errors
/// There is no arbiter at the beginning, or the terminal cannot be used.
pub(super) fn show(machine: &Machine) -> anyhow::Result<()> {
    // Before the terminal is touched, so that an error is plain text.
    let snapshot = machine.snapshot()?;
    let mut feed = Feed::Connected(machine.connect_to_running()?);
    feed.begin();
    let mut view = View {
        machine,
        feed,
        signals: Signals::listen().context("cannot catch signals")?,
        keys: Keys::default(),
        key_until: None,
        seen: Seen {
            title: match &machine.fake {
                Some(fake) => fake.text().to_owned(),
                None => String::new(),
            },
            snapshot,
            trouble: None,
            colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            scrolled: 0,
        },
    };
    // It also restores the terminal when this program panics.
    let mut terminal = ratatui::try_init().context("cannot use this terminal")?;
    let end = view.follow(&mut terminal);
    let restored = ratatui::try_restore();
    match end {
        Ok(End::Asked) => restored.context("cannot give the terminal back"),
        Ok(End::Signal(signal)) => Ok(emulate_default_handler(signal)?),
        Err(error) => Err(anyhow::Error::new(error).context("the terminal failed")),
    }
}

/// The shown state, and everything that can change it.
struct View<'a> {
    machine: &'a Machine,
    feed: Feed,
    signals: Signals,
    keys: Keys,
    /// Until when the rest of a key may come.
    key_until: Option<Instant>,
    seen: Seen,
}

/// Result of a read from the keyboard.
enum Typed {
    Nothing,
    Something,
    /// There is no keyboard any more.
    Gone,
}

impl View<'_> {
    /// Draws the state and waits for changes, until the end.
    fn follow(&mut self, terminal: &mut DefaultTerminal) -> io::Result<End> {
        loop {
            self.feed.take(self.machine, &mut self.seen, Instant::now());
            if let Err(error) = terminal.draw(|frame| draw(frame, &self.seen)) {
                // Nothing can be drawn on a terminal that is gone.
                return match self.wait(Duration::ZERO) {
                    Typed::Gone => Ok(End::Signal(SIGHUP)),
                    _ => Err(error),
                };
            }
            let now = Instant::now();
            let until = [self.key_until, self.feed.retry_at()];
            let until = until.into_iter().flatten().min();
            let limit = until.map_or(LOOK_EVERY, |until| until.saturating_duration_since(now));
            let typed = self.wait(limit);
            if let Some(signal) = self.signals.take() {
                return Ok(End::Signal(signal));
            }
            let wishes = match typed {
                Typed::Gone => return Ok(End::Signal(SIGHUP)),
                Typed::Something => self.read_keys()?,
                Typed::Nothing => self.late_key(Instant::now()).into_iter().collect(),
            };
            for wish in wishes {
                match wish {
                    Wish::End => return Ok(End::Asked),
                    Wish::Scroll(by) => self.seen.scrolled = scrolled(&self.seen, by),
                    Wish::Suspend => {
                        ratatui::try_restore()?;
                        rustix::process::kill_process(rustix::process::getpid(), Signal::TSTP)?;
                        *terminal = ratatui::try_init()?;
                    }
                }
            }
        }
    }

    /// Waits for a key, a signal or a snapshot, so long at most.
    fn wait(&self, limit: Duration) -> Typed {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let stdin = io::stdin();
        let mut fds = vec![
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
        ];
        if let Feed::Connected(client) = &self.feed {
            fds.push(PollFd::new(client, PollFlags::IN));
        }
        // A signal's handler interrupts it, and its byte is read in the next round.
        let _interrupted = poll(&mut fds, Some(&limit));
        let typed = fds[0].revents();
        if typed.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            Typed::Gone
        } else if typed.contains(PollFlags::IN) {
            Typed::Something
        } else {
            Typed::Nothing
        }
    }

    /// Reads the pressed keys. The end of the input ends the view.
    fn read_keys(&mut self) -> io::Result<Vec<Wish>> {
        let mut bytes = [0; 256];
        match rustix::io::read(io::stdin(), &mut bytes) {
            Ok(0) => Ok(vec![Wish::End]),
            Ok(n) => {
                let wishes = self.keys.take(&bytes[..n]);
                let is_open = self.keys.are_open();
                self.key_until = is_open.then(|| Instant::now() + KEY_MAX);
                Ok(wishes)
            }
            Err(Errno::INTR | Errno::AGAIN) => Ok(Vec::new()),
            // The terminal went away after it was polled.
            Err(Errno::IO) => Ok(vec![Wish::End]),
            Err(error) => Err(error.into()),
        }
    }

    /// A key whose remaining bytes have not come in time.
    fn late_key(&mut self, now: Instant) -> Option<Wish> {
        self.key_until.take_if(|until| *until <= now)?;
        self.keys.close()
    }
}

/// The new first job: between the first and the last one.
fn scrolled(seen: &Seen, by: isize) -> usize {
    let last = seen.snapshot.tenants.len().saturating_sub(1);
    seen.scrolled.min(last).saturating_add_signed(by).min(last)
}

/// Source of snapshots.
enum Feed {
    Connected(Client),
    Lost { retry: Instant },
}

impl Feed {
    /// Asks for a stream of snapshots. A failure shows at the first look.
    fn begin(&mut self) {
        if let Feed::Connected(client) = self {
            let request = Request::Watch {
                interval_ms: EVERY_MS,
            };
            let _shows_later = client.send(&request);
        }
    }

    /// When a lost arbiter is looked for.
    fn retry_at(&self) -> Option<Instant> {
        match self {
            Feed::Connected(_) => None,
            Feed::Lost { retry } => Some(*retry),
        }
    }

    /// Takes what has arrived.
    fn take(&mut self, machine: &Machine, seen: &mut Seen, now: Instant) {
        match self {
            Feed::Connected(client) => match newest(client, seen) {
                Ok(()) => {}
                Err(error) => {
                    seen.trouble = Some(format!("{error}; looking for a new one"));
                    *self = Feed::Lost {
                        retry: now + RETRY_EVERY,
                    };
                }
            },
            Feed::Lost { retry } if now >= *retry => match machine.connect() {
                Ok(client) => {
                    *self = Feed::Connected(client);
                    self.begin();
                }
                Err(_) => *retry = now + RETRY_EVERY,
            },
            Feed::Lost { .. } => {}
        }
    }
}

fn newest(client: &mut Client, seen: &mut Seen) -> Result<(), ClientError> {
    while let Some(reply) = client.try_receive()? {
        if let Reply::Snapshot(snapshot) = reply {
            seen.snapshot = *snapshot;
            seen.trouble = None;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use sublet_arbiter::admin::Snapshot;

    use super::*;
    use crate::jobs::tests::example;

    fn seen() -> Seen {
        Seen {
            title: String::new(),
            snapshot: Snapshot::default(),
            trouble: None,
            colours: false,
            scrolled: 0,
        }
    }

    #[test]
    fn scrolling_stays_within_the_jobs() {
        let mut seen = seen();
        assert_eq!(scrolled(&seen, 5), 0);
        seen.snapshot = example();
        assert_eq!(scrolled(&seen, isize::MAX), 3);
        seen.scrolled = 3;
        assert_eq!(scrolled(&seen, -1), 2);
        assert_eq!(scrolled(&seen, isize::MIN), 0);
        // Jobs that have gone meanwhile are no distance to scroll back through.
        seen.scrolled = 90;
        assert_eq!(scrolled(&seen, -1), 2);
    }

    #[test]
    fn a_lost_arbiter_is_said_and_looked_for() {
        let base = tempfile::tempdir().unwrap();
        let machine = Machine::below(base.path(), None);
        machine.prepare().unwrap();
        let listener = UnixListener::bind(machine.folder.admin_socket()).unwrap();
        let mut feed = Feed::Connected(Client::connect(&machine.folder.admin_socket()).unwrap());
        let (mut stream, _) = listener.accept().unwrap();
        let mut seen = seen();
        let t0 = Instant::now();
        feed.take(&machine, &mut seen, t0);
        assert_eq!(seen.trouble, None);

        let reply = Reply::Snapshot(Box::new(example()));
        let line = serde_json::to_string(&reply).unwrap() + "\n";
        stream.write_all(line.as_bytes()).unwrap();
        feed.take(&machine, &mut seen, t0);
        assert_eq!(seen.snapshot, example());

        drop((stream, listener));
        feed.take(&machine, &mut seen, t0);
        assert!(
            seen.trouble
                .as_ref()
                .unwrap()
                .contains("looking for a new one")
        );
        assert_eq!(seen.snapshot, example());
        feed.take(&machine, &mut seen, t0 + RETRY_EVERY);
        assert!(matches!(feed, Feed::Lost { retry } if retry == t0 + 2 * RETRY_EVERY));
    }
}
