//! Addresses and bytes. The fake's device memory is memory of this process: reserved without cost,
//! backed by the system when it is touched, and not inherited by children, just as a card's memory
//! is not. The unsafe calls for that are here.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

/// The unit in which a card's memory is handed out.
pub(crate) const BLOCK: u64 = 2 << 20;
/// The unit of the system.
pub(crate) const PAGE: u64 = 4096;
/// A page that was never written to.
static NOTHING: [u8; PAGE as usize] = [0; PAGE as usize];

/// `size` rounded up to a multiple of `unit`; `None` if that is no number.
#[must_use]
pub(crate) fn round_up(size: u64, unit: u64) -> Option<u64> {
    size.div_ceil(unit).checked_mul(unit)
}

/// Reserves `size` bytes of addresses, at a multiple of `alignment`. Nothing can be read
/// there yet.
pub(crate) fn reserve(size: u64, alignment: u64, hint: u64) -> io::Result<u64> {
    let alignment = alignment.max(PAGE);
    let whole = size
        .checked_add(alignment)
        .ok_or(io::ErrorKind::OutOfMemory)?;
    // With a fitting hint the system may grant the very address.
    if hint != 0 && hint.is_multiple_of(alignment) {
        let flags = libc::MAP_FIXED_NOREPLACE;
        if let Ok(address) = map(hint, size, libc::PROT_NONE, flags, None) {
            if address == hint {
                return Ok(address);
            }
            release(address, size);
        }
    }
    let address = map(0, whole, libc::PROT_NONE, 0, None)?;
    // Both sums are within the mapping.
    let start = address.next_multiple_of(alignment);
    release(address, start - address);
    release(start + size, whole - size - (start - address));
    Ok(start)
}

/// New memory: addresses with zeroes behind them.
pub(crate) fn allocate(size: u64, alignment: u64) -> io::Result<u64> {
    let address = reserve(size, alignment, 0)?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    match map(address, size, access, libc::MAP_FIXED, None) {
        Ok(address) => {
            keep_from_children(address, size);
            Ok(address)
        }
        Err(error) => {
            release(address, size);
            Err(error)
        }
    }
}

/// Puts zeroes behind reserved addresses.
pub(crate) fn open(address: u64, size: u64) -> io::Result<()> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    map(address, size, access, libc::MAP_FIXED, None)?;
    keep_from_children(address, size);
    Ok(())
}

/// Puts `size` bytes of a file from `offset` at a reserved address.
pub(crate) fn place(address: u64, size: u64, file: &File, offset: u64) -> io::Result<()> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    map(address, size, access, libc::MAP_FIXED, Some((file, offset)))?;
    keep_from_children(address, size);
    Ok(())
}

/// Maps `size` bytes of a file from `offset` anywhere.
pub(crate) fn attach(size: u64, file: &File, offset: u64) -> io::Result<u64> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let address = map(0, size, access, 0, Some((file, offset)))?;
    keep_from_children(address, size);
    Ok(address)
}

/// Removes the memory at a reserved address; the addresses stay reserved.
pub(crate) fn clear(address: u64, size: u64) -> io::Result<()> {
    map(address, size, libc::PROT_NONE, libc::MAP_FIXED, None).map(drop)
}

/// Gives addresses back to the system.
pub(crate) fn release(address: u64, size: u64) {
    if size > 0 {
        // SAFETY: the callers pass ranges that they mapped and that nobody uses any more.
        unsafe { libc::munmap(address as *mut libc::c_void, size as usize) };
    }
}

/// A file without a name, of no length, for memory that can be mapped twice.
pub(crate) fn unnamed_file() -> io::Result<File> {
    // SAFETY: the name is a C string.
    let descriptor = unsafe { libc::memfd_create(c"sublet-fake".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

/// Gives the memory behind a part of a file back to the system.
pub(crate) fn punch(file: &File, offset: u64, size: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open. If it fails, zeroes stay allocated, no more.
    unsafe {
        libc::fallocate(
            file.as_raw_fd(),
            mode,
            offset.cast_signed(),
            size.cast_signed(),
        );
    }
}

/// Copies bytes; the ranges may overlap.
///
/// # Safety
/// Both ranges are readable, and `to` is writable.
pub(crate) unsafe fn copy(to: u64, from: u64, size: u64) {
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size as usize) };
}

/// Writes a pattern of `width` (1 or 4) bytes `count` times.
///
/// # Safety
/// The range is writable, and its start is a multiple of `width`.
pub(crate) unsafe fn fill(to: u64, width: u64, value: u32, count: u64) {
    let count = count as usize;
    // SAFETY: as the caller promises.
    unsafe {
        match width {
            1 => std::ptr::write_bytes(to as *mut u8, value as u8, count),
            _ => std::slice::from_raw_parts_mut(to as *mut u32, count).fill(value),
        }
    }
}

/// Copies memory into a file that is as long, without the pages that hold only zeroes.
///
/// # Safety
/// The range is readable, starts at a page, and nobody writes to it meanwhile.
pub(crate) unsafe fn copy_into(file: &File, address: u64, size: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    file.set_len(size)?;
    let mut offset = 0;
    while offset < size {
        let length = PAGE.min(size - offset);
        let start = (address + offset) as *const u8;
        // SAFETY: as the caller promises.
        let page = unsafe { std::slice::from_raw_parts(start, length as usize) };
        // Compared as a whole, which is one call of the C library: byte by byte it takes
        // seconds for a few hundred MiB where nothing is optimised.
        if page != &NOTHING[..page.len()] {
            file.write_all_at(page, offset)?;
        }
        offset += length;
    }
    Ok(())
}

/// Copies what was ever written to `size` bytes of a file, from an offset on, to the start
/// of another one that is as long.
pub(crate) fn copy_data((from, start): (&File, u64), to: &File, size: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let mut buffer = vec![0; BLOCK as usize];
    let end = start + size;
    let mut at = start;
    while let Some(data) = seek(from, at, libc::SEEK_DATA)?.filter(|data| *data < end) {
        let hole = seek(from, data, libc::SEEK_HOLE)?.unwrap_or(end).min(end);
        at = data;
        while at < hole {
            let part = &mut buffer[..(hole - at).min(BLOCK) as usize];
            from.read_exact_at(part, at)?;
            to.write_all_at(part, at - start)?;
            at += part.len() as u64;
        }
    }
    Ok(())
}

/// The next data or hole of a file from `offset` on; `None` if there is none.
fn seek(file: &File, offset: u64, what: i32) -> io::Result<Option<u64>> {
    // SAFETY: the descriptor is open. Nobody uses its position.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset.cast_signed(), what) };
    if let Ok(found) = u64::try_from(found) {
        return Ok(Some(found));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENXIO) => Ok(None),
        _ => Err(error),
    }
}

fn map(
    address: u64,
    size: u64,
    access: i32,
    flags: i32,
    file: Option<(&File, u64)>,
) -> io::Result<u64> {
    let (descriptor, offset, kind) = match file {
        Some((file, offset)) => (file.as_raw_fd(), offset, libc::MAP_SHARED),
        None => (-1, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
    };
    let size = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
    // SAFETY: without MAP_FIXED the system chooses a free place; with it the callers pass
    // addresses that they reserved.
    let result = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            size,
            access,
            kind | flags | libc::MAP_NORESERVE,
            descriptor,
            offset.cast_signed(),
        )
    };
    if result == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(result as u64)
}

fn keep_from_children(address: u64, size: u64) {
    // SAFETY: the range was just mapped. A system without it only costs memory on fork.
    unsafe {
        libc::madvise(
            address as *mut libc::c_void,
            size as usize,
            libc::MADV_DONTFORK,
        )
    };
}
