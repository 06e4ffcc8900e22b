//! Maps the pages whose descriptors the arbiter sends.
//!
//! Every launch reads these pages for the rest of the process's life. If somebody made the file
//! of a page shorter, the next read would kill the process (`SIGBUS`). So a page must be sealed
//! against that, no matter who sent it.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use sublet_abi::{ControlPage, LedgerPage, PageError};

/// Maps the control page for reading.
///
/// # Errors
/// If it is not sealed, too short, or not a control page of our version.
pub fn control(fd: BorrowedFd<'_>) -> io::Result<&'static ControlPage> {
    let address = map(fd, ControlPage::BYTES, libc::PROT_READ)?;
    // SAFETY: mapped shared for ever, and sealed against shrinking.
    let page = unsafe { ControlPage::from_ptr(address, ControlPage::BYTES) };
    page.map_err(|why| malformed("control", why))
}

/// Maps the ledger for reading and writing.
///
/// # Errors
/// If it is not sealed, too short, or not a ledger of our version.
pub fn ledger(fd: BorrowedFd<'_>) -> io::Result<&'static LedgerPage> {
    let address = map(fd, LedgerPage::BYTES, libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: mapped shared and writable for ever, and sealed against shrinking.
    let page = unsafe { LedgerPage::from_ptr(address, LedgerPage::BYTES) };
    page.map_err(|why| malformed("ledger", why))
}

fn malformed(page: &str, why: PageError) -> io::Error {
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
