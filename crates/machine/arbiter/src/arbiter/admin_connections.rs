//! Connections of people's commands: accepts them, drops some to make room for others, and moves
//! bytes in and out. `admin_requests` handles their requests.
//!
//! Anyone of the arbiter's user can connect and stay silent, also a program inside a job. So only a
//! job's life line has a right to stay. The number of other connections is limited, per user and in
//! all; a new one replaces the oldest.
//!
//! The kernel keeps one queue for all users. A user who fills it keeps the others out. So the
//! arbiter empties it at once into one queue per user (`lobby`), which costs far less than to
//! accept a connection fully, and serves the users in turn from there.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::net::SendFlags;
use rustix::process::Resource;
use sublet_share::{JobId, Pid, UserId};
use tracing::debug;

use super::crowd::Crowd;
use super::listeners::Door;
use super::lobby::{Lobby, send_back, turn_away};
use super::sources::{Source, Sources};
use super::{Arbiter, now_ms};
use crate::admin::Reply;
use crate::closers::Owner;
use crate::machine_folder::Audience;
use crate::peer::Peer;
use crate::poller::Key;
use crate::socket::{Connection, Read};

/// Maximum number of connections without a job. Three hundred programs that start together are
/// all among them for a moment.
const JOBLESS_MAX: u64 = 1024;

/// With few descriptors the limit is lower: one connection per eight descriptors. Each takes
/// two, so three of four descriptors are left for jobs.
const DESCRIPTORS_A_JOBLESS: u64 = 8;

/// Part of these connections that one user may have: one in two.
const JOBLESS_A_USER: usize = 2;

/// Maximum number of connections taken from the kernel's queue in one turn if several users
/// come: some milliseconds of work.
const ACCEPTS_A_TURN: usize = 1024;

/// Maximum number of connections of one user accepted in one turn, while other users wait. If
/// only one user comes, the other connections stay in the kernel's queue, where each keeps its
/// place.
const LET_IN_A_TURN: usize = 64;

/// Maximum number of requests of one user taken in one turn: a full answer takes a millisecond
/// when hundreds of jobs wait, and no other client is served meanwhile.
const REQUESTS_A_USER: usize = 32;

/// Longest time of a connection before its first request.
const SILENT_MS_MAX: u64 = 2_000;

/// The longest request. The largest real one is a `resume` with sixteen cards.
const REQUEST_MAX: usize = 64 * 1024;

/// Maximum number of bytes that may wait for a command to read them; the arbiter then drops
/// the connection. A snapshot of a thousand jobs is about half of it.
const UNREAD_MAX: usize = 1024 * 1024;

/// A command's connection.
#[derive(Debug)]
pub(super) struct AdminConnection {
    socket: Connection,
    pub(super) pid: Pid,
    pub(super) user: UserId,
    /// Taken when the process becomes a job's root.
    pub(super) pidfd: Option<OwnedFd>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Closed when everything is written.
    is_closing: bool,
    /// The other side writes no more.
    has_ended: bool,
    /// The job, if this connection is its life line.
    job: Option<JobId>,
    /// Waits to be read, and to be written.
    interest: (bool, bool),
    watch: Option<Watch>,
    /// It has asked something.
    pub(super) has_asked: bool,
    since_ms: u64,
}

/// Interval of snapshots, and time of the next one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watch {
    interval_ms: u64,
    next_ms: u64,
}

/// A line of a connection's input.
pub(super) enum Line {
    None,
    TooLong,
    Whole(Vec<u8>),
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct AdminConnections {
    all: BTreeMap<Key, AdminConnection>,
    /// All without a job: they make room.
    quiet: Crowd,
    /// The same for the connections that watch: dropped only if no other can be.
    watching: Crowd,
    /// All that came and were not let in yet.
    lobby: Lobby,
    /// Counts the requests of each user that were taken in this turn.
    taken: BTreeMap<Owner, usize>,
}

impl Arbiter {
    pub(super) fn accept_admins(&mut self) {
        if self.pauses(Door::Admin) {
            return;
        }
        let are_several = self.listeners.audience() == Audience::Everybody;
        let most = if are_several {
            ACCEPTS_A_TURN
        } else {
            LET_IN_A_TURN
        };
        for _ in 0..most {
            match self.listeners.admin.accept() {
                Ok(Some(socket)) if are_several => {
                    if let Err(socket) = self.admins.lobby.enter(socket) {
                        send_back(&socket);
                    }
                }
                Ok(Some(socket)) => self.add_admin(socket),
                Ok(None) => break,
                // No descriptors left: somebody must go before somebody can come.
                Err(error) if self.make_room() => debug!(%error, "a command made room"),
                Err(error) => {
                    debug!(%error, "a command cannot be let in");
                    self.shed(Door::Admin, turn_away);
                    break;
                }
            }
        }
        self.let_admins_in();
    }

    /// Lets in some of each user's.
    fn let_admins_in(&mut self) {
        for socket in self.admins.lobby.take(LET_IN_A_TURN) {
            self.add_admin(socket);
        }
        if !self.admins.lobby.is_empty() {
            let key = self.listeners.admin_key();
            self.sources.serve_again(key);
        }
    }

    fn add_admin(&mut self, socket: Connection) {
        // Of whose files too many wait, nothing is read.
        if socket.is_stuck() {
            return turn_away(&socket);
        }
        let most = jobless_max();
        if self.admins.jobless_of(socket.owner()) >= most.div_ceil(JOBLESS_A_USER) {
            let oldest = self.admins.most_dispensable_of(socket.owner());
            oldest.into_iter().for_each(|key| self.drop_admin(key));
        } else if self.admins.jobless() >= most {
            self.make_room();
        }
        let peer = match socket.peer() {
            Err(_) if self.make_room() => socket.peer(),
            first => first,
        };
        let Ok(peer) = peer else {
            return turn_away(&socket);
        };
        let what = "a command's connection";
        let Ok(key) = self.sources.add(&socket, what, Source::AdminConnection) else {
            return turn_away(&socket);
        };
        self.admins.insert(key, AdminConnection::new(socket, peer));
        // The request is usually there already.
        self.serve_admin(key);
    }

    /// Closes a connection without a job. False if there is none.
    fn make_room(&mut self) -> bool {
        let dispensable = self.admins.most_dispensable();
        if let Some(key) = dispensable {
            self.drop_admin(key);
        }
        dispensable.is_some()
    }

    /// Drops connections that came and asked nothing: they keep an idle arbiter from its end.
    pub(super) fn drop_silent_admins(&mut self, now: u64) {
        for key in self.admins.silent(now) {
            self.counters.garbage += 1;
            self.drop_admin(key);
        }
    }

    pub(super) fn drop_admin(&mut self, key: Key) {
        let Some(gone) = self.admins.remove(key) else {
            return;
        };
        self.sources.remove(key, &gone.socket);
        if let Some(job) = gone.job {
            self.jobs.cut_line(job);
            self.root_is_gone(job);
        }
    }
}

impl AdminConnections {
    /// Returns true if there is no connection, not even in the lobby.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.lobby.is_empty()
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut AdminConnection> {
        self.all.get_mut(&key)
    }

    /// A turn begins, in which each user may ask again.
    pub(super) fn begin_turn(&mut self) {
        self.taken.clear();
    }

    /// Checks whether one more request of a connection may be taken in this turn; counts it.
    pub(super) fn may_take(&mut self, key: Key) -> bool {
        let Some(connection) = self.all.get(&key) else {
            return false;
        };
        let taken = self.taken.entry(connection.socket.owner()).or_default();
        *taken += 1;
        *taken <= REQUESTS_A_USER
    }

    fn insert(&mut self, key: Key, connection: AdminConnection) {
        self.quiet.insert(connection.socket.owner(), key);
        self.all.insert(key, connection);
    }

    fn remove(&mut self, key: Key) -> Option<AdminConnection> {
        let gone = self.all.remove(&key)?;
        let owner = gone.socket.owner();
        self.quiet.remove(owner, key);
        self.watching.remove(owner, key);
        Some(gone)
    }

    /// Makes the connection a job's life line, which is never dropped to make room.
    pub(super) fn set_job(&mut self, key: Key, job: JobId) {
        self.change(key, |connection| connection.job = Some(job));
    }

    /// It gets a snapshot from now on, again and again.
    pub(super) fn set_watch(&mut self, key: Key, watch: Watch) {
        self.change(key, |connection| connection.watch = Some(watch));
    }

    /// Changes a connection, and updates the order in which connections are dropped.
    fn change(&mut self, key: Key, how: impl FnOnce(&mut AdminConnection)) {
        let Some(connection) = self.all.get_mut(&key) else {
            return;
        };
        how(connection);
        let owner = connection.socket.owner();
        self.quiet.remove(owner, key);
        self.watching.remove(owner, key);
        match (connection.job, connection.watch) {
            (Some(_), _) => {}
            (None, Some(_)) => self.watching.insert(owner, key),
            (None, None) => self.quiet.insert(owner, key),
        }
    }

    fn jobless(&self) -> usize {
        self.quiet.len() + self.watching.len()
    }

    fn jobless_of(&self, owner: Owner) -> usize {
        self.quiet.len_of(owner) + self.watching.len_of(owner)
    }

    /// The connection to drop first: the oldest without a job, of the user with the most such
    /// connections. One that watches is dropped only if there is no other.
    fn most_dispensable(&self) -> Option<Key> {
        let quiet = self.quiet.oldest_of_most();
        quiet.or_else(|| self.watching.oldest_of_most())
    }

    /// The same among the connections of one user.
    fn most_dispensable_of(&self, owner: Owner) -> Option<Key> {
        let quiet = self.quiet.oldest_of(owner);
        quiet.or_else(|| self.watching.oldest_of(owner))
    }

    fn silent(&self, now: u64) -> Vec<Key> {
        let is_silent = |one: &AdminConnection| {
            !one.has_asked && now.saturating_sub(one.since_ms) > SILENT_MS_MAX
        };
        let silent = self.all.iter().filter(|(_, one)| is_silent(one));
        silent.map(|(key, _)| *key).collect()
    }

    /// Returns the connections that need a snapshot now. One with an unread snapshot gets
    /// none.
    pub(super) fn take_due_watches(&mut self, now: u64) -> Vec<Key> {
        let mut due = Vec::new();
        for (key, connection) in &mut self.all {
            if let Some(watch) = &mut connection.watch
                && watch.next_ms <= now
                && connection.output.is_empty()
            {
                watch.next_ms = now.saturating_add(watch.interval_ms);
                due.push(*key);
            }
        }
        due
    }

    /// Says something on a connection, or gives it up if it does not read.
    pub(super) fn tell(&mut self, sources: &mut Sources, key: Key, news: &Reply) {
        let Some(connection) = self.all.get_mut(&key) else {
            return;
        };
        let Ok(line) = serde_json::to_vec(news) else {
            return;
        };
        if connection.output.len() + line.len() > UNREAD_MAX {
            debug!(pid = %connection.pid, "a command does not read what it asked for");
            connection.output.clear();
            connection.is_closing = true;
            connection.has_ended = true;
            // Dropped at its next turn, which comes at once.
            sources.serve_again(key);
            return;
        }
        connection.output.extend_from_slice(&line);
        connection.output.push(b'\n');
        self.flush(sources, key);
    }

    /// Writes as much as the other side takes now.
    pub(super) fn flush(&mut self, sources: &Sources, key: Key) {
        if let Some(connection) = self.all.get_mut(&key) {
            connection.write();
            let write = !connection.output.is_empty();
            // Who is not read any more must not wake the arbiter by writing.
            let read = !connection.is_closing && connection.input.len() <= REQUEST_MAX;
            if (read, write) != connection.interest {
                connection.interest = (read, write);
                sources.set_interest(&connection.socket, key, read, write);
            }
        }
    }

    /// Closes a connection when everything is written.
    pub(super) fn close(&mut self, sources: &mut Sources, key: Key) {
        self.change(key, |connection| {
            connection.is_closing = true;
            connection.job = None;
        });
        sources.serve_again(key);
    }
}

/// Maximum number of connections without a job, by the limit of descriptors.
fn jobless_max() -> usize {
    let descriptors = rustix::process::getrlimit(Resource::Nofile).current;
    let most = descriptors.map_or(JOBLESS_MAX, |all| all / DESCRIPTORS_A_JOBLESS);
    usize::try_from(most.clamp(1, JOBLESS_MAX)).unwrap_or(usize::MAX)
}

impl Watch {
    /// Starts a watch that has got its first snapshot.
    pub(super) fn begun(interval_ms: u64) -> Watch {
        Watch {
            interval_ms,
            next_ms: now_ms().saturating_add(interval_ms),
        }
    }
}

impl AdminConnection {
    fn new(socket: Connection, peer: Peer) -> AdminConnection {
        AdminConnection {
            socket,
            pid: peer.pid,
            user: peer.user,
            pidfd: Some(peer.pidfd),
            input: Vec::new(),
            output: Vec::new(),
            is_closing: false,
            has_ended: false,
            job: None,
            interest: (true, false),
            watch: None,
            has_asked: false,
            since_ms: now_ms(),
        }
    }

    pub(super) fn read(&mut self) {
        while self.input.len() <= REQUEST_MAX {
            let mut part = [0; 4096];
            match self.socket.read(&mut part) {
                Read::Bytes(n) => {
                    self.input.extend_from_slice(&part[..n]);
                    continue;
                }
                Read::Nothing => {}
                Read::Ended => self.has_ended = true,
                Read::Foreign => {
                    self.input.clear();
                    self.has_ended = true;
                }
            }
            return;
        }
    }

    pub(super) fn take_line(&mut self) -> Line {
        if self.is_closing {
            return Line::None;
        }
        match self.input.iter().position(|&byte| byte == b'\n') {
            Some(end) => Line::Whole(self.input.drain(..=end).collect()),
            None if self.input.len() > REQUEST_MAX => Line::TooLong,
            None => Line::None,
        }
    }

    /// True if another request can be taken though nothing more arrives.
    pub(super) fn has_request(&self) -> bool {
        self.has_line() && !self.is_closing
    }

    /// Returns true if it can be dropped: it has sent everything, or the other side is gone.
    pub(super) fn is_done(&self) -> bool {
        let has_said_all = self.has_ended && !self.has_line();
        has_said_all || (self.is_closing && self.output.is_empty())
    }

    fn has_line(&self) -> bool {
        self.input.contains(&b'\n')
    }

    fn write(&mut self) {
        while !self.output.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, &self.output, flags) {
                Ok(n) => {
                    self.output.drain(..n.min(self.output.len()));
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return,
                Err(_) => {
                    self.has_ended = true;
                    self.output.clear();
                }
            }
        }
    }
}
