//! The bits of the words: packing and unpacking, and no more. `reserve` documents their meaning.
//! Any 64 bits are a word, so unpacking cannot fail.

use crate::units::{SlotIndex, UNIT_BITS, Units};

/// Bits of an operation's number in the head.
const HEAD_NUMBER_BITS: u32 = 19;

/// Bits of an operation's number in a slot's account.
const NUMBER_BITS: u32 = u64::BITS - UNIT_BITS;

/// The number of an operation of one slot, [`NUMBER_BITS`] wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number(pub(super) u32);

impl Number {
    pub(super) const MASK: u32 = (1 << NUMBER_BITS) - 1;

    /// From the high bits of the word *used*.
    pub(super) const fn of_word(word: u64) -> Number {
        Number((word >> (u64::BITS - NUMBER_BITS)) as u32)
    }

    pub(super) const fn in_word(self) -> u64 {
        (self.0 as u64) << (u64::BITS - NUMBER_BITS)
    }

    pub(super) const fn next(self) -> Number {
        Number(self.0.wrapping_add(1) & Number::MASK)
    }

    /// As much of it as the head has room for.
    pub(super) const fn in_head(self) -> u32 {
        self.0 & ((1 << HEAD_NUMBER_BITS) - 1)
    }
}

/// The head as it stands in its word. The slot is as found, which may be no slot at all.
pub(super) struct Head {
    pub(super) total: Units,
    pub(super) slot: u32,
    pub(super) number: u32,
}

impl Head {
    const SLOT_BITS: u32 = u64::BITS - UNIT_BITS - HEAD_NUMBER_BITS;

    pub(super) const fn of_word(word: u64) -> Head {
        Head {
            total: Units::of_word(word),
            slot: (word >> UNIT_BITS) as u32 & ((1 << Head::SLOT_BITS) - 1),
            number: (word >> (u64::BITS - HEAD_NUMBER_BITS)) as u32,
        }
    }

    pub(super) const fn word(total: Units, slot: SlotIndex, number: Number) -> u64 {
        total.count()
            | (slot.get() as u64) << UNIT_BITS
            | (number.in_head() as u64) << (u64::BITS - HEAD_NUMBER_BITS)
    }
}

const _: () = {
    assert!(crate::SLOTS < 1 << Head::SLOT_BITS);
};

/// Effect of an operation on an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    More(Units),
    Less(Units),
}

impl Change {
    const LESS_BIT: u64 = 1 << UNIT_BITS;

    pub(super) const fn of_word(word: u64) -> Change {
        let amount = Units::of_word(word);
        if word & Change::LESS_BIT == 0 {
            Change::More(amount)
        } else {
            Change::Less(amount)
        }
    }

    /// The word *op* that announces it.
    pub(super) const fn word(self) -> u64 {
        match self {
            Change::More(amount) => amount.count(),
            Change::Less(amount) => amount.count() | Change::LESS_BIT,
        }
    }

    /// The word *used* after operation `number` on one that is `before`. The bounds are met
    /// on a scribbled page only: honest accounts are never above the total, nor below zero.
    pub(super) const fn applied(self, before: u64, number: Number) -> u64 {
        let units = Units::of_word(before);
        let units = match self {
            Change::More(amount) => units.saturating_add(amount),
            Change::Less(amount) => units.saturating_sub(amount),
        };
        units.count() | number.in_word()
    }
}
