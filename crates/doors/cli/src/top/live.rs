//! The live view: the terminal in raw mode, one connection that brings a snapshot every half
//! second, a few keys. While no arbiter runs, the driver is read instead. Any end (a key, a signal, the end of the terminal, an error, a panic)
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
use crate::look::{self, DriverReader, Found, RETURN_MAX};
use crate::machine::Machine;

/// Between two snapshots.
const EVERY_MS: u64 = 500;
/// Longest time without a redraw of the screen.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time limit for the rest of a key to arrive.
const KEY_MAX: Duration = Duration::from_millis(50);
/// Between two attempts to find an arbiter, and between two readings of the driver meanwhile.
const RETRY_EVERY: Duration = Duration::from_millis(500);

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
/// There is no driver, an arbiter that does not answer, or no terminal that can be used.
pub(super) fn show(machine: &Machine) -> anyhow::Result<()> {
    // Before the terminal is touched, so that an error is plain text.
    let snapshot = look::at(machine)?.snapshot;
    let now = Instant::now();
    let mut feed = match look::connect(machine)? {
        Found::Arbiter(client) => Feed::Connected(client),
        Found::Nobody { note } => Feed::Alone(Alone::begin(machine, now, now, note)),
    };
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
    /// An arbiter.
    Connected(Client),
    /// The driver, while there is no arbiter.
    Alone(Alone),
}

/// The driver in the place of an arbiter, until one comes.
struct Alone {
    driver: DriverReader,
    /// When the driver is first asked. Until then the last word of an arbiter stays, for the next
    /// one to come.
    from: Instant,
    /// When an arbiter is looked for, and the driver asked.
    next: Instant,
    /// A line about jobs that are not shown.
    note: Option<String>,
}

impl Alone {
    fn begin(machine: &Machine, now: Instant, from: Instant, note: Option<String>) -> Alone {
        Alone {
            driver: DriverReader::start(machine),
            from,
            next: now,
            note,
        }
    }

    /// Takes the driver's answer, and asks anew if it is time. Returns a connection to an arbiter
    /// that has come.
    fn look(&mut self, machine: &Machine, seen: &mut Seen, now: Instant) -> Option<Client> {
        match self.driver.take() {
            Some(Ok(snapshot)) => {
                seen.snapshot = snapshot;
                seen.trouble.clone_from(&self.note);
            }
            Some(Err(error)) => seen.trouble = Some(format!("{error:#}")),
            None => {}
        }
        if now < self.next {
            return None;
        }
        self.next = now + RETRY_EVERY;
        let arbiter = machine.connect().ok();
        if arbiter.is_none() && now >= self.from {
            self.driver.ask();
        }
        arbiter
    }
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

    /// When an arbiter is looked for.
    fn retry_at(&self) -> Option<Instant> {
        match self {
            Feed::Connected(_) => None,
            Feed::Alone(alone) => Some(alone.next),
        }
    }

    /// Takes what has arrived.
    fn take(&mut self, machine: &Machine, seen: &mut Seen, now: Instant) {
        match self {
            Feed::Connected(client) => match newest(client, seen) {
                Ok(()) => {}
                Err(error) => {
                    seen.trouble = Some(format!("{error}; looking for a new one"));
                    let pause = match look::is_awaited(machine) {
                        true => RETURN_MAX,
                        false => Duration::ZERO,
                    };
                    *self = Feed::Alone(Alone::begin(machine, now, now + pause, None));
                }
            },
            Feed::Alone(alone) => {
                if let Some(client) = alone.look(machine, seen, now) {
                    *self = Feed::Connected(client);
                    self.begin();
                }
            }
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
    use std::fs;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use sublet_arbiter::admin::{PROTOCOL, Snapshot};
    use sublet_fakegpu::{FakeMachine, Spec};

    use super::*;
    use crate::jobs::tests::example;
    use crate::machine::FakeGpu;

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

    fn line(reply: &Reply) -> String {
        serde_json::to_string(reply).unwrap() + "\n"
    }

    /// An arbiter for one view, which says what it is and then shows the example.
    fn answer(listener: &UnixListener) {
        let hello = Reply::Hello {
            protocol: PROTOCOL,
            version: "1".to_owned(),
            pid: 1,
            epoch: 1,
        };
        for reply in [hello, Reply::Snapshot(Box::new(example()))] {
            let (stream, _) = listener.accept().unwrap();
            let mut asked = String::new();
            BufReader::new(&stream).read_line(&mut asked).unwrap();
            (&stream).write_all(line(&reply).as_bytes()).unwrap();
        }
    }

    #[test]
    fn the_view_goes_on_when_the_arbiter_ends_and_takes_up_the_next_one() {
        let base = tempfile::tempdir().unwrap();
        let spec = Spec::read("3x16GiB").unwrap();
        let cards = FakeMachine::open_or_create_in(base.path(), &spec).unwrap();
        let fake = FakeGpu::read(cards.folder().to_str().unwrap()).unwrap();
        let machine = Machine::below(&base.path().join("run"), Some(fake));
        machine.prepare().unwrap();
        let socket = machine.folder.admin_socket();
        let listener = UnixListener::bind(&socket).unwrap();
        let mut feed = Feed::Connected(Client::connect(&socket).unwrap());
        let (mut stream, _) = listener.accept().unwrap();
        let mut seen = seen();
        let t0 = Instant::now();
        feed.take(&machine, &mut seen, t0);
        assert_eq!(seen.trouble, None);

        let said = line(&Reply::Snapshot(Box::new(example())));
        stream.write_all(said.as_bytes()).unwrap();
        feed.take(&machine, &mut seen, t0);
        assert_eq!(seen.snapshot, example());

        drop((stream, listener));
        feed.take(&machine, &mut seen, t0);
        let trouble = seen.trouble.clone().unwrap();
        assert!(trouble.contains("looking for a new one"), "{trouble}");
        assert_eq!(seen.snapshot, example());
        feed.take(&machine, &mut seen, t0);
        assert_eq!(feed.retry_at(), Some(t0 + RETRY_EVERY));
        // No job waits for the next one: the driver is asked.
        until(&mut feed, &machine, &mut seen, |seen| {
            seen.snapshot.gpus.len() == 3
        });
        assert_eq!(
            (seen.trouble.as_ref(), seen.snapshot.tenants.len()),
            (None, 0)
        );

        fs::remove_file(&socket).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let arbiter = thread::spawn(move || answer(&listener));
        until(&mut feed, &machine, &mut seen, |seen| {
            seen.snapshot == example()
        });
        arbiter.join().unwrap();
        // It has ended, too.
        until(&mut feed, &machine, &mut seen, |seen| {
            seen.snapshot.gpus.len() == 3
        });
    }

    /// Looks until something is seen. Time goes faster here.
    fn until(feed: &mut Feed, machine: &Machine, seen: &mut Seen, holds: impl Fn(&Seen) -> bool) {
        let begun = Instant::now();
        let mut now = begun;
        while !holds(&*seen) {
            assert!(begun.elapsed() < Duration::from_secs(20), "it is not seen");
            now += RETRY_EVERY;
            feed.take(machine, seen, now);
            thread::sleep(Duration::from_millis(2));
        }
    }
}
