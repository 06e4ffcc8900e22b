//! A moment, as an argument: the engine has no clock of its own.
//!
//! The process hands in milliseconds since the Unix epoch, the simulator milliseconds since any
//! moment; decisions only compare moments and add to them.

use std::time::Duration;

/// Milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// `ms` milliseconds since the epoch.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Time {
        Time(ms)
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub const fn ms(self) -> u64 {
        self.0
    }

    /// The moment `ms` milliseconds later.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Time {
        Time(self.0.saturating_add(ms))
    }

    /// The moment after this pause, in whole milliseconds.
    #[must_use]
    pub fn plus(self, pause: Duration) -> Time {
        self.plus_ms(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX))
    }
}
