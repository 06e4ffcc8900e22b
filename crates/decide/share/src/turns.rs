//! Turns: shares of the compute time of cards, as a state machine.
//!
//! A job's processes launch work only while the job's *gate* is open, and one gate serves all its
//! cards: a job whose work stands still on one card waits for itself on the others. The machine
//! opens and closes gates. Reports from a job's processes come in as [`TurnEvent`]s. Time is an
//! argument, as the distance from any fixed moment.
//!
//! # Order of turns
//! Each job has, for each of its cards, a clock of its own: it advances by the time that the job
//! used there, divided by the rate that is due to the job now ([`rates`]). The job with the clock
//! furthest behind lacks the largest part of its share, and is next (virtual time; Gemini's order
//! by the largest missing share, without a quota that can be lost). A job on several cards goes by
//! its clock furthest ahead, and has all its cards or waits. So a job that overran its slice has a
//! debt, however long its kernel was, and pays it by waiting while others want the card.
//!
//! # Pauses
//! A pause belongs to the program. While a job pauses, its clock stands still, and the others' go
//! on at the rates that are due to them beside it: it keeps what it was promised. That is bounded
//! ([`TurnRules::credit`]), and only grows in time that others use. What is owed to a job beyond
//! that fades within about a second of its pause. A debt stays, through pauses of anybody and while
//! the card is idle. (Lag that outlives sleep, bounded: EEVDF, Stoica and Abdel-Wahab 1995, and
//! Linux 6.12.)
//!
//! A job that comes back from a pause, and is behind the one that has the card, takes the card at
//! once, but not before that one had the shortest turn. Where turns may overlap, the gate of a job
//! that pauses stays open meanwhile, if it is behind: its launch goes at once. So a request waits
//! for a drain, and for no turn; and who wakes often gets no more time by it.
//!
//! A job that waits for its own results rests for a moment after each step, and would lose its
//! turn each time. So a turn outlives a pause that is shorter than [`TurnRules::linger`], as long
//! as a job's pauses are usually that short. (Gemini joins bursts that are less than 2 ms apart.)
//! Whoever owes time, and whose kernels outlast a turn, does not begin in the usual pauses of those
//! to whom it owes.
//!
//! # Slices
//! A turn lasts a slice, give or take a quarter, so that the turns of several cards end at the same
//! moments ([`TurnRules::common_moment`]). Then the gate closes if another job waits, and the turn
//! ends when the job reports that none of its work runs. All time until then counts as used. If a
//! card's turns may overlap, the next one begins when the last gate was closed, and the time that
//! both use meanwhile is split by processes, as drivers do. If they must not, it begins when the
//! last one has ended. What a job may have queued is bounded with its gate ([`SetGate::queue`]), so
//! a drain is short.
//!
//! Drivers go on to the next process as soon as one has nothing more, and each of a crowd has little
//! queued. So a split by processes says little where a job has several on a card: it would be
//! charged for more than it had. The turns of such a job do not overlap with others, but for a drain
//! that outlasts a slice.
//!
//! The gate of a job may close between two halves of a step that needs both (rank 0 has launched
//! a collective, rank 1 waits at the gate). The job would never end its turn. So its gate opens
//! again after a slice, for one more slice on its account. Each time the next opening comes twice
//! as late, until a turn of it has ended: it may have long kernels and no such halves.
//!
//! # Limits
//! A limit is a token bucket ([`bucket`]): a run in each tenth of a second.
//!
//! # Groups
//! Jobs that share a card, and jobs that share one with these, are decided together
//! ([`group`]). An event in one group costs nothing in the others.
//!
//! # Classes
//! An opportunistic job has a turn while no guaranteed job wants the card, and its gate closes at
//! once when one does. A small share is left to it ([`TurnRules::least`]). Its part of the rest
//! depends on the progress of the guaranteed jobs ([`coordinator`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sublet_model::{Class, Milli};

use crate::job::JobId;

mod account;
mod bucket;
mod choice;
mod coordinator;
mod group;
mod held_job;
mod overuse;
mod rates;
mod rules;
mod window;

#[cfg(test)]
mod measured_properties;
#[cfg(test)]
mod ordinary;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

pub use coordinator::WorkDone;
use group::Group;
pub use overuse::{BusyReading, Overuse, OveruseWatch};
pub use rules::TurnRules;

/// A job's share of one card's compute time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeShare {
    /// The card's position in the machine's inventory.
    pub card: usize,
    /// Promised share.
    pub request: Milli,
    /// Maximum share, also of time that no other job wants.
    pub limit: Milli,
}

/// Whether turns of a card may overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// A turn begins when the gate of the one before was closed.
    #[default]
    Allowed,
    /// A turn begins when nothing of the one before runs any more: at any instant one job has
    /// the card.
    Never,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnEvent {
    /// A job has its cards, or other shares of the same cards.
    Placed {
        /// The job.
        job: JobId,
        /// Whether it gives way.
        class: Class,
        /// Its cards, each once.
        shares: Vec<TimeShare>,
        /// Its own length of a turn, if it asked for one ([`TurnRules::slice`] otherwise).
        slice: Option<Duration>,
    },
    /// A job is gone.
    Left(JobId),
    /// A job with a watched or closed gate has work to do: it has launched some, or a thread
    /// stands at the gate.
    Wants(JobId),
    /// All that a job has launched is done, and no thread stands at its gate.
    Rests(JobId),
    /// Nothing of a job runs any more since its gate was closed.
    Drained {
        /// The job.
        job: JobId,
        /// The closing that this answers ([`LaunchGate::Closed`]); another one is too late, and
        /// ignored.
        turn: u32,
        /// Does a thread stand at the gate?
        wants: bool,
    },
    /// A job was at work on a card for this time beyond the time that its turns explain: it
    /// pays for it.
    Overused {
        /// The job.
        job: JobId,
        /// The card.
        card: usize,
        /// Additional time.
        by: Duration,
    },
    /// So many processes of a job have work on its cards at once, in its turn or in the last one.
    AtWork {
        /// The job.
        job: JobId,
        /// Number of processes.
        n_processes: u32,
    },
    /// Only time has passed.
    Tick,
}

/// State of a job's gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchGate {
    /// Open, and not watched: no other job is on its cards, and it has no limit.
    Free,
    /// Open, and the job says when it works.
    Open,
    /// The same, and others want one of its cards, or did a moment ago, or it has a limit: the job
    /// says each change at once, and has no more work queued than it needs.
    Contended,
    /// Closed. When nothing runs any more, the job says so with this number.
    Closed(u32),
}

/// Set a job's gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetGate {
    /// The job.
    pub job: JobId,
    /// How.
    pub gate: LaunchGate,
    /// The most that all its processes together may have queued on a card.
    pub queue: Duration,
}

/// A job's state on one of its cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnView {
    /// The share that it has.
    pub share: TimeShare,
    /// Time used within the last window.
    pub used: Duration,
    /// The card's time that it had by its turns, since it came.
    pub had: Duration,
    /// Time at work there by its turns, alone or beside others, since it came.
    pub worked: Duration,
    /// Time within the last window in which it wanted the card and had no turn.
    pub waited: Duration,
    /// Time in which it wanted the card and had no turn, since it came.
    pub waited_in_all: Duration,
    /// Part of that spent waiting at its limit.
    pub throttled_in_all: Duration,
    /// It waits because it is at its limit.
    pub is_at_limit: bool,
}

/// The turns of all jobs on a machine's cards.
#[derive(Debug, Clone)]
pub struct Turns {
    rules: TurnRules,
    /// By card. A card that is not here lets turns overlap.
    overlap: BTreeMap<usize, Overlap>,
    groups: Vec<Group>,
    group_of: BTreeMap<JobId, usize>,
    now: Duration,
}

impl Turns {
    /// Turns without any job.
    #[must_use]
    pub fn new(rules: TurnRules) -> Turns {
        Turns {
            rules,
            overlap: BTreeMap::new(),
            groups: Vec::new(),
            group_of: BTreeMap::new(),
            now: Duration::ZERO,
        }
    }

    /// Sets whether turns of a card may overlap, from the next turn on.
    pub fn set_overlap(&mut self, card: usize, overlap: Overlap) {
        self.overlap.insert(card, overlap);
        for group in &mut self.groups {
            group.set_overlap(card, overlap);
        }
    }

    /// Whether turns of a card may overlap.
    #[must_use]
    pub fn overlap(&self, card: usize) -> Overlap {
        self.overlap.get(&card).copied().unwrap_or_default()
    }

    /// Something happened at `now`; the gates that change are added to `out`. Time that goes
    /// back counts as standing still.
    pub fn apply(&mut self, now: Duration, event: TurnEvent, out: &mut Vec<SetGate>) {
        self.apply_all(now, [event], out);
    }

    /// The same for several events of one moment.
    pub fn apply_all(
        &mut self,
        now: Duration,
        events: impl IntoIterator<Item = TurnEvent>,
        out: &mut Vec<SetGate>,
    ) {
        self.now = self.now.max(now);
        let mut touched = BTreeSet::new();
        for event in events {
            match event {
                TurnEvent::Placed {
                    job,
                    class,
                    shares,
                    slice,
                } => {
                    self.place(job, class, (&shares, slice));
                    touched.extend(0..self.groups.len());
                }
                TurnEvent::Left(job) => {
                    self.leave(job);
                    touched = (0..self.groups.len()).collect();
                }
                TurnEvent::Wants(job)
                | TurnEvent::Rests(job)
                | TurnEvent::Drained { job, .. }
                | TurnEvent::AtWork { job, .. }
                | TurnEvent::Overused { job, .. } => {
                    if let Some(place) = self.group_of.get(&job) {
                        self.groups[*place].hear(self.now, &event);
                        touched.insert(*place);
                    }
                }
                TurnEvent::Tick => {}
            }
        }
        for (place, group) in self.groups.iter_mut().enumerate() {
            let is_due = group.wake_at().is_some_and(|at| at <= self.now);
            if is_due || touched.contains(&place) {
                group.decide(self.now, out);
            }
        }
    }

    /// When [`TurnEvent::Tick`] is due though nothing happens.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        self.groups.iter().filter_map(Group::wake_at).min()
    }

    /// Brings all accounts up to `now`, before a reader looks at them.
    pub fn settle(&mut self, now: Duration) {
        self.now = self.now.max(now);
        for group in &mut self.groups {
            group.pass_time(self.now);
        }
    }

    /// Gives opportunistic jobs more or less, by the progress of the guaranteed ones beside
    /// them; to be called several times a second. `done` is the work of jobs up to now, as far
    /// as it is known.
    pub fn coordinate(
        &mut self,
        now: Duration,
        done: &BTreeMap<JobId, WorkDone>,
        out: &mut Vec<SetGate>,
    ) {
        self.now = self.now.max(now);
        for group in &mut self.groups {
            if group.coordinate(self.now, done) {
                group.decide(self.now, out);
            }
        }
    }

    /// A job's state on each of its cards: as of the last event there, or the last settling of
    /// accounts.
    #[must_use]
    pub fn view(&self, job: JobId) -> Vec<TurnView> {
        let group = self.group_of.get(&job).map(|place| &self.groups[*place]);
        group.map_or_else(Vec::new, |group| group.view(job))
    }

    fn place(&mut self, id: JobId, class: Class, asked: (&[TimeShare], Option<Duration>)) {
        if let Some(place) = self.group_of.get(&id) {
            let group = &mut self.groups[*place];
            group.pass_time(self.now);
            if group.replace(id, class, asked) {
                return;
            }
            // Other cards: it comes anew.
            self.leave(id);
        }
        self.settle(self.now);
        let new = Group::of(self.rules, self.now, id, class, asked);
        let groups = std::mem::take(&mut self.groups).into_iter();
        let (with, mut parts): (Vec<Group>, Vec<Group>) =
            groups.partition(|group| group.has_a_card_of(&new));
        let joined = with.into_iter().chain([new]).reduce(|one, mut other| {
            other.meet(&one);
            one.joined(other)
        });
        parts.extend(joined);
        self.regroup(parts);
    }

    fn leave(&mut self, id: JobId) {
        self.settle(self.now);
        let mut groups = std::mem::take(&mut self.groups);
        if let Some(place) = self.group_of.remove(&id) {
            groups[place].remove(id);
        }
        let parts = groups.into_iter().flat_map(Group::into_parts).collect();
        self.regroup(parts);
    }

    /// Makes one group of all that have a card in common.
    fn regroup(&mut self, parts: Vec<Group>) {
        for part in parts {
            let (with, mut without): (Vec<Group>, Vec<Group>) = std::mem::take(&mut self.groups)
                .into_iter()
                .partition(|group| group.has_a_card_of(&part));
            without.push(with.into_iter().fold(part, Group::joined));
            self.groups = without;
        }
        for (place, group) in self.groups.iter_mut().enumerate() {
            for (card, overlap) in &self.overlap {
                group.set_overlap(*card, *overlap);
            }
            self.group_of.extend(group.ids().map(|id| (id, place)));
        }
    }
}
