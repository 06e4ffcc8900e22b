//! Maps the pages whose descriptors the arbiter sends.
//!
//! Every launch reads these pages for the rest of the process's life. If somebody made the file
//! of a page shorter, the next read would kill the process (`SIGBUS`). So a page must be sealed
//! against that, no matter who sent it.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use sublet_abi::{AnyControl, AnyLedger, PageError};

/// Maps the control page for reading. `version` is the one in the welcome.
///
/// # Errors
/// If it is not sealed, too short, or not a control page of that version.
pub fn control(fd: BorrowedFd<'_>, version: u16) -> io::Result<AnyControl<'static>> {
    let bytes = AnyControl::bytes(version).ok_or_else(|| unknown("control", version))?;
    let address = map(fd, bytes, libc::PROT_READ)?;
    // SAFETY: mapped shared for ever, and sealed against shrinking.
    let page = unsafe { AnyControl::from_ptr(address, bytes) };
    let page = page.map_err(|why| malformed("control", &why))?;
    match page.version() == version {
        true => Ok(page),
        false => Err(unknown("control", page.version())),
    }
}

/// Maps the ledger for reading and writing. `version` is the one in the welcome.
///
/// # Errors
/// If it is not sealed, too short, or not a ledger of that version.
pub fn ledger(fd: BorrowedFd<'_>, version: u16) -> io::Result<AnyLedger<'static>> {
    let bytes = AnyLedger::bytes(version).ok_or_else(|| unknown("ledger", version))?;
    let address = map(fd, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: mapped shared and writable for ever, and sealed against shrinking.
    let page = unsafe { AnyLedger::from_ptr(address, bytes) };
    let page = page.map_err(|why| malformed("ledger", &why))?;
    match page.version() == version {
        true => Ok(page),
        false => Err(unknown("ledger", page.version())),
    }
}

fn unknown(page: &str, version: u16) -> io::Error {
    malformed(page, &PageError::Version(version))
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
