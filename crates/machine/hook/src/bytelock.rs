//! Locks on single bytes of a file, as signs that somebody is there.
//!
//! Nobody waits in the system for one. A lock belongs to an open file, not to a process: it goes when the
//! last descriptor of that open file is closed, in any process that has the descriptor by then. So
//! a process that has opened the file for itself can ask whether another open file is still there,
//! without holding it, and a process that is killed leaves nothing behind.

use std::os::fd::RawFd;

/// Bytes have numbers up to this one. Files need not be so long.
pub const LAST: i64 = i64::MAX - 1;

/// Locks a byte. False if the system would not.
#[must_use]
pub fn take(fd: RawFd, byte: i64) -> bool {
    set(fd, libc::F_RDLCK, byte)
}

/// Locks a byte alone. False if another open file has it.
#[must_use]
pub fn take_alone(fd: RawFd, byte: i64) -> bool {
    set(fd, libc::F_WRLCK, byte)
}

/// Gives a byte back.
pub fn give(fd: RawFd, byte: i64) {
    let _ = set(fd, libc::F_UNLCK, byte);
}

/// A byte between two, both included, that another open file has locked.
#[must_use]
pub fn found(fd: RawFd, from: i64, to: i64) -> Option<i64> {
    let mut lock = lock(libc::F_WRLCK, from, to);
    // SAFETY: any number may be asked about; the struct is ours.
    let asked = unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut lock) };
    let is_there = asked == 0 && i32::from(lock.l_type) != libc::F_UNLCK;
    is_there.then(|| lock.l_start.clamp(from, to))
}

fn set(fd: RawFd, kind: i32, byte: i64) -> bool {
    let lock = lock(kind, byte, byte);
    // SAFETY: any number may be given; the struct is live.
    unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const lock) == 0 }
}

fn lock(kind: i32, from: i64, to: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: from,
        // Neither is negative, and `to` is not the very last number.
        l_len: to - from + 1,
        // The kernel wants this for locks of open files.
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_lock_is_seen_by_others_until_its_open_file_is_gone() {
        let first = tempfile::NamedTempFile::new().expect("a file");
        let opened = || File::options().read(true).write(true).open(first.path());
        let (second, third) = (opened().expect("twice"), opened().expect("thrice"));
        let (holder, asker) = (second.as_raw_fd(), third.as_raw_fd());
        assert!(take(holder, 7) && take(holder, LAST));
        assert_eq!(found(asker, 0, 6), None);
        assert_eq!(found(asker, 0, 7), Some(7));
        assert_eq!(found(asker, 8, LAST), Some(LAST));
        assert_eq!(found(holder, 0, LAST), None, "its own are no others'");
        give(holder, LAST);
        assert_eq!(found(asker, 8, LAST), None);
        // Another descriptor of the same open file keeps it.
        let copy = second.try_clone().expect("a copy");
        drop(second);
        assert_eq!(found(asker, 0, LAST), Some(7));
        drop(copy);
        assert_eq!(found(asker, 0, LAST), None);
        assert!(!take(-1, 7) && found(-1, 0, 9).is_none());
        let (one, other) = (opened().expect("again"), opened().expect("again"));
        let (one, other) = (one.as_raw_fd(), other.as_raw_fd());
        assert!(take_alone(one, 7) && !take_alone(other, 7) && take_alone(other, 8));
        give(one, 7);
        assert!(take_alone(other, 7));
    }
}
