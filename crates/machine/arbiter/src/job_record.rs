//! Records on disk of the jobs of `sublet run`: for each its user, its root process, and its
//! limits. The arbiter's successor restores the record, and nothing that a client says.
//!
//! Each job has a file, `jobs/<number>.json` in the arbiter's folder, which only the arbiter's
//! user can write. A new job costs one small file, however many there are. The file is written
//! whole or not at all, and not forced to the disk: no job outlives the machine's end. (The node's
//! agent records containers.)

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sublet_model::{MiB, SliceLength};
use sublet_share::{Amount, JobId, JobView, UserId};
use tracing::warn;

use crate::admin::{Mode, Submit, parse_amount};
use crate::error::ArbiterError;
use crate::machine_folder::{Folder, check_private};
use crate::stamp::ProcessStamp;

/// The form of a record. It rises when an older arbiter would read a newer record wrongly; one
/// that is newer than this is not read.
const FORMAT: u32 = 1;

/// The most that is read of a record, which has a few hundred bytes: a name has 128 characters,
/// and a job sixteen cards.
const RECORD_MAX: u64 = 64 * 1024;

/// The first request of a job for whole cards, as a record has it.
const WHOLE: &str = "whole";

/// The name of a record that is being written.
const DRAFT: &str = "draft";

/// A job that has its cards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobRecord {
    format: u32,
    pub(crate) id: u64,
    /// The owner of the job.
    pub(crate) user: u32,
    /// The process that may bring it back.
    pub(crate) root: ProcessStamp,
    /// Its request, as it was changed since it came.
    pub(crate) ask: Submit,
    /// Memory of each card that it asked for when it came, if its limit was changed since;
    /// [`WHOLE`] for whole cards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    /// Its cards, with their limits.
    pub(crate) gpus: Vec<RecordedGpu>,
    /// Were its programs told to be clients of MPS?
    pub(crate) mps: bool,
}

/// A card of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RecordedGpu {
    pub(crate) uuid: String,
    #[serde(rename = "limitMiB")]
    limit_mib: u64,
}

impl RecordedGpu {
    pub(crate) fn limit(&self) -> MiB {
        MiB::new(self.limit_mib).unwrap_or(MiB::MAX)
    }
}

impl JobRecord {
    /// The present record of a job; `None` for a job without cards, or without a user. `uuids`
    /// are the names of its cards, in the order of its parts.
    pub(crate) fn of(
        job: &JobView<'_>,
        root: ProcessStamp,
        mode: Mode,
        uuids: &[String],
        mps: bool,
    ) -> Option<JobRecord> {
        let ask = job.ask;
        let gpus = uuids
            .iter()
            .zip(&job.parts)
            .map(|(uuid, part)| RecordedGpu {
                uuid: uuid.clone(),
                limit_mib: part.limit.memory.get(),
            });
        let gpus: Vec<RecordedGpu> = gpus.collect();
        let ask_now = Submit {
            name: ask.name.to_string(),
            memory: match ask.memory {
                Amount::Whole => None,
                amount => Some(amount.to_string()),
            },
            pinned_memory: ask.pinned.map(|limit| limit.to_string()),
            compute: Some(ask.compute.to_string()),
            class: ask.class,
            slice: ask.slice.map(|slice| SliceLength::of(slice).to_string()),
            gpus: ask.gpus.get(),
            // Which others it may have been on decides nothing any more.
            cards: ask.cards.as_ref().map(|_| uuids.to_vec()),
            wait: ask.may_wait,
            priority: ask.priority,
            mode,
        };
        let record = JobRecord {
            format: FORMAT,
            id: job.id.0,
            user: ask.user?.0,
            root,
            ask: ask_now,
            request: (ask.request != ask.memory).then(|| match ask.request {
                Amount::Whole => WHOLE.to_owned(),
                amount => amount.to_string(),
            }),
            gpus,
            mps,
        };
        (!record.gpus.is_empty()).then_some(record)
    }

    /// Memory of each card that the job asked for when it came, if its limit was changed since.
    pub(crate) fn request(&self) -> Option<Amount> {
        match self.request.as_deref()? {
            WHOLE => Some(Amount::Whole),
            text => parse_amount(text).ok(),
        }
    }

    fn file(&self, folder: &Path) -> PathBuf {
        file(folder, JobId(self.id))
    }

    /// One that may be believed: of that name, and of a form that is known.
    fn read(path: &Path, folder: &Path) -> Option<JobRecord> {
        let mut text = String::new();
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(path)
            .ok()?;
        file.take(RECORD_MAX).read_to_string(&mut text).ok()?;
        let record: JobRecord = serde_json::from_str(&text).ok()?;
        (record.format <= FORMAT && record.file(folder) == path).then_some(record)
    }

    fn write(&self, folder: &Path) -> io::Result<()> {
        match fs::DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let draft = folder.join(DRAFT);
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)
            .and_then(|mut file| file.write_all(&serde_json::to_vec(self)?))
            .and_then(|()| fs::rename(&draft, self.file(folder)));
        if written.is_err() {
            // It may be what the disk has no room for.
            let _ = fs::remove_file(&draft);
        }
        written
    }
}

/// Checks whether jobs of an arbiter that has ended wait in its folder for the next one. Changes
/// nothing.
#[must_use]
pub fn expects_jobs(folder: &Folder) -> bool {
    let folder = folder.jobs();
    if check_private(&folder).is_err() {
        return false;
    }
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| JobRecord::read(&entry.path(), &folder))
        .any(|record| record.root.lives())
}

fn file(folder: &Path, job: JobId) -> PathBuf {
    folder.join(format!("{job}.json"))
}

/// The records of an arbiter's folder.
#[derive(Debug)]
pub(crate) struct JobRecords {
    folder: PathBuf,
    /// Jobs from before a restart that have not come back, and whose root lived at the start.
    before: BTreeMap<JobId, JobRecord>,
    /// The highest number of any that was there.
    last: u64,
    /// Jobs of now that have a file.
    kept: BTreeSet<JobId>,
    /// Current jobs with an outdated file: there was no room on the disk.
    behind: BTreeSet<JobId>,
}

impl JobRecords {
    /// Reads the predecessor's records, and removes those to which no process can come back.
    ///
    /// # Errors
    /// Other users could have written them.
    pub(crate) fn read(folder: &Folder) -> Result<JobRecords, ArbiterError> {
        let mut records = JobRecords {
            folder: folder.jobs(),
            before: BTreeMap::new(),
            last: 0,
            kept: BTreeSet::new(),
            behind: BTreeSet::new(),
        };
        if !records.folder.exists() {
            return Ok(records);
        }
        check_private(&records.folder)?;
        for entry in fs::read_dir(&records.folder)
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = entry.path();
            let record = JobRecord::read(&path, &records.folder);
            if record.is_none() {
                warn!(file = %path.display(), "this is no record of a job");
            }
            let id = record.as_ref().map_or(0, |record| record.id);
            records.last = records.last.max(id);
            match record.filter(|record| record.root.lives()) {
                Some(record) => drop(records.before.insert(JobId(id), record)),
                None => drop(fs::remove_file(&path)),
            }
        }
        Ok(records)
    }

    /// The highest number of an earlier job.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The record of an earlier job that has not come back.
    pub(crate) fn before(&self, job: JobId) -> Option<&JobRecord> {
        self.before.get(&job)
    }

    /// The earlier jobs that have not come back, and the owner of each.
    pub(crate) fn users(&self) -> impl Iterator<Item = (JobId, UserId)> {
        let before = self.before.iter();
        before.map(|(job, record)| (*job, UserId(record.user)))
    }

    /// Checks whether an earlier job can still come back.
    pub(crate) fn expect_somebody(&self) -> bool {
        self.before.values().any(|record| record.root.lives())
    }

    /// Writes a job's current state. If that fails it is tried again ([`JobRecords::behind`]).
    pub(crate) fn write(&mut self, record: &JobRecord) {
        let job = JobId(record.id);
        self.before.remove(&job);
        match record.write(&self.folder) {
            Ok(()) => {
                self.kept.insert(job);
                self.behind.remove(&job);
            }
            Err(error) => {
                if self.behind.insert(job) {
                    let folder = self.folder.display();
                    warn!(%job, %error, %folder, "a job's record cannot be written; this is tried again");
                }
            }
        }
    }

    /// Jobs with a record that could not be written.
    pub(crate) fn behind(&self) -> Vec<JobId> {
        self.behind.iter().copied().collect()
    }

    /// A job is gone.
    pub(crate) fn remove(&mut self, job: JobId) {
        self.behind.remove(&job);
        if self.kept.remove(&job)
            && let Err(error) = fs::remove_file(file(&self.folder, job))
        {
            // Its root is gone too, or will be: nobody comes back to it.
            warn!(%job, %error, "a job's record cannot be removed");
        }
    }

    /// Removes all: no job is left.
    pub(crate) fn remove_all(self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests;
