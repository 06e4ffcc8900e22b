//! A running job's connection to its arbiter. It survives the arbiter: a job goes on while none
//! runs, a new arbiter restores the records of the last one, and if nobody else starts one, this
//! does. It never waits: signals are passed on in the meantime.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use sublet_arbiter::admin::{Client, Reply, Request, Snapshot};

use super::arbiter::{self, LaunchOptions};
use super::wait::PlacedJob;
use crate::background::Starting;
use crate::machine::{ConnectError, Machine};

/// Interval between the tries to reach a lost arbiter.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time that the arbiter's manager has to start the next one, before a job does.
const OTHERS_FIRST: Duration = Duration::from_secs(1);
/// Time limit of an arbiter's answer to `resume`.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Time limit of its answer to a question about the state. It takes a millisecond.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// After a start that failed, the pause before the next one.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// The connection, or the search for another one.
pub(super) struct JobConnection<'a> {
    machine: &'a Machine,
    launch: &'a LaunchOptions,
    /// The job's number.
    id: u64,
    state: State,
    /// A failed start was reported; the ones after it are not.
    complained: bool,
}

enum State {
    Connected(Client),
    /// Connected again, and no answer yet.
    Asked(Client, Instant),
    Lost(Search),
    /// The arbiter does not know this job any more.
    Cut,
}

struct Search {
    /// When the connection was lost, or the last start failed.
    since: Instant,
    /// When to look again.
    next: Instant,
    starting: Option<Starting>,
}

impl<'a> JobConnection<'a> {
    pub(super) fn new(
        machine: &'a Machine,
        launch: &'a LaunchOptions,
        job: PlacedJob,
    ) -> JobConnection<'a> {
        JobConnection {
            machine,
            launch,
            id: job.placed.id,
            state: State::Connected(job.client),
            complained: false,
        }
    }

    /// File descriptor to poll for reading, if there is one.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Connected(client) | State::Asked(client, _) => Some(client.as_fd()),
            State::Lost(_) | State::Cut => None,
        }
    }

    /// Time at which [`JobConnection::serve`] must be called even if nothing arrived.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        match &self.state {
            State::Connected(_) | State::Cut => None,
            State::Asked(_, until) => Some(*until),
            State::Lost(search) => Some(search.next),
        }
    }

    /// Job number and snapshot from the arbiter, for a user who waits; `None` if it does not answer
    /// at once.
    pub(super) fn snapshot(&mut self) -> Option<(u64, Snapshot)> {
        let State::Connected(client) = &mut self.state else {
            return None;
        };
        client.send(&Request::List).ok()?;
        let until = Instant::now() + LOOK_MAX;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match client.receive(Some(left)).ok()? {
                Reply::Snapshot(snapshot) => return Some((self.id, *snapshot)),
                // News that nobody has listened to.
                _ if left.is_zero() => return None,
                _ => {}
            }
        }
    }

    /// Does all work that is due now. Returns a line for people, if there is one.
    pub(super) fn serve(&mut self, now: Instant) -> Option<String> {
        match std::mem::replace(&mut self.state, State::Cut) {
            State::Connected(client) => self.listen(client, now, None),
            State::Asked(client, until) if now < until => self.listen(client, now, Some(until)),
            State::Asked(..) => {
                self.lose(now);
                None
            }
            State::Lost(search) if now < search.next => {
                self.state = State::Lost(search);
                None
            }
            State::Lost(search) => self.look(search, now),
            State::Cut => None,
        }
    }

    /// Takes the arbiter's message. `until`: end of the wait for its answer to `resume`.
    fn listen(
        &mut self,
        mut client: Client,
        now: Instant,
        until: Option<Instant>,
    ) -> Option<String> {
        let mut until = until;
        loop {
            match client.try_receive() {
                Ok(Some(Reply::Placed(_))) => {
                    self.complained = false;
                    until = None;
                }
                Ok(Some(Reply::Refused { reason, .. } | Reply::Error { reason })) => {
                    return Some(format!(
                        "the arbiter no longer counts job {}: {reason}; it runs on with the \
                         limits it has",
                        self.id
                    ));
                }
                // New limits, which the arbiter records; or from a newer arbiter, and nothing that
                // an older command must know.
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.state = match until {
                        Some(until) => State::Asked(client, until),
                        None => State::Connected(client),
                    };
                    return None;
                }
                Err(_) => {
                    self.lose(now);
                    return None;
                }
            }
        }
    }

    fn lose(&mut self, now: Instant) {
        self.state = State::Lost(Search {
            since: now,
            next: now + LOOK_EVERY,
            starting: None,
        });
    }

    /// Looks for an arbiter, and sees to it that one is started.
    fn look(&mut self, mut search: Search, now: Instant) -> Option<String> {
        match self.ask_again() {
            Ok(client) => {
                self.state = State::Asked(client, now + ANSWER_MAX);
                return None;
            }
            // Somebody listens, so that nothing is to be started.
            Err(ConnectError::Client(error)) if !error.is_absent() => search.since = now,
            Err(_) => {}
        }
        let failure = match &mut search.starting {
            Some(starting) => starting.failure(now),
            None if now >= search.since + OTHERS_FIRST => {
                match arbiter::begin(self.machine, self.launch) {
                    Ok(starting) => {
                        search.starting = starting;
                        None
                    }
                    Err(error) => Some(error),
                }
            }
            None => None,
        };
        search.next = now + LOOK_EVERY;
        if failure.is_some() {
            search.starting = None;
            search.since = now + AFTER_FAILURE;
        }
        self.state = State::Lost(search);
        let error = failure.filter(|_| !std::mem::replace(&mut self.complained, true))?;
        Some(format!(
            "{error}; job {} runs on, and this is tried again",
            self.id
        ))
    }

    fn ask_again(&self) -> Result<Client, ConnectError> {
        let mut client = self.machine.client()?;
        client.send(&Request::Resume { id: self.id })?;
        Ok(client)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    use sublet_arbiter::admin::{Class, Mode, Placed, Submit};

    use super::*;

    /// A listener, and a job's connection that was made to it.
    struct World {
        machine: Machine,
        launch: LaunchOptions,
        _base: tempfile::TempDir,
    }

    impl World {
        fn new() -> World {
            let base = tempfile::tempdir().unwrap();
            let machine = Machine::below(&base.path().join("run"), None);
            machine.prepare().unwrap();
            let launch = LaunchOptions::default();
            World {
                machine,
                launch,
                _base: base,
            }
        }

        fn listen(&self) -> UnixListener {
            let socket = self.machine.folder.admin_socket();
            let _absent = std::fs::remove_file(&socket);
            UnixListener::bind(socket).unwrap()
        }

        fn connection(&self, listener: &UnixListener) -> (JobConnection<'_>, UnixStream) {
            let client = Client::connect(&self.machine.folder.admin_socket()).unwrap();
            let (stream, _) = listener.accept().unwrap();
            let placed = Placed {
                id: 7,
                gpus: Vec::new(),
                pinned_limit_mib: None,
                compute: None,
                mps: None,
                dir: "/r".to_owned(),
            };
            let submit = Submit {
                name: "a".to_owned(),
                memory: None,
                pinned_memory: None,
                compute: None,
                class: Class::Guaranteed,
                slice: None,
                gpus: 1,
                cards: None,
                wait: true,
                priority: 0,
                mode: Mode::Strict,
            };
            let job = PlacedJob {
                client,
                placed,
                submit,
            };
            let connection = JobConnection::new(&self.machine, &self.launch, job);
            (connection, stream)
        }
    }

    fn say(mut stream: &UnixStream, reply: &Reply) {
        let line = serde_json::to_string(reply).unwrap() + "\n";
        stream.write_all(line.as_bytes()).unwrap();
    }

    fn asked(stream: &UnixStream) -> Request {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn limited(dir: &str) -> Placed {
        Placed {
            id: 7,
            gpus: Vec::new(),
            pinned_limit_mib: None,
            compute: None,
            mps: None,
            dir: dir.to_owned(),
        }
    }

    #[test]
    fn a_new_arbiter_hears_which_job_it_is() {
        let world = World::new();
        let listener = world.listen();
        let (mut connection, stream) = world.connection(&listener);
        let t0 = Instant::now();
        say(&stream, &Reply::Limited(limited("/new")));
        assert_eq!(connection.serve(t0), None);
        assert!(connection.fd().is_some() && connection.wake_at().is_none());

        drop((stream, listener));
        assert_eq!(connection.serve(t0), None);
        let look = connection.wake_at().unwrap();
        assert!(connection.fd().is_none() && look > t0);
        assert_eq!(connection.serve(look), None);
        assert!(connection.fd().is_none());

        let listener = world.listen();
        let look = connection.wake_at().unwrap();
        assert_eq!(connection.serve(look), None);
        let (stream, _) = listener.accept().unwrap();
        assert_eq!(asked(&stream), Request::Resume { id: 7 });
        assert_eq!(connection.wake_at(), Some(look + ANSWER_MAX));
        say(&stream, &Reply::Placed(limited("/newer")));
        assert_eq!(connection.serve(look), None);
        assert!(connection.fd().is_some() && connection.wake_at().is_none());
    }

    #[test]
    fn an_arbiter_that_does_not_answer_is_asked_again() {
        let world = World::new();
        let listener = world.listen();
        let (mut connection, stream) = world.connection(&listener);
        let t0 = Instant::now();
        drop(stream);
        connection.serve(t0);
        let look = connection.wake_at().unwrap();
        connection.serve(look);
        let until = connection.wake_at().unwrap();
        assert_eq!(until, look + ANSWER_MAX);
        connection.serve(until);
        assert_eq!(connection.wake_at(), Some(until + LOOK_EVERY));
    }

    #[test]
    fn a_job_that_is_no_longer_known_runs_on() {
        let world = World::new();
        let listener = world.listen();
        let (mut connection, stream) = world.connection(&listener);
        let reason = "its GPUs are gone".to_owned();
        let refused = Reply::Refused {
            reason,
            is_final: true,
            hint: None,
        };
        say(&stream, &refused);
        let said = connection.serve(Instant::now()).unwrap();
        assert_eq!(
            said,
            "the arbiter no longer counts job 7: its GPUs are gone; it runs on with the limits \
             it has"
        );
        assert!(connection.fd().is_none() && connection.wake_at().is_none());
        assert_eq!(connection.serve(Instant::now()), None);
    }

    #[test]
    fn a_start_that_is_not_possible_is_told_once() {
        let world = World::new();
        let listener = world.listen();
        let (mut connection, stream) = world.connection(&listener);
        drop((stream, listener));
        // A folder that others may use is refused.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(world.machine.folder.path(), open).unwrap();
        let t0 = Instant::now();
        connection.serve(t0);
        let said: Vec<String> = (0..300)
            .filter_map(|n| connection.serve(t0 + LOOK_EVERY * n))
            .collect();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].ends_with("; job 7 runs on, and this is tried again"),
            "{said:?}"
        );
    }
}
