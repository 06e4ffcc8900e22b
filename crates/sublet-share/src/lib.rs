//! Node decisions: the jobs that may have a part of a card now, and its size.
//!
//! *Decide* ring: no clock, thread, socket or file. The arbiter is a thin loop around
//! [`Machine::apply`], and a simulator can be another.
//!
//! Suggested reading order: jobs, refusals, events, placing, readings, the read schedule, the
//! machine, turns, MPS beside turns, the record of use.

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

pub use event::{Action, Event};
pub use job::{Amount, ComputeRange, Holding, JobAsk, JobId, JobState, Pid, Promise, UserId};
pub use machine::{
    Ancestry, CardView, JobView, Machine, MachineOptions, Mismatch, PATIENCE_MS, SLOTS,
    StartCondition,
};
pub use mps::{
    MpsClient, MpsDaemon, MpsDue, MpsLife, MpsStanding, MpsState, MpsTerms, shares_beside_mps,
};
pub use reading::{LedgerUse, Reading, SlotUse};
pub use refusal::JobRefusal;
pub use turns::{
    BusyReading, LaunchGate, Overlap, Overuse, OveruseWatch, SetGate, TimeShare, TurnEvent,
    TurnRules, TurnView, Turns, WorkDone,
};
pub use use_record::{RECORD_EVERY_MS, UsePoint, UseRecord};
