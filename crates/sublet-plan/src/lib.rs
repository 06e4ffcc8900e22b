//! Cluster decisions: where a claim may go, which node and card are best, and what to do
//! when an answer from the API server is missing.
//!
//! *Decide* ring: no clock, thread, socket or file, and the same input gives the same
//! answer. One implementation serves the extender, `sublet plan`, `sublet explain`, the
//! simulator and the tests.
//!
//! Suggested reading order: reasons, policies, fit, screen, the engine, the binding protocol.

mod binding;
mod engine;
mod fit;
mod policy;
mod reason;
mod screen;
#[cfg(test)]
mod script;

pub use binding::{Binding, BindingStep, PodState, Seen};
pub use engine::{Engine, EngineOptions, FilterAnswer, Refused};
pub use fit::{Candidate, allocate, fit};
pub use policy::{POLICIES, Policy, policy};
pub use reason::{Reason, Wire};
