//! Folders of this machine: local disks, and what the host has mounted (NFS, Lustre, BeeGFS).
//!
//! Nothing outside of the folder is read: paths are opened below it, and no link is followed
//! (`openat2(2)`: `RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS`, `RESOLVE_NO_MAGICLINKS`). Names of a
//! directory are looked at in portions by many threads, because a look at a shared file system is
//! one trip to its server.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use sublet_cache::{FaultKind, SourceFault};

use super::DataSource;
use crate::crew::{Crew, STALL, StopFlag};
use crate::tree::{EntryKind, FoundEntry, SourceTree, TreeEntry, show};
use crate::words::system_text;

/// Threads of a listing. A look waits for the server, not for a core.
const WALKERS: usize = 64;
/// Names that one thread looks at in a row.
const PORTION: usize = 128;

/// A folder.
#[derive(Debug)]
pub(crate) struct PosixSource {
    path: PathBuf,
    root: Arc<OwnedFd>,
}

impl PosixSource {
    /// The folder at an absolute path, which may be reached by links.
    ///
    /// # Errors
    /// It is no folder, or cannot be opened.
    pub(crate) fn open(path: &Path) -> Result<PosixSource, SourceFault> {
        let missing = |error: io::Error| SourceFault {
            kind: FaultKind::Lasting,
            text: format!("cannot open {}: {}", path.display(), system_text(&error)),
        };
        let path = path.canonicalize().map_err(missing)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let shown = path.as_os_str().as_bytes();
        let root = rustix::fs::open(&path, flags, Mode::empty());
        let root = root.map_err(|error| told(shown, &error.into()))?;
        Ok(PosixSource {
            root: Arc::new(root),
            path,
        })
    }
}

impl DataSource for PosixSource {
    /// Not the device: a network file system has another number after each mount.
    fn name(&self) -> String {
        format!("posix {}", show(self.path.as_os_str().as_bytes()))
    }

    fn list(&self, stop: &StopFlag) -> Result<SourceTree, SourceFault> {
        let walk = Arc::new(Walk {
            root: self.root.clone(),
            work: Mutex::default(),
            changed: Condvar::new(),
        });
        walk.work().todo.push(Task::Read(Vec::new()));
        walk.work().open = 1;
        let crew = Crew::new(stop.clone());
        for _ in 0..WALKERS {
            let walk = walk.clone();
            let started = crew.start("list", move |crew| walk.go(crew));
            started.map_err(|error| told(b"a thread", &error))?;
        }
        let waited = crew.wait(STALL);
        waited.map_err(|fault| within(&self.path, fault))?;
        let mut work = walk.work();
        let mut tree = std::mem::take(&mut work.tree);
        let inodes = std::mem::take(&mut work.inodes);
        drop(work);
        let order = tree.sort().map_err(|(path, error)| SourceFault {
            kind: FaultKind::Changed,
            text: format!("{} {error}: it changed meanwhile", show(&path)),
        })?;
        same_files(&mut tree, &order, &inodes);
        Ok(tree)
    }

    fn read(
        &self,
        path: &[u8],
        entry: &TreeEntry,
        offset: u64,
        length: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<(), SourceFault> {
        let failed = |error: Errno| within(&self.path, told(path, &error.into()));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open_below(&self.root, path, flags).map_err(failed)?;
        let check = || {
            let about = rustix::fs::fstat(&file).map_err(failed)?;
            let is_same = size_of(&about) == entry.size && modified(&about) == entry.modified_ns;
            match is_same {
                true => Ok(()),
                false => Err(within(&self.path, changed(path))),
            }
        };
        check()?;
        let end = buffer.len() + length;
        while buffer.len() < end {
            let start = buffer.len();
            buffer.resize(end, 0);
            let at = offset + (start + length - end) as u64;
            let n = rustix::io::pread(&file, &mut buffer[start..], at);
            let n = n.map_err(failed)?;
            buffer.truncate(start + n);
            if n == 0 {
                return Err(within(&self.path, changed(path)));
            }
        }
        check()
    }
}

/// A listing under way.
struct Walk {
    root: Arc<OwnedFd>,
    work: Mutex<Work>,
    changed: Condvar,
}

#[derive(Default)]
struct Work {
    todo: Vec<Task>,
    /// Tasks that are not done yet.
    open: usize,
    tree: SourceTree,
    /// Device and inode of files with several names, by the index of their entry.
    inodes: Vec<(u32, (u64, u64))>,
}

enum Task {
    /// Read the names of a directory.
    Read(Vec<u8>),
    /// Look at some of them.
    Look(Arc<OpenFolder>, Vec<CString>),
}

struct OpenFolder {
    path: Vec<u8>,
    handle: OwnedFd,
}

/// Finds of one task.
#[derive(Default)]
struct Finds {
    tree: SourceTree,
    inodes: Vec<(u32, (u64, u64))>,
    next: Vec<Task>,
}

impl Walk {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of one thread.
    fn go(&self, crew: &Crew) {
        while let Some(task) = self.take(crew) {
            let finds = match task {
                Task::Read(path) => self.read(path),
                Task::Look(folder, names) => look(&folder, &names),
            };
            match finds {
                Ok(finds) => self.give(finds),
                Err(fault) => crew.fail(fault),
            }
            crew.progressed();
        }
        self.changed.notify_all();
    }

    fn take(&self, crew: &Crew) -> Option<Task> {
        let mut work = self.work();
        loop {
            if crew.is_over() || work.open == 0 {
                return None;
            }
            if let Some(task) = work.todo.pop() {
                return Some(task);
            }
            let limit = std::time::Duration::from_millis(100);
            let waited = self.changed.wait_timeout(work, limit);
            work = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn give(&self, finds: Finds) {
        let mut work = self.work();
        let base = u32::try_from(work.tree.entries().len()).unwrap_or(u32::MAX);
        work.tree.append(finds.tree);
        work.inodes.extend(
            finds
                .inodes
                .into_iter()
                .map(|(at, inode)| (base + at, inode)),
        );
        work.open += finds.next.len();
        work.open -= 1;
        work.todo.extend(finds.next);
        drop(work);
        self.changed.notify_all();
    }

    fn read(&self, path: Vec<u8>) -> Result<Finds, SourceFault> {
        let failed = |error: Errno| told(&path, &error.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = match path.is_empty() {
            true => rustix::fs::openat(&self.root, c".", flags, Mode::empty()),
            false => open_below(&self.root, &path, flags),
        };
        let handle = handle.map_err(failed)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&handle).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_owned();
            if !matches!(name.as_bytes(), b"." | b"..") {
                names.push(name);
            }
        }
        let folder = Arc::new(OpenFolder { path, handle });
        let portions = names.chunks(PORTION);
        let next = portions.map(|portion| Task::Look(folder.clone(), portion.to_vec()));
        Ok(Finds {
            next: next.collect(),
            ..Finds::default()
        })
    }
}

fn look(folder: &OpenFolder, names: &[CString]) -> Result<Finds, SourceFault> {
    let mut finds = Finds::default();
    for name in names {
        let mut path = folder.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        let failed = |error: Errno| told(&path, &error.into());
        let about = rustix::fs::statat(&folder.handle, name, AtFlags::SYMLINK_NOFOLLOW);
        let about = about.map_err(failed)?;
        let mut target = Vec::new();
        let kind = match FileType::from_raw_mode(about.st_mode) {
            FileType::Directory => {
                finds.next.push(Task::Read(path.clone()));
                EntryKind::Directory
            }
            FileType::RegularFile => EntryKind::File,
            FileType::Symlink => {
                let link = rustix::fs::readlinkat(&folder.handle, name, Vec::new());
                target = link.map_err(failed)?.into_bytes();
                EntryKind::Symlink
            }
            _ => {
                finds.tree.skipped += 1;
                continue;
            }
        };
        if kind == EntryKind::File && about.st_nlink > 1 {
            let at = u32::try_from(finds.tree.entries().len()).unwrap_or(u32::MAX);
            finds.inodes.push((at, (about.st_dev, about.st_ino)));
        }
        let found = FoundEntry {
            path: &path,
            target: &target,
            kind,
            is_executable: kind == EntryKind::File && about.st_mode & 0o111 != 0,
            size: if kind == EntryKind::File {
                size_of(&about)
            } else {
                0
            },
            modified_ns: modified(&about),
        };
        let pushed = finds.tree.push(found);
        pushed.map_err(|error| SourceFault {
            kind: FaultKind::Lasting,
            text: format!("the path {} {error}", show(&path)),
        })?;
    }
    Ok(finds)
}

/// Files with several names are one file: the first one in order stands for all.
fn same_files(tree: &mut SourceTree, order: &[u32], inodes: &[(u32, (u64, u64))]) {
    if inodes.is_empty() {
        return;
    }
    let by_old: BTreeMap<u32, (u64, u64)> = inodes.iter().copied().collect();
    let mut first: BTreeMap<(u64, u64), u32> = BTreeMap::new();
    for (new, old) in (0_u32..).zip(order) {
        if let Some(inode) = by_old.get(old) {
            let first = *first.entry(*inode).or_insert(new);
            tree.set_same(new, first);
        }
    }
}

fn open_below(root: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            // A name moved while the kernel looked: `openat2(2)` says to try again.
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}

fn size_of(about: &Stat) -> u64 {
    u64::try_from(about.st_size).unwrap_or(0)
}

fn modified(about: &Stat) -> i64 {
    let seconds = about.st_mtime.saturating_mul(1_000_000_000);
    seconds.saturating_add(i64::try_from(about.st_mtime_nsec).unwrap_or(0))
}

fn changed(path: &[u8]) -> SourceFault {
    SourceFault {
        kind: FaultKind::Changed,
        text: format!("{} changed while it was read", show(path)),
    }
}

/// A failure of the system, and whether another try makes sense.
fn told(path: &[u8], error: &io::Error) -> SourceFault {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => FaultKind::Changed,
        io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory => FaultKind::Lasting,
        _ => FaultKind::Passing,
    };
    let path = match path {
        [] => ".".to_owned(),
        path => show(path),
    };
    SourceFault {
        kind,
        text: format!("cannot read {path}: {}", system_text(error)),
    }
}

fn within(root: &Path, mut fault: SourceFault) -> SourceFault {
    if fault.kind != FaultKind::Stopped {
        fault.text = format!("{}: {}", root.display(), fault.text);
    }
    fault
}
