//! A ledger page in a memfd, as an arbiter makes it and hands it over.
#![expect(unsafe_code, reason = "maps memory")]

use std::io;
use std::ptr;

use anyhow::{Context, Result, ensure};
use sublet_abi::LedgerPage;

const BYTES: usize = LedgerPage::BYTES;

/// A page, mapped shared: a child made by fork sees the same.
#[derive(Debug)]
pub(crate) struct Page {
    address: *mut u8,
    ledger: &'static LedgerPage,
}

impl Page {
    /// An empty page.
    ///
    /// # Errors
    /// The system gave no memory.
    pub(crate) fn create() -> Result<Page> {
        let address = map().context("map a ledger page")?;
        // SAFETY: a new mapping of that length, sealed, and never undone.
        let ledger = unsafe { LedgerPage::create(address, BYTES, 1) }?;
        Ok(Page { address, ledger })
    }

    /// Returns its ledger.
    pub(crate) fn ledger(&self) -> &'static LedgerPage {
        self.ledger
    }

    /// Makes it as another one is now. Nobody may be at work on either.
    pub(crate) fn copy(&self, other: &Page) {
        // SAFETY: two mappings of that length, made of atomic integers, that nobody writes now.
        unsafe { ptr::copy_nonoverlapping(other.address, self.address, BYTES) };
    }
}

fn map() -> Result<*mut u8> {
    let length = libc::off_t::try_from(BYTES)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: a new file and a new mapping; the descriptor is closed once.
    unsafe {
        let file = libc::memfd_create(
            c"ledger".as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
        );
        ensure!(file >= 0, "memfd_create: {}", io::Error::last_os_error());
        let is_ready =
            libc::ftruncate(file, length) == 0 && libc::fcntl(file, libc::F_ADD_SEALS, seals) == 0;
        let address = libc::mmap(
            ptr::null_mut(),
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file,
            0,
        );
        let error = io::Error::last_os_error();
        libc::close(file);
        ensure!(
            is_ready && address != libc::MAP_FAILED,
            "seal or map: {error}"
        );
        Ok(address.cast())
    }
}
