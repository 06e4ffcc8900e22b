//! Which arbiter of this machine it is: the lock of its folder, the name that it alone has on the
//! host, its epoch, and the numbers of jobs that were given out. A successor goes on from there.

use std::os::fd::OwnedFd;

use sublet_share::JobId;
use tracing::warn;

use crate::lock::{Lock, LockRecord};

/// What makes it the only arbiter, and one in a row.
#[derive(Debug)]
pub(super) struct Identity {
    lock: Lock,
    host_name: Option<OwnedFd>,
    epoch: u64,
    last_job: u64,
}

impl Identity {
    /// The next one after whoever left this lock's file.
    /// `last_recorded` is the highest number of a job that was recorded, should the file not say.
    pub(super) fn after(lock: Lock, host_name: Option<OwnedFd>, last_recorded: u64) -> Identity {
        let before = lock.before.clone().unwrap_or_default();
        Identity {
            lock,
            host_name,
            epoch: before.epoch.saturating_add(1),
            last_job: before.last_job.max(last_recorded),
        }
    }

    /// It rises by one at each start in one folder.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The socket that has the name on the host.
    pub(super) fn host_name(&self) -> Option<&OwnedFd> {
        self.host_name.as_ref()
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

    /// Writes what a successor must know.
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
