//! The order of the waiting jobs, and the condition that would start one.
//!
//! Higher priority goes first. Among jobs of one priority, the user with the least of the cards
//! goes first, and of one user's jobs the one that came first. A job that has waited for
//! [`PATIENCE_MS`] goes by its age alone, before all others of its priority that have not waited
//! that long.
//!
//! No job passes the first of the queue: a job that would fit waits behind one that does not. So
//! smaller jobs of its priority keep a large job waiting for a limited time, if jobs end: after its
//! patience only the jobs that came before it go first.
//!
//! An event costs only its own change. The queue is sorted again only when a user's share of the
//! cards changes or a job's patience ends, and the cards are asked only when they, or the first of
//! the queue, change.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use sublet_model::{Class, Milli, Part, Time};

use super::Machine;
use super::job::{HeldCard, Job};
use crate::event::Action;
use crate::job::{Amount, JobAsk, JobId, UserId};
use crate::place::Cards;
use crate::refusal::JobRefusal;

/// Time for which a job waits by its user's share of the cards. Long enough for a user who has
/// nothing to go first, short enough that a large job is not forgotten for a working day.
pub const PATIENCE_MS: u64 = 10 * 60 * 1000;

/// Condition that would start a waiting job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartCondition {
    /// The end of any one of these jobs.
    OneEnds(Vec<JobId>),
    /// The end of several jobs.
    SeveralEnd,
    /// The jobs before it have started, and there is room left.
    AfterOthers(u32),
    /// Something that is no job leaves the cards, or a sick card is well again.
    OthersLeave,
}

impl fmt::Display for StartCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartCondition::OneEnds(jobs) => {
                let jobs: Vec<String> = jobs.iter().map(ToString::to_string).collect();
                match jobs.as_slice() {
                    [only] => write!(f, "job {only} ends"),
                    several => write!(f, "one of the jobs {} ends", several.join(", ")),
                }
            }
            StartCondition::SeveralEnd => f.write_str("several jobs end"),
            StartCondition::AfterOthers(1) => {
                f.write_str("the job before it has started, and there is room")
            }
            StartCondition::AfterOthers(n) => {
                write!(f, "the {n} jobs before it have started, and there is room")
            }
            StartCondition::OthersLeave => f.write_str(
                "processes that are no job leave the GPUs, or an unhealthy GPU is healthy again",
            ),
        }
    }
}

/// A job's place in the queue; smaller goes first.
type Place = (Reverse<i32>, bool, u64, Time, JobId);

/// Place of a job whose user has that share of the cards.
fn place_in_line(now: Time, id: JobId, ask: &JobAsk, since: Time, share: u64) -> Place {
    let is_patient = now < since.plus_ms(PATIENCE_MS);
    let share = if is_patient { share } else { 0 };
    (Reverse(ask.priority), is_patient, share, since, id)
}

/// The most jobs that are looked at for one whose end alone would start another: each costs a copy
/// of the cards' accounts. If no end of the largest jobs is enough, hardly a smaller one is.
const ENDS_MAX: usize = 64;

/// The jobs that wait, and the state of the cards for which they were looked at last.
#[derive(Debug, Clone, Default)]
pub(super) struct Line {
    /// The next first. In order for the shares below.
    pub(super) queue: Vec<JobId>,
    /// Counts each user's.
    of_user: BTreeMap<UserId, usize>,
    /// The part of the machine that each user's jobs have.
    shares: BTreeMap<UserId, u64>,
    /// [`Cards::changes`](crate::place::Cards::changes) when the shares were added up.
    shares_at: Option<u64>,
    /// When the order is another though nothing happens.
    patience_ends: Option<Time>,
    /// From here on others stand there than were told so.
    moved_from: Option<usize>,
    /// The state of the cards when they were asked last, and for which job; none before all has settled.
    asked: Option<(u64, Option<JobId>)>,
    /// The event that would start the first of the line, in that state.
    starts_first: OnceCell<StartCondition>,
}

impl Line {
    fn moves_from(&mut self, place: usize) {
        let before = self.moved_from.unwrap_or(place);
        self.moved_from = Some(before.min(place));
    }

    /// A waiting job asks for something else now.
    pub(super) fn ask_again(&mut self) {
        self.asked = None;
    }

    fn count(&mut self, job: &Job, is_more: bool) {
        let Some(user) = job.ask.user else { return };
        let n = self.of_user.entry(user).or_default();
        *n = if is_more { *n + 1 } else { n.saturating_sub(1) };
        if *n == 0 {
            self.of_user.remove(&user);
        }
    }
}

impl Machine {
    /// Sorts the waiting jobs, if their order may have changed.
    fn line_up(&mut self, now: Time) {
        if self.line.queue.is_empty() {
            return;
        }
        let is_impatient = self.line.patience_ends.is_some_and(|end| end <= now);
        if !self.take_shares() && !is_impatient {
            return;
        }
        let queue = self.line.queue.iter();
        let mut line: Vec<Place> = queue.map(|id| self.place(now, *id)).collect();
        line.sort_unstable();
        let sorted: Vec<JobId> = line.into_iter().map(|place| place.4).collect();
        let mut both = sorted.iter().zip(&self.line.queue);
        if let Some(first) = both.position(|(now, before)| now != before) {
            self.line.moves_from(first);
        }
        self.line.queue = sorted;
        self.line.patience_ends = self.next_end(|end| end > now);
    }

    /// Adds up the shares, if the cards have changed. Returns true if a user's share has
    /// changed.
    fn take_shares(&mut self) -> bool {
        let changes = Some(self.cards.changes());
        if self.line.shares_at == changes {
            return false;
        }
        let shares = self.shares();
        self.line.shares_at = changes;
        let before = std::mem::replace(&mut self.line.shares, shares);
        before != self.line.shares
    }

    /// A job joins the line.
    pub(super) fn join_line(&mut self, now: Time, id: JobId) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let end = job.since.plus_ms(PATIENCE_MS);
        self.line.count(job, true);
        if self.line.queue.is_empty() {
            self.line.patience_ends = None;
        }
        self.line_up(now);
        self.take_shares();
        let place = self.before(now, self.place(now, id));
        self.line.queue.insert(place, id);
        self.line.moves_from(place);
        if end > now {
            let soonest = self
                .line
                .patience_ends
                .map_or(end, |soonest| soonest.min(end));
            self.line.patience_ends = Some(soonest);
        }
    }

    /// A job leaves the line, if it stands there.
    pub(super) fn leave_line(&mut self, id: JobId) {
        let mut queue = self.line.queue.iter();
        let Some(place) = queue.position(|waiting| *waiting == id) else {
            return;
        };
        self.line.queue.remove(place);
        self.line.moves_from(place);
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        self.line.count(job, false);
        let end = job.since.plus_ms(PATIENCE_MS);
        if self.line.patience_ends == Some(end) {
            // Patience that ended before this changes nothing any more.
            self.line.patience_ends = self.next_end(|other| other >= end);
        }
    }

    /// The earliest end of a job's patience that `is_meant` accepts.
    fn next_end(&self, is_meant: impl Fn(Time) -> bool) -> Option<Time> {
        let waiting = self.line.queue.iter().map(|id| self.jobs[id].since);
        let ends = waiting.map(|since| since.plus_ms(PATIENCE_MS));
        ends.filter(|end| is_meant(*end)).min()
    }

    /// Counts the jobs that go before a job that comes now.
    pub(super) fn ahead_of(&mut self, now: Time, id: JobId, ask: &JobAsk) -> u32 {
        if self.line.queue.is_empty() {
            return 0;
        }
        self.line_up(now);
        let own = place_in_line(now, id, ask, now, self.share_in_line(ask));
        u32::try_from(self.before(now, own)).unwrap_or(u32::MAX)
    }

    /// Counts the jobs before that place, in a sorted queue.
    fn before(&self, now: Time, own: Place) -> usize {
        let queue = &self.line.queue;
        queue.partition_point(|other| self.place(now, *other) < own)
    }

    fn place(&self, now: Time, id: JobId) -> Place {
        let job = &self.jobs[&id];
        place_in_line(now, id, &job.ask, job.since, self.share_in_line(&job.ask))
    }

    fn share_in_line(&self, ask: &JobAsk) -> u64 {
        let share = ask.user.and_then(|user| self.line.shares.get(&user));
        share.copied().unwrap_or(0)
    }

    /// Places jobs from the head of the queue as long as they fit, and tells jobs with a new place
    /// their place.
    pub(super) fn advance(&mut self, now: Time, out: &mut Vec<Action>) {
        self.line_up(now);
        let mut why = None;
        while let Some(&head) = self.line.queue.first() {
            let asks = (self.cards.changes(), self.settled.then_some(head));
            if self.line.asked == Some(asks) && self.line.moved_from != Some(0) {
                break;
            }
            self.line.asked = Some(asks);
            self.line.starts_first.take();
            if !self.settled {
                why = Some(JobRefusal::Settling);
                break;
            }
            match self.cards.find(&self.jobs[&head].ask) {
                Ok(parts) => {
                    self.leave_line(head);
                    self.give(head, parts, false, out);
                    // Its user has more now.
                    self.line_up(now);
                }
                Err(reason) => {
                    why = Some(reason);
                    break;
                }
            }
        }
        if let (Some(&head), Some(reason)) = (self.line.queue.first(), why) {
            self.tell_place(head, (1, reason), out);
        }
        let Some(from) = self.line.moved_from.take() else {
            return;
        };
        for place in from.max(1)..self.line.queue.len() {
            let waiting = u32::try_from(place).unwrap_or(u32::MAX - 1);
            let news = (waiting + 1, JobRefusal::Behind { waiting });
            self.tell_place(self.line.queue[place], news, out);
        }
    }

    /// Tells a job its place and the reason of its wait, if they have changed.
    fn tell_place(&mut self, id: JobId, news: (u32, JobRefusal), out: &mut Vec<Action>) {
        if let Some(job) = self.jobs.get_mut(&id)
            && job.last_news.as_ref() != Some(&news)
        {
            job.last_news = Some(news.clone());
            let (position, reason) = news;
            out.push(Action::Wait {
                job: id,
                position,
                reason,
            });
        }
    }

    /// Adds up each user's part of the machine, as in [`Machine::share_of`].
    fn shares(&self) -> BTreeMap<UserId, u64> {
        let mut shares = BTreeMap::new();
        for job in self.jobs.values().filter(|job| !job.held.is_empty()) {
            if let Some(user) = job.ask.user {
                let own = job
                    .held
                    .iter()
                    .map(|held| self.share_of_card(&job.ask, held));
                *shares.entry(user).or_default() += own.sum::<u64>();
            }
        }
        shares
    }

    /// Number of a user's waiting jobs.
    #[must_use]
    pub fn waiting_of(&self, user: UserId) -> usize {
        self.line.of_user.get(&user).copied().unwrap_or(0)
    }

    /// The part of the machine that a user's jobs have, in thousandths of cards: of each card the
    /// larger of memory and compute time.
    #[must_use]
    pub fn share_of(&self, user: UserId) -> u64 {
        let own = self.jobs.values();
        let own = own.filter(|job| job.ask.user == Some(user));
        let cards = own.flat_map(|job| job.held.iter().map(|held| (&job.ask, held)));
        cards.map(|(ask, held)| self.share_of_card(ask, held)).sum()
    }

    fn share_of_card(&self, ask: &JobAsk, held: &HeldCard) -> u64 {
        if ask.memory == Amount::Whole {
            return u64::from(Milli::WHOLE.get());
        }
        let share = held.takes().share_of(self.cards.capacity(held.part.card));
        u64::from(share.get())
    }

    /// Time at which the next waiting job's patience ends and the order may change.
    pub(super) fn patience_ends(&self) -> Option<Time> {
        let ends = self.line.patience_ends;
        ends.filter(|_| !self.line.queue.is_empty())
    }

    /// Condition that would start a job; nothing for a job that does not wait.
    #[must_use]
    pub fn starts_when(&self, id: JobId) -> Option<StartCondition> {
        let job = self.jobs.get(&id)?;
        let (position, _) = job.last_news.as_ref()?;
        if *position > 1 {
            return Some(StartCondition::AfterOthers(position - 1));
        }
        let found = &self.line.starts_first;
        Some(found.get_or_init(|| self.starts_alone(&job.ask)).clone())
    }

    /// Finds the condition that would start the first of the queue.
    fn starts_alone(&self, ask: &JobAsk) -> StartCondition {
        let local = self.jobs.iter().filter(|(_, job)| job.promise.is_none());
        let local = local.filter(|(_, job)| !job.held.is_empty());
        let mut others: Vec<(&JobId, &Job)> = local.collect();
        let free = |cards: &mut Cards, other: JobId, job: &Job| {
            for held in &job.held {
                let card = held.part.card;
                cards.charge(card, other, Part::ZERO, Class::Guaranteed);
                cards.set_whole(card, other, false);
            }
        };
        let mut empty = self.cards.clone();
        for (other, job) in &others {
            free(&mut empty, **other, job);
        }
        let has = |job: &Job| job.held.iter().map(|held| held.charge).max();
        others.sort_by_key(|(_, job)| Reverse(has(job)));
        others.truncate(ENDS_MAX);
        let mut alone = Vec::new();
        for (other, job) in others {
            let mut without = self.cards.clone();
            free(&mut without, *other, job);
            if without.find(ask).is_ok() {
                alone.push(*other);
            }
        }
        alone.sort_unstable();
        match (alone.is_empty(), empty.find(ask)) {
            (false, _) => StartCondition::OneEnds(alone),
            (true, Ok(_)) => StartCondition::SeveralEnd,
            (true, Err(_)) => StartCondition::OthersLeave,
        }
    }
}

#[cfg(test)]
mod tests;
