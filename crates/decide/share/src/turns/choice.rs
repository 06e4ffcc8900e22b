//! The choice of jobs that must stop, and of jobs that may go.

use std::collections::BTreeMap;
use std::time::Duration;

use sublet_model::Class;

use super::group::Group;
use super::held_job::{Job, Phase};
use super::{LaunchGate, Overlap, SetGate, TurnRules};
use crate::job::JobId;

/// Order of the next turn: by class, then by the clock further behind, then by the longer
/// wait.
type Order = (Class, Duration, Duration, JobId);

impl Group {
    /// Opens and closes gates, as things are now.
    pub(super) fn decide(&mut self, now: Duration, out: &mut Vec<SetGate>) {
        self.pass_time(now);
        self.end_long_pauses();
        self.watch_those_in_company();
        let open: Vec<JobId> = self.ids_of(|phase| !matches!(phase, Phase::Free | Phase::Closed));
        for id in open {
            self.end_turn(id);
        }
        self.give_turns();
        for id in self.ids_of(|phase| matches!(phase, Phase::Open { .. })) {
            self.note_contention(id);
        }
        for (id, job) in &mut self.jobs {
            let gate = job.gate(&self.rules, self.now);
            if job.told != Some(gate) {
                job.told = Some(gate);
                out.push(SetGate { job: *id, gate });
            }
        }
        self.wake_at = self.due_at();
    }

    fn due_at(&self) -> Option<Duration> {
        let due = self.jobs.iter().filter_map(|(id, job)| match job.phase {
            Phase::Open { .. } if !job.wants => None,
            Phase::Open { until, .. } => {
                let mut others = self.others_of(*id);
                let matters = job.has_limit() || others.any(|(_, other)| other.wants);
                if matters {
                    job.pauses
                        .lingers_until(&self.rules)
                        .into_iter()
                        .chain([until])
                        .min()
                } else {
                    job.contended_until(&self.rules)
                }
            }
            // Others then may have short turns (`free_at`); later its gate opens again.
            Phase::Closing { since } if self.now < since + self.rules.slice => {
                Some(since + self.rules.slice)
            }
            Phase::Closing { since } => job.is_at_gate.then(|| since.saturating_add(job.patience)),
            Phase::Closed if job.wants => Some(self.may_go_at(job)),
            Phase::Free | Phase::Closed => None,
        });
        // What is due already was decided; it waits for something else to happen.
        due.filter(|at| *at > self.now).min()
    }

    fn ids_of(&self, is_meant: impl Fn(Phase) -> bool) -> Vec<JobId> {
        let meant = self.jobs.iter().filter(|(_, job)| is_meant(job.phase));
        meant.map(|(id, _)| *id).collect()
    }

    /// Ends the turns of jobs that have paused for too long.
    fn end_long_pauses(&mut self) {
        for job in self.jobs.values_mut() {
            let until = job.pauses.lingers_until(&self.rules);
            if until.is_some_and(|until| until <= self.now) {
                job.pauses.stop_lingering();
                job.wants = false;
            }
        }
    }

    /// Marks a job that has a card which another job wants now.
    fn note_contention(&mut self, id: JobId) {
        let is_wanted = {
            let mut others = self.others_of(id);
            others.any(|(_, other)| other.wants || other.runs())
        };
        if is_wanted && let Some(job) = self.jobs.get_mut(&id) {
            job.wanted_by_others = Some(self.now);
        }
    }

    /// When a waiting job's own limit or patience lets it go.
    fn may_go_at(&self, job: &Job) -> Duration {
        let accounts = job.accounts.iter();
        let rooms = accounts.map(|account| account.has_room_at(&self.rules, self.now));
        let room_at = rooms.max().unwrap_or_default();
        if job.class == Class::Guaranteed || room_at > self.now {
            return room_at;
        }
        job.since + self.rules.window
    }

    /// The jobs that have a card with a job in common.
    pub(super) fn others_of(&self, id: JobId) -> impl Iterator<Item = (JobId, &Job)> {
        let job = self.jobs.get(&id);
        let others = self.jobs.iter().filter(move |(other, _)| **other != id);
        others
            .filter(move |(_, other)| job.is_some_and(|job| other.is_on_a_card_of(job)))
            .map(|(id, other)| (*id, other))
    }

    fn may_overlap(&self, card: usize) -> bool {
        let overlap = self.overlap.get(&card).copied();
        overlap.unwrap_or_default() == Overlap::Allowed
    }

    /// A job that has company, or a limit, must say when it works.
    fn watch_those_in_company(&mut self) {
        let is_alone = self.jobs.len() == 1;
        let until = self.ends_at(self.rules.slice);
        for job in self.jobs.values_mut() {
            if is_alone && !job.has_limit() {
                job.phase = Phase::Free;
                job.wants = false;
                job.is_at_gate = false;
                job.pauses.stop_lingering();
            } else if job.phase == Phase::Free {
                let is_least = false;
                job.phase = Phase::Open { until, is_least };
            }
        }
    }

    fn end_turn(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let (now, slice) = (self.now, self.rules.slice);
        match job.phase {
            Phase::Open { until, is_least } if self.must_yield(id, job, until, is_least) => {
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.phase = Phase::Closing { since: now };
                    job.turn = job.turn.wrapping_add(1);
                    job.is_at_gate = false;
                    job.pauses.stop_lingering();
                }
            }
            Phase::Open { until, .. } if until <= now => {
                let until = self.ends_at(self.turn_of(job));
                self.open(id, until, false);
            }
            // Half of something that needs both halves is not done before the other half is
            // launched.
            Phase::Closing { since }
                if job.is_at_gate && since.saturating_add(job.patience) <= now =>
            {
                self.open(id, now + slice, false);
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.patience = job.patience.saturating_mul(2);
                }
            }
            _ => {}
        }
    }

    fn open(&mut self, id: JobId, until: Duration, is_least: bool) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.phase = Phase::Open { until, is_least };
            job.is_at_gate = false;
        }
    }

    fn must_yield(&self, id: JobId, job: &Job, until: Duration, is_least: bool) -> bool {
        let mut accounts = job.accounts.iter();
        if job.wants && accounts.any(|account| account.left(&self.rules, self.now).is_zero()) {
            return true;
        }
        let is_over = until <= self.now;
        let own = self.order_of(id, job);
        let mut others = self.others_of(id);
        others.any(|(other_id, other)| {
            let could_go = self.could_go(other);
            if !could_go && !other.is_at_work() {
                return false;
            }
            match (job.wants, job.class, other.class) {
                (true, Class::Guaranteed, Class::Opportunistic) => {
                    is_over && could_go && self.is_due_its_least(other)
                }
                (true, Class::Opportunistic, Class::Guaranteed) => is_over || !is_least,
                (true, _, _) => is_over && self.order_of(other_id, other) < own,
                // Its next launch finds the gate open, and ends the other's turn.
                (false, Class::Guaranteed, Class::Opportunistic) => {
                    !self.share_overlapping(job, other)
                }
                (false, _, _) => could_go,
            }
        })
    }

    fn share_overlapping(&self, job: &Job, other: &Job) -> bool {
        let mut cards = job.accounts.iter().map(|account| account.share.card);
        cards.all(|card| other.account(card).is_none() || self.may_overlap(card))
    }

    /// Length of a turn of a job that begins now.
    fn turn_of(&self, job: &Job) -> Duration {
        let accounts = job.accounts.iter();
        let left = accounts.map(|account| account.left(&self.rules, self.now));
        let left = left.min().unwrap_or(Duration::MAX);
        self.rules.slice.min(left)
    }

    /// End of a turn that begins now and has this length.
    fn ends_at(&self, length: Duration) -> Duration {
        let at = self.now + length;
        match length == self.rules.slice {
            true => self.rules.common_moment(at),
            false => at,
        }
    }

    /// True if it waits for nothing but its turn.
    fn could_go(&self, job: &Job) -> bool {
        let mut accounts = job.accounts.iter();
        job.is_waiting() && accounts.all(|account| !account.room(&self.rules, self.now).is_zero())
    }

    /// True if an opportunistic job has waited so long that a guaranteed one lets it go.
    fn is_due_its_least(&self, job: &Job) -> bool {
        let least = self.rules.least;
        let mut accounts = job.accounts.iter();
        job.class == Class::Opportunistic
            && !least.is_zero()
            && job.since + self.rules.window <= self.now
            && accounts.all(|account| account.used.used(self.now) < least)
    }

    fn order_of(&self, id: JobId, job: &Job) -> Order {
        if self.is_due_its_least(job) {
            return (Class::Guaranteed, Duration::ZERO, job.since, id);
        }
        let accounts = job.accounts.iter();
        let ahead = accounts.map(|account| {
            let floor = self.clocks.get(&account.share.card).copied();
            account.clock.ahead_of(floor.unwrap_or_default())
        });
        (job.class, ahead.max().unwrap_or_default(), job.since, id)
    }

    /// Opens the gates of jobs that are first on all their cards. A card for which an earlier job
    /// waits goes to a later one only until the earlier one can have all of its cards. If turns
    /// must not overlap, it goes only to a job that then stops at once.
    fn give_turns(&mut self) {
        let waiting = self.jobs.iter().filter(|(_, job)| self.could_go(job));
        let mut line: Vec<Order> = waiting.map(|(id, job)| self.order_of(*id, job)).collect();
        line.sort_unstable();
        let mut running = self.ids_of(|phase| !matches!(phase, Phase::Free | Phase::Closed));
        let mut claimed: BTreeMap<usize, Duration> = BTreeMap::new();
        for (class, _, _, id) in line {
            let Some(job) = self.jobs.get(&id) else {
                continue;
            };
            let cards: Vec<usize> = job.accounts.iter().map(|a| a.share.card).collect();
            let free_at = self.free_at(&running, job);
            let claim = cards.iter().filter_map(|card| claimed.get(card)).min();
            let is_least = class != job.class;
            let length = if is_least {
                self.rules.least
            } else {
                self.turn_of(job)
            };
            let until = self
                .ends_at(length)
                .min(claim.copied().unwrap_or(Duration::MAX));
            // Less than the shortest turn only where its own limit leaves no more.
            let is_worth_it = until - self.now >= self.rules.shortest.min(length);
            let stops_at_once = job.drain <= self.rules.slice;
            let keeps_nobody = stops_at_once || cards.iter().all(|card| self.may_overlap(*card));
            let fits_in = claim.is_none() || keeps_nobody;
            if free_at.is_none() && is_worth_it && fits_in {
                self.open(id, until, is_least);
                running.push(id);
            } else {
                let at = free_at.unwrap_or(self.now + self.rules.shortest);
                for card in cards {
                    let earliest = claimed.entry(card).or_insert(at);
                    *earliest = at.min(*earliest);
                }
            }
        }
    }

    /// Time at which the jobs that block this one are expected to have left; nothing if none
    /// does.
    fn free_at(&self, running: &[JobId], job: &Job) -> Option<Duration> {
        let running = running.iter().filter_map(|id| self.jobs.get(id));
        let blocks = running
            .filter(|other| other.is_on_a_card_of(job))
            .filter_map(|other| match other.phase {
                Phase::Free | Phase::Closed => None,
                Phase::Open { until, .. } if other.wants => Some(until),
                // It was asked to close if it had to.
                Phase::Open { .. } => None,
                Phase::Closing { .. } if self.share_overlapping(job, other) => None,
                // In a moment, as a rule: nobody may begin a turn elsewhere that would still last
                // then, or two who take turns keep a third out who needs both their cards.
                Phase::Closing { since } if self.now < since + self.rules.slice => Some(self.now),
                // Nobody knows when.
                Phase::Closing { .. } => Some(self.now + self.rules.shortest),
            });
        blocks.max()
    }
}

impl Job {
    /// State of its gate.
    fn gate(&self, rules: &TurnRules, now: Duration) -> LaunchGate {
        match self.phase {
            Phase::Free => LaunchGate::Free,
            Phase::Open { .. } => {
                let is_wanted = self.contended_until(rules).is_some_and(|until| now < until);
                if is_wanted || self.has_limit() {
                    LaunchGate::Contended
                } else {
                    LaunchGate::Open
                }
            }
            Phase::Closing { .. } | Phase::Closed => LaunchGate::Closed(self.turn),
        }
    }
}
