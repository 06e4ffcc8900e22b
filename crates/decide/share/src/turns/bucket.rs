//! A limit of a card's time, spread evenly: a token bucket whose tokens are time.
//!
//! Tokens come in at the limit's rate, and go out as the card is used. A job at its limit stops
//! when none are left, and goes on when there are enough for a run. So a limit of 30 % is a run of
//! 24 ms in every 80 ms. The bucket holds two runs: a job that waits for its turn, and not for its
//! limit, loses nothing of it. A kernel that runs over leaves a debt, which is paid before the next run,
//! within ten seconds at most. No more than a full bucket may be owed on: then shorter runs come at
//! the usual distance until it is paid, so that a small debt makes no long pause. At a limit of 5 % a
//! millisecond is worth 20.

use std::time::Duration;

use sublet_model::Milli;

use super::rules::TurnRules;

/// Less than this is nothing, in nanoseconds: so runs do not end in ever shorter ones.
const NOTHING: i128 = 20_000;

/// No debt is paid for longer: a job whose limit is very low, or that answers late, goes on.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A debt for work that no turn explains, by the driver's own figures, is paid for as long as that.
const LONGEST_PENANCE: Duration = Duration::from_secs(100);

/// Tokens of one account, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bucket {
    /// Missing from a full bucket. What is missing beyond its size is a debt.
    missing: i128,
    /// Tokens at which the present run ends; below zero in a short run of one that owes.
    floor: i128,
    /// It ran out, and there is not enough for a run yet.
    is_spent: bool,
    /// Time since then.
    spent_for: Duration,
}

impl Bucket {
    /// Time has passed, and a part of it was used.
    pub(super) fn pass(&mut self, limit: Milli, rules: &TurnRules, time: Duration, used: Duration) {
        let come = time.as_nanos() * u128::from(limit.get()) / 1000;
        let come = i128::try_from(come).unwrap_or(i128::MAX);
        self.spent_for += time;
        self.take(limit, rules, signed(used) - come, LONGEST_PAUSE);
    }

    /// So much more was used than turns explain, in nanoseconds; or less, if negative.
    pub(super) fn correct(&mut self, limit: Milli, rules: &TurnRules, used: i128) {
        self.take(limit, rules, used, LONGEST_PENANCE);
    }

    fn take(&mut self, limit: Milli, rules: &TurnRules, used: i128, longest: Duration) {
        let most = signed(longest) * i128::from(limit.get()) / 1000 + 2 * size(limit, rules);
        // A debt that was larger stays, until time has passed.
        let most = most.max(self.missing);
        self.missing = self.missing.saturating_add(used).clamp(0, most);
        let (tokens, shortest) = (self.tokens(limit, rules), signed(rules.shortest));
        let has_run = tokens + NOTHING > size(limit, rules);
        let has_short_run =
            self.spent_for >= pause(limit, rules) && tokens + NOTHING > least(limit, rules);
        if limit == Milli::WHOLE || has_run || (self.is_spent && has_short_run) {
            self.is_spent = false;
            self.floor = (tokens - shortest).min(0);
        } else if tokens < self.floor + NOTHING && !self.is_spent {
            self.is_spent = true;
            self.spent_for = Duration::ZERO;
        } else {
            // What comes in meanwhile pays the debt, and makes no short run longer.
            self.floor = self.floor.max((tokens - shortest).min(0));
        }
    }

    /// Time for which a job may run at once, if it has the card for itself; nothing at its limit.
    pub(super) fn run(&self, limit: Milli, rules: &TurnRules) -> Duration {
        if limit == Milli::WHOLE {
            return Duration::MAX;
        }
        let left = self.tokens(limit, rules) - self.floor;
        if self.is_spent || left < NOTHING {
            return Duration::ZERO;
        }
        // Tokens come in meanwhile.
        let run = left * 1000 / i128::from(1000 - limit.get());
        nanos(run)
    }

    /// Time until there is enough for a run, if nothing is used until then.
    pub(super) fn ready_in(&self, limit: Milli, rules: &TurnRules) -> Duration {
        let thousandths = i128::from(limit.get().max(1));
        let until = |tokens: i128| {
            let lacks = tokens - self.tokens(limit, rules);
            nanos((lacks * 1000 + thousandths - 1) / thousandths)
        };
        let pause = pause(limit, rules).saturating_sub(self.spent_for);
        let short_run = until(least(limit, rules)).max(pause);
        until(size(limit, rules)).min(short_run)
    }

    /// True if the job must wait until there is.
    pub(super) fn is_spent(&self) -> bool {
        self.is_spent
    }

    fn tokens(&self, limit: Milli, rules: &TurnRules) -> i128 {
        2 * size(limit, rules) - self.missing
    }
}

/// Tokens of a run: what comes in while a job pauses after it, in one period. At least the shortest
/// turn, for which the period of a low limit is longer.
fn size(limit: Milli, rules: &TurnRules) -> i128 {
    let limit = i128::from(limit.get());
    let (period, shortest) = (signed(rules.period), signed(rules.shortest));
    (period / 1000 * limit * (1000 - limit) / 1000).max(shortest)
}

/// Time in which the tokens of a run come in.
fn pause(limit: Milli, rules: &TurnRules) -> Duration {
    nanos(size(limit, rules) * 1000 / i128::from(limit.get().max(1)))
}

/// Tokens that are enough for a short run. It ends where no more than a full bucket is owed.
fn least(limit: Milli, rules: &TurnRules) -> i128 {
    signed(rules.shortest) - 2 * size(limit, rules)
}

/// Nanoseconds, to calculate with.
pub(super) fn signed(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX)
}

fn nanos(nanos: i128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn milli(value: u16) -> Milli {
        Milli::new(value).expect("at most a whole")
    }

    #[test]
    fn a_limit_is_a_run_in_each_period() {
        let rules = TurnRules {
            period: Duration::from_millis(100),
            ..TurnRules::default()
        };
        for (limit, run_ms, pause_ms) in [(500, 50, 50), (50, 5, 95), (900, 90, 10), (10, 2, 200)] {
            let limit = milli(limit);
            let mut bucket = Bucket::default();
            let first = bucket.run(limit, &rules);
            assert_eq!(first.as_millis(), 2 * run_ms, "{limit}");
            bucket.pass(limit, &rules, first, first);
            for _ in 0..3 {
                assert!(bucket.is_spent() && bucket.run(limit, &rules).is_zero());
                let pause = bucket.ready_in(limit, &rules);
                assert!(
                    pause.as_millis().abs_diff(pause_ms) <= 2,
                    "{limit}: {pause:?}"
                );
                bucket.pass(limit, &rules, pause / 2, Duration::ZERO);
                assert!(bucket.run(limit, &rules).is_zero(), "half of it");
                bucket.pass(limit, &rules, pause / 2, Duration::ZERO);
                let run = bucket.run(limit, &rules);
                assert!(run.as_millis().abs_diff(run_ms) <= 1, "{limit}: {run:?}");
                bucket.pass(limit, &rules, run, run);
            }
            bucket.pass(limit, &rules, Duration::from_secs(9), Duration::ZERO);
            assert_eq!(bucket.run(limit, &rules), first, "no more than full");
        }
        assert_eq!(Bucket::default().run(Milli::WHOLE, &rules), Duration::MAX);
    }

    /// A request of a millisecond does not end with the tokens.
    #[test]
    fn what_ran_over_makes_no_pause_longer_than_a_period() {
        let rules = TurnRules::default();
        let limit = milli(50);
        let mut bucket = Bucket::default();
        for turn in 0..40 {
            // One in ten was at work for longer: nobody had a processor for its end.
            let over = Duration::from_millis(if turn % 10 == 0 { 6 } else { 1 });
            let run = bucket.run(limit, &rules);
            bucket.pass(limit, &rules, run + over, run + over);
            assert!(bucket.is_spent() && bucket.run(limit, &rules).is_zero());
            let pause = bucket.ready_in(limit, &rules);
            assert!(
                pause <= rules.period + Duration::from_millis(1),
                "{pause:?}"
            );
            bucket.pass(limit, &rules, pause, Duration::ZERO);
            assert!(bucket.run(limit, &rules) >= rules.shortest / 2);
        }
    }

    proptest! {
        /// Whatever it does, a job has no more than its limit and a bucket, beyond what ran over.
        #[test]
        fn nobody_has_more_than_its_limit(
            limit in 1..1000_u16,
            steps in proptest::collection::vec((0..50_u64, 0..3_u64), 1..200),
        ) {
            let (rules, limit) = (TurnRules::default(), milli(limit));
            let (mut bucket, mut used, mut time) = (Bucket::default(), Duration::ZERO, Duration::ZERO);
            let mut longest = Duration::ZERO;
            for (pause, over) in steps {
                let pause = Duration::from_millis(pause);
                bucket.pass(limit, &rules, pause, Duration::ZERO);
                let over = Duration::from_millis(over);
                let run = bucket.run(limit, &rules);
                let ran = if run.is_zero() { run } else { run + over };
                bucket.pass(limit, &rules, ran, ran);
                used += ran;
                longest = longest.max(over);
                time += pause + ran;
                let most = time.as_nanos() * u128::from(limit.get()) / 1000;
                // A full bucket to begin with, and one that may be owed.
                let most = most + 4 * size(limit, &rules) as u128 + longest.as_nanos() + 30_000;
                prop_assert!(used.as_nanos() <= most, "{used:?} in {time:?}");
            }
        }
    }
}
