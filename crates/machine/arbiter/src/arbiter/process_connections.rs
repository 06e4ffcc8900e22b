//! Connections of processes: accepts them, drops some to make room, and moves messages in and
//! out. `hello` handles a hello. A process can send anything; the worst result is that its own
//! connection is closed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;

use sublet_abi::message::{RefusedCode, RefusedHello, SlotClaim, Text};
use sublet_abi::{ArbiterMessage, Hello, OLDEST, ProcessMessage};
use sublet_share::{JobId, Pid};
use tracing::debug;

use super::crowd::Crowd;
use super::listeners::Door;
use super::sources::Source;
use super::{Arbiter, now_ms};
use crate::closers::Owner;
use crate::poller::Key;
use crate::socket::{self, Connection, Received};

/// Maximum number of connections of processes without a slot at one time. Three hundred
/// programs that start together are all among them for a moment.
const SLOTLESS_MAX: usize = 1024;

/// Maximum number of such connections of one user, or of one container.
const SLOTLESS_AN_OWNER: usize = SLOTLESS_MAX / 2;

/// Maximum number of connections accepted at one socket in one turn.
const ACCEPTS_A_TURN: usize = 64;

/// Maximum number of connections of one process: one for each of its libraries, and one to
/// spare.
const PER_PROCESS_MAX: usize = 4;

/// Longest silence of a connection before its hello.
const SILENT_MS_MAX: u64 = 2_000;

/// Maximum number of knocks of one connection handled between two ticks. One that knocks more
/// often is heard again after the next tick; its slot shows its news meanwhile.
const KNOCKS_A_TICK: u32 = 400;

/// Progress of a connection.
#[derive(Debug)]
pub(super) enum Progress {
    /// It has said nothing.
    Silent,
    /// It said hello, and its owner may become known later.
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
    /// The container, if it came by a container's socket.
    pub(super) container: Option<JobId>,
    pub(super) progress: Progress,
    /// The version it is served in, once it said hello.
    pub(super) version: u16,
    since_ms: u64,
    /// Knocks since the last tick.
    n_knocks: u32,
    /// The slot that it claims, if it must be charged to another ledger.
    pub(super) claims: Option<SlotClaim>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct ProcessConnections {
    all: BTreeMap<Key, ProcessConnection>,
    by_pid: BTreeMap<Pid, BTreeSet<Key>>,
    /// All without a slot: they make room.
    slotless: Crowd,
}

impl Arbiter {
    pub(super) fn accept_processes(&mut self, door: Door) {
        let container = match door {
            Door::Container(job) => Some(job),
            _ => None,
        };
        for _ in 0..ACCEPTS_A_TURN {
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
                    let oldest = self.connections.slotless.oldest_of_most();
                    oldest
                        .into_iter()
                        .for_each(|key| self.drop_process_connection(key));
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
        if self.connections.n_of(peer.pid) >= PER_PROCESS_MAX {
            let why = format!(
                "process {} has {PER_PROCESS_MAX} connections already",
                peer.pid
            );
            refuse(&socket, RefusedCode::Malformed, &why);
            self.counters.garbage += 1;
            return;
        }
        if let Some(key) = self.connections.who_makes_room(socket.owner()) {
            self.drop_process_connection(key);
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
            self.connections.insert(key, connection);
            // The hello is usually there already.
            self.serve_process_connection(key);
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
        if let Some(connection) = self.connections.remove(key) {
            self.sources.remove(key, &connection.socket);
            self.processes.remove_connection(connection.pid, key);
        }
    }

    /// Takes one message. The kernel reports a second one after the others had their turn. To
    /// look for it now would cost a call for each knock, and there is hardly ever one.
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

    /// A process says that its slot has news: of its turns, or that it waits for a reading.
    fn hear_knock(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key) {
            let pid = connection.pid;
            if let Some((job, _)) = self.machine.process(pid) {
                self.turns.knock(job, pid);
            }
            connection.n_knocks += 1;
            if connection.n_knocks >= KNOCKS_A_TICK {
                let socket = &connection.socket;
                self.sources.set_interest(socket, key, false, false);
            }
            self.hear_question(pid);
        }
    }

    /// On a tick: listens again to connections that knocked too often.
    pub(super) fn hear_knocks_again(&mut self) {
        for (key, connection) in &mut self.connections.all {
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
        self.all.len()
    }

    pub(super) fn get(&self, key: Key) -> Option<&ProcessConnection> {
        self.all.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut ProcessConnection> {
        self.all.get_mut(&key)
    }

    fn insert(&mut self, key: Key, connection: ProcessConnection) {
        self.by_pid.entry(connection.pid).or_default().insert(key);
        self.slotless.insert(connection.socket.owner(), key);
        self.all.insert(key, connection);
    }

    fn remove(&mut self, key: Key) -> Option<ProcessConnection> {
        let gone = self.all.remove(&key)?;
        if let Some(keys) = self.by_pid.get_mut(&gone.pid) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_pid.remove(&gone.pid);
            }
        }
        self.slotless.remove(gone.socket.owner(), key);
        Some(gone)
    }

    /// Marks that its process has a slot: it is not dropped to make room from now on.
    pub(super) fn welcome(&mut self, key: Key) {
        if let Some(connection) = self.all.get_mut(&key) {
            connection.progress = Progress::Welcome;
            self.slotless.remove(connection.socket.owner(), key);
        }
    }

    /// A process's connections.
    pub(super) fn of(&self, pid: Pid) -> Vec<Key> {
        let keys = self.by_pid.get(&pid);
        keys.into_iter().flatten().copied().collect()
    }

    fn n_of(&self, pid: Pid) -> usize {
        self.by_pid.get(&pid).map_or(0, BTreeSet::len)
    }

    /// The connection to drop before one of this owner comes; none if there is room.
    fn who_makes_room(&self, owner: Owner) -> Option<Key> {
        if self.slotless.len_of(owner) >= SLOTLESS_AN_OWNER {
            return self.slotless.oldest_of(owner);
        }
        let is_full = self.slotless.len() >= SLOTLESS_MAX;
        self.slotless.oldest_of_most().filter(|_| is_full)
    }

    /// True if the other side has closed a connection, or there is none.
    pub(super) fn is_closed(&self, key: Key) -> bool {
        self.get(key)
            .is_none_or(|connection| socket::is_closed(&connection.socket))
    }

    /// Takes the hellos that came too early; their connections are as if they had said nothing.
    pub(super) fn take_early(&mut self) -> Vec<(Key, Hello, Vec<OwnedFd>)> {
        let mut early = Vec::new();
        for (key, connection) in &mut self.all {
            match std::mem::replace(&mut connection.progress, Progress::Silent) {
                Progress::Early(hello, descriptors) => early.push((*key, *hello, descriptors)),
                other => connection.progress = other,
            }
        }
        early
    }

    fn silent(&self, now: u64) -> Vec<Key> {
        let is_silent = |connection: &ProcessConnection| {
            matches!(connection.progress, Progress::Silent)
                && now.saturating_sub(connection.since_ms) > SILENT_MS_MAX
        };
        let silent = self.all.iter().filter(|(_, one)| is_silent(one));
        silent.map(|(key, _)| *key).collect()
    }
}

fn refuse(socket: &Connection, code: RefusedCode, why: &str) {
    let text = Text::new(why);
    let message = ArbiterMessage::Refused(RefusedHello { code, text }).encode();
    // Who does not read it, learns it from the closed connection.
    let _ = socket::send(socket, &message, &[]);
}
