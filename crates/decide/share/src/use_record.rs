//! Each job's use of each of its cards over the last hour, in steps of ten seconds: for people who
//! ask later, and for readers that come too seldom. Bounded, however many jobs come.

use std::collections::{BTreeMap, VecDeque};

use sublet_model::{MiB, Milli, Time};

use crate::job::JobId;

/// Time between two points.
pub const RECORD_EVERY_MS: u64 = 10_000;

/// Number of points kept of each job and card: an hour.
const POINTS: usize = 360;

/// Number of jobs and cards with points: 5 MiB in all.
const SERIES_MAX: usize = 1024;

/// A job's use of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsePoint {
    /// Memory, at that moment.
    pub memory: MiB,
    /// Share of the card's time since the point before.
    pub compute: Milli,
}

#[derive(Debug, Clone)]
struct Series {
    /// When the newest point was made.
    at: Time,
    points: VecDeque<UsePoint>,
}

/// The points of all jobs, also of ended ones.
#[derive(Debug, Clone, Default)]
pub struct UseRecord {
    series: BTreeMap<(JobId, usize), Series>,
    next: Option<Time>,
}

impl UseRecord {
    /// True if points are due; sets the time of the next ones.
    pub fn take_due(&mut self, now: Time) -> bool {
        let is_due = self.next.is_none_or(|next| next <= now);
        if is_due {
            self.next = Some(Time::from_ms(now.ms() + RECORD_EVERY_MS));
            self.forget(now);
        }
        is_due
    }

    /// A point of a job on a card.
    pub fn add(&mut self, now: Time, job: JobId, card: usize, point: UsePoint) {
        if self.series.len() >= SERIES_MAX && !self.series.contains_key(&(job, card)) {
            let oldest = self
                .series
                .iter()
                .min_by_key(|(key, series)| (series.at, **key));
            let oldest = oldest.map(|(key, _)| *key);
            oldest.and_then(|key| self.series.remove(&key));
        }
        let series = self.series.entry((job, card)).or_insert_with(|| Series {
            at: now,
            points: VecDeque::new(),
        });
        series.at = now;
        series.points.push_back(point);
        if series.points.len() > POINTS {
            series.points.pop_front();
        }
    }

    /// A job's points on each of its cards, the oldest first, and when the newest was made.
    pub fn of(&self, job: JobId) -> impl Iterator<Item = (usize, Time, &VecDeque<UsePoint>)> {
        let all = self.series.range((job, 0)..=(job, usize::MAX));
        all.map(|((_, card), series)| (*card, series.at, &series.points))
    }

    /// Forgets jobs that were last seen more than an hour ago.
    fn forget(&mut self, now: Time) {
        let hour = RECORD_EVERY_MS * POINTS as u64;
        let is_new = |series: &Series| series.at.ms() + hour > now.ms();
        self.series.retain(|_, series| is_new(series));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(mib: u32) -> UsePoint {
        UsePoint {
            memory: MiB::from(mib),
            compute: Milli::WHOLE,
        }
    }

    fn seen(record: &UseRecord, job: u64) -> Vec<(usize, u64, usize)> {
        let of = record.of(JobId(job));
        of.map(|(card, at, points)| (card, at.ms(), points.len()))
            .collect()
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let mut record = UseRecord::default();
        let hour = RECORD_EVERY_MS * POINTS as u64;
        let mut now = 5;
        while now <= 2 * hour {
            if record.take_due(Time::from_ms(now)) {
                record.add(Time::from_ms(now), JobId(1), 3, point(now as u32));
                if now < hour {
                    record.add(Time::from_ms(now), JobId(2), 0, point(1));
                }
            }
            now += 200;
        }
        let all = seen(&record, 1);
        assert_eq!((all.len(), all[0].0, all[0].2), (1, 3, POINTS));
        let (_, at, points) = record.of(JobId(1)).next().unwrap();
        assert_eq!(points.back(), Some(&point(at.ms() as u32)));
        assert_eq!(seen(&record, 2), [], "it has been gone for an hour");
    }

    #[test]
    fn whatever_comes_there_is_room_for_the_newest() {
        let mut record = UseRecord::default();
        for id in 0..2 * SERIES_MAX as u64 {
            record.add(Time::from_ms(id), JobId(id), 0, point(1));
        }
        assert_eq!(record.series.len(), SERIES_MAX);
        assert_eq!(seen(&record, 0), []);
        let last = 2 * SERIES_MAX as u64 - 1;
        assert_eq!(seen(&record, last), [(0, last, 1)]);
    }
}
