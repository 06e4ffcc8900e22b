//! A job's use of its cards, and its effect on the job's turn.

use std::collections::BTreeMap;
use std::time::Duration;

use sublet_model::{Class, Milli};

use super::bucket::{Bucket, signed};
use super::group::Group;
use super::held_job::{Job, Phase};
use super::rates::{WHOLE, due};
use super::window::Window;
use super::{TimeShare, TurnRules};
use crate::job::JobId;

/// Virtual time: time used, divided by the rate that was due. Clocks of a group compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Clock(Duration);

impl Default for Clock {
    /// The first on a card. Later than zero, so that others can be behind.
    fn default() -> Clock {
        Clock(Duration::from_secs(3600))
    }
}

impl Clock {
    /// Behind every other one.
    pub(super) const FIRST: Clock = Clock(Duration::ZERO);

    /// True if it is behind another one by so much at least.
    pub(super) fn is_behind(self, other: Clock, by: Duration) -> bool {
        self.0.saturating_add(by) <= other.0
    }

    /// True if its debt beside another one is larger than any but that of a kernel.
    pub(super) fn owes_beside(self, other: Clock) -> bool {
        other.is_behind(self, LARGEST_DEBT + Duration::from_nanos(1))
    }

    /// The same moment of a group whose earliest clock is not this group's.
    pub(super) fn moved(self, from: Clock, to: Clock) -> Clock {
        Clock((self.0 + to.0).saturating_sub(from.0))
    }

    fn before(self, time: Duration) -> Clock {
        Clock(self.0.saturating_sub(time))
    }

    fn advance(&mut self, time: Duration) {
        self.0 = self.0.saturating_add(time);
    }

    /// The same, but no debt larger than allowed beside a clock. One that was larger stays.
    fn advance_within(&mut self, time: Duration, earliest: Clock) {
        let most = Clock(earliest.0.saturating_add(LARGEST_DEBT)).max(*self);
        self.advance(time);
        *self = most.min(*self);
    }

    /// The job is away, and others have the card: what is owed to it beyond its credit fades.
    fn fade(&mut self, earliest: Clock, step: Duration, rules: &TurnRules) {
        let beyond = earliest.before(rules.credit).0.saturating_sub(self.0);
        let nanos = beyond.as_nanos() * step.min(FADES_IN).as_nanos() / FADES_IN.as_nanos();
        self.advance(Duration::from_nanos(
            u64::try_from(nanos).unwrap_or(u64::MAX),
        ));
    }
}

/// A time in virtual time.
fn at_rate(used: Duration, rate: u64) -> Duration {
    let nanos = used.as_nanos() * u128::from(WHOLE) / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// A job's account of one card.
#[derive(Debug, Clone)]
pub(super) struct Account {
    pub(super) share: TimeShare,
    /// The rate that is due to it, as of the last decision, in millionths.
    rate: u64,
    bucket: Bucket,
    pub(super) used: Window,
    /// By its turns, since it came.
    pub(super) had: Duration,
    /// The time in which it was at work, alone or beside others, since it came.
    pub(super) worked: Duration,
    /// The time in which it wanted the card, was below its limit and had no turn, since it came.
    pub(super) kept_waiting: Duration,
    /// The time in which it wanted the card and was at its limit, since it came.
    pub(super) throttled: Duration,
    /// Share that the coordinator leaves to it.
    pub(super) duty: Milli,
    pub(super) waited: Window,
}

impl Account {
    pub(super) fn new(share: TimeShare, window: Duration) -> Account {
        Account {
            share,
            rate: WHOLE,
            bucket: Bucket::default(),
            used: Window::new(window),
            had: Duration::ZERO,
            worked: Duration::ZERO,
            kept_waiting: Duration::ZERO,
            throttled: Duration::ZERO,
            duty: Milli::WHOLE,
            waited: Window::new(window),
        }
    }

    /// Time that it may run at once; nothing at its limit.
    pub(super) fn room(&self, rules: &TurnRules) -> Duration {
        self.bucket.run(self.limit(), rules)
    }

    /// When there will be room for a turn again.
    pub(super) fn has_room_at(&self, rules: &TurnRules, now: Duration) -> Duration {
        match self.bucket.is_spent() {
            true => now + self.bucket.ready_in(self.limit(), rules),
            false => now,
        }
    }

    /// Maximum share: by its own limit, or because others would suffer.
    pub(super) fn limit(&self) -> Milli {
        self.share.limit.min(self.duty)
    }
}

/// No more than this passes at once: nobody knows which jobs ran in a longer one.
const LONGEST_STEP: Duration = Duration::from_secs(1);

/// Time in which the claim of a job that is away fades, beyond its credit.
const FADES_IN: Duration = Duration::from_secs(1);

/// A job owes no more than what is due to it in this time: so nobody waits for longer than that to
/// pay. A kernel that ran over is the exception, and is paid for wholly.
const LARGEST_DEBT: Duration = Duration::from_secs(4);

impl Group {
    /// Time has passed: charges it to the jobs that ran.
    pub(super) fn pass_time(&mut self, now: Duration) {
        if now <= self.now {
            return;
        }
        let has_overslept = self
            .wake_at
            .is_some_and(|at| at + TurnRules::OVERSLEPT < now);
        let from = match has_overslept {
            true => now,
            false => self.now.max(now.saturating_sub(LONGEST_STEP)),
        };
        let slept = now - self.now;
        self.now = now;
        let earliest = self.earliest_beside();
        let before = self.jobs.values().map(Job::runs).collect::<Vec<_>>();
        for card in self.cards() {
            self.charge(card, from, slept);
        }
        let step = now - from;
        for ((id, job), ran) in self.jobs.iter_mut().zip(before) {
            let used = std::mem::take(&mut job.used_since);
            let is_closing = matches!(job.phase, Phase::Closing { .. });
            match earliest.get(id) {
                Some(earliest) if ran && !is_closing => job.clock.advance_within(used, *earliest),
                Some(earliest) if !job.wants => job.clock.fade(*earliest, step, &self.rules),
                _ => job.clock.advance(used),
            }
        }
    }

    /// Charges a job for time beyond its turns, at the rate that is due to it beside all others
    /// that want the card. Those that were charged for that time, because they had their turns
    /// then, get it back.
    pub(super) fn charge_more(&mut self, id: JobId, card: usize, by: Duration) {
        self.refresh_rates();
        let (now, rules) = (self.now, self.rules);
        let used = |job: &Job| job.account(card).map(|account| account.used.used(now));
        let others = self.jobs.iter().filter(|(other, _)| **other != id);
        let all: Duration = others.filter_map(|(_, job)| used(job)).sum();
        let mut earliest: Option<Clock> = None;
        for job in self
            .jobs
            .iter_mut()
            .filter(|(other, _)| **other != id)
            .map(|(_, job)| job)
        {
            let Some(used) = used(job) else {
                continue;
            };
            let part = by.min(all).as_nanos() * used.as_nanos() / all.as_nanos().max(1);
            let part = Duration::from_nanos(u64::try_from(part).unwrap_or(0));
            if let Some(account) = job.account_mut(card) {
                account
                    .bucket
                    .correct(account.limit(), &rules, -signed(part));
                let back = at_rate(part, account.rate);
                job.clock = job.clock.before(back);
            }
            earliest = Some(earliest.map_or(job.clock, |clock| clock.min(job.clock)));
        }
        if let Some(job) = self.jobs.get_mut(&id)
            && let Some(account) = job.account_mut(card)
        {
            account.bucket.correct(account.limit(), &rules, signed(by));
            account.used.add_late(now, by);
            let more = at_rate(by, account.rate);
            job.clock
                .advance_within(more, earliest.unwrap_or(job.clock));
        }
    }

    /// All cards of its jobs.
    fn cards(&self) -> Vec<usize> {
        let accounts = self.jobs.values().flat_map(|job| &job.accounts);
        let mut cards: Vec<usize> = accounts.map(|account| account.share.card).collect();
        cards.sort_unstable();
        cards.dedup();
        cards
    }

    /// The clock furthest behind on a card, of those that want it.
    fn earliest_of_wanting(&self, card: usize) -> Option<Clock> {
        let wanting = self.jobs.values().filter(|job| job.wants || job.runs());
        let clocks = wanting.filter_map(|job| job.account(card).map(|_| job.clock));
        clocks.min()
    }

    /// For each job, the earliest clock of those that want one of its cards.
    fn earliest_beside(&self) -> BTreeMap<JobId, Clock> {
        let mut of_cards: BTreeMap<usize, Clock> = BTreeMap::new();
        for card in self.cards() {
            of_cards.extend(self.earliest_of_wanting(card).map(|clock| (card, clock)));
        }
        let earliest = |job: &Job| {
            let accounts = job.accounts.iter();
            let clocks = accounts.filter_map(|account| of_cards.get(&account.share.card));
            clocks.min().copied()
        };
        let jobs = self.jobs.iter();
        jobs.filter_map(|(id, job)| Some((*id, earliest(job)?)))
            .collect()
    }

    /// Sets the rates that are due now. A job that is away counts with what it was promised, as
    /// long as it has not its whole credit: a pause costs it nothing of its promise.
    pub(super) fn refresh_rates(&mut self) {
        for card in self.cards() {
            let earliest = self.earliest_of_wanting(card);
            let whole_credit = earliest.map(|clock| clock.before(self.rules.credit));
            let mut present: Vec<(Class, TimeShare)> = Vec::new();
            let mut ids: Vec<JobId> = Vec::new();
            for (id, job) in &self.jobs {
                let Some(account) = job.account(card) else {
                    continue;
                };
                let mut share = account.share;
                if !(job.wants || job.runs()) {
                    if whole_credit.is_none_or(|clock| job.clock <= clock) {
                        continue;
                    }
                    share.limit = share.request.min(share.limit);
                }
                present.push((job.class, share));
                ids.push(*id);
            }
            for (id, rate) in ids.into_iter().zip(due(&present)) {
                let job = self.jobs.get_mut(&id);
                if let Some(account) = job.and_then(|job| job.account_mut(card)) {
                    account.rate = rate;
                }
            }
        }
    }

    /// Charges the jobs that ran on a card since `from`, each with its part. An overlap is split
    /// by processes at work: the driver gives each of them slices in turn.
    fn charge(&mut self, card: usize, from: Duration, slept: Duration) {
        let (now, step, rules) = (self.now, self.now - from, self.rules);
        let runs = |job: &&Job| job.runs() && job.account(card).is_some();
        let n_processes: u32 = self.jobs.values().filter(runs).map(Job::n_at_work).sum();
        for job in self.jobs.values_mut() {
            let (runs, waits) = (job.runs(), job.is_waiting());
            let n_own = job.n_at_work();
            let Some(account) = job.account_mut(card) else {
                continue;
            };
            let part = match runs {
                true => step * n_own / n_processes.max(1),
                false => Duration::ZERO,
            };
            if waits {
                account.waited.add(from, now, step);
                match account.room(&rules) {
                    Duration::ZERO => account.throttled += step,
                    _ => account.kept_waiting += step,
                }
            }
            account.bucket.pass(account.limit(), &rules, slept, part);
            if runs {
                account.used.add(from, now, part);
                account.had += part;
                account.worked += step;
                let used = at_rate(part, account.rate);
                job.used_since = job.used_since.max(used);
            }
        }
    }
}
