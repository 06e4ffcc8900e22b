//! The processes that have slots: each is watched through a pidfd, so that its death gives its
//! memory back at once.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use rustix::process::Signal;
use sublet_share::Pid;

use super::sources::{Source, Sources};
use crate::peer;
use crate::poller::Key;

/// A process with a slot.
#[derive(Debug)]
struct Process {
    pidfd: OwnedFd,
    /// The program that it was when it got its slot.
    image: Option<peer::Image>,
    key: Key,
    connections: BTreeSet<Key>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Processes(BTreeMap<Pid, Process>);

impl Processes {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn contains(&self, pid: Pid) -> bool {
        self.0.contains_key(&pid)
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = Pid> {
        self.0.keys().copied()
    }

    /// Waits for the end of a process from now on. False if that cannot be done.
    pub(super) fn watch(&mut self, sources: &mut Sources, pid: Pid, pidfd: OwnedFd) -> bool {
        let Ok(key) = sources.add(&pidfd, "a process", Source::Process(pid)) else {
            return false;
        };
        let process = Process {
            pidfd,
            image: peer::stat(pid).and_then(|stat| stat.image),
            key,
            connections: BTreeSet::new(),
        };
        self.0.insert(pid, process);
        true
    }

    pub(super) fn forget(&mut self, sources: &mut Sources, pid: Pid) {
        if let Some(process) = self.0.remove(&pid) {
            sources.remove(process.key, &process.pidfd);
        }
    }

    /// A connection is that process's. False if the process is not watched.
    pub(super) fn add_connection(&mut self, pid: Pid, key: Key) -> bool {
        let Some(process) = self.0.get_mut(&pid) else {
            return false;
        };
        process.connections.insert(key);
        true
    }

    pub(super) fn remove_connection(&mut self, pid: Pid, key: Key) {
        if let Some(process) = self.0.get_mut(&pid) {
            process.connections.remove(&key);
        }
    }

    /// Checks whether a process with a slot has called exec since. If its image cannot be seen,
    /// exec shows by its effects: it ends all connections, and all threads but one.
    pub(super) fn is_another_program(&self, pid: Pid, is_closed: impl Fn(Key) -> bool) -> bool {
        let Some(process) = self.0.get(&pid) else {
            return false;
        };
        let now = peer::stat(pid).and_then(|stat| stat.image);
        if now.is_some() && process.image.is_some() {
            return now != process.image;
        }
        process.connections.iter().all(|key| is_closed(*key)) && !peer::may_have_our_thread(pid)
    }

    /// Sends a signal. A process that is gone needs none.
    pub(super) fn signal(&self, pid: Pid, signal: Signal) {
        if let Some(process) = self.0.get(&pid) {
            let _ = rustix::process::pidfd_send_signal(&process.pidfd, signal);
        }
    }
}
