//! The times of reading the driver besides the regular ones. A process that has just begun
//! makes its first context within a moment, and the memory of a context is unknown before a
//! reading: until the next regular reading its job would have that much beyond its limit. So
//! the driver is read early, and once more when the process is first seen on a card, because a
//! number counts when it was there twice (`reading`).
//!
//! A reading takes the driver a millisecond or two, so there is at most one in [`STEP_MS`],
//! however many processes begin together: times are rounded up to whole steps, and one reading
//! serves every process. If it takes longer, or if a busy arbiter comes to the answer late, the
//! next one waits [`REST`] times as long: the clients that wait for the arbiter go first. A process
//! that asks for a reading and waits for it has it after the pause, without steps.

use std::collections::BTreeSet;

use sublet_model::Time;

/// After a process has its slot. A program in C has its first context at the first of these, one
/// that loads a framework not even at the last, and is found at the regular times.
const AFTER_JOIN_MS: [u64; 3] = [20, 60, 150];

/// Delays after a process was first seen on a card. The second is for a process that was still
/// making its context then.
const AFTER_FIRST_SIGHT_MS: [u64; 2] = [20, 60];

/// The shortest time between two of these readings.
pub(crate) const STEP_MS: u64 = 20;

/// The shortest time between the beginnings of two readings that processes wait for.
const ASKED_STEP_MS: u64 = 2;

/// Pause after a reading, in times of its length: readings take a fifth of the time at most.
const REST: u64 = 4;

/// The times of readings that are due, in whole steps.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadSchedule {
    due: BTreeSet<u64>,
    began: Time,
    not_before: Time,
    is_asked: bool,
}

impl ReadSchedule {
    /// A process got its slot.
    pub(crate) fn after_join(&mut self, now: Time) {
        self.add(now, &AFTER_JOIN_MS);
    }

    /// A process was seen on a card that was not there at the reading before.
    pub(crate) fn after_first_sight(&mut self, now: Time) {
        self.add(now, &AFTER_FIRST_SIGHT_MS);
    }

    /// A process waits for a reading that has not begun.
    pub(crate) fn asked(&mut self) {
        self.is_asked = true;
    }

    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<Time> {
        let asked = self.is_asked.then(|| self.began.plus_ms(ASKED_STEP_MS));
        let step = self.due.first();
        let due = step.map(|step| Time::from_ms(step.saturating_mul(STEP_MS)));
        let first = asked.into_iter().chain(due).min()?;
        Some(first.max(self.not_before))
    }

    /// A reading begins: it serves all requests that are due by now.
    pub(crate) fn begun(&mut self, now: Time) {
        let passed = now.ms() / STEP_MS;
        self.due.retain(|step| *step > passed);
        self.is_asked = false;
        self.began = now;
    }

    /// The reading that has begun last is there.
    pub(crate) fn ended(&mut self, now: Time) {
        let took_ms = now.ms().saturating_sub(self.began.ms());
        self.not_before = now.plus_ms(took_ms.saturating_mul(REST));
    }

    fn add(&mut self, now: Time, after_ms: &[u64]) {
        let steps = after_ms
            .iter()
            .map(|ms| now.plus_ms(*ms).ms().div_ceil(STEP_MS));
        self.due.extend(steps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays `events` (processes that begin at these times) and says when the driver is read.
    fn readings(joins_ms: &[u64]) -> Vec<u64> {
        let mut schedule = ReadSchedule::default();
        let mut read = Vec::new();
        let last = joins_ms.iter().max().unwrap_or(&0) + 1000;
        for now_ms in 0..last {
            let now = Time::from_ms(now_ms);
            for _ in joins_ms.iter().filter(|at| **at == now_ms) {
                schedule.after_join(now);
            }
            if schedule.next().is_some_and(|due| due <= now) {
                schedule.begun(now);
                read.push(now_ms);
            }
        }
        assert_eq!(schedule.next(), None);
        read
    }

    #[test]
    fn a_process_is_looked_at_three_times_soon_after_it_began() {
        assert_eq!(readings(&[0]), [20, 60, 160]);
        assert_eq!(readings(&[1007]), [1040, 1080, 1160]);
        assert_eq!(readings(&[]), [0; 0]);
    }

    #[test]
    fn three_hundred_that_begin_together_are_looked_at_together() {
        assert_eq!(readings(&[7; 300]), [40, 80, 160]);
        // One after the other, as an arbiter that is busy lets them in.
        let crowd: Vec<u64> = (0..300).map(|n| 1000 + n / 2).collect();
        let read = readings(&crowd);
        let latest = 150 + AFTER_JOIN_MS[2];
        assert!(read.len() as u64 <= latest / STEP_MS + 1, "{read:?}");
        assert!(read.windows(2).all(|two| two[1] - two[0] >= STEP_MS));
        assert_eq!(read.last(), Some(&1300), "the last one too");
    }

    #[test]
    fn slow_readings_are_few() {
        let mut schedule = ReadSchedule::default();
        schedule.after_join(Time::from_ms(0));
        schedule.begun(Time::from_ms(20));
        schedule.ended(Time::from_ms(21));
        assert_eq!(schedule.next(), Some(Time::from_ms(60)));
        schedule.begun(Time::from_ms(60));
        schedule.ended(Time::from_ms(90));
        assert_eq!(schedule.next(), Some(Time::from_ms(210)));
    }

    #[test]
    fn a_process_that_waits_has_its_reading_at_once_and_readings_keep_a_distance() {
        let mut schedule = ReadSchedule::default();
        schedule.after_join(Time::from_ms(0));
        schedule.begun(Time::from_ms(70));
        schedule.ended(Time::from_ms(70));
        schedule.asked();
        assert_eq!(schedule.next(), Some(Time::from_ms(72)));
        schedule.begun(Time::from_ms(75));
        assert_eq!(schedule.next(), Some(Time::from_ms(160)));
        // Somebody else asked while that one was read, which took two milliseconds.
        schedule.asked();
        schedule.ended(Time::from_ms(77));
        assert_eq!(schedule.next(), Some(Time::from_ms(85)));
    }

    #[test]
    fn a_regular_reading_is_one_of_them() {
        let mut schedule = ReadSchedule::default();
        schedule.after_join(Time::from_ms(0));
        schedule.begun(Time::from_ms(70));
        assert_eq!(schedule.next(), Some(Time::from_ms(160)));
        schedule.after_first_sight(Time::from_ms(75));
        assert_eq!(schedule.next(), Some(Time::from_ms(100)));
        schedule.begun(Time::from_ms(200));
        assert_eq!(schedule.next(), None);
    }
}
