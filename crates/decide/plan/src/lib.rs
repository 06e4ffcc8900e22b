//! Cluster decisions: the nodes and cards where a claim may go, the best of them, and the next step
//! when an answer from the API server is missing.
//!
//! *Decide* ring: no clock, thread, socket or file, and the same input gives the same
//! answer. One implementation serves the extender, `sublet plan`, `sublet explain`, the
//! simulator and the tests.
//!
//! Suggested reading order: reasons, policies, scores, preference, fit, screen, the engine, the
//! stock scheduler's additions, evict, rescue, defrag, the binding protocol.
//!
//! # Modules
//! - `reason`: the refusal of a node, as data with numbers. `Display` is for people. `Wire` is
//!   for the kube-scheduler, which joins all distinct texts.
//! - `policy`: policies by name, alone or mixed. A policy is a `Score`: one file in `score/`, one
//!   line in its list.
//! - `score/`: a file for each: `pack` (`binpack` and `spread`, by memory alone), `best_fit`,
//!   `dot_product`, `gpu_packing`, `gpu_clustering` and `random` (what FGD was compared with),
//!   `fragment` (FGD), `tiling` (ours; `docs/placement.md`).
//! - `quota`: the amount that a namespace may have, whatever the cards. A rule beside the fit;
//!   the scheduler asks it in filter, and again under the lock that takes the place.
//! - `learn`: the shapes of pods that come, and the moments at which policies make their tables
//!   anew.
//! - `cost_cache`: costs that were worked out before. A cost stays valid until a page or a table
//!   changes; the scheduler recomputes stale ones between calls.
//! - `fit`: the one implementation of fit; `fit/why` works out the reasons. `choice`: the cards
//!   of a node that serve an ask, the one place that knows more than single cards.
//! - `preference`: the order of cards before any policy counts. Pods with an affinity go to cards
//!   with their friends, opportunistic pods to the least busy card: as measured, and with a guess
//!   for pods that are new.
//! - `screen`: an upper bound of what a node can offer, from its `Outline` (one cache line beside
//!   each page of the ledger). A scan then opens only the pages that can change the answer. It
//!   decides nothing; property tests hold it to `fit`.
//! - `stock`: the stock scheduler's own filters and scores, for commands that run without one
//!   (`plan`, `explain`, the simulator). It also names the node that the stock scheduler takes of
//!   those that the extender scores. Rules that it does not model have names (`Unmodelled`), and
//!   get no promise.
//! - `engine`: ledger, policy, soft holds. `engine/trial` tries out: pods placed all or none,
//!   others taken away, and all undone unless it is kept. `filter` and `prioritize` refuse
//!   nothing that `reserve` would grant; only `reserve` takes.
//! - `evict`: the pods to evict so that one card comes free: the fewest, then the least important
//!   (`evict/search`, card by card). The stock scheduler only counts sums.
//! - `rescue`: the victims for a pod that waits although no node lacks a sum. Nodes are compared,
//!   budgets are never broken, and a trial places the pod.
//! - `defrag`: the pods to move so that whole GPUs come free. The result is an ordered list; each
//!   move fits before the pod leaves its old place. It only proposes.
//! - `binding`: the steps after a Binding without an answer. A state machine;
//!   `binding/simulation` drives it against a server that misbehaves in sixteen ways, from seeds
//!   that can be replayed.

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
pub use engine::{Candidacy, Engine, EngineOptions, FilterAnswer, RefusedNode, StockRules, Trial};
pub use evict::{Evictable, breaking};
pub use fit::Candidate;
pub use learn::{PodShape, ShapeCounts};
pub use policy::{Policy, PolicyError, Ties};
pub use preference::Preference;
pub use quota::{GpuQuota, OverQuota, check_quota};
pub use reason::wire::Wire;
pub use reason::{Reason, SickCards};
pub use rescue::{NoRescue, Prospect, Removable, Rescue};
pub use score::Fragmentation;
