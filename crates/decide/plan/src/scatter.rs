//! Numbers drawn from names. They look random, but are the same in every process and on every
//! machine.

/// A 63-bit number, drawn from a text and a number.
///
/// FNV-1a, then the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), because the high
/// bits of FNV change little.
pub(crate) fn scatter(text: impl Iterator<Item = u8>, number: u64) -> u64 {
    let mut hash = text.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^= number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ (hash >> 31)) >> 1
}
