//! A job inside the state machine: its request, its holdings, and its state.

use std::collections::BTreeSet;

use sublet_model::{Bytes, MiB, Part, Time};

use super::usage::JobUsage;
use crate::job::{Holding, JobAsk, JobId, JobState, Pid, Promise};
use crate::refusal::JobRefusal;

/// A job, as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobView<'a> {
    /// Its number.
    pub id: JobId,
    /// Its request; after a change of a limit, the new one.
    pub ask: &'a JobAsk,
    /// Its cards and limits.
    pub parts: Vec<Holding>,
    /// Its processes with slots.
    pub pids: Vec<Pid>,
    /// Its state.
    pub state: JobState,
    /// When it came.
    pub since: Time,
    /// Its place in the line and why it waits.
    pub waits: Option<&'a (u32, JobRefusal)>,
    /// True if it is being ended because it exceeds its limit.
    pub is_evicted: bool,
}

/// A card of a job.
#[derive(Debug, Clone)]
pub(super) struct HeldCard {
    pub(super) part: Holding,
    /// The cluster's promise; nothing for a job of this machine.
    pub(super) promised: Option<Holding>,
    pub(super) uses: JobUsage,
    /// Memory charged on the card for it.
    pub(super) charge: MiB,
}

impl HeldCard {
    /// Part of the card taken for it.
    pub(super) fn takes(&self) -> Part {
        self.part.with_memory(self.charge).limit
    }
}

/// A job.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) ask: JobAsk,
    /// When it came.
    pub(super) since: Time,
    pub(super) held: Vec<HeldCard>,
    pub(super) pids: BTreeSet<Pid>,
    pub(super) slots: BTreeSet<u32>,
    pub(super) root_gone: bool,
    pub(super) promise: Option<Promise>,
    /// Its place in the queue and why it waits, as it was told last.
    pub(super) last_news: Option<(u32, JobRefusal)>,
    /// It is being ended, and by then at the latest.
    pub(super) ends_at: Option<Time>,
}

impl Job {
    pub(super) fn new(ask: JobAsk, since: Time) -> Job {
        Job {
            ask,
            since,
            held: Vec::new(),
            pids: BTreeSet::new(),
            slots: BTreeSet::new(),
            root_gone: false,
            promise: None,
            last_news: None,
            ends_at: None,
        }
    }

    /// A job that has its cards already.
    pub(super) fn declared(ask: JobAsk, since: Time, promise: Option<Promise>) -> Job {
        Job {
            promise,
            ..Job::new(ask, since)
        }
    }

    /// Its holding on a card.
    pub(super) fn on(&self, card: usize) -> Option<&HeldCard> {
        self.held.iter().find(|held| held.part.card == card)
    }

    pub(super) fn state(&self) -> JobState {
        let over = |held: &HeldCard| held.uses.bytes() > Bytes::from(held.part.limit.memory);
        if self.root_gone {
            JobState::Ending
        } else if self.held.is_empty() {
            JobState::Waiting
        } else if self.held.iter().any(over) {
            JobState::Over
        } else {
            JobState::Running
        }
    }
}

/// So many MiB as hold `bytes`.
pub(super) fn mib_for(bytes: Bytes) -> MiB {
    Bytes::new(bytes.get().saturating_add((1 << 20) - 1)).whole_mib()
}
