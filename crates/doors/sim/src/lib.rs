//! Traces of production clusters, replayed through the engine that schedules in Kubernetes.
//!
//! It is how an operator chooses a policy before touching a cluster, how placement is compared with
//! published results, and how a regression shows within seconds. Nothing is decided here: a
//! protocol says which pods come in which order, the engine places them as it would for the
//! extender, and curves show the outcome.
//!
//! Suggested reading order: the trace, the sequence, inflation, the curve.
//!
//! # Modules
//! It decides nothing; the engine does.
//! - `trace` and `sequence` read lists of nodes, lists of pods, and orders of arrival. `trace`
//!   has a file for each form (CSV, JSON) and one for each list.
//! - `inflation`, `timed` and `replay` are the protocols: pods come until the cluster is full,
//!   come and go at their times, or are jobs of tenants with quotas in a queue. `line` says which
//!   waiting pods are worth a try; `load` presses times together.
//! - `replay`: `jobs` makes gangs of jobs that are larger than a node, `floor` is the cluster
//!   while they come and go (`ground`: its nodes; `event`: what it tells), `rule` is the form of a
//!   rule of who starts next and `discipline/` has a file for each (ours asks
//!   `sublet_queue::plan`). `figures` counts; `partition` has the nodes that each tenant would have
//!   alone, and `served` how far it is behind them.
//! - `world` enters a trace into the engine, says what a dropped pod lacked, and can restart the
//!   scheduler in the middle of a run.
//! - `snapshot` is what runs before anything arrives. `defrag` asks the engine which pods to
//!   move. `stock` scores as the stock scheduler does. `curve` averages.
//!
//! `tests/fidelity` holds five policies to the published figures; `tests/philly` plays three
//! months of jobs, `tests/replay` the same through the queue. `tools/sequence` is a Go program,
//! because the published seeds are streams of Go's generator.

mod curve;
mod defrag;
mod inflation;
mod line;
mod load;
mod obstacle;
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
pub use load::TimedError;
pub use obstacle::Reasons;
pub use replay::{
    Alone, DISCIPLINES, Discipline, PartitionSize, Replay, ReplayError, ReplayEvent, ReplayOutcome,
    ReplayStep, RunTimes, SizeClass, WaitGroup, WithinMin, mean, replay,
};
pub use sequence::{Sequence, SequenceError};
pub use snapshot::{Reach, Running};
pub use stock::CpuOnlyPods;
pub use timed::{Timed, TimedOutcome, Usage, timed};
pub use trace::{
    At, Bad, BadLines, NodeList, PodList, PodRow, QuotaRow, TraceError, read_nodes, read_pods,
    read_quotas,
};
pub use world::World;
