//! Threads that launch, threads that wait for room in a queue, and how long and how often they ask.
//! Pure but for a counter.

use std::sync::atomic::{AtomicU32, Ordering};

/// The number of threads that launch is that of such a piece of time: about a second.
const PIECE_SHIFT: u32 = 30;

/// After so long without a mark that is reached, one launch goes. The next time it is twice as
/// long, until a mark is reached.
const PATIENCE_NS: u64 = 1_000_000_000;

/// No longer than that.
const MOST_PATIENCE_NS: u64 = 8 * PATIENCE_NS;

/// Shortest and longest time between two questions for the marks of a card. A thread sleeps some
/// fifty microseconds longer than it wants.
const PAUSE_NS: [u64; 2] = [50_000, 2_000_000];

/// Threads that launch: those of this piece of time or the last one, whichever are more.
#[derive(Debug, Default)]
pub struct Threads {
    piece: u32,
    n_now: u32,
    n_before: u32,
}

impl Threads {
    /// Returns the number of a piece of time. It is never zero, which stands for a thread that has
    /// made no mark.
    #[must_use]
    pub fn piece(now_ns: u64) -> u32 {
        (now_ns >> PIECE_SHIFT) as u32 | 1 << 31
    }

    /// A thread made a mark, its first in this piece of time or not. Returns the number of threads.
    pub fn saw(&mut self, piece: u32, is_new: bool) -> u32 {
        if self.piece != piece {
            let is_next = piece.wrapping_sub(self.piece) == 1;
            self.n_before = if is_next { self.n_now } else { 0 };
            self.n_now = 0;
            self.piece = piece;
        }
        self.n_now += u32::from(is_new);
        self.n_now.max(self.n_before).max(1)
    }
}

/// A thread waits for room until this is dropped.
#[derive(Debug)]
pub struct CountedWaiter<'a>(&'a AtomicU32);

impl<'a> CountedWaiter<'a> {
    /// Counts the thread.
    #[must_use]
    pub fn begin(n_waiting: &'a AtomicU32) -> Self {
        n_waiting.fetch_add(1, Ordering::AcqRel);
        Self(n_waiting)
    }
}

impl Drop for CountedWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Time since a queue moved, and the time after which one launch goes though it did not.
#[derive(Debug, Default)]
pub struct Patience {
    moved_ns: u64,
    patience_ns: u64,
}

impl Patience {
    /// A mark was found reached, or the queue began.
    pub fn moved(&mut self, now: u64) {
        self.moved_ns = now;
        self.patience_ns = 0;
    }

    /// True if no mark was reached for too long. Then there is patience again, and more.
    pub fn is_over(&mut self, now: u64) -> bool {
        let patience_ns = self.patience_ns.clamp(PATIENCE_NS, MOST_PATIENCE_NS);
        let is_over = now.saturating_sub(self.moved_ns) > patience_ns;
        if is_over {
            self.moved_ns = now;
            self.patience_ns = patience_ns.saturating_mul(2);
        }
        is_over
    }

    /// Returns the time until the next question for the marks, where so much must end before there
    /// is room: half of the expected time, and then more and more seldom.
    #[must_use]
    pub fn pause_ns(&self, excess_ns: u64, now: u64) -> u64 {
        let passed_ns = now.saturating_sub(self.moved_ns);
        let [shortest, longest] = PAUSE_NS;
        let least = (passed_ns / 64).clamp(shortest, longest);
        let rest_ns = excess_ns.saturating_sub(passed_ns);
        (rest_ns / 2).clamp(least, longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_count_for_this_second_and_the_next() {
        let mut threads = Threads::default();
        for (piece, is_new, expected) in [
            (7, true, 1),
            (7, true, 2),
            (7, false, 2),
            (8, true, 2),
            (8, true, 2),
            (8, true, 3),
            (9, false, 3),
            (20, false, 1),
        ] {
            assert_eq!(threads.saw(piece, is_new), expected, "{piece}");
        }
        assert_ne!(Threads::piece(0), 0);
    }

    #[test]
    fn a_thread_that_waits_asks_when_it_expects_room_and_then_seldom() {
        const MS: u64 = 1_000_000;
        let patience = Patience::default();
        for (now, pause_ns) in [
            (0, 2 * MS),
            (6 * MS, MS),
            (8 * MS, 8 * MS / 64),
            (20 * MS, 20 * MS / 64),
            (1000 * MS, 2 * MS),
        ] {
            let [pause, expected] = [patience.pause_ns(8 * MS, now), pause_ns].map(|ns| ns / 1000);
            assert_eq!(pause, expected, "{now}");
        }
    }

    #[test]
    fn one_launch_goes_where_nothing_ends_for_a_long_time() {
        let mut patience = Patience::default();
        let second = PATIENCE_NS + 1;
        let gone = (1..60).filter(|n| patience.is_over(n * second));
        assert_eq!(gone.collect::<Vec<_>>(), [1, 3, 7, 15, 23, 31, 39, 47, 55]);
        patience.moved(60 * second);
        assert!(!patience.is_over(61 * second - 1) && patience.is_over(61 * second));
    }
}
