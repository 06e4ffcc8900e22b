//! One arbiter a machine: a file that is locked for as long as the arbiter lives, and a name
//! that only one process on the host can have. The file also holds the little that a
//! successor must know: the last epoch and the last job's number.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::FlockOperation;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::error::{ArbiterError, at};
use crate::runtime::Folder;

/// The most that is read of the file: it is ours, and a few hundred bytes.
const RECORD_MAX: u64 = 1 << 20;

/// What is in the file.
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
    /// What a predecessor left that did not end in order.
    pub(crate) before: Option<LockRecord>,
}

impl Lock {
    /// Takes the lock of a folder that exists.
    pub(crate) fn take(folder: &Folder) -> Result<Lock, ArbiterError> {
        let path = folder.lock_file();
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
                .open(&path)
                .map_err(at("opening", path.display()))?;
            if let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                if error == rustix::io::Errno::WOULDBLOCK {
                    let holder = read(&mut file).unwrap_or_default();
                    return Err(ArbiterError::Held {
                        pid: holder.pid,
                        uid: holder.uid,
                        folder: folder.path().to_owned(),
                    });
                }
                return Err(at("locking", path.display())(error));
            }
            // The one before may have removed the file after it was opened here: then this
            // locks a file that nobody else will ever open.
            let own = file.metadata().map_err(at("looking at", path.display()))?;
            let same = fs::metadata(&path)
                .is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino()));
            if same {
                let before = read(&mut file);
                return Ok(Lock {
                    file,
                    path,
                    written: LockRecord::default(),
                    before,
                });
            }
        }
    }

    /// Writes what a successor must know, if it changed.
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

    /// Lets go without having done anything: what a predecessor left stays.
    pub(crate) fn give_up(self) {
        if self.before.is_none() {
            self.remove();
        }
    }

    /// Removes the file: nobody needs to know that there was an arbiter.
    pub(crate) fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn read(file: &mut File) -> Option<LockRecord> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(RECORD_MAX).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Takes a name that one process of the host's network namespace can have: users have
/// folders of their own, and two arbiters would both grant the same cards. The kernel gives
/// it back when the descriptor is closed. Those who connect only want to know who has it:
/// accept them and close.
pub(crate) fn take_name(name: &str) -> Result<OwnedFd, ArbiterError> {
    let place = format!("@{name}");
    let address =
        SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(at("naming", &place))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = || {
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(at("making a socket for", &place))
    };
    let own = socket()?;
    match rustix::net::bind(&own, &address) {
        Ok(()) => {
            rustix::net::listen(&own, 16).map_err(at("listening on", &place))?;
            Ok(own)
        }
        Err(rustix::io::Errno::ADDRINUSE) => {
            // Who has it is in the credentials of its listening socket.
            let asking = socket()?;
            let holder = rustix::net::connect(&asking, &address)
                .and_then(|()| rustix::net::sockopt::socket_peercred(&asking));
            let (pid, uid) = holder.map_or((0, 0), |holder| {
                (
                    holder.pid.as_raw_nonzero().get() as u32,
                    holder.uid.as_raw(),
                )
            });
            Err(ArbiterError::Held {
                pid,
                uid,
                folder: PathBuf::from(place),
            })
        }
        Err(error) => Err(at("taking the name", &place)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let base = tempfile::tempdir().unwrap();
        let folder = Folder::within(base.path(), "gpu");
        folder.create(crate::runtime::Audience::Owner).unwrap();
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

    #[test]
    fn a_name_is_held_by_one() {
        let name = format!("sublet-test-{}", std::process::id());
        let held = take_name(&name).unwrap();
        let error = take_name(&name).unwrap_err().to_string();
        let me = format!("process {} of user", std::process::id());
        assert!(error.contains(&me), "{error}");
        drop(held);
        take_name(&name).unwrap();
    }
}
