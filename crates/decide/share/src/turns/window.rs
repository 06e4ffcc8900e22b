//! Time used within the last second, at any moment.

use std::collections::VecDeque;
use std::time::Duration;

/// Time that was used, as far back as the window goes. Moments are distances from one fixed
/// moment, and never go back.
#[derive(Debug, Clone)]
pub(super) struct Window {
    length: Duration,
    /// In order, and apart from each other.
    spans: VecDeque<Span>,
    /// Sum over all spans.
    used: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    from: Duration,
    to: Duration,
    /// Part of it that counts: all, or a part if several used the card.
    used: Duration,
}

impl Span {
    /// Its use before a moment within it.
    fn before(&self, moment: Duration) -> Duration {
        let whole = (self.to - self.from).as_nanos();
        let part = moment.saturating_sub(self.from).as_nanos();
        if part >= whole {
            return self.used;
        }
        // Less than `used`, so it is a duration.
        let nanos = self.used.as_nanos() * part / whole;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Window {
    /// Nothing was used.
    pub(super) fn new(length: Duration) -> Window {
        Window {
            length,
            spans: VecDeque::new(),
            used: Duration::ZERO,
        }
    }

    /// `used` of the time from `from` to `to` was used: none that was told before is after
    /// `from`.
    pub(super) fn add(&mut self, from: Duration, to: Duration, used: Duration) {
        if to <= from || used.is_zero() {
            return;
        }
        self.used += used;
        // What was used wholly and without a pause is one span, however often it is told.
        if let Some(last) = self.spans.back_mut()
            && last.to == from
            && last.used == last.to - last.from
            && used == to - from
        {
            last.to = to;
            last.used += used;
        } else {
            self.spans.push_back(Span { from, to, used });
        }
        self.forget(to);
    }

    /// So much more was used lately, at an unknown time.
    pub(super) fn add_late(&mut self, now: Duration, used: Duration) {
        if let Some(last) = self.spans.back_mut()
            && last.to >= now
        {
            last.used += used;
        } else {
            let last = self.spans.back().map_or(Duration::ZERO, |span| span.to);
            let from = last.max(now.saturating_sub(used));
            self.spans.push_back(Span {
                from,
                to: now,
                used,
            });
        }
        self.used += used;
    }

    /// Time used within the window that ends now.
    pub(super) fn used(&self, now: Duration) -> Duration {
        let start = now.saturating_sub(self.length);
        let gone = self.spans.iter().take_while(|span| span.from < start);
        let gone = gone.map(|span| span.before(start)).sum();
        self.used.saturating_sub(gone)
    }

    fn forget(&mut self, now: Duration) {
        let start = now.saturating_sub(self.length);
        while let Some(first) = self.spans.front()
            && first.to <= start
        {
            self.used = self.used.saturating_sub(first.used);
            self.spans.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn what_is_older_than_the_window_does_not_count() {
        let mut window = Window::new(ms(1000));
        window.add(ms(0), ms(100), ms(100));
        window.add(ms(100), ms(300), ms(100));
        assert_eq!(window.used(ms(300)), ms(200));
        assert_eq!(window.used(ms(1000)), ms(200));
        assert_eq!(window.used(ms(1050)), ms(150));
        assert_eq!(window.used(ms(1200)), ms(50));
        assert_eq!(window.used(ms(9000)), ms(0));
    }

    proptest! {
        #[test]
        fn it_says_what_a_list_of_every_millisecond_says(
            steps in proptest::collection::vec((0..40_u64, 0..60_u64, 1..=4_u64), 0..60),
            later in 0..1500_u64,
        ) {
            let mut window = Window::new(ms(500));
            let (mut now, mut list) = (0, Vec::new());
            for (pause, length, split) in steps {
                let from = now + pause;
                now = from + length;
                window.add(ms(from), ms(now), ms(length) / split as u32);
                list.extend((from..now).map(|at| (at, split)));
            }
            let end = now + later;
            let within = list.iter().filter(|(at, _)| at + 500 >= end);
            let expected: Duration = within.map(|(_, split)| ms(1) / *split as u32).sum();
            let used = window.used(ms(end));
            prop_assert!(used.abs_diff(expected) < Duration::from_micros(1), "{used:?} {expected:?}");
        }
    }
}
