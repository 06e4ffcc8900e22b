//! Checks whether a descriptor that the driver gave out is still open, in any process.
//!
//! A shareable handle is a descriptor. The program sends it to other processes, copies it, and
//! closes it, and we see none of this; the memory stays as long as one copy is open. We must not
//! keep one open ourselves, or the memory would stay for ever. Two kinds of files can be checked in
//! other ways:
//! - *files that can be opened again*, as the driver's own device: the program's open file gets
//!   a lock on a byte, which one of ours sees until the last descriptor of it is closed. An
//!   importer finds the byte, and so the name under which it marks what it has imported, among
//!   the locks on the file: it is the one that does not count as another's for its descriptor.
//! - *dma-bufs*, which cannot: the kernel counts their users. A copy of ours is needed to ask, and
//!   closed when it is the last. So freed memory may be on the card, and charged, a little longer
//!   than without us.

use std::fs::{self, File};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::bytelock;
use crate::link::marks::Key;
use crate::link::socket::Watched;

/// A descriptor that went to the program.
#[derive(Debug)]
pub struct Descriptor(Seen);

#[derive(Debug)]
enum Seen {
    /// By a lock of its open file.
    Locked { key: Key, probe: Arc<Watched> },
    /// By the kernel's count, which includes this copy.
    Counted(Watched),
    /// Not at all: it counts as open for ever.
    Unseen,
}

/// Files opened to ask about locks, one for each file that descriptors are of, as long as one
/// of them is needed.
#[derive(Debug, Default)]
pub struct Probes(Mutex<Vec<Weak<Watched>>>);

impl Probes {
    fn of(&self, fd: RawFd) -> Option<Arc<Watched>> {
        let mut probes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        probes.retain(|probe| probe.strong_count() > 0);
        let mut known = probes.iter().filter_map(Weak::upgrade);
        if let Some(probe) = known.find(|probe| probe.is_of(fd) && probe.get().is_some()) {
            return Some(probe);
        }
        let path = format!("/proc/self/fd/{fd}");
        let file = File::options().read(true).write(true).open(path).ok()?;
        let probe = Arc::new(Watched::new(file.into()).ok()?);
        probes.push(Arc::downgrade(&probe));
        Some(probe)
    }

    /// The name of the memory behind a descriptor that came from another process, if that one
    /// has given it any.
    #[must_use]
    pub fn name_of(&self, fd: RawFd) -> Option<Key> {
        let probe = self.of(fd)?;
        let asker = probe.get()?;
        let mut ranges = vec![(0, bytelock::LAST)];
        while let Some((from, to)) = ranges.pop() {
            // Which of several locks is told first is not said, so both sides are searched.
            let Some(byte) = bytelock::found(asker, from, to) else {
                continue;
            };
            if bytelock::found(fd, byte, byte).is_none() {
                return Some(Key::of_byte(byte));
            }
            if from < byte {
                ranges.push((from, byte - 1));
            }
            if byte < to {
                ranges.push((byte + 1, to));
            }
        }
        None
    }
}

impl Descriptor {
    /// Begins to look at a descriptor that the driver has just made.
    #[must_use]
    pub fn of(fd: RawFd, probes: &Probes) -> Self {
        let seen = Self::locked(fd, probes).or_else(|| Self::counted(fd));
        Self(seen.unwrap_or(Seen::Unseen))
    }

    /// The name under which importers mark it.
    #[must_use]
    pub fn key(&self) -> Option<Key> {
        match &self.0 {
            Seen::Locked { key, .. } => Some(*key),
            Seen::Counted(_) | Seen::Unseen => None,
        }
    }

    /// True while anybody has it open, or that cannot be known.
    #[must_use]
    pub fn is_open(&self) -> bool {
        match &self.0 {
            Seen::Locked { key, probe } => probe
                .get()
                .is_none_or(|probe| bytelock::found(probe, key.byte(), key.byte()).is_some()),
            // A program that has closed our copy has closed all of its own.
            Seen::Counted(copy) => copy.get().is_some_and(|copy| count(copy) != Some(1)),
            Seen::Unseen => true,
        }
    }

    fn locked(fd: RawFd, probes: &Probes) -> Option<Seen> {
        let probe = probes.of(fd)?;
        let key = Key::fresh().ok()?;
        let byte = key.byte();
        let is_seen =
            bytelock::take(fd, byte) && bytelock::found(probe.get()?, byte, byte).is_some();
        is_seen.then_some(Seen::Locked { key, probe })
    }

    fn counted(fd: RawFd) -> Option<Seen> {
        count(fd)?;
        let copy = copy_of(fd)?;
        Watched::new(copy).ok().map(Seen::Counted)
    }
}

/// Returns the number of users of a dma-buf, the kernel's own included; `None` for other files.
fn count(fd: RawFd) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    let count = text.lines().find_map(|line| line.strip_prefix("count:"));
    count.and_then(|count| count.trim().parse().ok())
}

/// A copy with a number that is out of the program's way: programs count on small ones being
/// free, and there are only so many.
fn copy_of(fd: RawFd) -> Option<OwnedFd> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes the struct it is given.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let from = libc::c_int::try_from(limit.rlim_cur / 2).unwrap_or(512);
    // SAFETY: any number may be given.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, from.clamp(3, 1 << 16)) };
    // SAFETY: just made, and nobody else has it.
    (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn memory() -> File {
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"exported".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: just made.
        unsafe { File::from_raw_fd(fd) }
    }

    #[test]
    fn a_descriptor_is_open_until_its_last_copy_is_closed() {
        let probes = Probes::default();
        let file = memory();
        let descriptor = Descriptor::of(file.as_raw_fd(), &probes);
        let copy = file.try_clone().expect("a copy");
        drop(file);
        assert!(descriptor.is_open());
        drop(copy);
        assert!(!descriptor.is_open());
    }

    #[test]
    fn an_importer_finds_the_name_of_its_own_descriptor_only() {
        let (exporter, importer) = (Probes::default(), Probes::default());
        // Many open files of one file, as the driver's device has.
        let first = memory();
        let path = format!("/proc/self/fd/{}", first.as_raw_fd());
        let open = || File::options().read(true).write(true).open(&path);
        let files: Vec<File> = (0..20).map(|_| open().expect("once more")).collect();
        let named: Vec<Descriptor> = files
            .iter()
            .map(|file| Descriptor::of(file.as_raw_fd(), &exporter))
            .collect();
        assert_eq!(
            exporter.0.lock().expect("the list").len(),
            1,
            "one probe for all"
        );
        for (file, descriptor) in files.iter().zip(&named) {
            let copy = file.try_clone().expect("as if it was sent");
            let name = importer.name_of(copy.as_raw_fd());
            assert!(name.is_some() && name == descriptor.key());
        }
        assert_eq!(importer.name_of(first.as_raw_fd()), None, "never exported");
    }

    #[test]
    fn a_file_that_tells_nothing_counts_as_open() {
        let (end, _other) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let descriptor = Descriptor::of(end.as_raw_fd(), &Probes::default());
        assert_eq!(descriptor.key(), None);
        drop(end);
        assert!(descriptor.is_open());
    }
}
