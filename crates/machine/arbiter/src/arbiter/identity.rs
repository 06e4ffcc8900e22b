//! The arbiter's identity on this machine: the lock of its folder, the lock of the host, its
//! epoch, and the numbers of jobs given out. A successor continues from there.

use std::os::fd::OwnedFd;

use sublet_share::{Event, JobId, JobView};
use tracing::warn;

use super::Arbiter;
use crate::host_lock::HostLock;
use crate::lock::{Lock, LockRecord};

/// Remedy where root's arbiter has come for the cards.
pub(super) const BY_ROOT: &str = "end the jobs of this arbiter: then root's serves you, if it was \
                                  started with --shared";

/// The data that make it the only arbiter, and one in a row.
#[derive(Debug)]
pub(super) struct Identity {
    lock: Lock,
    host: Option<HostLock>,
    epoch: u64,
    last_job: u64,
}

impl Identity {
    /// The successor of the arbiter that left this lock's file. `last_recorded` is the highest
    /// number of a recorded job, in case the file does not say.
    pub(super) fn after(lock: Lock, host: Option<HostLock>, last_recorded: u64) -> Identity {
        let before = lock.before.clone().unwrap_or_default();
        Identity {
            lock,
            host,
            epoch: before.epoch.saturating_add(1),
            last_job: before.last_job.max(last_recorded),
        }
    }

    /// Epoch: it rises by one at each start in one folder.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The socket that has the name on the host.
    pub(super) fn host_name(&self) -> Option<&OwnedFd> {
        self.host.as_ref()?.name()
    }

    /// Reason why this arbiter may promise no more: root's arbiter came to manage these cards.
    pub(super) fn outranked(&self) -> Option<String> {
        self.host.as_ref()?.outranked()
    }

    /// A number that no job had before; `None` when there is none left.
    pub(super) fn next_job(&mut self) -> Option<JobId> {
        self.last_job = self.last_job.checked_add(1)?;
        self.write();
        Some(JobId(self.last_job))
    }

    /// A job has that number from before a restart.
    pub(super) fn skip_job(&mut self, job: JobId) {
        self.last_job = self.last_job.max(job.0);
    }

    /// Writes the state that a successor needs.
    pub(super) fn write(&mut self) {
        let record = LockRecord {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            epoch: self.epoch,
            last_job: self.last_job,
        };
        if let Err(error) = self.lock.write(&record) {
            warn!(%error, "a successor will not know of the newest jobs");
        }
    }

    /// Ends without a job: a successor need not know that there was an arbiter.
    pub(super) fn remove(self) {
        self.lock.remove();
    }
}

impl Arbiter {
    /// Refuses the jobs that wait here if root's arbiter came later, because root's arbiter
    /// promises the cards. Running jobs continue and end as usual.
    pub(super) fn yield_to_root(&mut self) {
        let Some(why) = self.identity.outranked() else {
            return;
        };
        let place = |job: &JobView<'_>| job.waits.map(|(place, _)| (*place, job.id));
        let mut waiting: Vec<_> = self.machine.jobs().filter_map(|job| place(&job)).collect();
        // The last one first, so that none gets the place of the one before it.
        waiting.sort_unstable_by(|one, other| other.cmp(one));
        for (_, job) in waiting {
            self.refuse_waiting(job, &why, BY_ROOT);
            self.apply(Event::Left(job));
        }
    }
}
