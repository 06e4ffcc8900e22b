//! The jobs that the arbiter serves: their pages, and where each comes from. What a job may have
//! is known to `sublet-share`; here is what the kernel has of it.

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

/// Where a job comes from, and so who its processes are.
#[derive(Debug)]
pub(super) enum Root {
    /// Everybody below this process; its connection is the job's life line.
    Run {
        pid: Pid,
        /// The same as its record names it.
        stamp: ProcessStamp,
        pidfd: OwnedFd,
        key: Key,
        line: Option<Key>,
    },
    /// Everybody who comes by the socket in this folder.
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
    /// Takes a new job in. One that is there stays as it is, and the new one's root is given back.
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

    /// Those that have pages, by number.
    pub(super) fn with_pages(&self) -> impl Iterator<Item = (JobId, &JobPages)> {
        let all = self.0.iter().map(|(id, job)| (*id, &job.pages));
        all.filter(|(_, pages)| pages.are_made())
    }

    pub(super) fn root(&self, job: JobId) -> Option<&Root> {
        self.0.get(&job).map(|job| &job.root)
    }

    /// The connection that keeps a job, where it has one.
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

    /// The job that the nearest of these parents is the root of.
    pub(super) fn below(&self, parents: &[Pid]) -> Option<JobId> {
        let rooted_at = |parent: &Pid| {
            let mut jobs = self.0.iter();
            jobs.find_map(|(id, job)| match &job.root {
                Root::Run { pid, pidfd, .. } if pid == parent && !peer::is_gone(pidfd) => Some(*id),
                _ => None,
            })
        };
        parents.iter().find_map(rooted_at)
    }

    /// What jobs use by the sums on their ledgers.
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
