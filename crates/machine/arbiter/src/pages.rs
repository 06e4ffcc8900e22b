//! A tenant's two shared pages, as memory of this process: made, sealed and mapped, or taken
//! over from a predecessor. All unsafe code for them is here; `sublet-abi` defines the words
//! on them.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;
use sublet_abi::control::Terms;
use sublet_abi::{ControlPage, ControlWriter, GateWord, LedgerPage, PageError};

/// Seals that every page needs: no process can shrink or grow it, or remove the seals.
const FIXED: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Ways in which making a page or taking it over can fail.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PagesError {
    #[error("{what} a shared page failed: {cause}")]
    System {
        what: &'static str,
        cause: io::Error,
    },
    #[error("the memory that came with the message is no ledger of ours: {0}")]
    NotOurs(&'static str),
    #[error("{0}")]
    Page(PageError),
}

fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> PagesError {
    move |cause| PagesError::System {
        what,
        cause: cause.into(),
    }
}

/// Shared memory that is unmapped when it is dropped.
#[derive(Debug)]
struct Mapping {
    address: *mut c_void,
    len: usize,
}

impl Mapping {
    fn of(memory: &OwnedFd, len: usize) -> Result<Mapping, PagesError> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping where the kernel likes, of a file that is sealed against
        // being made shorter (the callers see to it); no memory of ours is replaced.
        let address =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, memory, 0) }
                .map_err(failed("mapping"))?;
        Ok(Mapping { address, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `of`, once; the structs below hand out no reference that lives
        // longer than they do.
        let _ = unsafe { rustix::mm::munmap(self.address, self.len) };
    }
}

// SAFETY: the memory belongs to no thread, and what lies in it is atomics.
unsafe impl Send for Mapping {}

fn memory(name: &str, len: usize) -> Result<OwnedFd, PagesError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create(name, flags).map_err(failed("making"))?;
    rustix::fs::ftruncate(&memory, len as u64).map_err(failed("sizing"))?;
    Ok(memory)
}

/// The page that only this arbiter can write.
#[derive(Debug)]
pub(crate) struct ControlMemory {
    memory: OwnedFd,
    writer: ControlWriter<'static>,
    /// Last field, so that it is dropped after the values that lie in it.
    _mapping: Mapping,
}

impl ControlMemory {
    pub(crate) fn new(terms: &Terms<'_>) -> Result<ControlMemory, PagesError> {
        let memory = memory("sublet-control", ControlPage::BYTES)?;
        // Sealed against being cut off before it is mapped; against writing after.
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)
            .map_err(failed("sealing"))?;
        let mapping = Mapping::of(&memory, ControlPage::BYTES)?;
        // SAFETY: zeroed, as new memory is; mapped shared and writable for as long as the
        // mapping, which is dropped after the writer; sealed.
        let writer = unsafe { ControlWriter::create(mapping.address.cast(), mapping.len, terms) }
            .map_err(PagesError::Page)?;
        rustix::fs::fcntl_add_seals(&memory, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
            .map_err(failed("sealing"))?;
        Ok(ControlMemory {
            memory,
            writer,
            _mapping: mapping,
        })
    }

    pub(crate) fn writer(&self) -> &ControlWriter<'_> {
        &self.writer
    }

    /// Sets the tenant's gate, and wakes the processes that wait for it.
    pub(crate) fn set_gate(&self, word: GateWord) {
        if self.writer.gate().word() == word {
            return;
        }
        self.writer.set_gate(word);
        let address = self.writer.gate().address().cast_mut();
        // SAFETY: the word lies in the mapping, which lives as long as this and is writable, and
        // all who touch it do so as an atomic.
        let waited_for = unsafe { AtomicU32::from_ptr(address) };
        // Other processes wait for it, so it is not private. Nobody there is no failure.
        let _ = futex::wake(waited_for, futex::Flags::empty(), u32::MAX);
    }

    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// The kernel's name for a ledger's memory among a process's descriptors.
pub(crate) const LEDGER_NAME: &str = "sublet-ledger";

/// True if that file has the form of a ledger. Nothing that is asked here waits for a file system,
/// and such a file can be closed without waiting for anybody: it is memory, and little of it.
pub(crate) fn is_ledger(file: &OwnedFd) -> bool {
    check_form(file).is_ok()
}

/// Ok if that file is sealed, and has the size of a ledger.
fn check_form(memory: &OwnedFd) -> Result<(), PagesError> {
    // First of all: the kernel answers this itself, and says no for what is no memory. To ask for
    // the size of anything else could wait for a file system that a tenant serves.
    let seals = rustix::fs::fcntl_get_seals(memory)
        .map_err(|_| PagesError::NotOurs("it cannot be sealed"))?;
    if !seals.contains(FIXED) {
        return Err(PagesError::NotOurs("it is not sealed"));
    }
    let about = rustix::fs::fstat(memory).map_err(failed("looking at"))?;
    if usize::try_from(about.st_size) != Ok(LedgerPage::BYTES) {
        return Err(PagesError::NotOurs("it has another size"));
    }
    Ok(())
}

/// The page that the tenant writes too.
#[derive(Debug)]
pub(crate) struct LedgerMemory {
    memory: OwnedFd,
    page: &'static LedgerPage,
    /// Last field, so that it is dropped after the values that lie in it.
    _mapping: Mapping,
}

impl LedgerMemory {
    pub(crate) fn new(tenant: u64) -> Result<LedgerMemory, PagesError> {
        let memory = memory(LEDGER_NAME, LedgerPage::BYTES)?;
        rustix::fs::fcntl_add_seals(&memory, FIXED).map_err(failed("sealing"))?;
        let mapping = Mapping::of(&memory, LedgerPage::BYTES)?;
        // SAFETY: zeroed, as new memory is; mapped shared and writable for as long as the
        // mapping, which is dropped after the reference; sealed.
        let page = unsafe { LedgerPage::create(mapping.address.cast(), mapping.len, tenant) }
            .map_err(PagesError::Page)?;
        Ok(LedgerMemory {
            memory,
            page,
            _mapping: mapping,
        })
    }

    /// Takes over a ledger that a predecessor made and a process kept.
    pub(crate) fn adopt(memory: OwnedFd) -> Result<LedgerMemory, PagesError> {
        check_form(&memory)?;
        let mapping = Mapping::of(&memory, LedgerPage::BYTES)?;
        // SAFETY: mapped shared and writable for as long as the mapping, which is dropped
        // after the reference; of this size, and sealed against being made shorter.
        let page = unsafe { LedgerPage::from_ptr(mapping.address.cast(), mapping.len) }
            .map_err(PagesError::Page)?;
        Ok(LedgerMemory {
            memory,
            page,
            _mapping: mapping,
        })
    }

    pub(crate) fn page(&self) -> &LedgerPage {
        self.page
    }

    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Is that descriptor this memory?
    pub(crate) fn is(&self, other: &OwnedFd) -> bool {
        let id = |fd: BorrowedFd<'_>| {
            rustix::fs::fstat(fd)
                .ok()
                .map(|about| (about.st_dev, about.st_ino))
        };
        id(self.memory.as_fd()).is_some_and(|own| Some(own) == id(other.as_fd()))
    }
}

#[cfg(test)]
mod tests {
    use sublet_abi::{Mode, VERSION};

    use super::*;

    fn control() -> ControlMemory {
        ControlMemory::new(&Terms {
            tenant: 7,
            epoch: 1,
            mode: Mode::Strict,
            devices: &[],
            host_limit_bytes: None,
            now_ms: 5,
        })
        .unwrap()
    }

    fn map(fd: BorrowedFd<'_>, prot: ProtFlags) -> rustix::io::Result<()> {
        let (len, flags) = (ControlPage::BYTES, MapFlags::SHARED);
        // SAFETY: a new mapping where the kernel likes; it is not used and unmapped again.
        unsafe {
            let address = rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0)?;
            rustix::mm::munmap(address, len)
        }
    }

    #[test]
    fn nobody_else_can_write_or_cut_the_control_page() {
        let control = control();
        control.writer().beat(99);
        assert_eq!(control.writer().heartbeat_ms(), 99);
        let fd = control.memory();
        assert!(map(fd, ProtFlags::READ).is_ok());
        assert!(map(fd, ProtFlags::READ | ProtFlags::WRITE).is_err());
        assert!(rustix::io::write(fd, b"x").is_err());
        assert!(rustix::fs::ftruncate(fd, 0).is_err());
        assert!(rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE).is_err());
    }

    #[test]
    fn a_ledger_is_taken_over_and_anything_else_is_not() {
        let ledger = LedgerMemory::new(7).unwrap();
        assert!(rustix::fs::ftruncate(ledger.memory(), 0).is_err());
        let kept = ledger.memory().try_clone_to_owned().unwrap();
        assert!(ledger.is(&kept));
        drop(ledger);
        let adopted = LedgerMemory::adopt(kept).unwrap();
        assert_eq!(adopted.page().tenant(), 7);
        let bytes = LedgerPage::BYTES;
        let refuse = |memory: OwnedFd| LedgerMemory::adopt(memory).unwrap_err().to_string();
        let unsealed = memory("test", bytes).unwrap();
        assert!(refuse(unsealed).contains("not sealed"));
        let small = memory("test", 4096).unwrap();
        rustix::fs::fcntl_add_seals(&small, FIXED).unwrap();
        assert!(refuse(small).contains("another size"));
        let empty = memory("test", bytes).unwrap();
        rustix::fs::fcntl_add_seals(&empty, FIXED).unwrap();
        assert!(refuse(empty).contains("does not begin"));
        // The tenant can write that it is of another version.
        let forged = LedgerMemory::new(7).unwrap();
        let memory_of_it = forged.memory().try_clone_to_owned().unwrap();
        rustix::io::pwrite(&memory_of_it, &(VERSION + 1).to_ne_bytes(), 12).unwrap();
        assert!(refuse(memory_of_it).contains("the page has version 3; known are 2 to 2"));
        let shut = memory("test", bytes).unwrap();
        rustix::fs::fcntl_add_seals(&shut, FIXED | SealFlags::WRITE).unwrap();
        assert!(refuse(shut).contains("mapping"));
        assert!(refuse(std::fs::File::open("/dev/null").unwrap().into()).contains("be sealed"));
    }
}
