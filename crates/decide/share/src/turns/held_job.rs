//! A job as the turns see it: its phase within a turn, and its wish for one.

use std::time::Duration;

use sublet_model::{Class, Milli};

use super::account::{Account, Clock};
use super::coordinator::{Duty, Pace};
use super::{LaunchGate, TurnRules};

/// Phase of a job within its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Alone, without a limit: it is not looked at.
    Free,
    /// It may launch, since `since`; while others wait, only until `until`. Guaranteed jobs do not
    /// take the least share of an opportunistic job.
    Open {
        since: Duration,
        until: Duration,
        is_least: bool,
    },
    /// It may not, and may still run. Since then.
    Closing { since: Duration },
    /// It may not, and does not run.
    Closed,
}

/// Known pauses of a job.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pauses {
    /// It pauses, and keeps its turn; since then.
    lingers_since: Option<Duration>,
    /// When it last stopped to want its cards, if it does not want them.
    since: Option<Duration>,
    /// When it last stopped to want its cards.
    last: Option<Duration>,
    /// Length of its last pauses, the later ones counting more.
    usual: Duration,
}

impl Pauses {
    /// A pause begins. True if the job keeps its turn for a while.
    pub(super) fn begin(&mut self, now: Duration, rules: &TurnRules, may_linger: bool) -> bool {
        (self.since, self.last) = (Some(now), Some(now));
        let lingers = may_linger && self.usual < rules.linger;
        self.lingers_since = lingers.then_some(now);
        lingers
    }

    /// The job wants its cards again.
    pub(super) fn end(&mut self, now: Duration, rules: &TurnRules) {
        self.lingers_since = None;
        if let Some(since) = self.since.take() {
            // One very long pause is soon forgotten.
            let pause = (now - since).min(rules.linger * 8);
            self.usual = (self.usual * 3 + pause) / 4;
        }
    }

    /// It has lost its turn for another reason.
    pub(super) fn stop_lingering(&mut self) {
        self.lingers_since = None;
    }

    /// Until when it keeps its turn though it pauses.
    pub(super) fn lingers_until(&self, rules: &TurnRules) -> Option<Duration> {
        self.lingers_since.map(|since| since + rules.linger)
    }

    /// Until when those that owe a job time, and hold the card for long, let the pause pass; if it
    /// pauses.
    pub(super) fn pass_by(&self) -> Option<Duration> {
        Some(self.since? + self.usual * 2)
    }

    /// True if it pauses, or began a pause within the last window.
    pub(super) fn are_recent(&self, now: Duration, rules: &TurnRules) -> bool {
        self.last.is_some_and(|last| now < last + rules.window)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) class: Class,
    pub(super) accounts: Vec<Account>,
    /// Goes on by its use of the card on which it had the largest part of its share.
    pub(super) clock: Clock,
    /// Virtual time that it used since the clock was last set.
    pub(super) used_since: Duration,
    pub(super) phase: Phase,
    /// Its own length of a turn, if it asked for one.
    pub(super) slice: Option<Duration>,
    /// Number of its processes at work.
    pub(super) n_processes: u32,
    /// It came from a pause, and has had no whole turn since: it need not wait for the end of
    /// another's.
    pub(super) has_woken: bool,
    /// It runs, or would if it had a turn.
    pub(super) wants: bool,
    pub(super) pauses: Pauses,
    /// Since its gate was closed, a thread has come to stand at it.
    pub(super) is_at_gate: bool,
    /// Longest stand at the gate before the gate opens again.
    pub(super) patience: Duration,
    /// Time that its last turn went on after its gate was closed.
    pub(super) drain: Duration,
    /// Its last turn ran over for longer than any debt but that of a kernel.
    pub(super) owes: bool,
    /// The number of its last closing.
    pub(super) turn: u32,
    /// Since when it has wanted a turn in vain.
    pub(super) since: Duration,
    /// Time at which another job last wanted one of its cards.
    pub(super) wanted_by_others: Option<Duration>,
    /// Its progress, if it is guaranteed.
    pub(super) pace: Pace,
    /// Its greatest part of the time, if it is opportunistic beside guaranteed ones.
    pub(super) duty: Option<Duty>,
    /// Last state that its gate was set to, and what it may have queued.
    pub(super) told: Option<(LaunchGate, Duration)>,
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

    /// Number of its processes among which the driver divides its time on a card; at least one.
    /// As a rule each of several cards has its own processes.
    pub(super) fn n_at_work(&self) -> u32 {
        let n_cards = u32::try_from(self.accounts.len()).unwrap_or(u32::MAX);
        self.n_processes.div_ceil(n_cards.max(1)).max(1)
    }

    pub(super) fn account(&self, card: usize) -> Option<&Account> {
        let mut accounts = self.accounts.iter();
        accounts.find(|account| account.share.card == card)
    }

    pub(super) fn account_mut(&mut self, card: usize) -> Option<&mut Account> {
        let mut accounts = self.accounts.iter_mut();
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
