//! Connections of people's commands: who is let in, who makes room for others, and bytes in and
//! out. What they say is in `admin_side`.
//!
//! Anybody of the arbiter's user can connect, a program inside a job too, and say nothing. So
//! only a job's life line has a right to stay: of all others there are so many and no more, and
//! the one that has been there longest goes when another comes.

use std::os::fd::OwnedFd;

use rustix::net::{RecvFlags, SendFlags};
use rustix::process::Resource;
use sublet_share::{JobId, Pid};
use tracing::debug;

use super::{Arbiter, Root, Source, now_ms};
use crate::admin::Reply;
use crate::peer::Peer;
use crate::poller::Key;
use crate::socket;

/// How many connections without a job there may be. Three hundred programs that start together
/// are all among them for a moment.
const GUESTS_MAX: u64 = 1024;

/// And where there are few descriptors, that each of them takes two: so many times fewer. Three
/// of four are left for jobs.
const DESCRIPTORS_A_GUEST: u64 = 8;

/// How long a connection may be there before its first request.
const SILENT_MS_MAX: u64 = 2_000;

/// The longest request. The largest real one is a `resume` with sixteen cards.
pub(super) const REQUEST_MAX: usize = 64 * 1024;

/// How many connections are accepted in one turn.
const ACCEPTS_A_TURN: usize = 64;

/// A command's connection.
#[derive(Debug)]
pub(super) struct AdminConnection {
    pub(super) socket: OwnedFd,
    pub(super) pid: Pid,
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    /// Closed when everything is written.
    pub(super) closing: bool,
    /// The other side writes no more.
    pub(super) ended: bool,
    /// The job whose life line this is.
    pub(super) job: Option<JobId>,
    /// Waits to be read, and to be written.
    pub(super) interest: (bool, bool),
    /// How often to send a snapshot, and when next.
    pub(super) watch: Option<(u64, u64)>,
    /// It has asked something.
    pub(super) has_asked: bool,
    since_ms: u64,
}

/// A line of a connection's input.
pub(super) enum Line {
    None,
    TooLong,
    Whole(Vec<u8>),
}

impl Arbiter {
    pub(super) fn accept_admins(&mut self) {
        for _ in 0..ACCEPTS_A_TURN {
            match socket::accept(&self.admin_listener) {
                Ok(Some(socket)) => self.add_admin(socket),
                Ok(None) => return,
                // No descriptors left: somebody must go before somebody can come.
                Err(error) if self.drop_a_guest() => debug!(%error, "a command made room"),
                Err(error) => {
                    debug!(%error, "a command cannot be let in");
                    return self.spare.shed(&self.admin_listener, turn_away);
                }
            }
        }
    }

    fn add_admin(&mut self, socket: OwnedFd) {
        let guests = self.admins.values().filter(|one| one.job.is_none());
        if guests.count() >= guests_max() {
            self.drop_a_guest();
        }
        let peer = match Peer::of(&socket) {
            Err(_) if self.drop_a_guest() => Peer::of(&socket),
            first => first,
        };
        let Ok(peer) = peer else {
            return turn_away(&socket);
        };
        let Ok(key) = self.poller.add(&socket, "a command's connection") else {
            return turn_away(&socket);
        };
        self.sources.insert(key, Source::Admin);
        let connection = AdminConnection {
            socket,
            pid: peer.pid,
            pidfd: Some(peer.pidfd),
            input: Vec::new(),
            output: Vec::new(),
            closing: false,
            ended: false,
            job: None,
            interest: (true, false),
            watch: None,
            has_asked: false,
            since_ms: now_ms(),
        };
        self.admins.insert(key, connection);
        // The request is usually there already.
        self.serve_admin(key);
    }

    /// Closes the connection without a job that has been there longest; one that watches only if
    /// there is no other. False if all are jobs'.
    fn drop_a_guest(&mut self) -> bool {
        let guests = self.admins.iter().filter(|(_, one)| one.job.is_none());
        // Keys rise with time.
        let longest = guests.min_by_key(|(key, one)| (one.watch.is_some(), **key));
        let Some(key) = longest.map(|(key, _)| *key) else {
            return false;
        };
        self.drop_admin(key);
        true
    }

    /// Those that came and asked nothing: they keep an arbiter that nobody needs from its end.
    pub(super) fn drop_silent_admins(&mut self, now: u64) {
        let is_silent = |one: &AdminConnection| {
            !one.has_asked && now.saturating_sub(one.since_ms) > SILENT_MS_MAX
        };
        let silent = self.admins.iter().filter(|(_, one)| is_silent(one));
        for key in silent.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.counters.garbage += 1;
            self.drop_admin(key);
        }
    }

    pub(super) fn drop_admin(&mut self, key: Key) {
        self.sources.remove(&key);
        self.busy.remove(&key);
        let Some(connection) = self.admins.remove(&key) else {
            return;
        };
        if let Some(job) = connection.job {
            if let Some(Root::Run { line, .. }) = self.roots.get_mut(&job) {
                *line = None;
            }
            self.root_is_gone(job);
        }
    }
}

/// How many connections without a job there may be, with as many descriptors as there are.
fn guests_max() -> usize {
    let descriptors = rustix::process::getrlimit(Resource::Nofile).current;
    let most = descriptors.map_or(GUESTS_MAX, |all| all / DESCRIPTORS_A_GUEST);
    usize::try_from(most.clamp(1, GUESTS_MAX)).unwrap_or(usize::MAX)
}

/// Says why, to one that cannot be let in.
fn turn_away(socket: &OwnedFd) {
    let refused = Reply::Refused {
        reason: "the arbiter has no room for one more connection: every one is a job's".to_owned(),
        is_final: false,
        hint: None,
    };
    if let Ok(mut line) = serde_json::to_vec(&refused) {
        line.push(b'\n');
        // Who does not read it, learns it from the closed connection.
        let _ = rustix::net::send(socket, &line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

impl AdminConnection {
    pub(super) fn read(&mut self) {
        while self.input.len() <= REQUEST_MAX {
            let mut part = [0; 4096];
            match rustix::net::recv(&self.socket, &mut part, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => self.ended = true,
                Ok((_, n)) => {
                    self.input.extend_from_slice(&part[..n.min(part.len())]);
                    continue;
                }
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(_) => self.ended = true,
            }
            return;
        }
    }

    pub(super) fn take_line(&mut self) -> Line {
        if self.closing {
            return Line::None;
        }
        match self.input.iter().position(|&byte| byte == b'\n') {
            Some(end) => Line::Whole(self.input.drain(..=end).collect()),
            None if self.input.len() > REQUEST_MAX => Line::TooLong,
            None => Line::None,
        }
    }

    pub(super) fn write(&mut self) {
        while !self.output.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, &self.output, flags) {
                Ok(n) => {
                    self.output.drain(..n.min(self.output.len()));
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return,
                Err(_) => {
                    self.ended = true;
                    self.output.clear();
                }
            }
        }
    }
}
