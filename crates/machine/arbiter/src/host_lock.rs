//! One arbiter per machine, real or fake, in any folder and started by any user: two would promise
//! the same cards.
//!
//! Root's arbiters decide among themselves by a lock that only root can open. The holder leaves a
//! record that all can read. Another user's arbiter first goes by that record, then by a name that
//! one process of the network namespace can have, which tells its holder. A program can be in a
//! network namespace of its own, so the arbiter also locks a file of the cards themselves. Any
//! process can take name and file: they keep users' arbiters apart, and never keep root's from being
//! the one. A fake machine is its user's, and knows no such precedence.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tracing::warn;

use crate::error::{ArbiterError, at};
use crate::lock::lock_file;
use crate::machine_folder::{SHARED, check_unwritable};
use crate::peer;
use crate::stamp::ProcessStamp;

/// The most that is read of a record, which has a hundred bytes.
const RECORD_MAX: u64 = 4096;

/// The device file that every program opens that uses the driver. Its lock means nothing to the
/// driver, which has none of its own for the file.
const DRIVER_FILE: &str = "/dev/nvidiactl";

/// The place at which the arbiters of one machine's cards find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPlace {
    /// The name that one process of the network namespace can have. Lock and record are called
    /// after it.
    pub name: String,
    /// The folder of lock and record: owned by root, and writable by root alone. Nothing where
    /// root's arbiter does not go before others.
    pub folder: Option<PathBuf>,
    /// A file or folder of the cards, which is locked while an arbiter looks after them. Where it
    /// is not there, or has no locks, only the name counts.
    pub cards: PathBuf,
}

impl HostPlace {
    /// That of this machine's real cards.
    #[must_use]
    pub fn real() -> HostPlace {
        HostPlace {
            name: "sublet-arbiter-gpu".to_owned(),
            folder: Some(PathBuf::from(SHARED)),
            cards: PathBuf::from(DRIVER_FILE),
        }
    }

    /// That of a fake machine's cards, which are in this folder, by whatever path.
    ///
    /// # Errors
    /// The folder is not there.
    pub fn of_fake(machine: &Path) -> std::io::Result<HostPlace> {
        let about = fs::metadata(machine)?;
        Ok(HostPlace {
            name: format!("sublet-arbiter-fake-{:x}-{}", about.dev(), about.ino()),
            folder: None,
            cards: machine.to_owned(),
        })
    }

    /// Process and user of the arbiter that looks after these cards, in whatever folder; process 0
    /// if it has no number here. `None` if there is none.
    #[must_use]
    pub fn holder(&self) -> Option<(u32, u32)> {
        let root = roots_arbiter(self).map(|(holder, _record)| (holder.pid, 0));
        root.or_else(|| holder_of_name(&self.name).ok())
    }

    fn lock(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.lock", self.name))
    }

    fn record(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.json", self.name))
    }
}

/// Is this process root's, so that it can have the lock? In a user namespace it may be called root
/// and be anybody.
pub(crate) fn is_root() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map");
    rustix::process::geteuid().is_root() && map.is_ok_and(|map| is_whole(&map))
}

/// Does each user have his own number?
fn is_whole(uid_map: &str) -> bool {
    let numbers = uid_map.split_whitespace().map(str::parse);
    let numbers: Vec<Result<u32, _>> = numbers.collect();
    numbers == [Ok(0), Ok(0), Ok(u32::MAX)]
}

/// Holds its arbiter to be the only one of its machine, until it is dropped.
#[derive(Debug)]
pub(crate) struct HostLock {
    place: HostPlace,
    name: Option<OwnedFd>,
    root: Option<RootLock>,
    _cards: Option<File>,
}

impl HostLock {
    /// Becomes the machine's arbiter, as root or as another user.
    ///
    /// # Errors
    /// [`ArbiterError::Held`] if there is another one; or the kernel's refusal.
    pub(crate) fn take(place: &HostPlace, is_root: bool) -> Result<HostLock, ArbiterError> {
        let folder = place.folder.as_deref().filter(|_| is_root);
        let root = match folder.map(|folder| RootLock::take(place, folder)) {
            Some(Ok(lock)) => Some(lock),
            Some(Err(held @ ArbiterError::Held { .. })) => return Err(held),
            Some(Err(error)) => {
                warn!(%error, "this arbiter cannot leave word that it looks after the machine's GPUs; another user's may start");
                None
            }
            None => None,
        };
        if let Some((holder, record)) = roots_arbiter(place).filter(|_| root.is_none()) {
            return Err(ArbiterError::Held {
                pid: holder.pid,
                uid: Some(0),
                folder: record,
            });
        }
        let name = take_name(&place.name).map(Some);
        let name = unless_root(root.as_ref(), name)?;
        let cards = unless_root(root.as_ref(), lock_cards(&place.cards))?;
        Ok(HostLock {
            place: place.clone(),
            name,
            root,
            _cards: cards,
        })
    }

    /// The socket that has the name.
    pub(crate) fn name(&self) -> Option<&OwnedFd> {
        self.name.as_ref()
    }

    /// Reason why this arbiter, which is not root's, may promise no more: root's came later.
    pub(crate) fn outranked(&self) -> Option<String> {
        if self.root.is_some() {
            return None;
        }
        let (holder, _record) = roots_arbiter(&self.place)?;
        Some(format!(
            "root's arbiter (process {}) looks after these GPUs now, and this one starts nothing \
             more",
            holder.pid
        ))
    }
}

/// Returns what was taken, or nothing if another arbiter has it and this one is root's.
fn unless_root<T>(
    root: Option<&RootLock>,
    taken: Result<Option<T>, ArbiterError>,
) -> Result<Option<T>, ArbiterError> {
    match taken {
        Err(error) if root.is_some() => {
            warn!(%error, "root's arbiter starts all the same; what that one starts is unmanaged");
            Ok(None)
        }
        taken => taken,
    }
}

/// The lock, and the record beside it.
#[derive(Debug)]
struct RootLock {
    _file: File,
    lock: PathBuf,
    record: PathBuf,
}

impl RootLock {
    fn take(place: &HostPlace, folder: &Path) -> Result<RootLock, ArbiterError> {
        make_folder(folder)?;
        let (lock, record) = (place.lock(folder), place.record(folder));
        let Some(file) = lock_file(&lock)? else {
            return Err(ArbiterError::Held {
                pid: read(&record).map_or(0, |holder| holder.pid),
                uid: Some(0),
                folder: lock,
            });
        };
        let lock = RootLock {
            _file: file,
            lock,
            record,
        };
        let own = ProcessStamp::of(sublet_share::Pid(std::process::id()));
        let own = own.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound));
        let own = own.map_err(at("looking at", "this process"))?;
        write(&lock.record, &own).map_err(at("writing", lock.record.display()))?;
        Ok(lock)
    }
}

impl Drop for RootLock {
    fn drop(&mut self) {
        // The lock is still held: nobody has written another record.
        let _ = fs::remove_file(&self.record);
        let _ = fs::remove_file(&self.lock);
    }
}

/// Makes the folder. All users may pass through it to the record; other files have modes of
/// their own.
fn make_folder(folder: &Path) -> Result<(), ArbiterError> {
    let mut make = fs::DirBuilder::new();
    make.recursive(true).mode(0o755);
    make.create(folder)
        .map_err(at("making", folder.display()))?;
    check_roots(folder)?;
    let about = fs::metadata(folder).map_err(at("looking at", folder.display()))?;
    let open = fs::Permissions::from_mode((about.mode() & 0o7777) | 0o011);
    fs::set_permissions(folder, open).map_err(at("setting the mode of", folder.display()))
}

/// The folder is root's, and only root can put something into it.
fn check_roots(folder: &Path) -> Result<(), ArbiterError> {
    let about = fs::symlink_metadata(folder).map_err(at("looking at", folder.display()))?;
    if about.is_dir() && about.uid() == 0 {
        return check_unwritable(folder);
    }
    Err(ArbiterError::Folder {
        folder: folder.to_owned(),
        why: "it is not root's".to_owned(),
    })
}

/// Root's arbiter, if there is one by its record and it lives; and the record.
fn roots_arbiter(place: &HostPlace) -> Option<(ProcessStamp, PathBuf)> {
    let folder = place.folder.as_deref()?;
    check_roots(folder).ok()?;
    let record = place.record(folder);
    let holder = read(&record).filter(ProcessStamp::lives)?;
    Some((holder, record))
}

fn read(path: &Path) -> Option<ProcessStamp> {
    let mut text = String::new();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
        .open(path)
        .ok()?;
    file.take(RECORD_MAX).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Writes the file whole or not at all, because a reader may be at work.
fn write(path: &Path, stamp: &ProcessStamp) -> std::io::Result<()> {
    let draft = path.with_extension("new");
    let _absent = fs::remove_file(&draft);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&draft)?;
    file.write_all(&serde_json::to_vec(stamp)?)?;
    // Whatever this process's umask is.
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    fs::rename(&draft, path)
}

/// Takes a name that one process of the network namespace can have. The kernel gives it back when
/// the descriptor is closed. Clients connect only to learn its holder: accept them and close.
fn take_name(name: &str) -> Result<OwnedFd, ArbiterError> {
    let place = format!("@{name}");
    let address =
        SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(at("naming", &place))?;
    let own = name_socket().map_err(at("making a socket for", &place))?;
    match rustix::net::bind(&own, &address) {
        Ok(()) => {
            rustix::net::listen(&own, 16).map_err(at("listening on", &place))?;
            Ok(own)
        }
        Err(rustix::io::Errno::ADDRINUSE) => {
            let holder = holder_of_name(name).ok();
            Err(ArbiterError::Held {
                pid: holder.map_or(0, |(pid, _)| pid),
                uid: holder.map(|(_, uid)| uid),
                folder: PathBuf::from(place),
            })
        }
        Err(error) => Err(at("taking the name", &place)(error)),
    }
}

/// Locks a file of the cards, which is the same one in every network namespace. `None` where there
/// is none that can be locked. The kernel gives the lock back when the process ends.
fn lock_cards(cards: &Path) -> Result<Option<File>, ArbiterError> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(cards);
    let Ok(file) = opened else {
        return Ok(None);
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        // Its holder has no name here, or it would have been found by the name.
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ArbiterError::Held {
            pid: 0,
            uid: None,
            folder: cards.to_owned(),
        }),
        Err(_no_locks) => Ok(None),
    }
}

/// Process and user that have that name: they are in the credentials of its listening socket.
fn holder_of_name(name: &str) -> std::io::Result<(u32, u32)> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let asking = name_socket()?;
    rustix::net::connect(&asking, &address)?;
    peer::holder_of(&asking)
}

fn name_socket() -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None);
    Ok(socket?)
}

#[cfg(test)]
mod tests;
