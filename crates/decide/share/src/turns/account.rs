//! A job's use of a card, and its effect on the job's turn.

use std::collections::BTreeMap;
use std::time::Duration;

use sublet_model::{Class, Milli};

use super::group::Group;
use super::held_job::Job;
use super::rates::{WHOLE, due};
use super::window::Window;
use super::{TimeShare, TurnRules};
use crate::job::JobId;

/// Virtual time: time used, divided by the rate that was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Clock(Duration);

impl Clock {
    /// Its distance ahead of another one.
    pub(super) fn ahead_of(self, other: Clock) -> Duration {
        self.0.saturating_sub(other.0)
    }

    fn advance(&mut self, used: Duration, rate: u64) {
        let nanos = used.as_nanos() * u128::from(WHOLE) / u128::from(rate.max(1));
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        self.0 = self.0.saturating_add(Duration::from_nanos(nanos));
    }
}

/// A job's account of one card.
#[derive(Debug, Clone)]
pub(super) struct Account {
    pub(super) share: TimeShare,
    pub(super) clock: Clock,
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
            clock: Clock::default(),
            used: Window::new(window),
            had: Duration::ZERO,
            worked: Duration::ZERO,
            kept_waiting: Duration::ZERO,
            throttled: Duration::ZERO,
            duty: Milli::WHOLE,
            waited: Window::new(window),
        }
    }

    /// Time that it may run until its limit; nothing if that is too short for a turn.
    pub(super) fn room(&self, rules: &TurnRules, now: Duration) -> Duration {
        let room = self.left(rules, now);
        let shortest = rules.shortest.min(self.allowed(rules));
        if room < shortest {
            Duration::ZERO
        } else {
            room
        }
    }

    /// The same, to the last nanosecond.
    pub(super) fn left(&self, rules: &TurnRules, now: Duration) -> Duration {
        if self.limit() == Milli::WHOLE {
            return Duration::MAX;
        }
        self.allowed(rules).saturating_sub(self.used.used(now))
    }

    /// When there will be room for a turn again.
    pub(super) fn has_room_at(&self, rules: &TurnRules, now: Duration) -> Duration {
        let allowed = self.allowed(rules);
        let shortest = rules.shortest.min(allowed);
        self.used.falls_to(allowed.saturating_sub(shortest), now)
    }

    /// Maximum share: by its own limit, or because others would suffer.
    pub(super) fn limit(&self) -> Milli {
        self.share.limit.min(self.duty)
    }

    fn allowed(&self, rules: &TurnRules) -> Duration {
        rules.window * u32::from(self.limit().get()) / 1000
    }
}

/// No more than this passes at once: an arbiter that was stopped for longer does not know
/// which jobs ran meanwhile.
const LONGEST_STEP: Duration = Duration::from_secs(1);

impl Group {
    /// Time has passed: charges it to the jobs that ran.
    pub(super) fn pass_time(&mut self, now: Duration) {
        if now <= self.now {
            return;
        }
        let from = self.now.max(now.saturating_sub(LONGEST_STEP));
        self.now = now;
        let mut cards: BTreeMap<usize, Vec<(Class, TimeShare)>> = BTreeMap::new();
        for job in self.jobs.values() {
            for account in &job.accounts {
                let wanting = cards.entry(account.share.card).or_default();
                if job.wants || job.runs() {
                    wanting.push((job.class, account.share));
                }
            }
        }
        for (card, wanting) in cards {
            self.charge(card, &wanting, from);
        }
    }

    /// Charges a job for time beyond its turns, at the rate that is due to it beside all others
    /// that want the card.
    pub(super) fn charge_more(&mut self, id: JobId, card: usize, by: Duration) {
        let on_card = self.jobs.iter().filter_map(|(other, job)| {
            let share = job.account(card)?.share;
            (*other == id || job.wants || job.runs()).then_some((*other, job.class, share))
        });
        let on_card: Vec<(JobId, Class, TimeShare)> = on_card.collect();
        let wanting: Vec<_> = on_card
            .iter()
            .map(|(_, class, share)| (*class, *share))
            .collect();
        let mut rates = due(&wanting).into_iter().zip(&on_card);
        let Some((rate, _)) = rates.find(|(_, (other, ..))| *other == id) else {
            return;
        };
        let accounts = self.jobs.get_mut(&id).map(|job| job.accounts.iter_mut());
        let mut accounts = accounts.into_iter().flatten();
        if let Some(account) = accounts.find(|account| account.share.card == card) {
            account.clock.advance(by, rate);
            account.used.add_late(self.now, by);
        }
    }

    /// Charges the jobs that ran on a card since `from`, each with its part.
    fn charge(&mut self, card: usize, wanting: &[(Class, TimeShare)], from: Duration) {
        let (now, step, rules) = (self.now, self.now - from, self.rules);
        let runs = |job: &&Job| job.runs() && job.account(card).is_some();
        let n_running = self.jobs.values().filter(runs).count();
        let part = step / u32::try_from(n_running.max(1)).unwrap_or(u32::MAX);
        let rates = due(wanting);
        let floor = self.clocks.entry(card).or_default();
        let mut rates = rates.into_iter();
        let mut earliest: Option<Clock> = None;
        for job in self.jobs.values_mut() {
            let (runs, wants, waits) = (job.runs(), job.wants, job.is_waiting());
            let mut accounts = job.accounts.iter_mut();
            let Some(account) = accounts.find(|account| account.share.card == card) else {
                continue;
            };
            if !(runs || wants) {
                continue;
            }
            let rate = rates.next().unwrap_or(WHOLE);
            if runs {
                account.used.add(from, now, part);
                account.had += part;
                account.worked += step;
                account.clock.advance(part, rate);
            }
            if waits {
                account.waited.add(from, now, step);
                match account.room(&rules, from) {
                    Duration::ZERO => account.throttled += step,
                    _ => account.kept_waiting += step,
                }
            }
            earliest = Some(earliest.map_or(account.clock, |clock| clock.min(account.clock)));
        }
        match earliest {
            Some(clock) => *floor = (*floor).max(clock),
            // Nobody was kept waiting: debts are paid.
            None => floor.advance(step, WHOLE),
        }
    }
}
