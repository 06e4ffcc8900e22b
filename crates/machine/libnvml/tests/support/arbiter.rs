//! The arbiter of these tests, and its grants on the cards of `library.c`.

use sublet_abi::Mode;
pub(crate) use sublet_fakearbiter::FakeArbiter;
use sublet_fakearbiter::{GrantedCard, TenantGrant};

/// A machine's card, as the library of the tests names it.
fn uuid(card: u8) -> [u8; 16] {
    let mut uuid = [0; 16];
    (uuid[3], uuid[15]) = (card, 0xc0 + card);
    uuid
}

/// MiB as bytes.
pub(crate) const fn mib(n: u64) -> u64 {
    n << 20
}

/// Starts one for a tenant with limits in MiB on some of the machine's cards; `shift` is added to
/// the numbers of processes.
pub(crate) fn granting(mode: Mode, limits: &[(u8, u64)], shift: u32) -> FakeArbiter {
    let cards = limits.iter().map(|&(card, limit)| GrantedCard {
        uuid: uuid(card),
        capacity_bytes: 16 << 30,
        limit_bytes: mib(limit),
    });
    FakeArbiter::start(&TenantGrant {
        mode,
        shift,
        ..TenantGrant::of(cards.collect())
    })
}
