//! The end of both pages: a budget for memory of the host.
//!
//! A driver pins memory of the host for its programs. Pinned memory is lost to everybody else on
//! the machine. A tenant has one budget of it, whatever its devices are, counted like a device's
//! memory and by the same protocol.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::SLOTS;
use crate::reserve::{self, Accounts, Contended, NotCharged, NotReleased, NotReserved};
use crate::units::{SlotIndex, Units};

/// Value of a limit that does not exist.
const NO_LIMIT: u64 = u64::MAX;

/// Limit of pinned memory: the end of a control page, on a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct HostLimit {
    limit_bytes: AtomicU64,
    reserved: [AtomicU64; 7],
}

/// Memory that a tenant has pinned: the end of a ledger page.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct HostLedger {
    /// As a device's head, alone on its cache line.
    head: AtomicU64,
    reserved_beside_head: [AtomicU64; 7],
    refusal: LastRefusal,
    reserved: [AtomicU64; 6],
    accounts: [HostAccount; SLOTS + 1],
}

/// A slot's account of the host, on a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
struct HostAccount {
    op: AtomicU64,
    used: AtomicU64,
    reserved: [AtomicU64; 6],
}

/// For `sublet top`: the last refusal. The two words are written one after the other, so a reader
/// may see a new amount with an old time; it is shown, never counted with.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct LastRefusal {
    bytes: AtomicU64,
    time_ms: AtomicU64,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<HostLimit>() == 64);
    assert!(offset_of!(HostLedger, refusal) == 64);
    assert!(offset_of!(HostLedger, accounts) == 128);
    assert!(size_of::<HostLedger>() == 128 + 64 * (SLOTS + 1));
};

impl LastRefusal {
    pub(crate) fn note(&self, bytes: u64, now_ms: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.time_ms.store(now_ms, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Option<(u64, u64)> {
        let time_ms = self.time_ms.load(Ordering::Relaxed);
        (time_ms != 0).then(|| (self.bytes.load(Ordering::Relaxed), time_ms))
    }
}

impl HostLimit {
    /// The tenant's limit in bytes, as it was set; `None` if it has none.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let bytes = self.limit_bytes.load(Ordering::Acquire);
        (bytes != NO_LIMIT).then_some(bytes)
    }

    /// The tenant's limit as reservations count it; [`Units::MAX`] if it has none. It can
    /// change at any moment, as that of a device.
    #[must_use]
    pub fn limit(&self) -> Units {
        Units::allowed_by(self.limit_bytes.load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, bytes: Option<u64>) {
        let bytes = bytes.unwrap_or(NO_LIMIT);
        self.limit_bytes.store(bytes, Ordering::Release);
    }
}

impl Accounts for HostLedger {
    type Word = AtomicU64;

    fn head(&self) -> &AtomicU64 {
        &self.head
    }

    fn op(&self, slot: SlotIndex) -> &AtomicU64 {
        &self.accounts[slot.place()].op
    }

    fn used(&self, slot: SlotIndex) -> &AtomicU64 {
        &self.accounts[slot.place()].used
    }
}

/// All this is as on a [`LedgerPage`](crate::LedgerPage), where it says more.
impl HostLedger {
    /// Takes `amount` for a process if the total stays within `limit`: before the memory is
    /// pinned. One thread of the process at a time, as for a device.
    ///
    /// # Errors
    /// [`NotReserved::OverLimit`] with the numbers, and nothing is taken.
    pub fn reserve(
        &self,
        slot: SlotIndex,
        amount: Units,
        limit: impl Fn() -> Units,
    ) -> Result<(), NotReserved> {
        reserve::reserve(self, slot, amount, limit)
    }

    /// Gives back `amount` of the slot's memory.
    ///
    /// # Errors
    /// If the slot does not have so much; nothing is given back then.
    pub fn release(&self, slot: SlotIndex, amount: Units) -> Result<(), NotReleased> {
        reserve::release(self, slot, amount)
    }

    /// Takes `amount` whatever the limit is, for memory that is pinned already.
    ///
    /// # Errors
    /// If the total has no room for the amount; nothing is taken then.
    pub fn charge(&self, slot: SlotIndex, amount: Units) -> Result<(), NotCharged> {
        reserve::charge(self, slot, amount)
    }

    /// After it returns, no reservation can succeed any more that has read a limit of before
    /// the call. The arbiter alone calls it, from one thread.
    ///
    /// # Errors
    /// Somebody scribbles on the page. The promise does not hold then.
    pub fn settle(&self) -> Result<(), Contended> {
        reserve::settle(self)
    }

    /// Gives back all that a dead process has pinned, and says how much that was. The arbiter
    /// alone calls it, from one thread.
    ///
    /// # Errors
    /// As for [`settle`](Self::settle): the account may not be empty then.
    pub fn reclaim(&self, slot: SlotIndex) -> Result<Units, Contended> {
        reserve::reclaim(self, slot)
    }

    /// Returns the pinned memory of all processes of the tenant together.
    #[must_use]
    pub fn total(&self) -> Units {
        reserve::total(self)
    }

    /// Returns the pinned memory of one slot.
    #[must_use]
    pub fn held(&self, slot: SlotIndex) -> Units {
        reserve::held(self, slot)
    }

    /// Notes for `sublet top` that a process was refused `bytes` at `now_ms` milliseconds of
    /// `CLOCK_MONOTONIC`.
    pub fn note_refusal(&self, bytes: u64, now_ms: u64) {
        self.refusal.note(bytes, now_ms);
    }

    /// The last refusal: bytes, and the time in milliseconds of `CLOCK_MONOTONIC`. `None` if
    /// there was none.
    #[must_use]
    pub fn last_refusal(&self) -> Option<(u64, u64)> {
        self.refusal.read()
    }
}
