//! The protocol on words that somebody writes nonsense to, at every moment.
//!
//! A tenant has the ledger mapped writable. Whatever and whenever it writes, the arbiter's calls
//! come to an end, do not panic and touch no slot that is not there. Their answers are then of no
//! value, and no test checks them.

use std::cell::Cell;

use proptest::prelude::*;

use super::rig::{amount, slot};
use super::{
    ATTEMPTS, Accounts, Contended, Word, charge, held, reclaim, release, reserve, settle, total,
};
use crate::units::{SlotIndex, Units};

/// A word that is different each time it is looked at.
struct Restless {
    state: Cell<u64>,
    n_accesses: Cell<u64>,
    scribble: fn(u64) -> u64,
    /// Number of swaps, of 256, that succeed.
    luck: u8,
}

impl Restless {
    fn next(&self) -> u64 {
        self.n_accesses.set(self.n_accesses.get() + 1);
        // Marsaglia's xorshift: fast, and never at rest.
        let mut state = self.state.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.state.set(state);
        state
    }
}

impl Word for Restless {
    fn load(&self) -> u64 {
        (self.scribble)(self.next())
    }

    fn store(&self, _: u64) {
        self.next();
    }

    fn compare_exchange(&self, current: u64, _: u64) -> Result<u64, u64> {
        let chance = self.next();
        if (chance >> 56) < u64::from(self.luck) {
            Ok(current)
        } else {
            Err((self.scribble)(chance))
        }
    }
}

/// All words of the page are one restless word; slots that were asked for are noted.
struct RestlessAccounts {
    word: Restless,
}

impl Accounts for RestlessAccounts {
    type Word = Restless;

    fn head(&self) -> &Restless {
        &self.word
    }

    fn op(&self, slot: SlotIndex) -> &Restless {
        assert!(slot.place() <= crate::SLOTS);
        &self.word
    }

    fn used(&self, slot: SlotIndex) -> &Restless {
        assert!(slot.place() <= crate::SLOTS);
        &self.word
    }
}

/// The bits of *used* below the number.
const LOW: u64 = (1 << 34) - 1;

/// Ways to write nonsense: at random, all zero, all one, and with two successive numbers, so that
/// there is often somebody to help.
const SCRIBBLES: [fn(u64) -> u64; 4] = [
    |random| random,
    |_| 0,
    |_| u64::MAX,
    |random| (random & LOW) | if random >> 63 == 0 { 0 } else { !LOW },
];

fn accounts(seed: u64, scribble: fn(u64) -> u64, luck: u8) -> RestlessAccounts {
    RestlessAccounts {
        word: Restless {
            state: Cell::new(seed.max(1)),
            n_accesses: Cell::new(0),
            scribble,
            luck,
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_call_ends_whatever_is_read(
        seed: u64,
        kind in 0..SCRIBBLES.len(),
        luck in 1..=u8::MAX,
        index in 0..=crate::SLOTS as u32,
        units in 0..=Units::MAX.count(),
        limit in 0..=Units::MAX.count(),
    ) {
        let accounts = accounts(seed, SCRIBBLES[kind], luck);
        let (slot, units) = (slot(index), amount(units));
        let _ = reserve(&accounts, slot, units, || amount(limit));
        let _ = release(&accounts, slot, units);
        let _ = charge(&accounts, slot, units);
        let _ = settle(&accounts);
        let _ = reclaim(&accounts, slot);
        prop_assert!(total(&accounts) <= Units::MAX);
        prop_assert!(held(&accounts, slot) <= Units::MAX);
        let most = 5 * (u64::from(ATTEMPTS) * 5 + 8);
        prop_assert!(accounts.word.n_accesses.get() <= most);
    }
}

#[test]
fn who_is_always_outrun_gives_up() {
    for scribble in SCRIBBLES {
        let accounts = accounts(7, scribble, 0);
        assert_eq!(settle(&accounts), Err(Contended));
        let n_accesses = accounts.word.n_accesses.get();
        assert!(n_accesses >= u64::from(ATTEMPTS), "{n_accesses}");
        assert!(n_accesses <= u64::from(ATTEMPTS) * 5 + 8, "{n_accesses}");
    }
}
