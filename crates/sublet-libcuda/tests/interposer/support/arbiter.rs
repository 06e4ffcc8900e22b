//! The arbiter of these tests, and what it grants on the cards of `driver.c`.

use sublet_fakearbiter::Card;
pub(crate) use sublet_fakearbiter::{Arbiter, Grant, device};

/// Cards by number with limits in bytes; contexts cost nothing, compat.
pub(crate) fn grant(limits: &[(u8, u64)]) -> Grant {
    let cards = limits.iter().map(|&(card, limit_bytes)| Card {
        uuid: [0xa0 + card; 16],
        capacity_bytes: 64 << 30,
        limit_bytes,
    });
    Grant::of(cards.collect())
}
