//! The order of those that wait, and what would start one.
//!
//! Higher priority goes first. Among jobs of one priority that user goes first who has least of the
//! cards, and of one user's jobs the one that came first. A job that has waited for
//! [`PATIENCE_MS`] goes by its age alone, before all others of its priority that have not waited
//! that long.
//!
//! Nobody passes the first of the line: one that would fit waits behind one that does not. So a
//! large job is kept waiting by smaller ones of its priority for a limited time, if jobs end: after
//! its patience only those go before it that came before it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use sublet_model::{Class, Milli, Part, Time};

use super::Machine;
use super::job::HeldCard;
use crate::job::{Amount, JobAsk, JobId, UserId};

/// How long a job waits by its user's share of the cards. Long enough for a user who has nothing
/// to go first, short enough that a large job is not forgotten for a working day.
pub const PATIENCE_MS: u64 = 10 * 60 * 1000;

/// What would start a job that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartCondition {
    /// The end of any one of these jobs.
    OneEnds(Vec<JobId>),
    /// The end of several jobs.
    SeveralEnd,
    /// Those before it have started, and there is room left.
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

/// Where a job stands in the line; smaller goes first.
type Place = (Reverse<i32>, bool, u64, Time, JobId);

/// Where a job stands whose user has that share of the cards.
fn place_in_line(now: Time, id: JobId, ask: &JobAsk, since: Time, share: u64) -> Place {
    let is_patient = now < since.plus_ms(PATIENCE_MS);
    let share = if is_patient { share } else { 0 };
    (Reverse(ask.priority), is_patient, share, since, id)
}

impl Machine {
    /// Puts those that wait in their order.
    pub(super) fn line_up(&mut self, now: Time) {
        if self.queue.is_empty() {
            return;
        }
        let shares = self.shares();
        let share = |ask: &JobAsk| ask.user.and_then(|user| shares.get(&user)).copied();
        let mut line: Vec<(Place, JobId)> = Vec::with_capacity(self.queue.len());
        for &id in &self.queue {
            let job = &self.jobs[&id];
            let share = share(&job.ask).unwrap_or(0);
            line.push((place_in_line(now, id, &job.ask, job.since, share), id));
        }
        line.sort_unstable();
        self.queue = line.into_iter().map(|(_, id)| id).collect();
    }

    /// How many of those that wait go before a job that comes now.
    pub(super) fn ahead_of(&self, now: Time, id: JobId, ask: &JobAsk) -> u32 {
        let shares = self.shares();
        let place = |id, ask: &JobAsk, since| {
            let share = ask.user.and_then(|user| shares.get(&user)).copied();
            place_in_line(now, id, ask, since, share.unwrap_or(0))
        };
        let own = place(id, ask, now);
        let before = self.queue.iter().filter(|&&other| {
            let job = &self.jobs[&other];
            place(other, &job.ask, job.since) < own
        });
        u32::try_from(before.count()).unwrap_or(u32::MAX)
    }

    /// What each user's jobs have of the machine, as in [`Machine::share_of`]. Found once for the
    /// whole line: to add it up for each job that waits costs as many looks as there are pairs of
    /// jobs.
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

    /// How many of a user's jobs wait.
    #[must_use]
    pub fn waiting_of(&self, user: UserId) -> usize {
        let waiting = self.queue.iter().filter_map(|id| self.jobs.get(id));
        waiting.filter(|job| job.ask.user == Some(user)).count()
    }

    /// What a user's jobs have of the machine, in thousandths of cards: of each card the larger of
    /// memory and compute time.
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

    /// When the next of those that wait has waited for so long that the order may change.
    pub(super) fn patience_ends(&self) -> Option<Time> {
        let waiting = self.queue.iter().map(|id| self.jobs[id].since);
        let ends = waiting.map(|since| since.plus_ms(PATIENCE_MS));
        ends.filter(|&end| end > self.seen).min()
    }

    /// What would start a job; nothing for one that does not wait.
    #[must_use]
    pub fn starts_when(&self, id: JobId) -> Option<StartCondition> {
        let ask = &self.jobs.get(&id)?.ask;
        let place = self.queue.iter().position(|waiting| *waiting == id)?;
        if place > 0 {
            let before = u32::try_from(place).unwrap_or(u32::MAX);
            return Some(StartCondition::AfterOthers(before));
        }
        let others = || {
            let local = self.jobs.iter().filter(|(_, job)| job.promise.is_none());
            local.filter(|(_, job)| !job.held.is_empty())
        };
        let mut empty = self.cards.clone();
        let mut alone = Vec::new();
        for (&other, job) in others() {
            let mut without = self.cards.clone();
            for held in &job.held {
                for cards in [&mut without, &mut empty] {
                    let card = held.part.card;
                    cards.charge(card, other, Part::ZERO, Class::Guaranteed);
                    cards.set_whole(card, other, false);
                }
            }
            if without.find(ask).is_ok() {
                alone.push(other);
            }
        }
        Some(match (alone.is_empty(), empty.find(ask)) {
            (false, _) => StartCondition::OneEnds(alone),
            (true, Ok(_)) => StartCondition::SeveralEnd,
            (true, Err(_)) => StartCondition::OthersLeave,
        })
    }
}

#[cfg(test)]
mod tests;
