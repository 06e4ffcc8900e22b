//! Memory figures: one answer for every caller.
//!
//! `cuMemGetInfo`, `cuDeviceTotalMem` and NVML are asked by the same program, which compares
//! (vLLM does): so each of them asks here. Nothing is subtracted that could go below zero.

use sublet_abi::{ControlPage, DeviceIndex, LedgerPage};

use crate::link::Link;

/// A device's memory as its tenant sees it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The tenant's limit, or the card if that is smaller.
    pub total: u64,
    /// Memory of all processes of the tenant, and memory found outside their accounts.
    pub used: u64,
    /// Memory that the tenant can still take.
    pub free: u64,
}

/// A device's memory now.
#[must_use]
pub fn memory(link: &Link, device: DeviceIndex) -> Memory {
    on_pages(link.control(), link.ledger(), device)
}

/// The same, for a reader of the pages that has no slot: NVML.
#[must_use]
pub fn on_pages(control: &ControlPage, ledger: &LedgerPage, device: DeviceIndex) -> Memory {
    let entry = control.device(device);
    let total = match entry.capacity_bytes() {
        0 => entry.limit_bytes(),
        capacity => entry.limit_bytes().min(capacity),
    };
    of_amounts(total, ledger.total(device).bytes())
}

/// A device that is not the tenant's has no memory.
pub const NONE: Memory = Memory {
    total: 0,
    used: 0,
    free: 0,
};

/// A limit lowered below the use shows as full, not as more than full: programs compute
/// `total - used` themselves.
fn of_amounts(total: u64, taken: u64) -> Memory {
    let used = taken.min(total);
    Memory {
        total,
        used,
        free: total - used,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_numbers_always_add_up() {
        for (total, taken, used, free) in [
            (1000, 0, 0, 1000),
            (1000, 400, 400, 600),
            (1000, 1000, 1000, 0),
            (1000, 1400, 1000, 0),
            (0, 5, 0, 0),
            (u64::MAX, u64::MAX, u64::MAX, 0),
        ] {
            let expected = Memory { total, used, free };
            assert_eq!(of_amounts(total, taken), expected);
        }
    }
}
