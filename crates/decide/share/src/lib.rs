//! Node decisions: the jobs that may have a part of a card now, and its size.
//!
//! *Decide* ring: no clock, thread, socket or file. The arbiter is a thin loop around
//! [`Machine::apply`], and a simulator can be another.
//!
//! Suggested reading order: jobs, refusals, events, placing, readings, the read schedule, the
//! machine, turns, MPS beside turns, the record of use.
//!
//! # Modules
//! Jobs, limits and the waiting line. `machine` is a state machine, events to actions. `place`
//! puts a job on cards with `sublet-plan`'s engine: the machine is one node. `reading` interprets
//! the driver's figures, `machine/usage` compares them with the jobs' accounts, and
//! `read_schedule` says when to read them out of turn. `machine/line` is the order of waiting
//! jobs, and the events that would start one. `machine/limits` decides changes of limits, of
//! cards and of pinned memory.
//!
//! `turns` shares the compute time of cards: it picks the jobs that may launch work now, by
//! virtual time, in slices. Jobs that share cards, directly or through others, are a `group` and
//! decided together. `turns/coordinator` gives opportunistic jobs more or less by how fast
//! guaranteed ones get on. `turns/overuse` finds jobs that work for longer than their turns
//! explain. `turns/world` is the world that its tests play in: cards with kernels, and jobs that
//! obey their gates. `use_record` keeps each job's use for an hour. `mps` is the life of MPS's
//! daemon, the words to its clients, and the choice of jobs that still need turns.

mod event;
mod job;
mod machine;
mod mps;
mod place;
mod read_schedule;
mod reading;
mod refusal;
mod turns;
mod use_record;

pub use event::{Action, Event, LedgerUse, Reading, SlotUse};
pub use job::{Amount, ComputeRange, Holding, JobAsk, JobId, JobState, Pid, Promise, UserId};
pub use machine::{
    Ancestry, CardView, JobView, Machine, MachineOptions, Mismatch, PATIENCE_MS, SLOTS,
    StartCondition,
};
pub use mps::{
    MpsClient, MpsDaemon, MpsDue, MpsLife, MpsStanding, MpsState, MpsTerms, mps_percent,
    shares_beside_mps,
};
pub use refusal::JobRefusal;
pub use turns::{
    BusyReading, LaunchGate, Overlap, Overuse, OveruseWatch, SetGate, TimeShare, TurnEvent,
    TurnRules, TurnView, Turns, WorkDone,
};
pub use use_record::{RECORD_EVERY_MS, UsePoint, UseRecord};
