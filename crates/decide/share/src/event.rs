//! Events of a machine, and the actions to take: the messages between the state machine and
//! the shell around it. No logic.

use std::collections::BTreeSet;
use std::sync::Arc;

use sublet_model::{Bytes, Inventory, MiB};

use crate::job::{Amount, ComputeRange, Holding, JobAsk, JobId, Pid, Promise};
use crate::refusal::JobRefusal;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A new job came. Its number was never used before.
    Submitted {
        /// Its number.
        job: JobId,
        /// Its request.
        ask: JobAsk,
    },
    /// A job that has its cards already: from before a restart, or because the cluster's
    /// scheduler chose them.
    Declared {
        /// Its number.
        job: JobId,
        /// Its request.
        ask: JobAsk,
        /// Its holdings.
        parts: Vec<Holding>,
        /// The cluster's promise; nothing for a job of this machine.
        promise: Option<Promise>,
    },
    /// A job's root is gone.
    Left(JobId),
    /// A client asks for another limit of a job.
    LimitAsked {
        /// The job.
        job: JobId,
        /// Amount of each of its cards.
        memory: Amount,
    },
    /// A client asks for another limit of a job's pinned host memory.
    PinnedLimitAsked {
        /// The job.
        job: JobId,
        /// Amount in all.
        memory: MiB,
    },
    /// A client asks for other compute time for a job.
    ComputeAsked {
        /// The job.
        job: JobId,
        /// Compute time of each of its cards.
        compute: ComputeRange,
    },
    /// A process of a job wants a slot.
    Joined {
        /// The job.
        job: JobId,
        /// The process.
        pid: Pid,
    },
    /// A process came back with the slot that it had before a restart.
    Returned {
        /// The job.
        job: JobId,
        /// The process.
        pid: Pid,
        /// Its slot.
        slot: u32,
    },
    /// A process is gone, or is another program now.
    Exited(Pid),
    /// Use of jobs now, by their ledgers.
    Used(Vec<LedgerUse>),
    /// The driver's reading of each card's processes, with the slots' records from then.
    Read {
        /// By card; `None` for a card that could not be read.
        cards: Vec<Option<Reading>>,
        /// Every slot that is in use.
        slots: Vec<SlotUse>,
        /// Use of jobs meanwhile, by their ledgers.
        ledgers: Vec<LedgerUse>,
        /// After a restart: processes on the cards that hold an earlier ledger, and may still
        /// come back with it.
        may_return: BTreeSet<Pid>,
    },
    /// A job works on a card for long while it has no turn: its gate does not hold it.
    OutOfTurn(JobId),
    /// The cards' health changed.
    Inventory(Arc<Inventory>),
    /// Only time has passed.
    Tick,
}

/// One card, as the driver sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reading {
    /// Its processes, and the memory of each.
    pub processes: Vec<(Pid, Bytes)>,
}

/// A job's ledger on one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerUse {
    /// The job.
    pub job: JobId,
    /// The card.
    pub card: usize,
    /// The sum on its page.
    pub total: Bytes,
    /// The total of its processes' accounts, with the arbiter's own; `None` if they could not
    /// be read at rest.
    pub accounts: Option<Bytes>,
}

/// One slot's record of one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotUse {
    /// The job.
    pub job: JobId,
    /// The process.
    pub pid: Pid,
    /// The card.
    pub card: usize,
    /// Reserved memory; the larger of the records before and after the driver was read.
    pub used: Bytes,
    /// True if it took and gave nothing while the driver was read.
    pub is_quiet: bool,
    /// True if it asked for this reading, because the driver may have taken memory for it, and
    /// waits for it.
    pub has_asked: bool,
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Tell a job that it has these cards, and write its limits.
    Place {
        /// The job.
        job: JobId,
        /// Its cards.
        parts: Vec<Holding>,
    },
    /// Tell a job that it waits.
    Wait {
        /// The job.
        job: JobId,
        /// Its place, 1 for the next.
        position: u32,
        /// Why.
        reason: JobRefusal,
    },
    /// Tell a job that it gets nothing. It is forgotten.
    Refuse {
        /// The job.
        job: JobId,
        /// Why.
        reason: JobRefusal,
    },
    /// Write a job's limits, and make them hold before anybody is told.
    Limit {
        /// The job.
        job: JobId,
        /// All its cards.
        parts: Vec<Holding>,
    },
    /// Write a job's limit of pinned memory, and make it hold before the reply.
    LimitPinned {
        /// The job.
        job: JobId,
        /// Amount in all.
        memory: MiB,
        /// All its cards, with unchanged limits.
        parts: Vec<Holding>,
    },
    /// A job's compute time is another from now on: its promise, its limit, or both.
    LimitCompute {
        /// The job.
        job: JobId,
        /// All its cards.
        parts: Vec<Holding>,
    },
    /// The limits stay as they are.
    KeepLimit {
        /// The job.
        job: JobId,
        /// Why.
        reason: JobRefusal,
    },
    /// Give a process its slot.
    Welcome {
        /// The job.
        job: JobId,
        /// The process.
        pid: Pid,
        /// The slot.
        slot: u32,
        /// It had that slot before.
        again: bool,
    },
    /// Send a process away.
    SendAway {
        /// The process.
        pid: Pid,
        /// Why.
        reason: JobRefusal,
    },
    /// Take back a slot's memory; no process writes to it any more.
    Reclaim {
        /// The job.
        job: JobId,
        /// The process that had it.
        pid: Pid,
        /// The slot.
        slot: u32,
    },
    /// Charge a job with memory that no slot accounts for.
    Overhead {
        /// The job.
        job: JobId,
        /// The card.
        card: usize,
        /// Amount in all.
        bytes: Bytes,
    },
    /// A job has more than it may have: ask its processes to end.
    Terminate(JobId),
    /// It has had the time for that: end them.
    Kill(JobId),
    /// A process uses cards without a slot. Report it.
    Stranger(Pid),
    /// End that process.
    Evict(Pid),
    /// A reported process is gone from the cards, or has become a job's.
    StrangerGone(Pid),
    /// A job is gone with all its processes: its pages can go too.
    End(JobId),
}
