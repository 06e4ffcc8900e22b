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
//! by the largest missing share, without a quota that can be lost). When a job that wanted
//! nothing comes back, its clock is set forward to the earliest clock of those that wanted work:
//! time that a job did not want is not owed to it. A clock is never set back. So a job that
//! overran its slice has a debt, however long its kernel was, and pays it by waiting while others
//! want the card.
//!
//! # Slices
//! A turn lasts a slice, give or take a quarter, so that the turns of several cards end at the same
//! moments ([`TurnRules::common_moment`]). Then the gate closes if another job waits, and the turn
//! ends when the job reports that none of its work runs. All time until then counts as used. If a
//! card's turns may overlap, the next one begins when the last gate was closed, and the time that
//! both use meanwhile is split. If they must not, it begins when the last one has ended.
//!
//! The gate of a job may close between two halves of a step that needs both (rank 0 has launched
//! a collective, rank 1 waits at the gate). The job would never end its turn. So its gate opens
//! again after a slice, for one more slice on its account. Each time the next opening comes twice
//! as late, until a turn of it has ended: it may have long kernels and no such halves.
//!
//! # Pauses
//! A job that waits for its own results rests for a moment after each step, and would lose its
//! turn each time: beside a job that never rests it would get one step a slice, whatever it was
//! promised. So a turn outlives a pause that is shorter than [`TurnRules::linger`], as long as a
//! job's pauses are; a job that was seen to pause for longer gives way at once. (Gemini joins
//! bursts that are less than 2 ms apart.)
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
mod choice;
mod coordinator;
mod group;
mod held_job;
mod overuse;
mod rates;
mod window;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

pub use coordinator::WorkDone;
use group::Group;
pub use overuse::{BusyReading, Overuse, OveruseWatch};

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

/// Rules of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnRules {
    /// Length of a turn while others wait.
    pub slice: Duration,
    /// No turn is given for less.
    pub shortest: Duration,
    /// Limits hold within any time of this length.
    pub window: Duration,
    /// An opportunistic job's part of each window while guaranteed ones want it all.
    pub least: Duration,
    /// A pause as short as that does not end a turn.
    pub linger: Duration,
}

impl TurnRules {
    /// The moment nearest to `at` at which turns end. Turns of several cards end at the same
    /// moments, so the arbiter wakes once for all. At most a quarter of a slice away.
    #[must_use]
    pub fn common_moment(&self, at: Duration) -> Duration {
        let apart = (self.slice / 2).as_nanos().max(1);
        let nth = (at.as_nanos() + apart / 2) / apart;
        u64::try_from(nth * apart).map_or(at, Duration::from_nanos)
    }
}

impl Default for TurnRules {
    /// Slices of 20 ms: long beside a switch (some ten microseconds) and too short for people and
    /// schedulers to notice. Half a percent for the opportunistic. A program that waits for a
    /// result is back within a fraction of a millisecond.
    fn default() -> Self {
        Self {
            slice: Duration::from_millis(20),
            shortest: Duration::from_millis(5),
            window: Duration::from_secs(1),
            least: Duration::from_millis(5),
            linger: Duration::from_millis(2),
        }
    }
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
                TurnEvent::Placed { job, class, shares } => {
                    self.place(job, class, &shares);
                    touched.extend(0..self.groups.len());
                }
                TurnEvent::Left(job) => {
                    self.leave(job);
                    touched = (0..self.groups.len()).collect();
                }
                TurnEvent::Wants(job)
                | TurnEvent::Rests(job)
                | TurnEvent::Drained { job, .. }
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

    fn place(&mut self, id: JobId, class: Class, shares: &[TimeShare]) {
        if let Some(place) = self.group_of.get(&id) {
            let group = &mut self.groups[*place];
            group.pass_time(self.now);
            if group.replace(id, class, shares) {
                return;
            }
            // Other cards: it comes anew.
            self.leave(id);
        }
        self.settle(self.now);
        let mut groups = std::mem::take(&mut self.groups);
        groups.push(Group::of(self.rules, self.now, id, class, shares));
        self.regroup(groups);
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
