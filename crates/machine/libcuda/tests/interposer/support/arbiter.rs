//! The arbiter of these tests, and its grants on the cards of `driver.c`.

use sublet_abi::Packing;
use sublet_fakearbiter::GrantedCard;
pub(crate) use sublet_fakearbiter::{FakeArbiter, TenantGrant, device};

/// `driver.c` gives bytes in steps of 512, shares nothing, and grows pools by 4 MiB.
const PACKING: Packing = Packing {
    block: 512,
    small: 0,
    piece: 512,
    kept: 0,
    pool: 4 << 20,
};

/// Cards by number with limits in bytes; contexts cost nothing, compat.
pub(crate) fn grant(limits: &[(u8, u64)]) -> TenantGrant {
    let cards = limits.iter().map(|&(card, limit_bytes)| GrantedCard {
        uuid: [0xa0 + card; 16],
        capacity_bytes: 64 << 30,
        limit_bytes,
    });
    TenantGrant {
        packing: Some(PACKING),
        ..TenantGrant::of(cards.collect())
    }
}
