//! The live view: the terminal in raw mode, one connection that brings a snapshot every half
//! second, a few keys. Whatever ends it (a key, a signal, an error, a panic), the terminal is
//! given back as it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGTERM};
use sublet_arbiter::admin::{Client, ClientError, Reply, Request};

use super::screen::{Seen, draw};
use crate::machine::Machine;

/// Between two snapshots.
const EVERY_MS: u64 = 500;
/// How long a key or a snapshot may lie before it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Between two attempts to find a lost arbiter.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Shows the machine until the user has seen enough.
///
/// # Errors
/// There is no arbiter at the beginning, or the terminal cannot be used.
pub(super) fn show(machine: &Machine) -> anyhow::Result<()> {
    // Before the terminal is touched, so that an error is plain text.
    let snapshot = machine.snapshot()?;
    let mut feed = Feed::Connected(machine.connect_to_running()?);
    feed.begin();
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).context("cannot catch signals")?;
    }
    let mut seen = Seen {
        title: match &machine.fake {
            Some(fake) => fake.text().to_owned(),
            None => String::new(),
        },
        snapshot,
        trouble: None,
        colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        scrolled: 0,
    };
    // It also restores the terminal when this program panics.
    let mut terminal = ratatui::try_init().context("cannot use this terminal")?;
    let shown = (|| {
        while !ended.load(Ordering::Relaxed) {
            feed.take(machine, &mut seen, Instant::now());
            terminal.draw(|frame| draw(frame, &seen))?;
            if !crossterm::event::poll(LOOK_EVERY)? {
                continue;
            }
            let Event::Key(key) = crossterm::event::read()? else {
                // A new size is drawn in the next round.
                continue;
            };
            match meaning(key) {
                Wish::End => break,
                Wish::Scroll(by) => seen.scrolled = scrolled(&seen, by),
                Wish::Suspend => {
                    ratatui::try_restore()?;
                    rustix::process::kill_process(rustix::process::getpid(), Signal::TSTP)?;
                    terminal = ratatui::try_init()?;
                }
                Wish::Nothing => {}
            }
        }
        Ok(())
    })();
    ratatui::try_restore().context("cannot give the terminal back")?;
    shown.map_err(|error: std::io::Error| anyhow::Error::new(error).context("the terminal failed"))
}

/// What a key means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    End,
    Suspend,
    Scroll(isize),
    Nothing,
}

fn meaning(key: KeyEvent) -> Wish {
    if key.kind == KeyEventKind::Release {
        return Wish::Nothing;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if control => Wish::End,
        KeyCode::Char('z') if control => Wish::Suspend,
        KeyCode::Char('q') | KeyCode::Esc => Wish::End,
        KeyCode::Up | KeyCode::Char('k') => Wish::Scroll(-1),
        KeyCode::Down | KeyCode::Char('j') => Wish::Scroll(1),
        KeyCode::PageUp => Wish::Scroll(-10),
        KeyCode::PageDown => Wish::Scroll(10),
        KeyCode::Home => Wish::Scroll(isize::MIN),
        KeyCode::End => Wish::Scroll(isize::MAX),
        _ => Wish::Nothing,
    }
}

/// The new first job: between the first and the last one.
fn scrolled(seen: &Seen, by: isize) -> usize {
    let last = seen.snapshot.tenants.len().saturating_sub(1);
    seen.scrolled.min(last).saturating_add_signed(by).min(last)
}

/// Where snapshots come from.
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
    fn keys_have_meanings() {
        let key = |code, modifiers| meaning(KeyEvent::new(code, modifiers));
        let none = KeyModifiers::NONE;
        assert_eq!(key(KeyCode::Char('q'), none), Wish::End);
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Wish::End);
        assert_eq!(key(KeyCode::Char('c'), none), Wish::Nothing);
        assert_eq!(
            key(KeyCode::Char('z'), KeyModifiers::CONTROL),
            Wish::Suspend
        );
        assert_eq!(key(KeyCode::Up, none), Wish::Scroll(-1));
        let mut released = KeyEvent::new(KeyCode::Char('q'), none);
        released.kind = KeyEventKind::Release;
        assert_eq!(meaning(released), Wish::Nothing);
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
