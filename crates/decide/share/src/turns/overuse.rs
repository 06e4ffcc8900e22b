//! Finds use of a card that turns do not explain, by the driver's own figures.
//!
//! A job says itself when it works, on a page that it can write as it likes. The driver gives
//! each process's use of a card, in whole percent, late by up to a second. So a figure is compared
//! with the turns of its own second and of the two before ([`Unmeasured`]), and rounding is in
//! the job's favor.
//!
//! *Unexplained* use is beyond all time at work in turns. A little of it is no lie: a request that
//! nobody heard of, a figure of an odd second. When it comes to [`CHARGED_FROM`] within a hundred
//! seconds, all of it is charged, and what follows at once. The job's own gate collects that: it
//! opens later. Where the gate is closed and the driver sees the job at work all the same, nothing
//! can be collected ([`OveruseWatch::is_out_of_turn`]).
//!
//! Within its time at work a job may have had more of the card than turns say: where turns
//! overlap, how they split the time is a guess. That is nobody's fault, and is not charged: the
//! figures are too late and too coarse to set right what changes with each turn.

use std::collections::VecDeque;
use std::time::Duration;

/// Unexplained use of the card that is charged: more than a figure that is a second late, on a card
/// that was used wholly, can be wrong by.
const CHARGED_FROM: Duration = Duration::from_millis(1500);

/// Unexplained use counts for the time of this number of buckets, a hundred seconds.
const BUCKETS: usize = 10;

/// Length of a bucket.
const BUCKET: Duration = Duration::from_secs(10);

/// A reading of a longer time is of one that nobody looked at. With one a second, the driver's last
/// sample is no measure of it.
const LONGEST_SPAN: Duration = Duration::from_millis(2500);

/// Readings that people are told of, and that must be clean before a job is believed again.
const READINGS: usize = 8;

/// They are clean with less than this part of the time unexplained, in percent.
const CLEAN: u32 = 5;

/// Latest time by which the driver's figures are of the present.
const LATENESS: Duration = Duration::from_secs(1);

/// Work at a closed gate for that long is no kernel that runs on after its turn: the gate does not
/// hold the job.
const OUT_OF_TURN: Duration = Duration::from_secs(20);

/// One reading of the driver, of a job on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BusyReading {
    /// Since the reading before.
    pub span: Duration,
    /// Part of it that the arbiter slept through: no one knows whose turn it was.
    pub slept: Duration,
    /// For how long of it the driver saw the job's processes at work, added up.
    pub measured: Duration,
    /// Number of these processes.
    pub n_processes: u32,
    /// For how long of it the job was at work in its turns, alone or beside others.
    pub worked: Duration,
    /// The card's time that it had of that by its turns.
    pub had: Duration,
    /// For how long its gate has been closed now, without a break.
    pub closed_for: Duration,
}

impl BusyReading {
    /// Rounding of a process's figure, in thousandths of the time: the driver says whole percent.
    pub const ROUNDING: u32 = 5;

    /// For how long the driver's figures may be rounded up.
    fn rounding(&self) -> Duration {
        self.span * self.n_processes.saturating_mul(Self::ROUNDING) / 1000
    }

    /// Time that cannot be held against the job.
    fn excused(&self) -> Duration {
        match self.span > LONGEST_SPAN {
            true => self.span,
            false => self.slept.min(self.span),
        }
    }
}

/// Result of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overuse {
    /// The job contradicts the driver, since this reading.
    pub is_news: bool,
    /// It works though its gate is closed, since this reading.
    pub is_out_of_turn: bool,
    /// Time to charge to the job beyond its turns.
    pub charge: Duration,
    /// Time of the card that the job used beyond what it had by its turns.
    pub beyond: Duration,
}

/// Time of turns that no figure of the driver has come for yet, of the last two readings. Nothing
/// is kept for longer, so nobody saves up.
#[derive(Debug, Clone, Copy, Default)]
struct Unmeasured([Duration; 2]);

impl Unmeasured {
    /// The part of a measurement that the turns, of now or of before, do not explain.
    fn beyond(&mut self, measured: Duration, explained: Duration) -> Duration {
        let [first, second] = self.0;
        let mut left = measured;
        // The oldest goes first, and what is left of it is forgotten.
        let unmeasured = [first, second, explained].map(|turns| {
            let matched = turns.min(left);
            left -= matched;
            turns - matched
        });
        self.0 = [unmeasured[1], unmeasured[2]];
        left
    }
}

/// Unexplained use of the last hundred seconds that was not charged yet.
#[derive(Debug, Clone, Copy, Default)]
struct Unexplained {
    /// The first one is being filled.
    buckets: [Duration; BUCKETS],
    /// Time of the first one that has passed.
    passed: Duration,
}

impl Unexplained {
    fn add(&mut self, span: Duration, by: Duration) {
        self.passed += span;
        for _ in 0..BUCKETS {
            if self.passed < BUCKET {
                break;
            }
            self.passed -= BUCKET;
            self.buckets.rotate_right(1);
            self.buckets[0] = Duration::ZERO;
        }
        self.passed = self.passed.min(BUCKET);
        self.buckets[0] += by;
    }

    fn sum(&self) -> Duration {
        self.buckets.iter().sum()
    }

    fn take(&mut self) -> Duration {
        std::mem::take(&mut self.buckets).iter().sum()
    }
}

/// A reading, as people are told of it.
#[derive(Debug, Clone, Copy)]
struct Told {
    span: Duration,
    measured: Duration,
    explained: Duration,
    unexplained: Duration,
}

/// The figures of one job on one card.
#[derive(Debug, Clone, Default)]
pub struct OveruseWatch {
    /// Part of its time at work.
    worked: Unmeasured,
    /// Part of the card's time that it had.
    had: Unmeasured,
    unexplained: Unexplained,
    last: VecDeque<Told>,
    is_marked: bool,
    /// Time at work while its gate was closed, since it was last seen to stop for it.
    out_of_turn: Duration,
}

impl OveruseWatch {
    /// The driver was read.
    pub fn note(&mut self, reading: BusyReading) -> Overuse {
        let excused = reading.excused();
        let (measured, rounding) = (reading.measured, reading.rounding());
        let explained = reading.worked + excused;
        let unexplained = self.worked.beyond(measured, explained);
        let unexplained = unexplained.saturating_sub(rounding).min(reading.span);
        let beyond = self.had.beyond(measured, reading.had + excused);
        let beyond = beyond.saturating_sub(rounding).min(reading.span);
        self.tell(Told {
            span: reading.span,
            measured: measured.min(reading.span),
            explained: explained.min(reading.span),
            unexplained,
        });
        self.unexplained.add(reading.span, unexplained);
        let was_marked = self.is_marked;
        self.is_marked =
            self.unexplained.sum() >= CHARGED_FROM || (was_marked && !self.are_last_clean());
        let charge = match self.is_marked {
            true => self.unexplained.take(),
            false => Duration::ZERO,
        };
        let was_out_of_turn = self.is_out_of_turn();
        self.watch_gate(&reading, unexplained);
        Overuse {
            is_news: self.is_marked && !was_marked,
            is_out_of_turn: self.is_out_of_turn() && !was_out_of_turn,
            charge,
            beyond: beyond.max(unexplained),
        }
    }

    /// For how many percent of the time the driver saw the job on the card, and how many its turns
    /// explain; nothing while they do not contradict each other.
    #[must_use]
    pub fn contradiction(&self) -> Option<(u32, u32)> {
        let whole = self.sum(|one| one.span);
        let percent = |of: fn(&Told) -> Duration| {
            let percent = self.sum(of).as_nanos() * 100 / whole.as_nanos().max(1);
            u32::try_from(percent).unwrap_or(u32::MAX)
        };
        self.is_marked
            .then(|| (percent(|one| one.measured), percent(|one| one.explained)))
    }

    /// The job has worked for long while its gate was closed: what it is charged is collected by
    /// nobody.
    #[must_use]
    pub fn is_out_of_turn(&self) -> bool {
        self.is_marked && self.out_of_turn >= OUT_OF_TURN
    }

    fn tell(&mut self, told: Told) {
        self.last.push_back(told);
        if self.last.len() > READINGS {
            self.last.pop_front();
        }
    }

    fn sum(&self, of: fn(&Told) -> Duration) -> Duration {
        self.last.iter().map(of).sum()
    }

    fn are_last_clean(&self) -> bool {
        self.sum(|one| one.unexplained) <= self.sum(|one| one.span) * CLEAN / 100
    }

    /// Looks whether the job has stopped for its gate. Only a gate that was closed for all the time
    /// that the driver's figures may be of says anything.
    fn watch_gate(&mut self, reading: &BusyReading, unexplained: Duration) {
        if !self.is_marked {
            self.out_of_turn = Duration::ZERO;
        } else if !reading.excused().is_zero() || reading.closed_for < reading.span + LATENESS {
            // Nothing is known.
        } else if unexplained > reading.span * CLEAN / 100 {
            self.out_of_turn += reading.span;
        } else {
            self.out_of_turn = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests;
