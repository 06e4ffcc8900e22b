//! Repeats the decisions of the stock kube-scheduler, for programs that run without one.
//!
//! In a cluster the stock scheduler checks a node before it asks the extender, and adds its own
//! scores to the extender's. `sublet plan`, `explain` and the simulator run without it, but may
//! promise only placements that it would make. So its filters and scores are repeated here as they
//! are in Kubernetes 1.36, with the names of its plugins:
//!
//! - `rules`: NodeUnschedulable, TaintToleration, NodeAffinity (with `nodeSelector`). They do not
//!   depend on what pods take, so an answer can be kept.
//! - `counts`: NodeResourcesFit, NodePorts. The ledger knows the amounts in use.
//! - `score`: NodeResourcesFit, NodeResourcesBalancedAllocation, TaintToleration, NodeAffinity.
//! - `select`: the node that it takes, among those that the extender lets pass.
//! - `unmodelled`: its checks that are not in this module. A pod with such a requirement is never
//!   promised a place.

pub(crate) mod counts;
mod rules;
mod score;
mod select;
pub(crate) mod taint;
mod unmodelled;

pub use counts::check_machine;
pub use rules::{NodeRules, Operator, PodRules, Requirement, Term, soft_taints};
pub use score::resources;
pub use select::{Selected, Waiting, select};
pub use taint::{Taint, TaintEffect, Toleration};
pub use unmodelled::{PodTerm, Unmodelled};
