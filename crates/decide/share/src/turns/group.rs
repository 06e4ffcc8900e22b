//! Jobs that share cards, directly or through others: an event of one of them may matter to all
//! of them, and to no other job.

use std::collections::BTreeMap;
use std::time::Duration;

use sublet_model::Class;

use super::account::{Account, Clock};
use super::coordinator::Pace;
use super::held_job::{Job, Pauses, Phase};
use super::{Overlap, TimeShare, TurnEvent, TurnRules, TurnView};
use crate::job::JobId;

/// The jobs.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) rules: TurnRules,
    /// By card. A card that is not here lets turns overlap.
    pub(super) overlap: BTreeMap<usize, Overlap>,
    pub(super) jobs: BTreeMap<JobId, Job>,
    pub(super) now: Duration,
    pub(super) wake_at: Option<Duration>,
}

impl Group {
    /// One new job.
    pub(super) fn of(
        rules: TurnRules,
        now: Duration,
        id: JobId,
        class: Class,
        (shares, slice): (&[TimeShare], Option<Duration>),
    ) -> Group {
        let accounts = shares
            .iter()
            .map(|share| Account::new(*share, rules.window));
        let job = Job {
            class,
            accounts: accounts.collect(),
            clock: Clock::default(),
            used_since: Duration::ZERO,
            phase: Phase::Closed,
            slice,
            n_processes: 1,
            has_woken: false,
            wants: false,
            pauses: Pauses::default(),
            is_at_gate: false,
            patience: rules.slice,
            drain: Duration::ZERO,
            owes: false,
            turn: 0,
            since: now,
            wanted_by_others: None,
            pace: Pace::default(),
            duty: None,
            told: None,
        };
        Group {
            rules,
            overlap: BTreeMap::new(),
            jobs: BTreeMap::from([(id, job)]),
            now,
            wake_at: None,
        }
    }

    /// A group of each of its jobs.
    pub(super) fn into_parts(self) -> impl Iterator<Item = Group> {
        let Group {
            rules, jobs, now, ..
        } = self;
        jobs.into_iter().map(move |(id, job)| Group {
            rules,
            overlap: BTreeMap::new(),
            jobs: BTreeMap::from([(id, job)]),
            now,
            wake_at: None,
        })
    }

    /// Both, as one.
    pub(super) fn joined(mut self, other: Group) -> Group {
        self.jobs.extend(other.jobs);
        self
    }

    /// Moves its clocks so that the earliest is that of others, with which it has never shared
    /// cards: nothing is owed between them.
    pub(super) fn meet(&mut self, other: &Group) {
        let earliest = |group: &Group| group.jobs.values().map(|job| job.clock).min();
        let (Some(own), Some(theirs)) = (earliest(self), earliest(other)) else {
            return;
        };
        for job in self.jobs.values_mut() {
            job.clock = job.clock.moved(own, theirs);
        }
    }

    pub(super) fn has_a_card_of(&self, other: &Group) -> bool {
        let mut jobs = self.jobs.values();
        jobs.any(|job| other.jobs.values().any(|other| job.is_on_a_card_of(other)))
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = JobId> {
        self.jobs.keys().copied()
    }

    pub(super) fn remove(&mut self, id: JobId) {
        self.jobs.remove(&id);
    }

    pub(super) fn set_overlap(&mut self, card: usize, overlap: Overlap) {
        self.overlap.insert(card, overlap);
    }

    /// When it is to be decided again though nothing happens.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        self.wake_at
    }

    /// Gives a job other shares. False if they are of other cards.
    pub(super) fn replace(
        &mut self,
        id: JobId,
        class: Class,
        (shares, slice): (&[TimeShare], Option<Duration>),
    ) -> bool {
        let Some(job) = self.jobs.get_mut(&id) else {
            return false;
        };
        let are_same = job.accounts.len() == shares.len()
            && shares.iter().all(|share| job.account(share.card).is_some());
        if are_same {
            job.class = class;
            job.slice = slice;
            for account in &mut job.accounts {
                let mut shares = shares.iter();
                if let Some(share) = shares.find(|share| share.card == account.share.card) {
                    account.share = *share;
                }
            }
        }
        are_same
    }

    /// Notes a job's report.
    pub(super) fn hear(&mut self, now: Duration, event: &TurnEvent) {
        self.pass_time(now);
        match *event {
            TurnEvent::Wants(job) => self.want(job),
            TurnEvent::Rests(job) => self.rest(job),
            TurnEvent::Drained { job, turn, wants } => self.drained(job, turn, wants),
            TurnEvent::AtWork { job, n_processes } => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.n_processes = n_processes;
                }
            }
            TurnEvent::Overused { job, card, by } => {
                self.hold_to_work(job);
                self.charge_more(job, card, by);
            }
            TurnEvent::Placed { .. } | TurnEvent::Left(_) | TurnEvent::Tick => {}
        }
    }

    pub(super) fn view(&self, id: JobId) -> Vec<TurnView> {
        let Some(job) = self.jobs.get(&id) else {
            return Vec::new();
        };
        let views = job.accounts.iter().map(|account| TurnView {
            share: account.share,
            used: account.used.used(self.now),
            had: account.had,
            worked: account.worked,
            waited: account.waited.used(self.now),
            waited_in_all: account.kept_waiting + account.throttled,
            throttled_in_all: account.throttled,
            is_at_limit: job.is_waiting() && account.room(&self.rules).is_zero(),
        });
        views.collect()
    }

    fn want(&mut self, id: JobId) {
        let (now, rules) = (self.now, self.rules);
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.pauses.end(now, &rules);
        job.pace.wakes(now);
        if !job.wants {
            job.since = now;
            job.has_woken = true;
            // Its gate stayed open while it paused: whether it has a new turn is decided now.
            if let Phase::Open { since, until, .. } = &mut job.phase {
                (*since, *until) = (now, now);
            }
        }
        job.is_at_gate = !matches!(job.phase, Phase::Open { .. });
        job.wants = true;
    }

    /// A job at work that claims to rest would keep its gate open beside others that work. So it
    /// counts as working until its gate was closed.
    fn hold_to_work(&mut self, id: JobId) {
        let job = self.jobs.get(&id);
        if job.is_some_and(|job| matches!(job.phase, Phase::Open { .. }) && !job.wants) {
            self.want(id);
        }
    }

    fn rest(&mut self, id: JobId) {
        let is_wanted = self.others_of(id).any(|(_, other)| other.wants);
        let (now, rules) = (self.now, self.rules);
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.is_at_gate = false;
        job.pace.rests(now);
        let may_linger = is_wanted && job.is_at_work();
        job.wants = job.wants && job.pauses.begin(now, &rules, may_linger);
    }

    fn drained(&mut self, id: JobId, turn: u32, wants: bool) {
        let (now, slice) = (self.now, self.rules.slice);
        let earliest = self.others_of(id).map(|(_, other)| other.clock).min();
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let Phase::Closing { since } = job.phase else {
            return;
        };
        if turn != job.turn {
            return;
        }
        job.phase = Phase::Closed;
        job.drain = now - since;
        job.owes = earliest.is_some_and(|earliest| job.clock.owes_beside(earliest));
        job.wants = wants;
        job.is_at_gate = wants;
        job.patience = slice;
        job.since = now;
        if !wants {
            job.pace.rests(now);
        }
    }
}
