//! At most so many writes a second. It only waits, and writes nothing itself.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// So many seconds' worth of unused turns may be taken at once. Kubernetes' own clients allow a
/// burst of twice their rate.
const SAVED_S: u32 = 2;

/// Turns of so long are left to other writes by an event or a status. A decision needs its turns at
/// once, and a turn that a report takes while the next decision is made is one that it lacks then.
const LEFT: Duration = Duration::from_secs(1);

/// Longest time that an event or a status gives way to other writes. There are two lanes of them, one
/// write each at a time: with 50 writes a second they take a hundredth of the turns.
const PATIENCE: Duration = Duration::from_secs(4);

/// Turns in even distances, for all writers.
#[derive(Debug)]
pub(crate) struct Pace {
    gap: Duration,
    next: Mutex<Instant>,
}

impl Pace {
    /// So many turns a second.
    pub(crate) fn new(a_second: NonZeroU32) -> Pace {
        Pace {
            gap: Duration::from_secs(1) / a_second.get(),
            next: Mutex::new(Instant::now()),
        }
    }

    /// Waits for a turn, first come first served.
    pub(crate) async fn turn(&self) {
        sleep_until(self.take(Instant::now())).await;
    }

    /// Waits for a turn that nobody else wants, but not for ever: where there is always something to
    /// decide, people are still told.
    pub(crate) async fn idle_turn(&self) {
        let mut now = Instant::now();
        let deadline = now + PATIENCE;
        while let Some(later) = self.taken_until(now)
            && now < deadline
        {
            sleep_until(later.min(deadline)).await;
            now = Instant::now();
        }
        self.turn().await;
    }

    /// Until when no turn is to spare, if none is now.
    fn taken_until(&self, now: Instant) -> Option<Instant> {
        let next = *self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = next + LEFT;
        (spare > now).then_some(spare)
    }

    /// Takes the next turn; returns its time.
    fn take(&self, now: Instant) -> Instant {
        let saved = Duration::from_secs(SAVED_S.into());
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = now.checked_sub(saved).unwrap_or(now);
        let turn = (*next).max(oldest);
        *next = turn + self.gap;
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_at_the_rate_and_few_are_saved() {
        let pace = Pace::new(NonZeroU32::new(10).unwrap());
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        // A minute in which nobody writes saves twenty turns, and no more.
        let saved = (0..21).map(|_| pace.take(at(60_000))).collect::<Vec<_>>();
        assert!(saved[..=20].iter().all(|turn| *turn <= at(60_000)));
        assert_eq!(pace.take(at(60_000)), at(60_100));
        assert_eq!(pace.take(at(60_050)), at(60_200));
        assert_eq!(pace.take(at(60_200)), at(60_300));
        assert_eq!(pace.taken_until(at(60_200)), Some(at(61_400)));
        assert_eq!(pace.taken_until(at(61_400)), None);
    }

    /// Turns that pass while the next releases are decided are saved for these.
    #[test]
    fn reports_find_no_turn_to_spare_while_releases_take_all() {
        let pace = Pace::new(NonZeroU32::new(50).unwrap());
        let start = Instant::now();
        // Every 400 ms so many releases are decided, which are written in turn.
        let to_spare = |from_ms: u64, releases: usize| {
            let moments = (from_ms..from_ms + 20_000).step_by(20);
            let found = moments.filter(|ms| {
                let now = start + Duration::from_millis(*ms);
                let decided = if ms.is_multiple_of(400) { releases } else { 0 };
                for _ in 0..decided {
                    let _turn = pace.take(now);
                }
                pace.taken_until(now).is_none()
            });
            found.count()
        };
        assert_eq!(to_spare(0, 20), 0);
        assert!(to_spare(20_000, 10) > 500, "half of the turns are left");
    }
}
