//! Random numbers from a seed, so that a run can be repeated. For tests, never for secrets.

/// SplitMix64, by Steele, Lea and Flood: random enough for a test, and the same on every machine.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
