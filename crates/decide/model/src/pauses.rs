//! The pauses between tries of an act that fails: each is twice the last, up to a longest.
//!
//! One rule for all loops of all processes. It counts nothing and knows no chance: both are arguments.

use std::time::Duration;

/// Pauses that grow with failures in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    first: Duration,
    longest: Duration,
}

impl Pauses {
    /// From the pause after the first failure to the longest.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Pauses {
        Pauses { first, longest }
    }

    /// The pause after so many failures in a row, the last included; none after none.
    #[must_use]
    pub fn after(self, failures: u32) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        let factor = 1_u32.checked_shl(doublings);
        let pause = factor.and_then(|factor| self.first.checked_mul(factor));
        pause.map_or(self.longest, |pause| pause.min(self.longest))
    }

    /// The same for one of many that fail together: `chance`, which is any number, takes away up to
    /// a quarter of it.
    #[must_use]
    pub fn scattered(self, failures: u32, chance: u64) -> Duration {
        let pause = self.after(failures);
        let parts = u32::try_from(chance % 257).unwrap_or(0);
        pause - pause / 1_024 * parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest() {
        let pauses = Pauses::new(Duration::from_millis(200), Duration::from_secs(30));
        let seconds = |failures| pauses.after(failures).as_secs_f64();
        let some = [0, 1, 2, 3, 8, 9, 31, 32, 33, 34, u32::MAX].map(seconds);
        let longest = 30.0;
        let grown = [0.0, 0.2, 0.4, 0.8, 25.6];
        assert_eq!(some[..5], grown);
        assert_eq!(some[5..], [longest; 6]);
        let short = Pauses::new(Duration::from_secs(9), Duration::from_secs(5));
        assert_eq!(short.after(1), Duration::from_secs(5));
        let none = Pauses::new(Duration::ZERO, Duration::from_secs(5));
        assert_eq!(none.after(7), Duration::ZERO);
    }

    #[test]
    fn chance_leaves_out_a_quarter_at_most() {
        let pauses = Pauses::new(Duration::from_millis(1_024), Duration::from_secs(60));
        let all: Vec<_> = (0..257).map(|chance| pauses.scattered(1, chance)).collect();
        assert_eq!(all[0], pauses.after(1));
        assert_eq!(all[256], Duration::from_millis(768));
        assert!(all.is_sorted_by(|one, next| one > next));
        assert!(pauses.scattered(3, u64::MAX) >= pauses.after(3) * 3 / 4);
    }
}
