//! Records which processes of a job hold memory that another process of the job has made, and which
//! one loads code.
//!
//! The process that makes memory pays for it, however many processes use it. When that process
//! frees the memory, it must know whether the others have freed it too. The driver does not say,
//! and keeps the memory for as long as anybody refers to it. So a process that opens another's
//! memory locks a byte of the job's ledger file. Both know the number of the byte, because it
//! comes from the handle that one gave to the other. The kernel releases the lock when the
//! process ends.
//!
//! After a fork the child shares its parent's open files, and so its locks, until it calls exec
//! or ends. So memory may stay charged too long, but never too short.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use sublet_abi::DeviceIndex;

use super::socket::Watched;
use crate::bytelock;

/// The name of memory that another process may open: a byte of the ledger file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(i64);

impl Key {
    /// The key for the handle that the other process gets. If two handles have the same key, each
    /// keeps the other's memory charged. With 62 bits that is too unlikely to matter.
    #[must_use]
    pub fn of_handle(handle: &[u8]) -> Self {
        // FNV-1a, mixed once more, since the last bytes hardly change the upper bits of its sum.
        let start = 0xcbf2_9ce4_8422_2325_u64;
        let sum = handle.iter().fold(start, |sum, &byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self::within(sum ^ (sum >> 32))
    }

    /// A random key, which no other memory has.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn fresh() -> io::Result<Self> {
        let mut bytes = [0_u8; 8];
        // SAFETY: writes the bytes it is given.
        let n_bytes = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if n_bytes != 8 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self::within(u64::from_ne_bytes(bytes)))
    }

    /// The key with the number of this byte.
    #[must_use]
    pub fn of_byte(byte: i64) -> Self {
        Self(byte)
    }

    /// The number of the byte.
    #[must_use]
    pub fn byte(self) -> i64 {
        self.0
    }

    fn within(number: u64) -> Self {
        Self((number >> 2).cast_signed())
    }
}

/// This process's marks, and its view of the others'.
#[derive(Debug)]
pub struct Marks {
    /// The ledger's file, opened for this process alone.
    file: Watched,
    /// Number of this process's references to the memory of each key.
    own: Mutex<HashMap<Key, usize>>,
}

impl Marks {
    /// The marks of this process on the job's ledger.
    ///
    /// # Errors
    /// If the file cannot be opened again.
    pub fn on(ledger: BorrowedFd<'_>) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{}", ledger.as_raw_fd());
        let file = File::options().read(true).write(true).open(path)?;
        let file = Watched::new(file.into())?;
        let own = Mutex::default();
        Ok(Self { file, own })
    }

    /// Notes that this process holds the memory once more.
    pub fn set(&self, key: Key) {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let times = own.entry(key).or_default();
        *times += 1;
        if *times == 1
            && let Some(fd) = self.file.get()
        {
            // If the lock fails, the owner believes that nobody else holds its memory, as without
            // us.
            let _ = bytelock::take(fd, key.0);
        }
    }

    /// Notes that this process holds the memory once less.
    pub fn clear(&self, key: Key) {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(times) = own.get_mut(&key) else {
            return;
        };
        *times -= 1;
        if *times == 0 {
            own.remove(&key);
            if let Some(fd) = self.file.get() {
                bytelock::give(fd, key.0);
            }
        }
    }

    /// Takes the turn of a device, which one process of the job has at a time. False if another
    /// process has it. The kernel gives it back when the process ends.
    #[must_use]
    pub fn take_turn(&self, device: DeviceIndex) -> bool {
        let fd = self.file.get();
        fd.is_none_or(|fd| bytelock::take_alone(fd, turn_byte(device)))
    }

    /// Gives it back.
    pub fn give_turn(&self, device: DeviceIndex) {
        if let Some(fd) = self.file.get() {
            bytelock::give(fd, turn_byte(device));
        }
    }

    /// True if another process of the job holds the memory.
    #[must_use]
    pub fn is_held_by_another(&self, key: Key) -> bool {
        let fd = self.file.get();
        fd.is_some_and(|fd| bytelock::found(fd, key.0, key.0).is_some())
    }
}

/// Byte of a device's turn: behind those of all keys.
fn turn_byte(device: DeviceIndex) -> i64 {
    bytelock::LAST - i64::from(device.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_mark_stands_as_long_as_its_process_holds_the_memory() {
        let ledger = tempfile::tempfile().expect("a file");
        let owner = Marks::on(ledger.as_fd()).expect("marks");
        let other = Marks::on(ledger.as_fd()).expect("marks");
        let (one, two) = (Key::of_handle(&[1; 64]), Key::of_handle(&[2; 64]));
        other.set(one);
        other.set(one);
        assert!(owner.is_held_by_another(one) && !owner.is_held_by_another(two));
        assert!(!other.is_held_by_another(one), "its own mark");
        other.clear(one);
        other.clear(two);
        assert!(owner.is_held_by_another(one), "held twice");
        other.clear(one);
        assert!(!owner.is_held_by_another(one));
        other.set(two);
        drop(other);
        assert!(!owner.is_held_by_another(two), "the process is gone");
    }

    #[test]
    fn one_process_at_a_time_has_the_turn_of_a_device() {
        let ledger = tempfile::tempfile().expect("a file");
        let one = Marks::on(ledger.as_fd()).expect("marks");
        let other = Marks::on(ledger.as_fd()).expect("marks");
        let device = |place| DeviceIndex::new(place).expect("a place");
        assert!(one.take_turn(device(0)));
        assert!(!other.take_turn(device(0)) && other.take_turn(device(1)));
        one.give_turn(device(0));
        assert!(other.take_turn(device(0)));
        drop(other);
        assert!(one.take_turn(device(0)) && one.take_turn(device(1)));
    }

    #[test]
    fn every_byte_of_a_handle_counts() {
        let mut keys = std::collections::HashSet::new();
        for place in 0..64 {
            for bit in 0..8 {
                let mut handle = [0_u8; 64];
                handle[place] = 1 << bit;
                let key = Key::of_handle(&handle);
                assert!((0..=bytelock::LAST).contains(&key.byte()));
                assert!(keys.insert(key), "byte {place}, bit {bit}");
            }
        }
        assert_ne!(
            Key::fresh().expect("a number"),
            Key::fresh().expect("a number")
        );
    }
}
