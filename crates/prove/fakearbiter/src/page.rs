//! Memory that is shared with the programs of a test.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// A file in memory, sealed against another length, and mapped until the process ends.
#[derive(Debug)]
pub(crate) struct Page {
    file: OwnedFd,
    address: *mut u8,
}

// SAFETY: what lies in it is atomics, which is all that anybody makes of the address.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    pub(crate) fn new(bytes: usize) -> Self {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("page", flags).expect("a file");
        rustix::fs::ftruncate(&file, bytes as u64).expect("a length");
        seal(&file, SealFlags::SHRINK | SealFlags::GROW);
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping where the kernel likes, which is never undone.
        let address = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, access, flags, &file, 0) };
        Self {
            file,
            address: address.expect("a mapping").cast(),
        }
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.address
    }

    /// From now on the file can be mapped to be read alone. This mapping stays as it is.
    pub(crate) fn forbid_writing(&self) {
        seal(&self.file, SealFlags::FUTURE_WRITE);
    }
}

impl AsFd for Page {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn seal(file: &OwnedFd, seals: SealFlags) {
    rustix::fs::fcntl_add_seals(file, seals).expect("a seal");
}
