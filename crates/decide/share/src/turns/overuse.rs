//! Finds jobs at work on a card for longer than their turns explain, by the driver's own
//! figures.
//!
//! A job says itself when it works, on a page that it can write as it likes. The driver gives
//! each process's use of a card, in percent, late by up to a second. So both are summed over
//! several seconds before they are compared, and one odd figure of a job does not count.

use std::collections::VecDeque;
use std::time::Duration;

/// Number of readings summed: with one a second, a figure that is a second late is wrong by an
/// eighth at most.
const READINGS: usize = 8;

/// The figures contradict each other beyond this part of the time, in percent: more than their
/// lateness explains.
const MARKS_AT: u32 = 15;

/// Within this part they agree again.
const CLEARS_AT: u32 = 5;

/// Readings in a row that must show it.
const IN_A_ROW: u8 = 2;

/// One reading of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyReading {
    /// Since the reading before.
    pub span: Duration,
    /// For how long of it the driver saw the job's processes at work on the card.
    pub measured: Duration,
    /// For how long of it the job had the card, by its turns.
    pub explained: Duration,
}

/// Result of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overuse {
    /// The job contradicts the driver, since this reading.
    pub is_news: bool,
    /// Time to charge to the job beyond its turns.
    pub charge: Duration,
}

/// The figures of one job on one card.
#[derive(Debug, Clone, Default)]
pub struct OveruseWatch {
    readings: VecDeque<BusyReading>,
    n_beyond: u8,
    is_marked: bool,
}

impl OveruseWatch {
    /// The driver was read.
    pub fn note(&mut self, reading: BusyReading) -> Overuse {
        self.readings.push_back(reading);
        if self.readings.len() > READINGS {
            self.readings.pop_front();
        }
        let sum = |of: fn(&BusyReading) -> Duration| self.readings.iter().map(of).sum::<Duration>();
        let (measured, explained) = (sum(|one| one.measured), sum(|one| one.explained));
        // As long as there are few readings, what is before them counts as nothing.
        let n_missing = u32::try_from(READINGS - self.readings.len()).unwrap_or(0);
        let whole = sum(|one| one.span) + reading.span * n_missing;
        let beyond = measured.saturating_sub(explained);
        if beyond > whole * MARKS_AT / 100 {
            self.n_beyond = self.n_beyond.saturating_add(1);
        } else {
            self.n_beyond = 0;
        }
        let was_marked = self.is_marked;
        self.is_marked =
            self.n_beyond >= IN_A_ROW || (was_marked && beyond > whole * CLEARS_AT / 100);
        Overuse {
            is_news: self.is_marked && !was_marked,
            charge: match self.is_marked {
                true => reading.measured.saturating_sub(reading.explained),
                false => Duration::ZERO,
            },
        }
    }

    /// For how many percent of the time the driver saw the job on the card, and how many its turns
    /// explain; nothing while they do not contradict each other.
    #[must_use]
    pub fn contradiction(&self) -> Option<(u32, u32)> {
        let whole: Duration = self.readings.iter().map(|one| one.span).sum();
        let percent = |of: fn(&BusyReading) -> Duration| {
            let part: Duration = self.readings.iter().map(of).sum();
            let percent = part.as_nanos() * 100 / whole.as_nanos().max(1);
            u32::try_from(percent).unwrap_or(u32::MAX)
        };
        self.is_marked
            .then(|| (percent(|one| one.measured), percent(|one| one.explained)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(percent: u64) -> Duration {
        Duration::from_millis(percent * 10)
    }

    /// Tells after each second, by its measured and explained time, whether the job is marked.
    fn marks(seconds: &[(u64, u64)]) -> String {
        let mut watch = OveruseWatch::default();
        let each = seconds.iter().map(|(measured, explained)| {
            watch.note(BusyReading {
                span: percent(100),
                measured: percent(*measured),
                explained: percent(*explained),
            });
            match watch.contradiction() {
                Some(_) => '!',
                None => '.',
            }
        });
        each.collect()
    }

    #[test]
    fn who_says_that_it_rests_and_works_is_found_within_seconds() {
        for (seconds, expected) in [
            (&[(100, 0); 6][..], "..!!!!"),
            (&[(60, 10); 6], "...!!!"),
            // The driver rounds, and is late.
            (&[(53, 50); 12], "............"),
            (
                &[(0, 100), (100, 100), (100, 100), (100, 0), (0, 0)],
                ".....",
            ),
            // It works in its turns again, and after some time that is seen.
            (
                &[
                    (80, 0),
                    (80, 0),
                    (80, 0),
                    (50, 50),
                    (50, 50),
                    (50, 50),
                    (50, 50),
                    (50, 50),
                    (50, 50),
                    (50, 50),
                    (50, 50),
                ],
                "..!!!!!!!!.",
            ),
        ] {
            assert_eq!(marks(seconds), expected, "{seconds:?}");
        }
    }

    #[test]
    fn only_one_that_is_marked_pays_and_only_for_the_rest() {
        let mut watch = OveruseWatch::default();
        let reading = BusyReading {
            span: percent(100),
            measured: percent(90),
            explained: percent(20),
        };
        let all: Vec<Overuse> = (0..4).map(|_| watch.note(reading)).collect();
        let charges = all.iter().map(|one| one.charge).collect::<Vec<_>>();
        let paid = percent(70);
        assert_eq!(charges, [Duration::ZERO, Duration::ZERO, paid, paid]);
        let news = all.iter().map(|one| one.is_news).collect::<Vec<_>>();
        assert_eq!(news, [false, false, true, false]);
        assert_eq!(watch.contradiction(), Some((90, 20)));
    }
}
