//! Amounts of one card, as one value: what is asked of it, taken from it and left on it.
//!
//! All that counts cards adds, subtracts and compares [`Part`]s, so that a further amount is a
//! field here and nothing else.

use std::fmt;

use crate::{MiB, Milli};

/// An amount of one card, or of what is left of one. It has no order: of two parts one may have
/// more memory and the other more compute time ([`Part::fits_in`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Part {
    /// Device memory.
    pub memory: MiB,
    /// Compute time that is promised, in thousandths of the card. What asks none may still
    /// run: it gets what others leave.
    pub compute: Milli,
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
        }
    }

    /// All of a card with so much memory.
    #[must_use]
    pub const fn whole(memory: MiB) -> Part {
        Part {
            memory,
            compute: Milli::WHOLE,
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
        }
    }

    /// What is left after taking `other`; nothing of an amount of which there is less.
    #[must_use]
    pub const fn saturating_sub(self, other: Part) -> Part {
        Part {
            memory: self.memory.saturating_sub(other.memory),
            compute: self.compute.saturating_sub(other.compute),
        }
    }

    /// Is there as much of everything in `room`?
    #[must_use]
    pub fn fits_in(self, room: Part) -> bool {
        self.memory <= room.memory && self.compute <= room.compute
    }

    /// What is left after taking `other`, or `None` if there is less of anything.
    #[must_use]
    pub fn checked_sub(self, other: Part) -> Option<Part> {
        other.fits_in(self).then(|| self.saturating_sub(other))
    }

    /// The larger of each amount: what suffices for either.
    #[must_use]
    pub fn or(self, other: Part) -> Part {
        Part {
            memory: self.memory.max(other.memory),
            compute: self.compute.max(other.compute),
        }
    }

    /// The share of a card of that size that it takes: the larger of its shares of memory and
    /// compute. Rounded up, so that shares never add up to less than they take.
    #[must_use]
    pub fn share_of(self, capacity: MiB) -> Milli {
        Milli::share_up(self.memory, capacity).max(self.compute)
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
        self.memory.fmt(f)?;
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
            memory: MiB::from(memory),
            compute: Milli::new(compute).unwrap(),
        }
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
