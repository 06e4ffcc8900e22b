//! At most so many writes a second. It only waits, and writes nothing itself.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// So many seconds' worth of unused turns may be taken at once. Kubernetes' own clients allow a
/// burst of twice their rate.
const SAVED_S: u32 = 2;

/// Longest time that an event or a status gives way to other writes.
const PATIENCE: Duration = Duration::from_secs(1);

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

    /// Until when all turns are taken, if the next one is.
    fn taken_until(&self, now: Instant) -> Option<Instant> {
        let next = *self.next.lock().unwrap_or_else(PoisonError::into_inner);
        (next > now).then_some(next)
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
        assert_eq!(pace.taken_until(at(60_200)), Some(at(60_400)));
        assert_eq!(pace.taken_until(at(60_400)), None);
    }
}
