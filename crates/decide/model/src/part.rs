//! Amounts of one card, as one value: asked of it, taken from it, or left on it.
//!
//! All that counts cards adds, subtracts and compares [`Part`]s, so that a further amount is a
//! field here and nothing else.
//!
//! Some users ask for a share of a card's memory, whichever card it is. Such a part becomes an
//! amount when a card is looked at ([`Part::on`]). Accounts hold amounts only, so a share that
//! nobody turned into an amount fits nowhere.

use std::fmt;

use crate::{MiB, Milli};

/// An amount of one card, or of the rest of one. It has no order: of two parts one may have more
/// memory and the other more compute time ([`Part::fits_in`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Part {
    /// Device memory.
    pub memory: MiB,
    /// Compute time that is promised, in thousandths of the card. A pod that asks for none may
    /// still run: it gets the time that others leave.
    pub compute: Milli,
    /// Memory that is asked as a share of the card's, beside [`Part::memory`]; zero in accounts.
    pub memory_share: Milli,
}

impl Part {
    /// Nothing of a card.
    pub const ZERO: Part = Part::of_memory(MiB::ZERO);

    /// So much memory, and no promise of compute time.
    #[must_use]
    pub const fn of_memory(memory: MiB) -> Part {
        Part {
            memory,
            compute: Milli::ZERO,
            memory_share: Milli::ZERO,
        }
    }

    /// All of a card with so much memory.
    #[must_use]
    pub const fn whole(memory: MiB) -> Part {
        Part {
            compute: Milli::WHOLE,
            ..Part::of_memory(memory)
        }
    }

    /// The amount in figures on a card with so much memory, with no share left in it. A share is
    /// rounded down, so that shares which are a card together fit on it.
    #[must_use]
    pub const fn on(self, card: MiB) -> Part {
        if self.memory_share.get() == 0 {
            return self;
        }
        Part {
            memory: self.memory.plus(card.share_of(self.memory_share)),
            compute: self.compute,
            memory_share: Milli::ZERO,
        }
    }

    /// True for nothing at all.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Part::ZERO
    }

    /// The sum: of compute time it may be more than a card has, where somebody else bound pods.
    #[must_use]
    pub const fn plus(self, other: Part) -> Part {
        Part {
            memory: self.memory.plus(other.memory),
            compute: self.compute.plus(other.compute),
            memory_share: self.memory_share.plus(other.memory_share),
        }
    }

    /// The amount left after taking `other`; zero for each figure of which there is less.
    #[must_use]
    pub const fn saturating_sub(self, other: Part) -> Part {
        Part {
            memory: self.memory.saturating_sub(other.memory),
            compute: self.compute.saturating_sub(other.compute),
            memory_share: self.memory_share.saturating_sub(other.memory_share),
        }
    }

    /// Is there as much of everything in `room`?
    #[must_use]
    pub fn fits_in(self, room: Part) -> bool {
        self.memory <= room.memory
            && self.compute <= room.compute
            && self.memory_share <= room.memory_share
    }

    /// The amount left after taking `other`, or `None` if there is less of anything.
    #[must_use]
    pub fn checked_sub(self, other: Part) -> Option<Part> {
        other.fits_in(self).then(|| self.saturating_sub(other))
    }

    /// The larger of each amount: it suffices for either.
    #[must_use]
    pub fn or(self, other: Part) -> Part {
        Part {
            memory: self.memory.max(other.memory),
            compute: self.compute.max(other.compute),
            memory_share: self.memory_share.max(other.memory_share),
        }
    }

    /// The share of a card of that size that it takes: the larger of its shares of memory and
    /// compute. Rounded up, so that shares never add up to less than they take.
    #[must_use]
    pub fn share_of(self, capacity: MiB) -> Milli {
        let memory = Milli::share_up(self.memory, capacity).plus(self.memory_share);
        memory.min(Milli::WHOLE).max(self.compute)
    }

    /// The share of a card of that size that can still be asked, if this is left of it: the
    /// smaller of its shares of memory and compute, rounded down.
    #[must_use]
    pub fn share_left_of(self, capacity: MiB) -> Milli {
        if self.memory.is_zero() {
            return Milli::ZERO;
        }
        Milli::share(self.memory, capacity).min(self.compute)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.memory_share == Milli::ZERO {
            self.memory.fmt(f)?;
        } else if self.memory.is_zero() {
            write!(f, "{} of its memory", self.memory_share)?;
        } else {
            write!(f, "{} and {} of its memory", self.memory, self.memory_share)?;
        }
        if self.compute == Milli::ZERO {
            return Ok(());
        }
        write!(f, " and {} of compute time", self.compute)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(memory: u32, compute: u16) -> Part {
        Part {
            compute: Milli::new(compute).unwrap(),
            ..Part::of_memory(MiB::from(memory))
        }
    }

    fn share(milli: u16) -> Part {
        Part {
            memory_share: Milli::new(milli).unwrap(),
            ..Part::ZERO
        }
    }

    #[test]
    fn a_share_becomes_an_amount_of_the_card_that_is_looked_at() {
        let half = share(500);
        assert_eq!(half.on(MiB::from(81)), part(40, 0), "rounded down");
        assert_eq!(half.share_of(MiB::from(81)).get(), 500);
        assert_eq!(part(3, 200).plus(half).on(MiB::from(80)), part(43, 200));
        assert_eq!(half.to_string(), "50 % of its memory");
        // Nobody has said of which card: it is on none.
        assert!(!half.fits_in(part(u32::MAX, 1000)));
    }

    #[test]
    fn a_share_is_the_larger_one_and_what_is_left_the_smaller_one() {
        let card = MiB::from(100);
        assert_eq!(part(30, 200).share_of(card).get(), 300);
        assert_eq!(part(30, 400).share_of(card).get(), 400);
        assert_eq!(part(30, 400).share_left_of(card).get(), 300);
        assert_eq!(part(0, 400).share_left_of(card), Milli::ZERO);
        assert_eq!(part(100, 0).share_left_of(card), Milli::ZERO);
    }

    #[test]
    fn it_is_written_as_far_as_it_says_something() {
        assert_eq!(part(30, 0).to_string(), "30 MiB");
        assert_eq!(part(30, 250).to_string(), "30 MiB and 25 % of compute time");
        assert_eq!(part(1, 125).to_string(), "1 MiB and 12.5 % of compute time");
    }

    proptest! {
        #[test]
        fn shares_of_a_card_never_add_up_to_more_than_it(
            card in 0..=u32::MAX, cuts in proptest::collection::vec(1..=1000u16, 1..9),
        ) {
            let all: u64 = cuts.iter().map(|cut| u64::from(*cut)).sum();
            let card = MiB::from(card);
            let taken: MiB = cuts
                .iter()
                .map(|cut| share((u64::from(*cut) * 1000 / all) as u16).on(card).memory)
                .sum();
            prop_assert!(taken <= card);
        }

        #[test]
        fn what_fits_can_be_taken_and_given_back(
            room in (0..100u32, 0..=1000u16), asked in (0..100u32, 0..=1000u16),
        ) {
            let (room, asked) = (part(room.0, room.1), part(asked.0, asked.1));
            prop_assert_eq!(room.checked_sub(asked).is_some(), asked.fits_in(room));
            if let Some(left) = room.checked_sub(asked) {
                prop_assert_eq!(left.plus(asked), room);
            }
            prop_assert!(asked.fits_in(asked.or(room)) && room.fits_in(asked.or(room)));
        }
    }
}
