//! The first bytes of either page, the same in every version.
//!
//! A process that maps a page does not know its version yet: an arbiter adopts ledgers that its
//! predecessor made. So a page begins with a header that no version may change, and nothing else is
//! looked at before the header has been read. On a ledger the tenant can write the header too; it
//! never decides how much is mapped.

use core::fmt;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::{OLDEST, VERSION};

/// Kind of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// The page that only the arbiter writes.
    Control,
    /// The page that both write.
    Ledger,
}

impl PageKind {
    /// The eight bytes that such a page begins with, readable in a dump.
    pub(crate) const fn magic(self) -> u64 {
        match self {
            PageKind::Control => u64::from_ne_bytes(*b"SubletC\n"),
            PageKind::Ledger => u64::from_ne_bytes(*b"SubletL\n"),
        }
    }
}

impl fmt::Display for PageKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            PageKind::Control => "control page",
            PageKind::Ledger => "ledger page",
        })
    }
}

/// Reason why a mapping is not a page that this version can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageError {
    /// The address is null or not at the start of a cache line.
    Misaligned,
    /// The mapping is shorter than the page.
    Short {
        /// Bytes that were mapped.
        mapped: usize,
        /// Bytes that the page needs.
        needed: usize,
    },
    /// It does not begin as the page that was asked for.
    NotA(PageKind),
    /// It has a version that is not known here.
    Version(u16),
    /// It says that it has another size.
    Size {
        /// Bytes that the page says it has.
        stated: u32,
        /// Bytes that such a page has.
        needed: usize,
    },
}

impl fmt::Display for PageError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageError::Misaligned => {
                out.write_str("the page's address is null or not a multiple of 64")
            }
            PageError::Short { mapped, needed } => {
                write!(out, "{mapped} bytes are mapped and the page needs {needed}")
            }
            PageError::NotA(kind) => write!(out, "the memory does not begin as a {kind}"),
            PageError::Version(version) => write!(
                out,
                "the page has version {version}; known are {OLDEST} to {VERSION}"
            ),
            PageError::Size { stated, needed } => {
                write!(out, "the page says it has {stated} bytes, not {needed}")
            }
        }
    }
}

impl core::error::Error for PageError {}

/// The first 16 bytes of a page.
///
/// Words shared with another process are atomics throughout both pages, also those that are
/// written once: another process's plain write under a plain read would be undefined
/// behaviour, and on x86-64 an atomic load costs the same.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    magic: AtomicU64,
    size: AtomicU32,
    version: AtomicU16,
    reserved: AtomicU16,
}

impl Header {
    /// Written last when a page is made, so that a half-made page is not taken for a page.
    pub(crate) fn write<P: Layout>(&self) {
        self.size.store(size_of::<P>() as u32, Ordering::Relaxed); // pages are below 1 MiB
        self.version.store(VERSION, Ordering::Relaxed);
        self.magic.store(P::KIND.magic(), Ordering::Release);
    }

    /// Ok if this is a page of exactly that kind, version and size.
    fn check<P: Layout>(&self) -> Result<(), PageError> {
        if self.magic.load(Ordering::Acquire) != P::KIND.magic() {
            return Err(PageError::NotA(P::KIND));
        }
        let version = self.version.load(Ordering::Relaxed);
        if version != VERSION {
            return Err(PageError::Version(version));
        }
        let (stated, needed) = (self.size.load(Ordering::Relaxed), size_of::<P>());
        if stated as usize != needed {
            return Err(PageError::Size { stated, needed });
        }
        Ok(())
    }
}

/// A page of shared memory that begins with a [`Header`] and consists of atomics only.
///
/// # Safety
/// The type is `repr(C)`, begins with a [`Header`], and all its fields are atomic integers
/// or arrays and structs of them, so that any bytes are a value of it.
pub(crate) unsafe trait Layout: Sized {
    const KIND: PageKind;
}

/// The page at `address`, after its header was checked.
///
/// # Safety
/// `len` bytes at `address` are mapped shared and readable (and writable where the page is
/// written through this reference) and stay so for all of `'a`, and no process can make the
/// file shorter.
pub(crate) unsafe fn open<'a, P: Layout>(
    address: *const u8,
    len: usize,
) -> Result<&'a P, PageError> {
    check_place::<P>(address, len)?;
    // SAFETY: aligned and long enough, as just checked; readable for `'a`, as the caller
    // promises; atomics only, as `Layout` promises, so any bytes and any writer are fine.
    let (page, header) = unsafe { (&*address.cast::<P>(), &*address.cast::<Header>()) };
    header.check::<P>()?;
    Ok(page)
}

/// Zeroed memory at `address` as a page whose header is still to be written.
///
/// # Safety
/// As for [`open`], and the memory is writable.
pub(crate) unsafe fn blank<'a, P: Layout>(
    address: *mut u8,
    len: usize,
) -> Result<&'a P, PageError> {
    check_place::<P>(address, len)?;
    // SAFETY: as in `open`.
    Ok(unsafe { &*address.cast::<P>() })
}

/// Ok if a `P` can lie there. Cache-line alignment is asked for whatever `P` is: mappings
/// begin at multiples of 4096, so anything else is a mistake.
fn check_place<P>(address: *const u8, len: usize) -> Result<(), PageError> {
    if address.is_null() || !address.addr().is_multiple_of(64) {
        return Err(PageError::Misaligned);
    }
    if len < size_of::<P>() {
        return Err(PageError::Short {
            mapped: len,
            needed: size_of::<P>(),
        });
    }
    Ok(())
}
