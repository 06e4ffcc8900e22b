//! Cluster decisions: the nodes and cards where a claim may go, the best of them, and the next step
//! when an answer from the API server is missing.
//!
//! *Decide* ring: no clock, thread, socket or file, and the same input gives the same
//! answer. One implementation serves the extender, `sublet plan`, `sublet explain`, the
//! simulator and the tests.
//!
//! Suggested reading order: reasons, policies, scores, preference, fit, screen, the engine, the
//! stock scheduler's additions, evict, rescue, defrag, the binding protocol.

mod binding;
mod choice;
mod cost_cache;
mod defrag;
mod engine;
mod evict;
mod fit;
mod learn;
mod look_alike;
mod policy;
mod preference;
mod quota;
mod reason;
mod rescue;
mod scatter;
mod score;
mod screen;
#[cfg(test)]
mod script;
pub mod stock;

pub use binding::{ApiAnswer, Binding, BindingStep, PodState};
pub use defrag::{ClusterState, Defrag, Defragmented, Largest, Move, Spot, defragment};
pub use engine::{
    Candidacy, Engine, EngineOptions, FilterAnswer, RefusedNode, StockRules, Ties, Trial,
};
pub use evict::{Evictable, breaking};
pub use fit::Candidate;
pub use learn::{PodShape, ShapeCounts};
pub use policy::{Policy, PolicyError};
pub use preference::Preference;
pub use quota::{GpuQuota, OverQuota, check_quota};
pub use reason::{Reason, SickCards, Wire};
pub use rescue::{NoRescue, Prospect, Removable, Rescue};
pub use score::Fragmentation;
