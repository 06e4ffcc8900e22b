//! One arbiter a folder: a file that is locked for as long as the arbiter lives. It also holds the
//! little that a successor must know: the last epoch and the last job's number.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::error::{ArbiterError, at};
use crate::machine_folder::Folder;

/// The most that is read of the file: it is ours, and a few hundred bytes.
const RECORD_MAX: u64 = 1 << 20;

/// Contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LockRecord {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) epoch: u64,
    pub(crate) last_job: u64,
}

/// The lock, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
    written: LockRecord,
    /// Record of a predecessor that did not end in order.
    pub(crate) before: Option<LockRecord>,
}

impl Lock {
    /// Takes the lock of a folder that exists.
    pub(crate) fn take(folder: &Folder) -> Result<Lock, ArbiterError> {
        let path = folder.lock_file();
        let locked = lock_file(&path)?;
        let Some(mut file) = locked else {
            let holder = File::open(&path).ok().and_then(|mut file| read(&mut file));
            return Err(ArbiterError::Held {
                pid: holder.as_ref().map_or(0, |holder| holder.pid),
                uid: holder.map(|holder| holder.uid),
                folder: folder.path().to_owned(),
            });
        };
        let before = read(&mut file);
        Ok(Lock {
            file,
            path,
            written: LockRecord::default(),
            before,
        })
    }

    /// Writes the state that a successor needs, if it changed.
    pub(crate) fn write(&mut self, record: &LockRecord) -> Result<(), ArbiterError> {
        if *record == self.written {
            return Ok(());
        }
        let text = serde_json::to_string(record).unwrap_or_default();
        // A line that is cut off by a crash reads as nothing; a shorter one after a longer one
        // must not leave its end behind.
        let write = |file: &mut File| {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(text.as_bytes())?;
            file.set_len(text.len() as u64)
        };
        write(&mut self.file).map_err(at("writing", self.path.display()))?;
        self.written = record.clone();
        Ok(())
    }

    /// Lets go of the lock unchanged: the predecessor's record stays.
    pub(crate) fn give_up(self) {
        if self.before.is_none() {
            self.remove();
        }
    }

    /// Removes the file: no successor needs to know about this arbiter.
    pub(crate) fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The file at that path, made if need be, for this user alone, and locked; `None` if another
/// process has it.
pub(crate) fn lock_file(path: &Path) -> Result<Option<File>, ArbiterError> {
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(path)
            .map_err(at("opening", path.display()))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(at("locking", path.display())(error)),
        }
        // The one before may have removed the file after it was opened here: then this locks a
        // file that nobody else will ever open.
        let own = file.metadata().map_err(at("looking at", path.display()))?;
        let same = fs::metadata(path)
            .is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino()));
        if same {
            return Ok(Some(file));
        }
    }
}

fn read(file: &mut File) -> Option<LockRecord> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(RECORD_MAX).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let base = tempfile::tempdir().unwrap();
        let folder = Folder::within(base.path(), "gpu");
        folder
            .create(crate::machine_folder::Audience::Owner)
            .unwrap();
        (base, folder)
    }

    #[test]
    fn a_second_arbiter_is_told_who_was_first() {
        let (_base, folder) = folder();
        let mut lock = Lock::take(&folder).unwrap();
        assert_eq!(lock.before, None);
        let record = LockRecord {
            pid: 4242,
            uid: 7,
            epoch: 3,
            ..LockRecord::default()
        };
        lock.write(&record).unwrap();
        let error = Lock::take(&folder).unwrap_err().to_string();
        assert!(error.contains("process 4242 of user 7"), "{error}");
        drop(lock);
        assert_eq!(Lock::take(&folder).unwrap().before, Some(record));
    }

    #[test]
    fn what_ended_in_order_leaves_nothing() {
        let (_base, folder) = folder();
        let mut lock = Lock::take(&folder).unwrap();
        let [long, short] = [u64::MAX, 1].map(|epoch| LockRecord {
            epoch,
            ..LockRecord::default()
        });
        lock.write(&long).unwrap();
        lock.write(&short).unwrap();
        assert_eq!(read(&mut lock.file), Some(short));
        lock.remove();
        assert!(!folder.lock_file().exists());
        assert_eq!(Lock::take(&folder).unwrap().before, None);
    }
}
