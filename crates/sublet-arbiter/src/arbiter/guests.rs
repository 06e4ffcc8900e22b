//! Processes on the tenant sockets: who they are, and what their messages mean. Whatever they
//! send, the worst that happens is that their own connection is closed.

use std::io;
use std::os::fd::OwnedFd;

use sublet_abi::message::{Refused, RefusedCode, Text};
use sublet_abi::{Hello, OLDEST, Reply, Request};
use sublet_share::{Event, JobId, Pid};
use tracing::debug;

use super::{Arbiter, Root, Source, now_ms};
use crate::peer::{self, Peer};
use crate::poller::Key;
use crate::socket::{self, Received};
use crate::tenant::{agree, not_agreed};

/// How many connections of processes without a slot there may be at one time. Three hundred
/// programs that start together are all among them for a moment.
const SLOTLESS_MAX: usize = 1024;

/// How many of one process: one for each of its libraries, and one to spare.
const PER_PROCESS_MAX: usize = 4;

/// How long a connection may be silent before its hello.
const SILENT_MS_MAX: u64 = 2_000;

/// How many messages of one connection are looked at in one turn.
const MESSAGES_A_TURN: usize = 4;

/// How many connections are accepted in one turn.
const ACCEPTS_A_TURN: usize = 64;

/// How far a connection has come.
#[derive(Debug)]
pub(super) enum Stage {
    /// It has said nothing.
    Silent,
    /// It said hello, and whose it is may turn out later.
    Early(Box<Hello>, Vec<OwnedFd>),
    /// It has its slot.
    Welcome,
}

/// A connection of a process.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) socket: OwnedFd,
    pub(super) pid: Pid,
    /// Taken by the process's entry when it gets its slot.
    pub(super) pidfd: Option<OwnedFd>,
    /// The container whose socket it came by.
    container: Option<JobId>,
    pub(super) stage: Stage,
    /// The version it is served in, once it said hello and its job is known.
    pub(super) version: u16,
    since_ms: u64,
    /// What it says it had, where that must be charged to another ledger.
    pub(super) claims: Option<sublet_abi::message::Held>,
}

impl Arbiter {
    pub(super) fn accept_guests(&mut self, container: Option<JobId>) {
        for _ in 0..ACCEPTS_A_TURN {
            let listener = match container {
                None => &self.tenant_listener,
                Some(job) => match self.roots.get(&job) {
                    Some(Root::Container { listener, .. }) => listener,
                    _ => return,
                },
            };
            match socket::accept(listener) {
                Ok(Some(connection)) => self.add_guest(connection, container),
                Ok(None) => return,
                // No descriptors left: somebody must go before somebody can come.
                Err(error) => {
                    debug!(%error, "a process cannot be let in");
                    self.spare.shed(listener, |_| {});
                    self.drop_oldest_slotless();
                    return;
                }
            }
        }
    }

    fn add_guest(&mut self, socket: OwnedFd, container: Option<JobId>) {
        let peer = match Peer::of(&socket) {
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
        let own = self.guests.values().filter(|guest| guest.pid == peer.pid);
        if own.count() >= PER_PROCESS_MAX {
            let why = format!(
                "process {} has {PER_PROCESS_MAX} connections already",
                peer.pid
            );
            refuse(&socket, RefusedCode::Malformed, &why);
            self.counters.garbage += 1;
            return;
        }
        let slotless = self.guests.values();
        let slotless = slotless.filter(|guest| !matches!(guest.stage, Stage::Welcome));
        if slotless.count() >= SLOTLESS_MAX {
            self.drop_oldest_slotless();
        }
        if let Ok(key) = self.poller.add(&socket, "a process's connection") {
            self.sources.insert(key, Source::Guest);
            let guest = Guest {
                socket,
                pid: peer.pid,
                pidfd: Some(peer.pidfd),
                container,
                stage: Stage::Silent,
                version: OLDEST,
                since_ms: now_ms(),
                claims: None,
            };
            self.guests.insert(key, guest);
            // The hello is usually there already.
            self.serve_guest(key);
        }
    }

    /// Keys rise with time, so the first is the oldest.
    fn drop_oldest_slotless(&mut self) {
        let slotless = |(_, guest): &(&Key, &Guest)| !matches!(guest.stage, Stage::Welcome);
        let oldest = self.guests.iter().find(slotless).map(|(key, _)| *key);
        if let Some(key) = oldest {
            self.drop_guest(key);
        }
    }

    pub(super) fn drop_silent_guests(&mut self, now: u64) {
        let silent = |guest: &Guest| {
            matches!(guest.stage, Stage::Silent)
                && now.saturating_sub(guest.since_ms) > SILENT_MS_MAX
        };
        let silent = self.guests.iter().filter(|(_, guest)| silent(guest));
        for key in silent.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.counters.garbage += 1;
            self.drop_guest(key);
        }
    }

    /// Closes a connection. A process that has a slot keeps it: it may have closed all its
    /// descriptors, as daemons do, and still have its memory.
    pub(super) fn drop_guest(&mut self, key: Key) {
        self.sources.remove(&key);
        if let Some(guest) = self.guests.remove(&key)
            && let Some(process) = self.processes.get_mut(&guest.pid)
        {
            process.guests.remove(&key);
        }
    }

    pub(super) fn serve_guest(&mut self, key: Key) {
        for _ in 0..MESSAGES_A_TURN {
            let Some(guest) = self.guests.get(&key) else {
                return;
            };
            match socket::receive(&guest.socket) {
                Received::Nothing => return,
                Received::Closed => return self.drop_guest(key),
                Received::Message(bytes, descriptors) => {
                    self.take_message(key, &bytes, descriptors);
                }
            }
        }
    }

    fn take_message(&mut self, key: Key, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        let Some(guest) = self.guests.get(&key) else {
            return;
        };
        match (Request::parse(bytes), &guest.stage) {
            (Ok(Request::Hello(hello)), Stage::Silent) => self.greet(key, hello, descriptors),
            // The connection only. What the process holds stays charged until it is dead: a
            // message must not be a way to have it forgotten.
            (Ok(Request::Bye), Stage::Welcome) => self.drop_guest(key),
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

    /// Refuses and closes.
    pub(super) fn send_away(&mut self, key: Key, code: RefusedCode, why: &str) {
        if let Some(guest) = self.guests.get(&key) {
            debug!(pid = %guest.pid, why, "process sent away");
            refuse(&guest.socket, code, why);
        }
        if code == RefusedCode::Malformed {
            self.counters.garbage += 1;
        } else {
            self.counters.sent_away += 1;
        }
        self.drop_guest(key);
    }

    /// Whose is the process that says hello?
    pub(super) fn greet(&mut self, key: Key, hello: Hello, descriptors: Vec<OwnedFd>) {
        if agree(&hello).is_none() {
            return self.send_away(key, RefusedCode::Version, &not_agreed(&hello));
        }
        let Some(guest) = self.guests.get(&key) else {
            return;
        };
        let (pid, container) = (guest.pid, guest.container);
        let job = match container {
            Some(job) => Some(job),
            None => match peer::ancestors(pid) {
                Some(parents) => self.job_above(&parents),
                None => {
                    let why =
                        format!("the arbiter cannot see whose child process {pid} is; try again");
                    return self.send_away(key, RefusedCode::Full, &why);
                }
            },
        };
        let must_wait = match job {
            // Its job may be about to come back.
            None => !self.settled,
            // Others may be about to bring the ledger.
            Some(job) => {
                hello.held.is_none()
                    && !self.settled
                    && self.tenants.get(&job).is_some_and(|own| own.expects_ledger)
            }
        };
        match job {
            _ if must_wait => {
                if let Some(guest) = self.guests.get_mut(&key) {
                    guest.stage = Stage::Early(Box::new(hello), descriptors);
                }
            }
            None => {
                let why = format!(
                    "process {pid} was not started below a `sublet run`, and has no container's socket"
                );
                self.send_away(key, RefusedCode::Stranger, &why);
            }
            Some(job) => match self.tenants.get(&job).map(|own| own.version_for(&hello)) {
                Some(Err(why)) => self.send_away(key, RefusedCode::Version, &why),
                spoken => {
                    if let (Some(Ok(version)), Some(guest)) = (spoken, self.guests.get_mut(&key)) {
                        guest.version = version;
                    }
                    self.let_in(key, job, hello, descriptors);
                }
            },
        }
    }

    /// A process of that job that can be served.
    fn let_in(&mut self, key: Key, job: JobId, hello: Hello, descriptors: Vec<OwnedFd>) {
        let Some(pid) = self.guests.get(&key).map(|guest| guest.pid) else {
            return;
        };
        match hello.held {
            None => self.join(key, job, pid),
            Some(held) => {
                let spoken = hello.min_version..=hello.max_version;
                self.come_back(key, (job, pid), &spoken, held, descriptors);
            }
        }
    }

    /// A process without a past.
    fn join(&mut self, key: Key, job: JobId, pid: Pid) {
        if self.processes.contains_key(&pid) && self.is_another_program(pid) {
            // The memory of the program before went with it; nobody writes to its slot.
            self.forget_process(pid);
        }
        self.asker = Some(key);
        self.apply(Event::Joined { job, pid });
        self.asker = None;
    }

    /// Has a process that has a slot called exec since? Where its image cannot be seen, exec is
    /// told by what it ends: all connections, and all threads but one.
    fn is_another_program(&self, pid: Pid) -> bool {
        let Some(process) = self.processes.get(&pid) else {
            return false;
        };
        let now = peer::stat(pid).and_then(|stat| stat.image);
        if now.is_some() && process.image.is_some() {
            return now != process.image;
        }
        let mut own = process.guests.iter().filter_map(|key| self.guests.get(key));
        own.all(|guest| socket::is_closed(&guest.socket)) && !peer::may_have_our_thread(pid)
    }

    /// The job that the nearest of these parents is the root of.
    pub(super) fn job_above(&self, parents: &[Pid]) -> Option<JobId> {
        let root_of = |parent: &Pid| {
            let mut runs = self.roots.iter();
            runs.find_map(|(job, root)| match root {
                Root::Run { pid, pidfd, .. } if pid == parent && !peer::is_gone(pidfd) => {
                    Some(*job)
                }
                _ => None,
            })
        };
        parents.iter().find_map(root_of)
    }

    /// Looks again at those whose hello came too early.
    pub(super) fn greet_again(&mut self) {
        let early = self
            .guests
            .iter()
            .filter(|(_, guest)| matches!(guest.stage, Stage::Early(..)));
        for key in early.map(|(key, _)| *key).collect::<Vec<_>>() {
            if let Some(guest) = self.guests.get_mut(&key)
                && let Stage::Early(hello, descriptors) =
                    std::mem::replace(&mut guest.stage, Stage::Silent)
            {
                self.greet(key, *hello, descriptors);
            }
        }
    }

    /// Its pidfd says that it is gone.
    pub(super) fn process_is_gone(&mut self, pid: Pid) {
        let began = std::time::Instant::now();
        self.forget_process(pid);
        let own = self.guests.iter().filter(|(_, guest)| guest.pid == pid);
        for key in own.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.drop_guest(key);
        }
        let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.counters.reclaim_us_max = self.counters.reclaim_us_max.max(took_us);
    }

    /// The process has its slot no longer.
    pub(super) fn forget_process(&mut self, pid: Pid) {
        if let Some(process) = self.processes.remove(&pid) {
            self.sources.remove(&process.key);
            self.poller.remove(&process.pidfd);
        }
        self.apply(Event::Exited(pid));
        // Its job may be gone with it, and a waiting one may have got its place.
        self.take_use();
    }
}

fn refuse(socket: &OwnedFd, code: RefusedCode, why: &str) {
    let text = Text::new(why);
    let message = Reply::Refused(Refused { code, text }).encode();
    // Who does not read it, learns it from the closed connection.
    let _ = socket::send(socket, &message, &[]);
}
