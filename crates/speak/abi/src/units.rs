//! The unit of accounting, and the checked numbers of slots and devices.
//!
//! An amount, a slot and a device are all small integers, and the words of the ledger have
//! room for so many bits of each and no more. The types here make sure of that once, so
//! nothing after them checks again.

/// Devices in one tenant's pages. Sixteen is the most that one NVLink domain within a single
/// machine has today.
pub const MAX_DEVICES: usize = 16;

/// Processes of one tenant at one time, slots 1 to `SLOTS`. Slot 0 is the arbiter's.
pub const SLOTS: usize = 1024;

/// A device's UUID as the driver gives it (`cuDeviceGetUuid_v2`), without the text form.
/// All zero stands for no device.
pub type Uuid = [u8; 16];

/// Bytes in one unit. The driver hands out `cuMemAlloc` memory in steps of 512 bytes, so no
/// allocation is charged more than it takes, and 34 bits of units reach 8 TiB.
pub const UNIT_BYTES: u64 = 512;

/// Bits of an amount in a word of the ledger.
pub(crate) const UNIT_BITS: u32 = 34;

/// An amount of device memory in units of [`UNIT_BYTES`], at most [`Units::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Units(u64);

impl Units {
    /// Nothing.
    pub const ZERO: Units = Units(0);
    /// The largest amount a word of the ledger holds: one unit less than 8 TiB.
    pub const MAX: Units = Units((1 << UNIT_BITS) - 1);

    /// Returns the charge of `bytes` of memory: rounded up, so that the charge is never below the
    /// use. `None` above [`Units::MAX`]: no card has so much.
    #[must_use]
    pub const fn taken_by(bytes: u64) -> Option<Units> {
        Units::new(bytes.div_ceil(UNIT_BYTES))
    }

    /// Returns the units that a limit of `bytes` allows: rounded down, so that the limit is never
    /// passed, and [`Units::MAX`] for a limit above that.
    #[must_use]
    pub const fn allowed_by(bytes: u64) -> Units {
        match Units::new(bytes / UNIT_BYTES) {
            Some(units) => units,
            None => Units::MAX,
        }
    }

    /// `count` units, or `None` above [`Units::MAX`].
    #[must_use]
    pub const fn new(count: u64) -> Option<Units> {
        if count <= Units::MAX.0 {
            Some(Units(count))
        } else {
            None
        }
    }

    /// The low bits of a word of the ledger, whatever it holds.
    pub(crate) const fn of_word(word: u64) -> Units {
        Units(word & Units::MAX.0)
    }

    /// The number of units.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.0
    }

    /// The same in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0 * UNIT_BYTES // below 2^43
    }

    /// The sum, or `None` above [`Units::MAX`].
    #[must_use]
    pub const fn checked_add(self, more: Units) -> Option<Units> {
        Units::new(self.0 + more.0)
    }

    /// Returns the rest without `less`, or `None` if there is not that much.
    #[must_use]
    pub const fn checked_sub(self, less: Units) -> Option<Units> {
        match self.0.checked_sub(less.0) {
            Some(rest) => Some(Units(rest)),
            None => None,
        }
    }

    /// The sum, at most [`Units::MAX`].
    #[must_use]
    pub const fn saturating_add(self, more: Units) -> Units {
        match self.checked_add(more) {
            Some(sum) => sum,
            None => Units::MAX,
        }
    }

    /// Returns the rest without `less`, at least zero.
    #[must_use]
    pub const fn saturating_sub(self, less: Units) -> Units {
        Units(self.0.saturating_sub(less.0))
    }
}

/// The number of a process slot: 0 is the arbiter's, 1 to [`SLOTS`] are for processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIndex(u16);

impl SlotIndex {
    /// The arbiter's own slot: overhead that belongs to no process's account.
    pub const ARBITER: SlotIndex = SlotIndex(0);

    /// Slot `index`, the arbiter's included, or `None` if there is no such slot.
    #[must_use]
    pub const fn new(index: u32) -> Option<SlotIndex> {
        if index as usize <= SLOTS {
            Some(SlotIndex(index as u16))
        } else {
            None
        }
    }

    /// Slot `index` if it is one for processes.
    #[must_use]
    pub const fn of_process(index: u32) -> Option<SlotIndex> {
        if index == 0 {
            None
        } else {
            SlotIndex::new(index)
        }
    }

    /// The number, at most [`SLOTS`].
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0 as u32
    }

    /// The number as a place in an array of `SLOTS + 1`.
    #[must_use]
    pub const fn place(self) -> usize {
        self.0 as usize
    }

    /// All slots for processes, lowest first.
    pub fn processes() -> impl Iterator<Item = SlotIndex> {
        (1..=SLOTS as u16).map(SlotIndex)
    }
}

/// The number of a device in a tenant's pages, 0 to [`MAX_DEVICES`] − 1. It is the place in
/// the control page, not the number that the driver or NVML gives the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(u8);

impl DeviceIndex {
    /// Device `index`, or `None` if there is no such place.
    #[must_use]
    pub const fn new(index: u32) -> Option<DeviceIndex> {
        if (index as usize) < MAX_DEVICES {
            Some(DeviceIndex(index as u8))
        } else {
            None
        }
    }

    /// The number, below [`MAX_DEVICES`].
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0 as u32
    }

    /// The number as a place in an array of [`MAX_DEVICES`].
    #[must_use]
    pub const fn place(self) -> usize {
        self.0 as usize
    }

    /// All places for devices, lowest first.
    pub fn all() -> impl Iterator<Item = DeviceIndex> {
        (0..MAX_DEVICES as u8).map(DeviceIndex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_rounds_up_and_limits_round_down() {
        // bytes, units taken, units allowed
        for (bytes, taken, allowed) in [
            (0, 0, 0),
            (1, 1, 0),
            (511, 1, 0),
            (512, 1, 1),
            (513, 2, 1),
            (16 << 30, 32 << 20, 32 << 20),
        ] {
            assert_eq!(Units::taken_by(bytes).map(Units::count), Some(taken));
            assert_eq!(Units::allowed_by(bytes).count(), allowed);
        }
        let most = Units::MAX.bytes();
        assert_eq!(Units::taken_by(most), Some(Units::MAX));
        assert_eq!(Units::taken_by(most + 1), None);
        assert_eq!(Units::taken_by(u64::MAX), None);
        assert_eq!(Units::allowed_by(u64::MAX), Units::MAX);
    }

    #[test]
    fn sums_and_rests_end_at_the_bounds() {
        let one = Units(1);
        assert_eq!(Units::MAX.checked_add(one), None);
        assert_eq!(Units::MAX.saturating_add(one), Units::MAX);
        assert_eq!(Units::ZERO.checked_sub(one), None);
        assert_eq!(Units::ZERO.saturating_sub(one), Units::ZERO);
        assert_eq!(Units(3).checked_sub(one), Some(Units(2)));
    }

    #[test]
    fn there_is_no_slot_or_device_beyond_the_last() {
        assert_eq!(SlotIndex::new(0), Some(SlotIndex::ARBITER));
        assert_eq!(SlotIndex::of_process(0), None);
        assert_eq!(
            SlotIndex::new(SLOTS as u32).map(SlotIndex::place),
            Some(SLOTS)
        );
        assert_eq!(SlotIndex::new(SLOTS as u32 + 1), None);
        assert_eq!(SlotIndex::new(65536), None);
        assert_eq!(SlotIndex::processes().count(), SLOTS);
        assert_eq!(DeviceIndex::new(15).map(DeviceIndex::place), Some(15));
        assert_eq!(DeviceIndex::new(16), None);
        assert_eq!(DeviceIndex::new(256), None);
        assert_eq!(DeviceIndex::all().count(), MAX_DEVICES);
    }
}
