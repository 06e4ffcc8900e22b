//! Whose turn it is: shares of the compute time of cards, as a state machine.
//!
//! A job's processes launch work only while the job's *gate* is open, and one gate serves all its
//! cards: a job whose work stands still on one card waits for itself on the others. The machine
//! opens and closes gates; what a job's processes do comes in as [`TurnEvent`]s. Time is an
//! argument, as the distance from any fixed moment.
//!
//! # Whose turn comes next
//! Each job has, for each of its cards, a clock of its own: it advances by the time that the job
//! used there, divided by the rate that is due to it now ([`rates`]). Whose clock is furthest
//! behind lacks the largest part of its share, and is next (virtual time; Gemini's order by the
//! largest missing share, without a quota that can be lost). The clock of a job that wanted
//! nothing is set forward to the earliest of those that did: what a job did not want is not owed
//! to it. A clock is never set back. So a job that overran its slice has a debt, however long its
//! kernel was, and pays it by waiting while others want the card.
//!
//! # Slices
//! A turn lasts a slice. Then the gate closes if somebody else waits, and the turn ends when the
//! job says that nothing of it runs any more: all that until then counts as used. Where a
//! card's turns may overlap, the next one begins when the last gate was closed, and what both
//! use meanwhile is split. Where they must not, it begins when the last one has ended.
//!
//! A job whose gate was closed between two halves of something that needs both (rank 0 has
//! launched a collective, rank 1 waits at the gate) would never end its turn: after a slice its
//! gate opens again, for one more slice on its account. Each time the next opening comes twice as
//! late, until a turn of it has ended: it may have long kernels and no such halves.
//!
//! # Classes
//! An opportunistic job has a turn while no guaranteed job wants the card, and its gate closes at
//! once when one does. A small share is left to it ([`TurnRules::least`]).

use std::collections::BTreeMap;
use std::time::Duration;

use sublet_model::{Class, Milli};

use crate::job::JobId;

mod account;
mod choice;
mod rates;
mod window;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

use account::{Account, Clock};

/// A job's share of one card's compute time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeShare {
    /// The card's position in the machine's inventory.
    pub card: usize,
    /// What it is promised.
    pub request: Milli,
    /// What it gets at most, also of time that nobody else wants.
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

/// How turns are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnRules {
    /// How long a turn lasts while others wait.
    pub slice: Duration,
    /// No turn is given for less.
    pub shortest: Duration,
    /// Limits hold within any time of this length.
    pub window: Duration,
    /// What an opportunistic job gets of each window while guaranteed ones want it all.
    pub least: Duration,
}

impl Default for TurnRules {
    /// Slices of 20 ms: long beside a switch (some ten microseconds) and short beside what people
    /// and schedulers notice. Half a percent for the opportunistic.
    fn default() -> Self {
        Self {
            slice: Duration::from_millis(20),
            shortest: Duration::from_millis(5),
            window: Duration::from_secs(1),
            least: Duration::from_millis(5),
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
    /// A job whose gate is watched or closed has work to do: it has launched some, or a thread
    /// stands at the gate.
    Wants(JobId),
    /// All that a job has launched is done, and no thread stands at its gate.
    Rests(JobId),
    /// Nothing of a job runs any more since its gate was closed.
    Drained {
        /// The job.
        job: JobId,
        /// Which closing that answers ([`LaunchGate::Closed`]); another one is too late, and ignored.
        turn: u32,
        /// Does a thread stand at the gate?
        wants: bool,
    },
    /// Only time has passed.
    Tick,
}

/// How a job's gate is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchGate {
    /// Open, and nobody need know when the job works: no other job is on its cards, and it has
    /// no limit.
    Free,
    /// Open, and the job says when it works.
    Open,
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

/// How a job stands on one of its cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnView {
    /// The share that it has.
    pub share: TimeShare,
    /// What it used within the last window.
    pub used: Duration,
    /// How long it wanted the card within the last window and had no turn.
    pub waited: Duration,
    /// It waits because it is at its limit.
    pub is_at_limit: bool,
}

/// Where a job is in its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Alone, without a limit: it is not looked at.
    Free,
    /// It may launch; while others wait, until then. What is left to an opportunistic job is not
    /// taken from it by guaranteed ones.
    Open { until: Duration, is_least: bool },
    /// It may not, and may still run. Since then.
    Closing { since: Duration },
    /// It may not, and does not run.
    Closed,
}

#[derive(Debug, Clone)]
struct Job {
    class: Class,
    accounts: Vec<Account>,
    phase: Phase,
    /// It runs, or would if it had a turn.
    wants: bool,
    /// Since its gate was closed, a thread has come to stand at it.
    is_at_gate: bool,
    /// How long that lasts until the gate opens again.
    patience: Duration,
    /// How long its last turn went on after its gate was closed.
    drain: Duration,
    /// The number of its last closing.
    turn: u32,
    /// Since when it has wanted a turn in vain.
    since: Duration,
    /// What its gate was last set to.
    told: Option<LaunchGate>,
}

impl Job {
    /// True if it may have work on its cards now.
    fn runs(&self) -> bool {
        match self.phase {
            Phase::Open { .. } => self.wants,
            Phase::Closing { .. } => true,
            Phase::Free | Phase::Closed => false,
        }
    }

    /// True if it would go on if its gate were open.
    fn is_waiting(&self) -> bool {
        self.phase == Phase::Closed && self.wants
    }

    /// True if it has a turn, and uses it.
    fn is_at_work(&self) -> bool {
        matches!(self.phase, Phase::Open { .. }) && self.wants
    }

    fn account(&self, card: usize) -> Option<&Account> {
        let mut accounts = self.accounts.iter();
        accounts.find(|account| account.share.card == card)
    }

    fn is_on_a_card_of(&self, other: &Job) -> bool {
        let mut accounts = self.accounts.iter();
        accounts.any(|account| other.account(account.share.card).is_some())
    }
}

/// The turns of all jobs on a machine's cards.
#[derive(Debug, Clone)]
pub struct Turns {
    rules: TurnRules,
    /// By card. A card that is not here lets turns overlap.
    overlap: BTreeMap<usize, Overlap>,
    jobs: BTreeMap<JobId, Job>,
    clocks: BTreeMap<usize, Clock>,
    now: Duration,
}

impl Turns {
    /// Nobody has a card yet.
    #[must_use]
    pub fn new(rules: TurnRules) -> Turns {
        Turns {
            rules,
            overlap: BTreeMap::new(),
            jobs: BTreeMap::new(),
            clocks: BTreeMap::new(),
            now: Duration::ZERO,
        }
    }

    /// Sets whether turns of a card may overlap, from the next turn on.
    pub fn set_overlap(&mut self, card: usize, overlap: Overlap) {
        self.overlap.insert(card, overlap);
    }

    /// Something happened at `now`; the gates that change are added to `out`. Time that goes
    /// back counts as standing still.
    pub fn apply(&mut self, now: Duration, event: TurnEvent, out: &mut Vec<SetGate>) {
        self.pass_time(now);
        match event {
            TurnEvent::Placed { job, class, shares } => self.place(job, class, &shares),
            TurnEvent::Left(job) => {
                self.jobs.remove(&job);
            }
            TurnEvent::Wants(job) => self.want(job),
            TurnEvent::Rests(job) => self.rest(job),
            TurnEvent::Drained { job, turn, wants } => self.drained(job, turn, wants),
            TurnEvent::Tick => {}
        }
        self.decide(out);
    }

    /// How a job stands on each of its cards.
    #[must_use]
    pub fn view(&self, job: JobId) -> Vec<TurnView> {
        let Some(job) = self.jobs.get(&job) else {
            return Vec::new();
        };
        let views = job.accounts.iter().map(|account| TurnView {
            share: account.share,
            used: account.used.used(self.now),
            waited: account.waited.used(self.now),
            is_at_limit: job.is_waiting() && account.room(&self.rules, self.now).is_zero(),
        });
        views.collect()
    }

    fn place(&mut self, id: JobId, class: Class, shares: &[TimeShare]) {
        let window = self.rules.window;
        let known = self.jobs.get(&id);
        let accounts = shares.iter().map(|share| {
            let before = known.and_then(|job| job.account(share.card)).cloned();
            let new = || Account::new(*share, window);
            let share = *share;
            Account {
                share,
                ..before.unwrap_or_else(new)
            }
        });
        let accounts = accounts.collect();
        if let Some(job) = self.jobs.get_mut(&id) {
            job.class = class;
            job.accounts = accounts;
            return;
        }
        let job = Job {
            class,
            accounts,
            phase: Phase::Closed,
            wants: false,
            is_at_gate: false,
            patience: self.rules.slice,
            drain: Duration::ZERO,
            turn: 0,
            since: self.now,
            told: None,
        };
        self.jobs.insert(id, job);
    }

    fn want(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if !job.wants {
            job.since = self.now;
            for account in &mut job.accounts {
                let floor = self.clocks.get(&account.share.card).copied();
                account.clock = account.clock.max(floor.unwrap_or_default());
            }
        }
        job.is_at_gate = !matches!(job.phase, Phase::Open { .. });
        job.wants = true;
    }

    fn rest(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.wants = false;
            job.is_at_gate = false;
        }
    }

    fn drained(&mut self, id: JobId, turn: u32, wants: bool) {
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
        job.drain = self.now - since;
        job.wants = wants;
        job.is_at_gate = wants;
        job.patience = self.rules.slice;
        job.since = self.now;
    }
}
