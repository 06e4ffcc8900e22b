//! Random numbers that are the same in every run with the same seed. Nothing here reads a clock.

/// A source of random numbers: SplitMix64, by Sebastiano Vigna.
#[derive(Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// The time until the next of events that come by themselves, `mean` seconds apart on average
    /// (a Poisson process): exponentially distributed.
    pub(crate) fn gap(&mut self, mean: f64) -> f64 {
        // The upper 53 bits, as many as a float has: from 0 to just below 1.
        let part = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        -(1.0 - part).ln() * mean
    }
}

#[cfg(test)]
mod tests {
    use super::Chance;

    #[test]
    fn gaps_have_their_mean_and_are_the_same_for_a_seed() {
        let gaps = |seed| -> Vec<f64> {
            let mut chance = Chance::new(seed);
            (0..10_000).map(|_| chance.gap(0.01)).collect()
        };
        let some = gaps(7);
        assert!(some.iter().all(|gap| gap.is_finite() && *gap >= 0.0));
        let mean = some.iter().sum::<f64>() / some.len() as f64;
        assert!((mean - 0.01).abs() < 0.0005, "{mean}");
        // Exponential: 1 of e is longer than the mean.
        let longer = some.iter().filter(|gap| **gap > 0.01).count();
        assert!((3500..3860).contains(&longer), "{longer}");
        assert_eq!(some, gaps(7));
        assert_ne!(some, gaps(8));
    }
}
