//! Opening, mapping and locking the machine's file. The unsafe part of the machine is
//! here and nowhere else.
//!
//! Locks are POSIX record locks, because of the kernel's treatment of them: it drops them when the
//! process ends however it ends, children do not inherit them, and it tells any reader the holder's
//! PID *in the reader's own PID namespace*. The price is that closing any descriptor of the file
//! drops all of a process's locks, so a file that was opened is never closed again; `Mapped::open`
//! gives the same one for the same file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::layout::{MAGIC, Shared};
use crate::spec::LAYOUT_VERSION;

/// The byte whose lock guards the accounts. A process's own byte is `1 + slot`.
const ACCOUNTS: u64 = 0;

/// The machine's file, mapped for the rest of the process's life.
#[derive(Debug)]
pub(super) struct Mapped {
    file: File,
    shared: NonNull<Shared>,
    identity: (u64, u64),
    /// Record locks do not exclude threads of one process; this does.
    threads: Mutex<()>,
}

// SAFETY: `shared` points to a mapping that is never unmapped and holds only atomics.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

/// One that an earlier version left stays until the machine starts anew.
const OTHER_VERSION: &str = "it is no fake machine of this version of sublet; end the programs that \
                             use it, and remove the folder";

/// Every file this copy of the library opened.
static OPENED: Mutex<Vec<&'static Mapped>> = Mutex::new(Vec::new());

impl Mapped {
    /// The file at `path`, which must be complete.
    pub(super) fn open(path: &Path) -> io::Result<&'static Mapped> {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let about = path.metadata()?;
        let identity = (about.dev(), about.ino());
        if let Some(mapped) = opened.iter().find(|mapped| mapped.identity == identity) {
            return Ok(mapped);
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
            .open(path)?;
        let mapped = Box::leak(Box::new(Mapped::map(file)?));
        opened.push(mapped);
        Ok(mapped)
    }

    fn map(file: File) -> io::Result<Mapped> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let about = file.metadata()?;
        let identity = (about.dev(), about.ino());
        if about.len() < size_of::<Shared>() as u64 {
            return Err(wrong(OTHER_VERSION));
        }
        // SAFETY: a new mapping of a file that is as long as `Shared` at least; the kernel
        // chooses the address.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Shared>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        let shared = match NonNull::new(address.cast::<Shared>()) {
            Some(shared) if address != libc::MAP_FAILED => shared,
            _ => return Err(io::Error::last_os_error()),
        };
        let mapped = Mapped {
            file,
            shared,
            identity,
            threads: Mutex::new(()),
        };
        let header = &mapped.shared().header;
        let ordering = std::sync::atomic::Ordering::Acquire;
        if header.magic.load(ordering) != MAGIC
            || header.version.load(ordering) != LAYOUT_VERSION
            || header.size.load(ordering) != size_of::<Shared>() as u64
        {
            return Err(wrong(OTHER_VERSION));
        }
        Ok(mapped)
    }

    /// Returns the part that all processes see.
    pub(super) fn shared(&self) -> &Shared {
        // SAFETY: mapped for ever, at least as long as `Shared`, page-aligned, and every
        // bit pattern is valid for a struct of integers in atomics.
        unsafe { self.shared.as_ref() }
    }

    /// Excludes every other process and thread from the accounts while the guard lives.
    /// A process that dies in between loses the lock; nothing needs to be undone.
    pub(super) fn accounts(&self) -> io::Result<Accounts<'_>> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        self.set_lock(ACCOUNTS, libc::F_WRLCK, libc::F_SETLKW)?;
        Ok(Accounts {
            mapped: self,
            _threads: threads,
        })
    }

    /// The same for a caller that only looks: all numbers are then of one moment. `None` if a
    /// process hangs while it holds the lock; nobody waits long for that.
    pub(super) fn glance(&self) -> Option<Accounts<'_>> {
        const TRIES: u32 = 400;
        const PAUSE: Duration = Duration::from_micros(100);
        let threads = self.threads.try_lock().ok()?;
        let is_free = (0..TRIES).any(|_| {
            let locked = self
                .set_lock(ACCOUNTS, libc::F_WRLCK, libc::F_SETLK)
                .is_ok();
            if !locked {
                std::thread::sleep(PAUSE);
            }
            locked
        });
        is_free.then_some(Accounts {
            mapped: self,
            _threads: threads,
        })
    }

    /// Takes the byte of a slot for as long as the process lives. False if another
    /// process has it.
    pub(super) fn claim(&self, slot: usize) -> io::Result<bool> {
        match self.set_lock(1 + slot as u64, libc::F_WRLCK, libc::F_SETLK) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EAGAIN)) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives the byte of a slot back.
    pub(super) fn disclaim(&self, slot: usize) -> io::Result<()> {
        self.set_lock(1 + slot as u64, libc::F_UNLCK, libc::F_SETLK)
    }

    /// Returns the holder of a slot's byte: nobody, or a process by the PID it has for us (0 if it
    /// has none here). A process does not see its own locks this way.
    pub(super) fn holder(&self, slot: usize) -> io::Result<Option<u32>> {
        let mut lock = record(1 + slot as u64, libc::F_WRLCK);
        // SAFETY: the descriptor is open, and `lock` outlives the call.
        let result = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        if i32::from(lock.l_type) == libc::F_UNLCK {
            return Ok(None);
        }
        Ok(Some(u32::try_from(lock.l_pid).unwrap_or(0)))
    }

    fn set_lock(&self, byte: u64, kind: i32, command: i32) -> io::Result<()> {
        let lock = record(byte, kind);
        loop {
            // SAFETY: the descriptor is open, and `lock` outlives the call.
            let result = unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw const lock) };
            if result == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// The accounts belong to this thread.
pub(super) struct Accounts<'a> {
    mapped: &'a Mapped,
    _threads: MutexGuard<'a, ()>,
}

impl Drop for Accounts<'_> {
    fn drop(&mut self) {
        // Cannot fail for a lock that is held; if it did, the kernel drops it at the end.
        let _ = self.mapped.set_lock(ACCOUNTS, libc::F_UNLCK, libc::F_SETLK);
    }
}

fn record(byte: u64, kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte.cast_signed(),
        l_len: 1,
        l_pid: 0,
    }
}

/// Nanoseconds of CLOCK_MONOTONIC, the one clock of all processes of a machine.
#[must_use]
pub fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` outlives the call, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Sleeps until `time` on the clock of [`now`].
pub(crate) fn sleep_until(time: u64) {
    let until = libc::timespec {
        tv_sec: (time / 1_000_000_000).cast_signed(),
        tv_nsec: (time % 1_000_000_000).cast_signed(),
    };
    loop {
        // SAFETY: `until` outlives the call; an absolute sleep reports no remainder.
        let result = unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &raw const until,
                std::ptr::null_mut(),
            )
        };
        if result != libc::EINTR {
            return;
        }
    }
}

/// The effective user.
pub(super) fn user() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}
