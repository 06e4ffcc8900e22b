//! Jobs of `sublet run` over a restart. The arbiter records each job before it tells the job its
//! cards. A job comes back with its record, for the process recorded as its root. The client says
//! only the job's number.

use sublet_model::{Inventory, MiB};
use sublet_share::{Event, Holding, JobAsk, JobId, UserId};

use super::Arbiter;
use super::job_request::ask_of;
use super::jobs::Root;
use crate::job_pages::JobPages;
use crate::job_record::JobRecord;
use crate::peer;
use crate::poller::Key;
use crate::stamp::ProcessStamp;

impl Arbiter {
    /// Writes down a job's cards and limits. The agent records containers.
    pub(super) fn record_job(&mut self, job: JobId) {
        if let Some(record) = self.record_of(job) {
            self.records.write(&record);
        }
    }

    /// Writes again the records that could not be written.
    pub(super) fn record_those_behind(&mut self) {
        for job in self.records.behind() {
            self.record_job(job);
        }
    }

    fn record_of(&self, job: JobId) -> Option<JobRecord> {
        let Root::Run { stamp, .. } = self.jobs.root(job)? else {
            return None;
        };
        let view = self.machine.job(job)?;
        let gpus = self.machine.inventory().gpus();
        let uuid = |part: &Holding| Some(gpus.get(part.card)?.uuid.as_ref()?.to_string());
        let uuids: Vec<String> = view.parts.iter().map(uuid).collect::<Option<_>>()?;
        let mps = self.mps.as_ref().and_then(|mps| mps.placed(&view));
        let mode = self.jobs.pages(job)?.mode();
        JobRecord::of(&view, stamp.clone(), mode, &uuids, mps.is_some())
    }

    /// A process wants a job back that it had before a restart.
    pub(super) fn resume(&mut self, key: Key, user: UserId, job: JobId) {
        let found = self.recorded(key, user, job).and_then(|record| {
            let (ask, parts) = self.had(&record)?;
            Ok((record, ask, parts))
        });
        let (record, ask, parts) = match found {
            Ok(found) => found,
            Err(reason) => return self.refuse_line(key, &reason, None),
        };
        let pages = JobPages::new(job.0, record.ask.mode, true);
        if self.add_root(key, job, pages) {
            self.enter_mps(job, record.mps);
            self.apply(Event::Declared {
                job,
                ask,
                parts,
                promise: None,
            });
            self.greet_again();
        }
    }

    /// The record of a job, for the process that it names and for no other.
    fn recorded(&mut self, key: Key, user: UserId, job: JobId) -> Result<JobRecord, String> {
        if self.jobs.root(job).is_some() {
            return Err(format!("there is a job {job} already"));
        }
        let asks = self.stamp_of(key);
        let Some(record) = self.records.before(job) else {
            return Err(format!(
                "the arbiter has no record of job {job} from before its restart"
            ));
        };
        if asks.as_ref() != Some(&record.root) || user != UserId(record.user) {
            return Err(format!("job {job} is another process's"));
        }
        Ok(record.clone())
    }

    /// Reads from a record the request of the job, and its holdings.
    fn had(&self, record: &JobRecord) -> Result<(JobAsk, Vec<Holding>), String> {
        let limits = record
            .gpus
            .iter()
            .map(|gpu| (gpu.uuid.as_str(), gpu.limit()));
        let limits: Vec<(&str, MiB)> = limits.collect();
        let parts = self.parts_of(limits.into_iter())?;
        let ask = job_ask(record, self.machine.inventory())?;
        Ok((ask, parts))
    }

    /// The process at the other end of a command's connection, as a record names it. `None` if it
    /// is gone, or its connection is a job's already.
    pub(super) fn stamp_of(&mut self, key: Key) -> Option<ProcessStamp> {
        let connection = self.admins.get_mut(key)?;
        let stamp = ProcessStamp::of(connection.pid)?;
        // It lives after the look at its number: the number was its own.
        let is_its = !peer::is_gone(connection.pidfd.as_ref()?);
        is_its.then_some(stamp)
    }
}

/// Reads the request of the job from its record, on a machine with these cards.
fn job_ask(record: &JobRecord, machine: &Inventory) -> Result<JobAsk, String> {
    let ask = ask_of(&record.ask, UserId(record.user), machine)?;
    Ok(JobAsk {
        request: record.request().unwrap_or(ask.memory),
        ..ask
    })
}

#[cfg(test)]
mod tests;
