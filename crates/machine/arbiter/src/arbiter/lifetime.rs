//! The arbiter's own time: the time of the next tick, whether the jobs from before a restart
//! are back, the start of its idle time, and whether it ends.

use std::time::Duration;

use tracing::info;

/// Interval of reading the driver, writing heartbeats and checking clocks. The arbiter must
/// know a process without a slot within a second, and a reading costs a millisecond or two.
pub(super) const TICK_MS: u64 = 200;

/// Times of an arbiter, in milliseconds of the clock that the pages are written with.
#[derive(Debug)]
pub(super) struct Lifetime {
    idle_exit: Option<Duration>,
    next_tick_ms: u64,
    idle_since_ms: u64,
    is_settled: bool,
    is_stopping: bool,
}

impl Lifetime {
    /// Begins now. The arbiter ends after `idle_exit` without a client.
    pub(super) fn begin(now: u64, idle_exit: Option<Duration>) -> Lifetime {
        Lifetime {
            idle_exit,
            next_tick_ms: now,
            idle_since_ms: now,
            is_settled: false,
            is_stopping: false,
        }
    }

    pub(super) fn next_tick_ms(&self) -> u64 {
        self.next_tick_ms
    }

    /// True if a tick is due, which is then done.
    pub(super) fn take_tick(&mut self, now: u64) -> bool {
        let is_due = self.next_tick_ms <= now;
        if is_due {
            self.next_tick_ms = now + TICK_MS;
        }
        is_due
    }

    /// True once the jobs from before a restart are back, or have lost their chance.
    pub(super) fn is_settled(&self) -> bool {
        self.is_settled
    }

    pub(super) fn settle(&mut self) {
        self.is_settled = true;
    }

    /// Ends if there is no job and no command, and has been none for long enough.
    pub(super) fn note_use(&mut self, now: u64, is_idle: bool) {
        if !is_idle {
            self.idle_since_ms = now;
            return;
        }
        let idle_ms = u128::from(now.saturating_sub(self.idle_since_ms));
        let is_over = |limit: Duration| idle_ms >= limit.as_millis();
        if self.idle_exit.is_some_and(is_over) {
            info!("no job for a while; the arbiter ends");
            self.stop();
        }
    }

    pub(super) fn stop(&mut self) {
        self.is_stopping = true;
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_come_at_their_times_and_are_not_made_up_for() {
        let mut lifetime = Lifetime::begin(1000, None);
        assert!(lifetime.take_tick(1000));
        assert!(!lifetime.take_tick(1000 + TICK_MS - 1));
        assert!(lifetime.take_tick(9000));
        assert_eq!(lifetime.next_tick_ms(), 9000 + TICK_MS);
    }

    #[test]
    fn it_ends_when_nobody_has_needed_it_for_long_enough() {
        let stops = |idle_exit: Option<u64>, use_of: &[(u64, bool)]| {
            let mut lifetime = Lifetime::begin(0, idle_exit.map(Duration::from_millis));
            let mut ends = use_of.iter().map(|(now, is_idle)| {
                lifetime.note_use(*now, *is_idle);
                lifetime.is_stopping()
            });
            ends.position(|is_over| is_over)
        };
        assert_eq!(
            stops(Some(500), &[(200, true), (499, true), (500, true)]),
            Some(2)
        );
        assert_eq!(
            stops(Some(500), &[(400, false), (800, true), (900, true)]),
            Some(2)
        );
        assert_eq!(stops(None, &[(1, true), (u64::MAX, true)]), None);
        assert_eq!(stops(Some(0), &[(0, true)]), Some(0));
    }
}
