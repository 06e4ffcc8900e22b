//! Either page in any version that is known here.
//!
//! A page names its version in its header. Every word of version 1 is at the same place in version
//! 2, so [`ControlPage`] and [`LedgerPage`] work on a page of any version. Later words are there if
//! the page's version has them.

use core::ops::Deref;

use crate::control::ControlPage;
use crate::header::{self, Header, Layout, PageError, PageKind};
use crate::host::{HostLedger, HostLimit};
use crate::ledger::LedgerPage;

/// A control page of version 2.
#[repr(C, align(64))]
#[derive(Debug)]
struct ControlPage2 {
    first: ControlPage,
    host: HostLimit,
}

/// A ledger page of version 2.
#[repr(C, align(64))]
#[derive(Debug)]
struct LedgerPage2 {
    first: LedgerPage,
    host: HostLedger,
}

const _: () = {
    use core::mem::offset_of;
    // Version 1 is the beginning of version 2, and nothing is between them.
    assert!(offset_of!(ControlPage2, host) == size_of::<ControlPage>());
    assert!(offset_of!(LedgerPage2, host) == size_of::<LedgerPage>());
    assert!(size_of::<ControlPage2>() == 1152 + 64);
    assert!(size_of::<LedgerPage2>() == 591_744 + 128 + 65_600);
};

// SAFETY: `repr(C)`, the header first, and nothing but atomics after it.
unsafe impl Layout for ControlPage2 {
    const KIND: PageKind = PageKind::Control;
    const VERSION: u16 = 2;
}

// SAFETY: as above.
unsafe impl Layout for LedgerPage2 {
    const KIND: PageKind = PageKind::Ledger;
    const VERSION: u16 = 2;
}

/// A control page of any version.
#[derive(Debug, Clone, Copy)]
pub struct AnyControl<'a> {
    page: &'a ControlPage,
    host: Option<&'a HostLimit>,
}

/// A ledger page of any version.
#[derive(Debug, Clone, Copy)]
pub struct AnyLedger<'a> {
    page: &'a LedgerPage,
    host: Option<&'a HostLedger>,
}

impl Deref for AnyControl<'_> {
    type Target = ControlPage;

    fn deref(&self) -> &ControlPage {
        self.page
    }
}

impl Deref for AnyLedger<'_> {
    type Target = LedgerPage;

    fn deref(&self) -> &LedgerPage {
        self.page
    }
}

impl<'a> AnyControl<'a> {
    /// Bytes of a page of that version, and so of its memfd; `None` for one that is unknown.
    #[must_use]
    pub const fn bytes(version: u16) -> Option<usize> {
        match version {
            1 => Some(size_of::<ControlPage>()),
            2 => Some(size_of::<ControlPage2>()),
            _ => None,
        }
    }

    /// The page that is mapped at `address`.
    ///
    /// # Errors
    /// If it is not a control page of a version that is known here.
    ///
    /// # Safety
    /// `len` bytes at `address` are mapped shared and readable for all of `'a`, from a memfd
    /// that can no longer be made shorter (`F_SEAL_SHRINK`).
    pub unsafe fn from_ptr(address: *const u8, len: usize) -> Result<AnyControl<'a>, PageError> {
        // SAFETY: as the caller promises.
        match unsafe { header::peek(PageKind::Control, address, len) }? {
            // SAFETY: as the caller promises; nothing is written through what is returned.
            1 => unsafe { header::open(address, len) }.map(AnyControl::first),
            // SAFETY: as above.
            2 => unsafe { header::open(address, len) }.map(AnyControl::second),
            unknown => Err(PageError::Version(unknown)),
        }
    }

    /// Zeroed memory as a page whose header is still to be written.
    ///
    /// # Safety
    /// As for [`from_ptr`](Self::from_ptr), and the memory is writable.
    pub(crate) unsafe fn blank(
        address: *mut u8,
        len: usize,
        version: u16,
    ) -> Result<AnyControl<'a>, PageError> {
        match version {
            // SAFETY: as the caller promises.
            1 => unsafe { header::blank(address, len) }.map(AnyControl::first),
            // SAFETY: as above.
            2 => unsafe { header::blank(address, len) }.map(AnyControl::second),
            unknown => Err(PageError::Version(unknown)),
        }
    }

    fn first(page: &'a ControlPage) -> AnyControl<'a> {
        AnyControl { page, host: None }
    }

    fn second(page: &'a ControlPage2) -> AnyControl<'a> {
        AnyControl {
            page: &page.first,
            host: Some(&page.host),
        }
    }

    /// The part that every version has.
    #[must_use]
    pub fn page(&self) -> &'a ControlPage {
        self.page
    }

    /// Returns the limit of the host's memory that the tenant may pin; `None` on a page of version
    /// 1, which does not count it.
    #[must_use]
    pub fn host(&self) -> Option<&'a HostLimit> {
        self.host
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> u16 {
        version_with(self.host.is_some())
    }

    /// The header, to be written when all else is.
    pub(crate) fn header(&self) -> &Header {
        self.page.header()
    }
}

impl<'a> AnyLedger<'a> {
    /// Bytes of a page of that version, and so of its memfd; `None` for one that is unknown.
    #[must_use]
    pub const fn bytes(version: u16) -> Option<usize> {
        match version {
            1 => Some(size_of::<LedgerPage>()),
            2 => Some(size_of::<LedgerPage2>()),
            _ => None,
        }
    }

    /// The page that is mapped at `address`. The tenant can write the header, which says the
    /// version: compare the version's [`bytes`](Self::bytes) with the size of the memfd, which
    /// the tenant cannot change.
    ///
    /// # Errors
    /// If it is not a ledger page of a version that is known here.
    ///
    /// # Safety
    /// `len` bytes at `address` are mapped shared and writable for all of `'a`, from a memfd
    /// that can no longer be made shorter (`F_SEAL_SHRINK`; look with `F_GET_SEALS` before
    /// mapping a file that came from somebody else).
    pub unsafe fn from_ptr(address: *mut u8, len: usize) -> Result<AnyLedger<'a>, PageError> {
        // SAFETY: as the caller promises.
        match unsafe { header::peek(PageKind::Ledger, address, len) }? {
            // SAFETY: as above.
            1 => unsafe { header::open(address, len) }.map(AnyLedger::first),
            // SAFETY: as above.
            2 => unsafe { header::open(address, len) }.map(AnyLedger::second),
            unknown => Err(PageError::Version(unknown)),
        }
    }

    /// Makes a page in zeroed memory: nothing is taken, all slots are free.
    ///
    /// # Errors
    /// If the memory is too short or not aligned, or the version is unknown.
    ///
    /// # Safety
    /// `len` bytes at `address` are zero, mapped shared and writable for all of `'a`, and
    /// cannot be made shorter.
    pub unsafe fn create(
        address: *mut u8,
        len: usize,
        version: u16,
        tenant: u64,
    ) -> Result<AnyLedger<'a>, PageError> {
        let ledger = match version {
            // SAFETY: as the caller promises.
            1 => unsafe { header::blank(address, len) }.map(AnyLedger::first),
            // SAFETY: as above.
            2 => unsafe { header::blank(address, len) }.map(AnyLedger::second),
            unknown => Err(PageError::Version(unknown)),
        }?;
        let bytes = AnyLedger::bytes(version).unwrap_or_default();
        ledger.page.begin(tenant, version, bytes);
        Ok(ledger)
    }

    fn first(page: &'a LedgerPage) -> AnyLedger<'a> {
        AnyLedger { page, host: None }
    }

    fn second(page: &'a LedgerPage2) -> AnyLedger<'a> {
        AnyLedger {
            page: &page.first,
            host: Some(&page.host),
        }
    }

    /// The part that every version has.
    #[must_use]
    pub fn page(&self) -> &'a LedgerPage {
        self.page
    }

    /// Returns the host's memory that the tenant has pinned; `None` on a page of version 1.
    #[must_use]
    pub fn host(&self) -> Option<&'a HostLedger> {
        self.host
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> u16 {
        version_with(self.host.is_some())
    }
}

/// Returns the version of a page with, or without, the additions of version 2.
const fn version_with(host: bool) -> u16 {
    if host { 2 } else { 1 }
}

#[cfg(test)]
mod tests;
