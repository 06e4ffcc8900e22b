//! What the stock kube-scheduler would say, for those who decide without one.
//!
//! In a cluster it looks at a node before the extender is asked, and adds its own scores to
//! the extender's. `sublet plan`, `explain` and the simulator have none beside them, and must
//! still promise only what it does. Here are its filters and scores as they are in Kubernetes
//! 1.36, by the names of its plugins:
//!
//! - `rules`: NodeUnschedulable, TaintToleration, NodeAffinity (with `nodeSelector`). They
//!   depend on nothing that pods take, so that an answer can be kept.
//! - `counts`: NodeResourcesFit, NodePorts. What is taken stands in the ledger.
//! - `score`: NodeResourcesFit, NodeResourcesBalancedAllocation, TaintToleration, NodeAffinity.
//! - `select`: which node it takes, of those that the extender lets pass.
//! - `unmodelled`: what it looks at and this does not. A pod with such a wish is never promised
//!   a place.

pub(crate) mod counts;
mod rules;
mod score;
mod select;
mod unmodelled;

pub use counts::check_machine;
pub use rules::{
    NodeRules, Operator, PodRules, Requirement, Taint, TaintEffect, Term, Toleration, soft_taints,
};
pub use score::resources;
pub use select::{Selected, Waiting, select};
pub use unmodelled::{PodTerm, Unmodelled};
