//! A job as the turns see it: its phase within a turn, and its wish for one.

use std::time::Duration;

use sublet_model::{Class, Milli};

use super::account::Account;
use super::coordinator::Pace;
use super::{LaunchGate, TurnRules};

/// Phase of a job within its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Alone, without a limit: it is not looked at.
    Free,
    /// It may launch; while others wait, only until `until`. Guaranteed jobs do not take the
    /// least share of an opportunistic job.
    Open { until: Duration, is_least: bool },
    /// It may not, and may still run. Since then.
    Closing { since: Duration },
    /// It may not, and does not run.
    Closed,
}

/// So many long pauses in a row, and a job's next pause is taken for a long one.
const LONG_PAUSES: u8 = 2;

/// Known pauses of a job.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pauses {
    /// It pauses, and keeps its turn; since then.
    lingers_since: Option<Duration>,
    /// When it last stopped to want its cards.
    since: Option<Duration>,
    /// Number of long ones among its last pauses.
    n_long: u8,
}

impl Pauses {
    /// A pause begins. True if the job keeps its turn for a while.
    pub(super) fn begin(&mut self, now: Duration, may_linger: bool) -> bool {
        self.since = Some(now);
        let lingers = may_linger && self.n_long < LONG_PAUSES;
        self.lingers_since = lingers.then_some(now);
        lingers
    }

    /// The job wants its cards again.
    pub(super) fn end(&mut self, now: Duration, rules: &TurnRules) {
        self.lingers_since = None;
        let Some(since) = self.since.take() else {
            return;
        };
        self.n_long = if now < since + rules.linger {
            0
        } else {
            self.n_long.saturating_add(1)
        };
    }

    /// It has lost its turn for another reason.
    pub(super) fn stop_lingering(&mut self) {
        self.lingers_since = None;
    }

    /// Until when it keeps its turn though it pauses.
    pub(super) fn lingers_until(&self, rules: &TurnRules) -> Option<Duration> {
        self.lingers_since.map(|since| since + rules.linger)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) class: Class,
    pub(super) accounts: Vec<Account>,
    pub(super) phase: Phase,
    /// It runs, or would if it had a turn.
    pub(super) wants: bool,
    pub(super) pauses: Pauses,
    /// Since its gate was closed, a thread has come to stand at it.
    pub(super) is_at_gate: bool,
    /// Longest stand at the gate before the gate opens again.
    pub(super) patience: Duration,
    /// Time that its last turn went on after its gate was closed.
    pub(super) drain: Duration,
    /// The number of its last closing.
    pub(super) turn: u32,
    /// Since when it has wanted a turn in vain.
    pub(super) since: Duration,
    /// Time at which another job last wanted one of its cards.
    pub(super) wanted_by_others: Option<Duration>,
    /// Its progress, if it is guaranteed.
    pub(super) pace: Pace,
    /// Its greatest part of the time, if it is opportunistic beside guaranteed ones.
    pub(super) duty: Option<Milli>,
    /// Last state that its gate was set to.
    pub(super) told: Option<LaunchGate>,
}

impl Job {
    /// True if it may have work on its cards now.
    pub(super) fn runs(&self) -> bool {
        match self.phase {
            Phase::Open { .. } => self.wants,
            Phase::Closing { .. } => true,
            Phase::Free | Phase::Closed => false,
        }
    }

    /// True if it would go on if its gate were open.
    pub(super) fn is_waiting(&self) -> bool {
        self.phase == Phase::Closed && self.wants
    }

    /// True if it has a turn, and uses it.
    pub(super) fn is_at_work(&self) -> bool {
        matches!(self.phase, Phase::Open { .. }) && self.wants
    }

    pub(super) fn account(&self, card: usize) -> Option<&Account> {
        let mut accounts = self.accounts.iter();
        accounts.find(|account| account.share.card == card)
    }

    pub(super) fn is_on_a_card_of(&self, other: &Job) -> bool {
        let mut accounts = self.accounts.iter();
        accounts.any(|account| other.account(account.share.card).is_some())
    }

    pub(super) fn has_limit(&self) -> bool {
        let mut accounts = self.accounts.iter();
        accounts.any(|account| account.limit() < Milli::WHOLE)
    }

    /// End of the time in which it counts as wanted by others, which may come back.
    pub(super) fn contended_until(&self, rules: &TurnRules) -> Option<Duration> {
        self.wanted_by_others.map(|at| at + rules.window)
    }
}
