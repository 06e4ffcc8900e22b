//! Lengths of turns, limits and pauses.

use std::time::Duration;

use sublet_model::SliceLength;

/// Rules of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnRules {
    /// Length of a turn while others wait.
    pub slice: Duration,
    /// No turn is given for less, and no job loses its turn sooner to one that wakes.
    pub shortest: Duration,
    /// Time of the figures for people.
    pub window: Duration,
    /// A job at its limit runs once in each time of this length. (Longer for a limit so low that
    /// this leaves less than the shortest turn.)
    pub period: Duration,
    /// A job that pauses keeps at most so much of its promise, in virtual time.
    pub credit: Duration,
    /// An opportunistic job's part of each window while guaranteed ones want it all.
    pub least: Duration,
    /// A pause as short as that does not end a turn.
    pub linger: Duration,
}

impl TurnRules {
    /// An arbiter that wakes so much later than it wanted to was stopped, or had no processor.
    /// Meanwhile gates stood as they were and then opened by themselves, so that nobody knows who
    /// had the cards.
    pub const OVERSLEPT: Duration = Duration::from_millis(250);

    /// The moment nearest to `at` at which turns end. Turns of several cards end at the same
    /// moments, so the arbiter wakes once for all. At most a quarter of a slice away.
    #[must_use]
    pub fn common_moment(&self, at: Duration) -> Duration {
        let apart = (self.slice / 2).as_nanos().max(1);
        let nth = (at.as_nanos() + apart / 2) / apart;
        u64::try_from(nth * apart).map_or(at, Duration::from_nanos)
    }
}

impl Default for TurnRules {
    /// Slices of 20 ms: long beside a switch (some ten microseconds) and too short for people and
    /// schedulers to notice. Half a percent for the opportunistic. A pause for a limit is no longer than
    /// a tenth of a second, with what a request of a millisecond runs over. A program that waits for a
    /// result is back within a fraction of a millisecond; to wait longer costs the card more than
    /// a switch. The credit is that of a mini-batch with half a second of the card.
    fn default() -> Self {
        Self {
            slice: SliceLength::LONGEST.time(),
            shortest: SliceLength::SHORTEST.time(),
            window: Duration::from_secs(1),
            period: Duration::from_millis(80),
            credit: Duration::from_millis(250),
            least: Duration::from_millis(5),
            linger: Duration::from_millis(1),
        }
    }
}
