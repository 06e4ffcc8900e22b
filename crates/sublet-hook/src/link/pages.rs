//! Makes memory of the descriptors that the arbiter sends.
//!
//! What is mapped here is read for the rest of the process's life, by every launch. A file that
//! can be made shorter would kill the process at its next look (`SIGBUS`), so nothing is mapped
//! that is not sealed against it, whoever sent it.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use sublet_abi::{ControlPage, LedgerPage};

/// Maps the control page, to be read.
///
/// # Errors
/// If it is not sealed, too short, or no control page of our version.
pub fn control(fd: BorrowedFd<'_>) -> io::Result<&'static ControlPage> {
    let address = map(fd, ControlPage::BYTES, libc::PROT_READ)?;
    // SAFETY: mapped shared for ever, and sealed against shrinking.
    unsafe { ControlPage::from_ptr(address, ControlPage::BYTES) }
        .map_err(|why| malformed("control", &why))
}

/// Maps the ledger, to be read and written.
///
/// # Errors
/// If it is not sealed, too short, or no ledger of our version.
pub fn ledger(fd: BorrowedFd<'_>) -> io::Result<&'static LedgerPage> {
    let address = map(fd, LedgerPage::BYTES, libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: mapped shared and writable for ever, and sealed against shrinking.
    unsafe { LedgerPage::from_ptr(address, LedgerPage::BYTES) }
        .map_err(|why| malformed("ledger", &why))
}

fn malformed(page: &str, why: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("the {page} page is malformed: {why}"))
}

fn map(fd: BorrowedFd<'_>, bytes: usize, access: libc::c_int) -> io::Result<*mut u8> {
    // SAFETY: asks about a live descriptor.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return Err(io::Error::other(
            "a page that is not sealed against shrinking",
        ));
    }
    // SAFETY: an all-zero stat is valid, and is overwritten.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: asks about a live descriptor; the struct is ours.
    if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if stat.st_size.unsigned_abs() < bytes as u64 {
        return Err(io::Error::other("a page that is too short"));
    }
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            access,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(address.cast())
}
