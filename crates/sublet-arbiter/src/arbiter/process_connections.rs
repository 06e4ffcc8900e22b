//! Connections of processes: who is let in, who makes room for others, and messages in and out.
//! What a hello means is in `hello`. Whatever they send, the worst that happens is that their own
//! connection is closed.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use sublet_abi::message::{RefusedCode, RefusedHello, SlotClaim, Text};
use sublet_abi::{ArbiterMessage, Hello, OLDEST, ProcessMessage};
use sublet_share::{JobId, Pid};
use tracing::debug;

use super::listeners::{ACCEPTS_A_TURN, Door};
use super::sources::Source;
use super::{Arbiter, now_ms};
use crate::closers::oldest_of_most;
use crate::poller::Key;
use crate::socket::{self, Connection, Received};

/// How many connections of processes without a slot there may be at one time. Three hundred
/// programs that start together are all among them for a moment.
const SLOTLESS_MAX: usize = 1024;

/// How many of one process: one for each of its libraries, and one to spare.
const PER_PROCESS_MAX: usize = 4;

/// How long a connection may be silent before its hello.
const SILENT_MS_MAX: u64 = 2_000;

/// How many knocks of one connection are heard between two ticks. Who knocks more often is
/// listened to again at the next; what it has to say is seen in its slot meanwhile.
const KNOCKS_A_TICK: u32 = 400;

/// How far a connection has come.
#[derive(Debug)]
pub(super) enum Progress {
    /// It has said nothing.
    Silent,
    /// It said hello, and whose it is may turn out later.
    Early(Box<Hello>, Vec<OwnedFd>),
    /// It has its slot.
    Welcome,
}

/// A connection of a process.
#[derive(Debug)]
pub(super) struct ProcessConnection {
    pub(super) socket: Connection,
    pub(super) pid: Pid,
    /// Taken when the process gets its slot.
    pub(super) pidfd: Option<OwnedFd>,
    /// The container whose socket it came by.
    pub(super) container: Option<JobId>,
    pub(super) progress: Progress,
    /// The version it is served in, once it said hello and its job is known.
    pub(super) version: u16,
    since_ms: u64,
    /// Knocks since the last tick.
    n_knocks: u32,
    /// What it says it had, where that must be charged to another ledger.
    pub(super) claims: Option<SlotClaim>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct ProcessConnections(BTreeMap<Key, ProcessConnection>);

impl Arbiter {
    pub(super) fn accept_processes(&mut self, container: Option<JobId>) {
        for _ in 0..ACCEPTS_A_TURN {
            let door = Door::Processes(container);
            if self.pauses(door) {
                return;
            }
            let Some((listener, _)) = self.listener(door) else {
                return;
            };
            match listener.accept() {
                Ok(Some(connection)) => self.add_process_connection(connection, container),
                Ok(None) => return,
                // No descriptors left: somebody must go before somebody can come.
                Err(error) => {
                    debug!(%error, "a process cannot be let in");
                    self.shed(door, |_| {});
                    self.drop_oldest_slotless();
                    return;
                }
            }
        }
    }

    fn add_process_connection(&mut self, socket: Connection, container: Option<JobId>) {
        // Of whose files too many wait, nothing is read.
        if socket.is_stuck() {
            self.counters.sent_away += 1;
            return;
        }
        let peer = match socket.peer() {
            Ok(peer) => peer,
            Err(error) => {
                // Without descriptors it is the arbiter's trouble, not the process's.
                let code = match error.kind() {
                    io::ErrorKind::PermissionDenied => RefusedCode::Stranger,
                    _ => RefusedCode::Full,
                };
                refuse(&socket, code, &error.to_string());
                self.counters.sent_away += 1;
                return;
            }
        };
        if self.connections.of(peer.pid).len() >= PER_PROCESS_MAX {
            let why = format!(
                "process {} has {PER_PROCESS_MAX} connections already",
                peer.pid
            );
            refuse(&socket, RefusedCode::Malformed, &why);
            self.counters.garbage += 1;
            return;
        }
        if self.connections.slotless().count() >= SLOTLESS_MAX {
            self.drop_oldest_slotless();
        }
        let (what, source) = ("a process's connection", Source::ProcessConnection);
        if let Ok(key) = self.sources.add(&socket, what, source) {
            let connection = ProcessConnection {
                socket,
                pid: peer.pid,
                pidfd: Some(peer.pidfd),
                container,
                progress: Progress::Silent,
                version: OLDEST,
                since_ms: now_ms(),
                n_knocks: 0,
                claims: None,
            };
            self.connections.0.insert(key, connection);
            // The hello is usually there already.
            self.serve_process_connection(key);
        }
    }

    /// Of whoever has most of them: a user or container that comes often makes no room for itself
    /// at the cost of others.
    fn drop_oldest_slotless(&mut self) {
        let slotless = self.connections.slotless();
        let owned =
            slotless.filter_map(|key| Some((self.connections.get(key)?.socket.owner(), key)));
        if let Some(key) = oldest_of_most(owned) {
            self.drop_process_connection(key);
        }
    }

    pub(super) fn drop_silent_processes(&mut self, now: u64) {
        for key in self.connections.silent(now) {
            self.counters.garbage += 1;
            self.drop_process_connection(key);
        }
    }

    /// Closes a connection. A process that has a slot keeps it: it may have closed all its
    /// descriptors, as daemons do, and still have its memory.
    pub(super) fn drop_process_connection(&mut self, key: Key) {
        if let Some(connection) = self.connections.0.remove(&key) {
            self.sources.remove(key, &connection.socket);
            self.processes.remove_connection(connection.pid, key);
        }
    }

    /// Takes one message. The kernel tells of a second one as soon as the others had their turn;
    /// to look for it now would cost a call for each knock, and there is hardly ever one.
    pub(super) fn serve_process_connection(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        match connection.socket.receive() {
            Received::Nothing => {}
            Received::Closed => self.drop_process_connection(key),
            Received::Message(bytes, descriptors) => self.take_message(key, &bytes, descriptors),
            Received::Foreign => self.send_away(
                key,
                RefusedCode::Malformed,
                "nothing but a ledger may come with a message",
            ),
        }
    }

    fn take_message(&mut self, key: Key, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        match (ProcessMessage::parse(bytes), &connection.progress) {
            (Ok(ProcessMessage::Hello(hello)), Progress::Silent) => {
                self.greet(key, hello, descriptors);
            }
            (Ok(ProcessMessage::Knock), Progress::Welcome) => self.hear_knock(key),
            // The connection only. What the process holds stays charged until it is dead: a
            // message must not be a way to have it forgotten.
            (Ok(ProcessMessage::Bye), Progress::Welcome) => self.drop_process_connection(key),
            (Ok(_), _) => self.send_away(
                key,
                RefusedCode::Malformed,
                "this message has no place here",
            ),
            (Err(error), _) => {
                self.send_away(key, RefusedCode::Malformed, &error.to_string());
            }
        }
    }

    /// A process says that its slot has news.
    fn hear_knock(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key) {
            self.turns.knock(connection.pid);
            connection.n_knocks += 1;
            if connection.n_knocks >= KNOCKS_A_TICK {
                let socket = &connection.socket;
                self.sources.set_interest(socket, key, false, false);
            }
        }
    }

    /// A tick: who knocked too often is listened to again.
    pub(super) fn hear_knocks_again(&mut self) {
        for (key, connection) in &mut self.connections.0 {
            if std::mem::take(&mut connection.n_knocks) >= KNOCKS_A_TICK {
                let socket = &connection.socket;
                self.sources.set_interest(socket, *key, true, false);
            }
        }
    }

    /// Refuses and closes.
    pub(super) fn send_away(&mut self, key: Key, code: RefusedCode, why: &str) {
        if let Some(connection) = self.connections.get(key) {
            debug!(pid = %connection.pid, why, "process sent away");
            refuse(&connection.socket, code, why);
        }
        if code == RefusedCode::Malformed {
            self.counters.garbage += 1;
        } else {
            self.counters.sent_away += 1;
        }
        self.drop_process_connection(key);
    }
}

impl ProcessConnections {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, key: Key) -> Option<&ProcessConnection> {
        self.0.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut ProcessConnection> {
        self.0.get_mut(&key)
    }

    /// A process's connections.
    pub(super) fn of(&self, pid: Pid) -> Vec<Key> {
        self.keys(|connection| connection.pid == pid).collect()
    }

    /// True if the other side has closed a connection, or there is none.
    pub(super) fn is_closed(&self, key: Key) -> bool {
        self.get(key)
            .is_none_or(|connection| socket::is_closed(&connection.socket))
    }

    /// Takes the hellos that came too early; their connections are as if they had said nothing.
    pub(super) fn take_early(&mut self) -> Vec<(Key, Hello, Vec<OwnedFd>)> {
        let mut early = Vec::new();
        for (key, connection) in &mut self.0 {
            match std::mem::replace(&mut connection.progress, Progress::Silent) {
                Progress::Early(hello, descriptors) => early.push((*key, *hello, descriptors)),
                other => connection.progress = other,
            }
        }
        early
    }

    fn slotless(&self) -> impl Iterator<Item = Key> {
        self.keys(|connection| !matches!(connection.progress, Progress::Welcome))
    }

    fn silent(&self, now: u64) -> Vec<Key> {
        let is_silent = |connection: &ProcessConnection| {
            matches!(connection.progress, Progress::Silent)
                && now.saturating_sub(connection.since_ms) > SILENT_MS_MAX
        };
        self.keys(is_silent).collect()
    }

    fn keys(&self, is_meant: impl Fn(&ProcessConnection) -> bool) -> impl Iterator<Item = Key> {
        let meant = self
            .0
            .iter()
            .filter(move |(_, connection)| is_meant(connection));
        meant.map(|(key, _)| *key)
    }
}

fn refuse(socket: &Connection, code: RefusedCode, why: &str) {
    let text = Text::new(why);
    let message = ArbiterMessage::Refused(RefusedHello { code, text }).encode();
    // Who does not read it, learns it from the closed connection.
    let _ = socket::send(socket, &message, &[]);
}
