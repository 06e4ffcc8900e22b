//! The page that the arbiter and a tenant's processes both write.
//!
//! It holds the memory that is taken: per device one *head* with the total, and per process and
//! device one account. A tenant can write anything here at any moment, to nobody's harm but its
//! own: memory that a total hides, NVML shows. So nothing read from this page is trusted. Every
//! number is masked to its width, every index checked, every sum kept in its bounds, and no loop
//! ends only when the page says so.
//!
//! The page has 1025 slots of 576 bytes. Reading a slot that nobody used still costs memory
//! of the node (a hole of a memfd is filled when it is read), so the arbiter hands out the
//! lowest free slot and looks at no slot that it has not handed out.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::gate::TurnReport;
use crate::header::{self, Header, Layout, PageError, PageKind};
use crate::host::{HostLedger, LastRefusal};
use crate::reserve::{self, Accounts, Contended, NotCharged, NotReleased, NotReserved};
use crate::units::{DeviceIndex, SlotIndex, Units};
use crate::{MAX_DEVICES, SLOTS};

/// Memory that a tenant has taken.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct LedgerPage {
    header: Header,
    tenant: AtomicU64,
    reserved: [AtomicU64; 5],
    heads: [Head; MAX_DEVICES],
    refusals: [LastRefusal; MAX_DEVICES],
    slots: [ProcessSlot; SLOTS + 1],
    host: HostLedger,
}

/// The one word of a device that all its processes compete for, alone on its cache line. `reserve`
/// describes its content.
#[repr(C, align(64))]
#[derive(Debug)]
struct Head {
    word: AtomicU64,
}

/// One process, on cache lines of its own.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ProcessSlot {
    pid: AtomicU32,
    generation: AtomicU32,
    state: AtomicU32,
    own_pid: AtomicU32,
    n_unknown: AtomicU64,
    turns: TurnReport,
    accounts: [Account; MAX_DEVICES],
}

/// A process's account of one device: half a cache line, so that a process with one card
/// touches two lines of its slot.
#[repr(C, align(32))]
#[derive(Debug)]
struct Account {
    op: AtomicU64,
    used: AtomicU64,
    context_bytes: AtomicU64,
    /// Number of the last reading of the driver that the process asked for.
    asked: AtomicU32,
    /// Number of the last one that was done.
    read: AtomicU32,
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(LedgerPage, heads) == 64);
    assert!(offset_of!(LedgerPage, refusals) == 64 + 64 * MAX_DEVICES);
    assert!(offset_of!(LedgerPage, slots) == 1344);
    assert!(offset_of!(ProcessSlot, turns) == 24);
    assert!(offset_of!(ProcessSlot, accounts) == 64);
    assert!(size_of::<ProcessSlot>() == 64 + 32 * MAX_DEVICES);
    assert!(offset_of!(LedgerPage, host) == 1344 + 576 * (SLOTS + 1));
    assert!(size_of::<LedgerPage>() == 591_744 + 65_728);
};

// SAFETY: `repr(C)`, the header first, and nothing but atomics after it.
unsafe impl Layout for LedgerPage {
    const KIND: PageKind = PageKind::Ledger;
}

/// The words of one device, as the protocol wants them.
#[derive(Clone, Copy)]
struct DeviceAccounts<'a> {
    page: &'a LedgerPage,
    device: DeviceIndex,
}

impl Accounts for DeviceAccounts<'_> {
    type Word = AtomicU64;

    fn head(&self) -> &AtomicU64 {
        &self.page.heads[self.device.place()].word
    }

    fn op(&self, slot: SlotIndex) -> &AtomicU64 {
        &self.page.slots[slot.place()].accounts[self.device.place()].op
    }

    fn used(&self, slot: SlotIndex) -> &AtomicU64 {
        &self.page.slots[slot.place()].accounts[self.device.place()].used
    }
}

impl LedgerPage {
    /// Bytes of a page, and so of its memfd.
    pub const BYTES: usize = size_of::<LedgerPage>();

    /// The page that is mapped at `address`. The tenant can write the header: look at the size of
    /// the memfd, which the tenant cannot change, before it is mapped.
    ///
    /// # Errors
    /// If it is not a ledger page of our version.
    ///
    /// # Safety
    /// `len` bytes at `address` are mapped shared and writable for all of `'a`, from a memfd
    /// that can no longer be made shorter (`F_SEAL_SHRINK`; look with `F_GET_SEALS` before
    /// mapping a file that came from somebody else).
    pub unsafe fn from_ptr<'a>(address: *mut u8, len: usize) -> Result<&'a LedgerPage, PageError> {
        // SAFETY: as the caller promises.
        unsafe { header::open(address, len) }
    }

    /// Makes a page in zeroed memory: nothing is taken, all slots are free.
    ///
    /// # Errors
    /// If the memory is too short or not aligned.
    ///
    /// # Safety
    /// `len` bytes at `address` are zero, mapped shared and writable for all of `'a`, and
    /// cannot be made shorter.
    pub unsafe fn create<'a>(
        address: *mut u8,
        len: usize,
        tenant: u64,
    ) -> Result<&'a LedgerPage, PageError> {
        // SAFETY: as the caller promises.
        let page = unsafe { header::blank::<LedgerPage>(address, len) }?;
        page.tenant.store(tenant, Ordering::Relaxed);
        page.header.write::<LedgerPage>();
        Ok(page)
    }

    /// Returns the tenant that the ledger names. The tenant can write this: it proves nothing.
    #[must_use]
    pub fn tenant(&self) -> u64 {
        self.tenant.load(Ordering::Relaxed)
    }

    /// Takes `amount` for a process if the total stays within `limit`, which is read anew
    /// each time another process was faster. Call it *before* the memory is allocated, and
    /// [`release`](Self::release) the same amount if that fails or when the memory is freed.
    ///
    /// One process calls the functions that change a slot's account of a device (this,
    /// `release`, `charge`) from one thread at a time: it holds a lock of its own meanwhile.
    /// A child made by fork uses no slot of its parent.
    ///
    /// # Errors
    /// [`NotReserved::OverLimit`] with the numbers, and nothing is taken.
    pub fn reserve(
        &self,
        slot: SlotIndex,
        device: DeviceIndex,
        amount: Units,
        limit: impl Fn() -> Units,
    ) -> Result<(), NotReserved> {
        reserve::reserve(&self.accounts(device), slot, amount, limit)
    }

    /// Gives back `amount` of the slot's memory. The lock as for [`reserve`](Self::reserve).
    ///
    /// # Errors
    /// If the slot does not have so much; nothing is given back then.
    pub fn release(
        &self,
        slot: SlotIndex,
        device: DeviceIndex,
        amount: Units,
    ) -> Result<(), NotReleased> {
        reserve::release(&self.accounts(device), slot, amount)
    }

    /// Takes `amount` whatever the limit is, for memory that exists already: overhead that
    /// the arbiter found (slot 0), or a context that cost more than was expected. The lock
    /// as for [`reserve`](Self::reserve).
    ///
    /// # Errors
    /// If the total has no room for the amount; nothing is taken then.
    pub fn charge(
        &self,
        slot: SlotIndex,
        device: DeviceIndex,
        amount: Units,
    ) -> Result<(), NotCharged> {
        reserve::charge(&self.accounts(device), slot, amount)
    }

    /// Makes every reservation fail that has read a limit from before this call. Lower a limit,
    /// then settle: from then on [`total`](Self::total) stays or falls unless it is within the new
    /// limit. The arbiter alone calls it, from one thread.
    ///
    /// # Errors
    /// If other processes changed the head so often meanwhile that this is no accident:
    /// somebody scribbles on the page. The promise does not hold then.
    pub fn settle(&self, device: DeviceIndex) -> Result<(), Contended> {
        reserve::settle(&self.accounts(device))
    }

    /// Gives back all that a dead process has, and says how much that was. Call it only when
    /// no thread of the process runs any more (its pidfd is readable), and before the slot
    /// is given to another process. The arbiter alone calls it, from one thread; an arbiter
    /// that itself dies meanwhile leaves a page on which its successor can call it again.
    ///
    /// # Errors
    /// As for [`settle`](Self::settle): the account may not be empty then.
    pub fn reclaim(&self, slot: SlotIndex, device: DeviceIndex) -> Result<Units, Contended> {
        reserve::reclaim(&self.accounts(device), slot)
    }

    /// Returns the memory that the tenant has taken of a device, all processes and overhead
    /// together.
    #[must_use]
    pub fn total(&self, device: DeviceIndex) -> Units {
        reserve::total(&self.accounts(device))
    }

    /// Returns the memory that one slot has taken of a device. [`SlotIndex::ARBITER`] has the
    /// overhead. It can be behind [`total`](Self::total) by one operation that is under way.
    #[must_use]
    pub fn held(&self, slot: SlotIndex, device: DeviceIndex) -> Units {
        reserve::held(&self.accounts(device), slot)
    }

    /// A number that changes with each operation of a slot on a device, and repeats after 2³⁰ of
    /// them. Read twice and the same, it says that nothing was taken or given in between.
    #[must_use]
    pub fn operation(&self, slot: SlotIndex, device: DeviceIndex) -> u32 {
        reserve::number(&self.accounts(device), slot)
    }

    /// A word that changes with each operation of any slot on a device. Read twice and the same,
    /// it says that the tenant took and gave nothing in between.
    #[must_use]
    pub fn state(&self, device: DeviceIndex) -> u64 {
        self.heads[device.place()].word.load(Ordering::Acquire)
    }

    /// Notes for `sublet top` that a process was refused `bytes` at `now_ms` milliseconds
    /// of `CLOCK_MONOTONIC`.
    pub fn note_refusal(&self, device: DeviceIndex, bytes: u64, now_ms: u64) {
        self.refusals[device.place()].note(bytes, now_ms);
    }

    /// The last refusal: bytes, and the time in milliseconds of `CLOCK_MONOTONIC`. `None` if
    /// there was none.
    #[must_use]
    pub fn last_refusal(&self, device: DeviceIndex) -> Option<(u64, u64)> {
        self.refusals[device.place()].read()
    }

    /// Returns the host's memory that the tenant has pinned.
    #[must_use]
    pub fn host(&self) -> &HostLedger {
        &self.host
    }

    /// One process's slot.
    #[must_use]
    pub fn slot(&self, slot: SlotIndex) -> &ProcessSlot {
        &self.slots[slot.place()]
    }

    fn accounts(&self, device: DeviceIndex) -> DeviceAccounts<'_> {
        DeviceAccounts { page: self, device }
    }
}

impl ProcessSlot {
    /// Hands the slot to a process: the arbiter does so before it sends the welcome. The arbiter
    /// keeps its own list of the slots' owners. The data here is for the process itself, and for an
    /// arbiter that adopts the page, which checks it.
    pub fn hand_out(&self, pid: u32, generation: u32) {
        self.pid.store(pid, Ordering::Relaxed);
        self.generation.store(generation, Ordering::Relaxed);
        self.n_unknown.store(0, Ordering::Relaxed);
        self.own_pid.store(0, Ordering::Relaxed);
        self.turns.clear();
        for account in &self.accounts {
            account.context_bytes.store(0, Ordering::Relaxed);
            account.asked.store(0, Ordering::Relaxed);
            account.read.store(0, Ordering::Relaxed);
        }
        self.state.store(1, Ordering::Release);
    }

    /// Takes the slot back, after all its accounts were reclaimed. The accounts keep their
    /// numbers of operations, so that a helper which slept since does no harm to the slot's
    /// next process.
    pub fn take_back(&self) {
        self.state.store(0, Ordering::Release);
    }

    /// True while the slot is a process's.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.state.load(Ordering::Acquire) == 1
    }

    /// The process, by its number in the arbiter's PID namespace.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Notes the process's PID in its own PID namespace. The process itself calls this when it has
    /// the slot. Other processes of the tenant show the PID to people; nobody decides by it.
    pub fn tell_own_pid(&self, pid: u32) {
        self.own_pid.store(pid, Ordering::Relaxed);
    }

    /// Returns the PID that the process reported, if it reported one.
    #[must_use]
    pub fn own_pid(&self) -> Option<u32> {
        let pid = self.own_pid.load(Ordering::Relaxed);
        (pid != 0).then_some(pid)
    }

    /// The how-manieth holder of the slot this is, so that a process which comes back is not
    /// taken for the one that had the slot before it.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Returns the process's report on its turns.
    #[must_use]
    pub fn turns(&self) -> &TurnReport {
        &self.turns
    }

    /// Counts a driver function that the table does not have and the process asked for.
    pub fn count_unknown(&self) {
        self.n_unknown.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of unknown driver functions that the process asked for.
    #[must_use]
    pub fn n_unknown(&self) -> u64 {
        self.n_unknown.load(Ordering::Relaxed)
    }

    /// Sets the part of the slot's bytes on a device that is an estimate for its contexts. The
    /// arbiter corrects the estimate by NVML's figures.
    pub fn set_context_bytes(&self, device: DeviceIndex, bytes: u64) {
        let context = &self.accounts[device.place()].context_bytes;
        context.store(bytes, Ordering::Relaxed);
    }

    /// Returns the part of the slot's bytes on a device that is an estimate for contexts.
    #[must_use]
    pub fn context_bytes(&self, device: DeviceIndex) -> u64 {
        let context = &self.accounts[device.place()].context_bytes;
        context.load(Ordering::Relaxed)
    }

    /// Asks for a reading of the driver that begins after this call. The process itself calls
    /// this, from one thread at a time for each device, and knocks. Returns the reading's number.
    pub fn ask_reading(&self, device: DeviceIndex) -> u32 {
        let asked = &self.accounts[device.place()].asked;
        asked.fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    /// Returns the number of the reading that the process waits for, if it waits for one. The
    /// arbiter looks before it begins a reading.
    #[must_use]
    pub fn awaited_reading(&self, device: DeviceIndex) -> Option<u32> {
        let account = &self.accounts[device.place()];
        let asked = account.asked.load(Ordering::Acquire);
        (asked != account.read.load(Ordering::Relaxed)).then_some(asked)
    }

    /// Says that a reading is done, and all that it found is charged. The arbiter calls this, and
    /// wakes the process.
    pub fn finish_reading(&self, device: DeviceIndex, number: u32) {
        let read = &self.accounts[device.place()].read;
        read.store(number, Ordering::Release);
    }

    /// Number of the last reading that was done; a process waits until this word changes.
    #[must_use]
    pub fn finished_reading(&self, device: DeviceIndex) -> &AtomicU32 {
        &self.accounts[device.place()].read
    }
}

#[cfg(test)]
mod tests;
