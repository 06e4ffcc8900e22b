//! The choice of jobs that must stop, and of jobs that may go.

use std::collections::BTreeMap;
use std::time::Duration;

use sublet_model::Class;

use super::account::Clock;
use super::group::Group;
use super::held_job::{Job, Phase};
use super::{LaunchGate, Overlap, SetGate, TurnRules};
use crate::job::JobId;

/// Order of the next turn: by class, then by the clock further behind, then by the longer wait.
type Order = (Class, Clock, Duration, JobId);

/// Wait for a turn after which a job that owes nothing is next. Others further behind may be such
/// that can seldom have all of their cards. Longer than between two turns of the least share.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Bound of the queue of a job that is alone on its cards. Whoever comes waits for it once.
const QUEUE_ALONE: Duration = Duration::from_millis(250);

/// And an opportunistic job beside others.
const QUEUE_OPPORTUNISTIC: Duration = Duration::from_millis(1);

impl Group {
    /// Opens and closes gates, as things are now.
    pub(super) fn decide(&mut self, now: Duration, out: &mut Vec<SetGate>) {
        self.pass_time(now);
        self.end_long_pauses();
        self.watch_those_in_company();
        self.refresh_rates();
        let open: Vec<JobId> = self.ids_of(|phase| !matches!(phase, Phase::Free | Phase::Closed));
        for id in open {
            self.end_turn(id);
        }
        self.give_turns();
        for id in self.ids_of(|phase| matches!(phase, Phase::Open { .. })) {
            self.note_contention(id);
        }
        self.set_gates(out);
        self.wake_at = self.due_at();
    }

    fn set_gates(&mut self, out: &mut Vec<SetGate>) {
        let queues: Vec<Duration> = self
            .jobs
            .iter()
            .map(|(id, job)| self.queue(*id, job))
            .collect();
        for ((id, job), queue) in self.jobs.iter_mut().zip(queues) {
            let gate = job.gate(&self.rules, self.now);
            let is_closed = matches!(gate, LaunchGate::Closed(_));
            // Nothing is queued at a closed gate, and it is closed once.
            let is_known = job.told.is_some_and(|(told_gate, told_queue)| {
                told_gate == gate && (is_closed || told_queue == queue)
            });
            if !is_known {
                job.told = Some((gate, queue));
                let job = *id;
                out.push(SetGate { job, gate, queue });
            }
        }
    }

    /// The most that a job may have queued: who comes to the card, or comes back, waits for it.
    fn queue(&self, id: JobId, job: &Job) -> Duration {
        if job.phase == Phase::Free {
            return QUEUE_ALONE;
        }
        if job.class == Class::Opportunistic {
            return QUEUE_OPPORTUNISTIC;
        }
        let mut others = self.others_of(id);
        let may_come_back =
            |other: &Job| !other.wants || other.pauses.are_recent(self.now, &self.rules);
        match others.any(|(_, other)| may_come_back(other)) {
            true => self.rules.shortest,
            false => self.rules.slice / 2,
        }
    }

    fn due_at(&self) -> Option<Duration> {
        let due = self.jobs.iter().filter_map(|(id, job)| match job.phase {
            Phase::Open { .. } if !job.wants => None,
            Phase::Open { since, until, .. } => {
                let others = self.others_of(*id).map(|(_, other)| other);
                let wanting: Vec<&Job> = others.filter(|other| other.wants).collect();
                if job.has_limit() || !wanting.is_empty() {
                    let has_woken = wanting.iter().any(|other| other.has_woken);
                    let may_be_interrupted = since + self.rules.shortest;
                    let lingers = job.pauses.lingers_until(&self.rules);
                    let interrupted =
                        (has_woken && may_be_interrupted > self.now).then_some(may_be_interrupted);
                    lingers.into_iter().chain(interrupted).chain([until]).min()
                } else {
                    job.contended_until(&self.rules)
                }
            }
            // Others then may have short turns (`free_at`); later its gate opens again.
            Phase::Closing { since } if self.now < since + self.rules.slice => {
                Some(since + self.rules.slice)
            }
            Phase::Closing { since } => job.is_at_gate.then(|| since.saturating_add(job.patience)),
            Phase::Closed if job.wants => Some(self.may_go_at(*id, job)),
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
    fn may_go_at(&self, id: JobId, job: &Job) -> Duration {
        let accounts = job.accounts.iter();
        let rooms = accounts.map(|account| account.has_room_at(&self.rules, self.now));
        let room_at = rooms.max().unwrap_or_default();
        let room_at = room_at.max(self.pauses_pass_at(id, job).unwrap_or_default());
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
                job.phase = Phase::Open {
                    since: self.now,
                    until,
                    is_least: false,
                };
            }
        }
    }

    fn end_turn(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let (now, slice) = (self.now, self.rules.slice);
        match job.phase {
            Phase::Open { .. } if self.must_yield(id, job) => {
                // It is awake again when its limit lets it go on.
                let is_at_limit = self.is_at_limit(job);
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.phase = Phase::Closing { since: now };
                    job.turn = job.turn.wrapping_add(1);
                    job.is_at_gate = false;
                    job.has_woken = is_at_limit;
                    job.pauses.stop_lingering();
                }
            }
            Phase::Open { since, until, .. } if until <= now => {
                let until = self.ends_at(self.turn_of(job));
                self.open(id, until, false);
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.has_woken &= since == now;
                }
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
            job.phase = Phase::Open {
                since: self.now,
                until,
                is_least,
            };
            job.is_at_gate = false;
        }
    }

    /// True if the gate of a job must close now.
    fn must_yield(&self, id: JobId, job: &Job) -> bool {
        let Phase::Open {
            since,
            until,
            is_least,
        } = job.phase
        else {
            return false;
        };
        if job.wants && self.is_at_limit(job) {
            return true;
        }
        let is_over = until <= self.now;
        let may_be_interrupted = since + self.rules.shortest <= self.now;
        let own = self.order_of(id, job);
        let mut others = self.others_of(id);
        others.any(|(other_id, other)| {
            let could_go = self.could_go(other_id, other);
            if !could_go && !other.is_at_work() {
                return false;
            }
            match (job.wants, job.class, other.class) {
                (true, Class::Guaranteed, Class::Opportunistic) => {
                    is_over && could_go && self.is_due_its_least(other)
                }
                (true, Class::Opportunistic, Class::Guaranteed) => is_over || !is_least,
                (true, _, _) => {
                    let others = self.order_of(other_id, other);
                    let interrupts = other.has_woken && self.is_far_before(others, own);
                    others < own && (is_over || interrupts && may_be_interrupted)
                }
                // Its next launch finds the gate open, and ends the other's turn.
                (false, Class::Guaranteed, Class::Opportunistic) => {
                    !self.share_overlapping(job, other)
                }
                (false, _, _) => {
                    let others = self.order_of(other_id, other);
                    !(self.share_overlapping(job, other) && self.is_far_before(own, others))
                }
            }
        })
    }

    fn is_at_limit(&self, job: &Job) -> bool {
        let mut accounts = job.accounts.iter();
        accounts.any(|account| account.room(&self.rules).is_zero())
    }

    /// True if a job may interrupt another one when it wakes: nobody changes places for less than
    /// the shortest turn.
    fn is_far_before(&self, one: Order, other: Order) -> bool {
        one.0 == other.0 && one.1.is_behind(other.1, self.rules.shortest)
    }

    /// True if a job may begin while another one's gate closes. Where one of them has several
    /// processes nobody knows how the driver splits that time: whoever has little queued leaves it
    /// to the others. (A crowd of 25 % was charged 25 for 20.) So they do not overlap, unless the
    /// other takes longer than a slice.
    fn may_begin_beside(&self, job: &Job, (closing, since): (&Job, Duration)) -> bool {
        let is_even = job.n_at_work() == 1 && closing.n_at_work() == 1;
        let is_long = since + self.rules.slice <= self.now;
        self.share_overlapping(job, closing) && (is_even || is_long)
    }

    fn share_overlapping(&self, job: &Job, other: &Job) -> bool {
        let mut cards = job.accounts.iter().map(|account| account.share.card);
        cards.all(|card| other.account(card).is_none() || self.may_overlap(card))
    }

    /// Length of a turn of a job that begins now.
    fn turn_of(&self, job: &Job) -> Duration {
        let accounts = job.accounts.iter();
        let left = accounts.map(|account| account.room(&self.rules));
        let left = left.min().unwrap_or(Duration::MAX);
        let slice = job.slice.unwrap_or(self.rules.slice);
        slice.max(self.rules.shortest).min(left)
    }

    /// End of a turn that begins now and has this length.
    fn ends_at(&self, length: Duration) -> Duration {
        let at = self.now + length;
        match length == self.rules.slice {
            true => self.rules.common_moment(at),
            false => at,
        }
    }

    /// True if it waits for nothing but its turn. Where turns may overlap, a gate that closes may
    /// open again at once.
    fn could_go(&self, id: JobId, job: &Job) -> bool {
        let mut accounts = job.accounts.iter();
        let is_closing = matches!(job.phase, Phase::Closing { .. }) && job.wants;
        let may_open = job.is_waiting()
            || is_closing && accounts.all(|account| self.may_overlap(account.share.card));
        let owes_now = || self.pauses_pass_at(id, job).is_some_and(|at| at > self.now);
        may_open && !self.is_at_limit(job) && !owes_now()
    }

    /// When the short pauses are over of those to whom a job owes time. A job whose kernels outlast
    /// a turn would begin one in each of them, and never pay.
    fn pauses_pass_at(&self, id: JobId, job: &Job) -> Option<Duration> {
        if job.drain <= self.rules.slice {
            return None;
        }
        let own = self.order_of(id, job);
        let resting = self.others_of(id).filter(|(_, other)| !other.wants);
        let owed = resting
            .filter(|(other_id, other)| self.is_far_before(self.order_of(*other_id, other), own));
        owed.filter_map(|(_, other)| other.pauses.pass_by()).max()
    }

    /// True if an opportunistic job has waited so long that a guaranteed one lets it go.
    fn is_due_its_least(&self, job: &Job) -> bool {
        let least = self.rules.least;
        let mut accounts = job.accounts.iter();
        job.class == Class::Opportunistic
            && job.phase == Phase::Closed
            && !least.is_zero()
            && job.since + self.rules.window <= self.now
            && accounts.all(|account| account.used.used(self.now) < least)
    }

    fn order_of(&self, id: JobId, job: &Job) -> Order {
        if self.is_due_its_least(job) {
            return (Class::Guaranteed, Clock::FIRST, job.since, id);
        }
        match job.phase == Phase::Closed && !job.owes && job.since + LONGEST_WAIT <= self.now {
            true => (job.class, Clock::FIRST, job.since, id),
            false => (job.class, job.clock, job.since, id),
        }
    }

    /// Opens the gates of jobs that are first on all their cards. A card for which an earlier job
    /// waits goes to a later one only until the earlier one can have all of its cards. If turns
    /// must not overlap, it goes only to a job that then stops at once.
    fn give_turns(&mut self) {
        let waiting = self
            .jobs
            .iter()
            .filter(|(id, job)| self.could_go(**id, job));
        let mut line: Vec<Order> = waiting.map(|(id, job)| self.order_of(*id, job)).collect();
        line.sort_unstable();
        let mut running = self.ids_of(|phase| !matches!(phase, Phase::Free | Phase::Closed));
        let mut claimed: BTreeMap<usize, Duration> = BTreeMap::new();
        for (class, _, _, id) in line {
            let Some(job) = self.jobs.get(&id) else {
                continue;
            };
            let cards: Vec<usize> = job.accounts.iter().map(|a| a.share.card).collect();
            let free_at = self.free_at(&running, id, job);
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
    fn free_at(&self, running: &[JobId], id: JobId, job: &Job) -> Option<Duration> {
        let running = running.iter().filter(|other| **other != id);
        let running = running.filter_map(|id| self.jobs.get(id));
        let blocks = running
            .filter(|other| other.is_on_a_card_of(job))
            .filter_map(|other| match other.phase {
                Phase::Free | Phase::Closed => None,
                Phase::Open { until, .. } if other.wants => Some(until),
                // It was asked to close if it had to.
                Phase::Open { .. } => None,
                Phase::Closing { since } if self.may_begin_beside(job, (other, since)) => None,
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
