//! Node decisions: who may have how much of which card now.
//!
//! *Decide* ring: no clock, thread, socket or file. The arbiter is a thin loop around
//! [`Machine::apply`], and a simulator can be another.
//!
//! Suggested reading order: jobs, refusals, events, placing, readings, looks, the machine.

mod event;
mod job;
mod looks;
mod machine;
mod place;
mod reading;
mod refusal;

pub use event::{Action, Event};
pub use job::{Amount, Holding, JobAsk, JobId, Pid, Promise, State};
pub use machine::{CardView, Discord, JobView, Machine, Options, SLOTS};
pub use reading::{Books, Reading, SlotUse};
pub use refusal::Refusal;
