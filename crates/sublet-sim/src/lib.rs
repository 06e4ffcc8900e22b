//! Traces of production clusters, replayed through the engine that schedules in Kubernetes.
//!
//! It is how an operator chooses a policy before touching a cluster, how placement is compared with
//! published results, and how a regression shows within seconds. Nothing is decided here: a
//! protocol says which pods come in which order, the engine places them as it would for the
//! extender, and curves show the outcome.
//!
//! Suggested reading order: the trace, the sequence, inflation, the curve.

mod curve;
mod defrag;
mod inflation;
mod line;
mod load;
mod replay;
mod sequence;
mod snapshot;
mod stock;
mod timed;
mod trace;
mod world;

pub use curve::{Curve, CurvePoint};
pub use defrag::{Location, Relocation, Relocations, relocate};
pub use inflation::{Drops, Inflation, Outcome, Placement, Variant, inflate};
pub use replay::{
    DISCIPLINES, Discipline, Replay, ReplayError, ReplayEvent, ReplayOutcome, ReplayStep,
    SizeClass, WaitGroup, replay,
};
pub use sequence::{Sequence, SequenceError};
pub use snapshot::{Reach, Running};
pub use stock::CpuOnlyPods;
pub use timed::{Timed, TimedError, TimedOutcome, Usage, timed};
pub use trace::{
    At, Bad, BadLines, NodeList, PodList, PodRow, QuotaRow, TraceError, read_nodes, read_pods,
    read_quotas,
};
pub use world::{Reasons, World};
