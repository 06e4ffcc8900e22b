//! The bytes of the machine's file, which every process that uses the machine maps.
//!
//! Everything in it is an atomic and zero is a valid value of each. So a fresh file needs no
//! initialising beyond its header, and no process can bring another into a state that is undefined.
//! The modules that own the numbers document their meaning: `slots`, `memory`, `clock`.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use sublet_model::Bdf;

use crate::spec::{CARDS_MAX, NAME_MAX, PackingRule, TimeRule};

/// `subletfk` as bytes.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"subletfk");
/// Processes that can use one machine at the same time.
pub const SLOTS: usize = 1024;
/// Slices remembered per card. A power of two; 8,192 slices of 20 µs are 160 ms.
pub(super) const RECORDS: usize = 8192;
/// Use is counted in buckets of an eighth of a second; two seconds are remembered.
pub(super) const BUCKETS: usize = 16;

/// The whole file.
#[repr(C)]
pub(super) struct Shared {
    pub(super) header: Header,
    pub(super) clocks: [Clock; CARDS_MAX],
    pub(super) slots: [Slot; SLOTS],
}

/// Written once, before the file gets its name.
#[repr(C, align(64))]
pub(super) struct Header {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU32,
    pub(super) n_cards: AtomicU32,
    pub(super) size: AtomicU64,
    /// Slots from this one on were never used, so nobody needs to look at them.
    pub(super) n_slots: AtomicU32,
    /// Packing of allocations: the three numbers of a `PackingRule`.
    pub(super) packing: [AtomicU64; 3],
    /// Sharing of time: the two numbers of a `TimeRule`.
    pub(super) time: [AtomicU64; 2],
    pub(super) cards: [Card; CARDS_MAX],
}

/// Data of a card.
#[repr(C, align(64))]
pub(super) struct Card {
    pub(super) uuid: [AtomicU64; 2],
    pub(super) memory: AtomicU64,
    pub(super) context: AtomicU64,
    /// Its PCI address: domain in the upper half, then bus, device and function in a byte
    /// each of the lower one.
    pub(super) pci_address: AtomicU64,
    pub(super) minor: AtomicU64,
    pub(super) name: [AtomicU8; NAME_MAX + 1],
}

/// The time of one card.
#[repr(C, align(64))]
pub(super) struct Clock {
    /// The card has work until this time, nanoseconds of CLOCK_MONOTONIC.
    pub(super) busy_until: AtomicU64,
    /// The place of the process that has the card until then, beside that time's lower bits.
    pub(super) owner: AtomicU64,
    /// Slices taken since the machine was made.
    pub(super) n_slices: AtomicU64,
    pub(super) buckets: [Bucket; BUCKETS],
    pub(super) records: [Record; RECORDS],
}

/// One slice somebody took. `end` is written last.
#[repr(C)]
pub(super) struct Record {
    pub(super) start: AtomicU64,
    pub(super) end: AtomicU64,
    pub(super) slot: AtomicU64,
}

/// Busy nanoseconds in one eighth of a second.
#[repr(C)]
pub(super) struct Bucket {
    /// Number of the eighth since the epoch of CLOCK_MONOTONIC.
    pub(super) eighth: AtomicU64,
    pub(super) busy: AtomicU64,
}

/// One process.
#[repr(C, align(64))]
pub(super) struct Slot {
    /// 0 free, 1 taken.
    pub(super) state: AtomicU32,
    /// Number of processes that had this slot before.
    pub(super) generation: AtomicU32,
    /// Its owner: the PID in the owner's namespace, that namespace, the time of its start, and the
    /// number of its current program, since a process can become one program after the other.
    pub(super) pid: AtomicU64,
    pub(super) namespace: AtomicU64,
    pub(super) started: AtomicU64,
    pub(super) program: AtomicU64,
    pub(super) cards: [Use; CARDS_MAX],
}

/// Use of one card by one process.
#[repr(C, align(64))]
pub(super) struct Use {
    /// Bytes of the card, contexts included.
    pub(super) bytes: AtomicU64,
    /// Bytes that are contexts.
    pub(super) context_bytes: AtomicU64,
    pub(super) n_contexts: AtomicU32,
    /// A hash of the name of the last kernel that waits for its peer, and how many started.
    pub(super) rendezvous: AtomicU64,
    pub(super) n_rendezvous: AtomicU64,
    /// Number of those that have met their peer.
    pub(super) n_met: AtomicU64,
    pub(super) buckets: [Bucket; BUCKETS],
}

/// A PCI address as [`Card::pci_address`] has it.
pub(super) fn word_of(pci_address: Bdf) -> u64 {
    let [bus, device, function] =
        [pci_address.bus, pci_address.device, pci_address.function].map(u64::from);
    u64::from(pci_address.domain) << 32 | bus << 16 | device << 8 | function
}

/// Reads a word of [`word_of`]. Every word is an address, whatever process wrote it.
pub(super) fn pci_address_of(word: u64) -> Bdf {
    let [function, device, bus, _, domain @ ..] = word.to_le_bytes();
    Bdf {
        domain: u32::from_le_bytes(domain),
        bus,
        device,
        function,
    }
}

/// Returns the packing rule of the machine's driver.
pub(super) fn packing(shared: &Shared) -> PackingRule {
    let [small, piece, kept] = &shared.header.packing;
    PackingRule {
        small: small.load(Relaxed),
        piece: piece.load(Relaxed),
        kept: kept.load(Relaxed),
    }
}

/// Returns the rule by which processes share the time of the machine's cards.
pub(super) fn time(shared: &Shared) -> TimeRule {
    let [slice, switch] = &shared.header.time;
    TimeRule {
        slice: slice.load(Relaxed),
        switch: switch.load(Relaxed),
    }
}

/// Stores that others may read at any time.
pub(super) fn set(word: &AtomicU64, value: u64) {
    word.store(value, Release);
}
