//! The jobs that the arbiter serves: their pages and their origins. `sublet-share` knows the
//! limits of a job; this module has the kernel's side of it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use sublet_share::{JobId, LedgerUse, Pid};

use super::sources::Sources;
use crate::job_pages::JobPages;
use crate::peer;
use crate::poller::Key;
use crate::socket::Listener;
use crate::stamp::ProcessStamp;

/// The origin of a job, which decides which processes are its own.
#[derive(Debug)]
pub(super) enum Root {
    /// All processes below this one; its connection is the job's life line.
    Run {
        pid: Pid,
        /// The same as its record names it.
        stamp: ProcessStamp,
        pidfd: OwnedFd,
        key: Key,
        line: Option<Key>,
    },
    /// Any process that comes by the socket in this folder.
    Container {
        listener: Listener,
        key: Key,
        socket: PathBuf,
    },
}

/// A job.
#[derive(Debug)]
struct Job {
    pages: JobPages,
    root: Root,
}

/// All jobs, by number.
#[derive(Debug, Default)]
pub(super) struct Jobs(BTreeMap<JobId, Job>);

impl Jobs {
    /// Adds a new job. If it is there already, nothing changes, and the new root is given back.
    pub(super) fn insert(&mut self, job: JobId, pages: JobPages, root: Root) -> Result<(), Root> {
        match self.0.entry(job) {
            Entry::Occupied(_) => Err(root),
            Entry::Vacant(place) => {
                place.insert(Job { pages, root });
                Ok(())
            }
        }
    }

    /// Takes a job out, and its root with it.
    pub(super) fn remove(&mut self, job: JobId) -> Option<Root> {
        self.0.remove(&job).map(|job| job.root)
    }

    pub(super) fn pages(&self, job: JobId) -> Option<&JobPages> {
        self.0.get(&job).map(|job| &job.pages)
    }

    pub(super) fn pages_mut(&mut self, job: JobId) -> Option<&mut JobPages> {
        self.0.get_mut(&job).map(|job| &mut job.pages)
    }

    /// The jobs that have pages, by number.
    pub(super) fn with_pages(&self) -> impl Iterator<Item = (JobId, &JobPages)> {
        let all = self.0.iter().map(|(id, job)| (*id, &job.pages));
        all.filter(|(_, pages)| pages.are_made())
    }

    pub(super) fn root(&self, job: JobId) -> Option<&Root> {
        self.0.get(&job).map(|job| &job.root)
    }

    /// The connection that keeps a job, if it has one.
    pub(super) fn line(&self, job: JobId) -> Option<Key> {
        match self.root(job) {
            Some(Root::Run { line, .. }) => *line,
            _ => None,
        }
    }

    /// The connection that kept a job is gone.
    pub(super) fn cut_line(&mut self, job: JobId) {
        if let Some(Root::Run { line, .. }) = self.0.get_mut(&job).map(|job| &mut job.root) {
            *line = None;
        }
    }

    /// The job that a process is the root of.
    pub(super) fn rooted_at(&self, process: Pid) -> Option<JobId> {
        self.0.iter().find_map(|(id, job)| match &job.root {
            Root::Run { pid, pidfd, .. } if *pid == process && !peer::is_gone(pidfd) => Some(*id),
            _ => None,
        })
    }

    /// Use of each job by the sums on its ledger.
    pub(super) fn ledger_sums(&self) -> Vec<LedgerUse> {
        let sums = self.with_pages().flat_map(|(job, pages)| {
            pages.totals().map(move |(card, total)| LedgerUse {
                job,
                card,
                total,
                accounts: None,
            })
        });
        sums.collect()
    }

    /// Says on every job's page that the arbiter is at work.
    pub(super) fn beat(&self, now: u64) {
        for job in self.0.values() {
            job.pages.beat(now);
        }
    }

    /// Removes the sockets of containers, which a successor makes again.
    pub(super) fn remove_sockets(&self) {
        for job in self.0.values() {
            if let Root::Container { socket, .. } = &job.root {
                let _ = std::fs::remove_file(socket);
            }
        }
    }
}

impl Root {
    /// Its process died, or its connection was closed: that process is waited for no more.
    pub(super) fn unwatch_process(&self, sources: &mut Sources) {
        if let Root::Run { pidfd, key, .. } = self {
            sources.remove(*key, pidfd);
        }
    }

    /// Nothing of the job is left. Returns the connection that kept it.
    pub(super) fn close(self, sources: &mut Sources) -> Option<Key> {
        match self {
            Root::Run {
                pidfd, key, line, ..
            } => {
                sources.remove(key, pidfd);
                line
            }
            Root::Container {
                listener,
                key,
                socket,
            } => {
                sources.remove(key, &listener);
                let _ = std::fs::remove_file(socket);
                None
            }
        }
    }
}
