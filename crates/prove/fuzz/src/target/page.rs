//! The pages that tenants and the arbiter share. A tenant may write any bytes to its ledger, and
//! hands one of its own to a new arbiter; each is read in whole, and charged and settled.

use std::ptr::NonNull;

use sublet_abi::{ControlPage, DeviceIndex, LedgerPage, SlotIndex, Units};

use crate::Target;

pub(super) const TARGET: Target = Target { name: "page", run };

/// A cache line, at which pages must begin.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

/// Longer than any page.
const LINES: usize = 11_000;

/// The first bytes of the page, then changes of eight bytes: where (three bytes), and which.
const HEAD: usize = 256;

fn run(bytes: &[u8]) {
    let mut memory = vec![Line([0; 64]); LINES];
    let len = LINES * 64;
    let address = NonNull::from(&mut memory[..]).cast::<u8>().as_ptr();
    let (head, changes) = bytes.split_at(bytes.len().min(HEAD));
    let changes = changes.chunks_exact(11).map(|change| {
        let at =
            usize::from(change[0]) << 16 | usize::from(change[1]) << 8 | usize::from(change[2]);
        (at % (len / 8) * 8, &change[3..])
    });
    for (at, part) in changes.chain([(0, head)]) {
        // SAFETY: the part ends within the memory, which nobody else has: places are multiples of
        // eight below its length, and the head is shorter.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), address.add(at), part.len()) };
    }
    // SAFETY: so many bytes are there, readable and writable, until the end of this function, and
    // all that is read through the pages is atomic.
    let (control, ledger) = unsafe {
        (
            ControlPage::from_ptr(address, len),
            LedgerPage::from_ptr(address, len),
        )
    };
    if let Ok(control) = control {
        read_control(control);
    }
    if let Ok(ledger) = ledger {
        use_ledger(ledger);
    }
}

fn read_control(control: &ControlPage) {
    let _ = (control.tenant(), control.epoch(), control.mode());
    let gate = control.gate();
    let _ = (gate.word(), gate.without_arbiter(), gate.queue_us());
    let _ = (control.host().bytes(), control.host().limit());
    for (_, device) in control.devices() {
        assert!(control.find(&device.uuid()).is_some());
        let _ = (device.limit(), device.packing(), device.context_bytes());
    }
}

fn use_ledger(ledger: &LedgerPage) {
    let host = ledger.host();
    let some = Units::taken_by(1 << 20).unwrap_or(Units::ZERO);
    for slot in [1, 2, 1024].into_iter().filter_map(SlotIndex::new) {
        let about = ledger.slot(slot);
        let _ = (
            about.is_live(),
            about.pid(),
            about.own_pid(),
            about.n_unknown(),
        );
        let turns = about.turns();
        let _ = (turns.follows(), turns.answered(), turns.units_a_batch());
        for device in DeviceIndex::all() {
            let _ = ledger.reserve(slot, device, some, || Units::MAX);
            let _ = ledger.charge(SlotIndex::ARBITER, device, some);
            let _ = (ledger.settle(device), ledger.last_refusal(device));
            assert!(ledger.held(slot, device) <= Units::MAX);
            let _ = ledger.reclaim(slot, device);
        }
        let _ = (host.reserve(slot, some, || Units::MAX), host.settle());
        let _ = (host.total(), host.held(slot), host.reclaim(slot));
    }
}
