//! Checks of the stock scheduler that are not in `stock`. A pod with such a requirement may or may
//! not get a place. That cannot be known here, so it is never promised one.

use std::fmt;
use std::sync::Arc;

use sublet_model::PodKey;

use super::Requirement;

/// Reason why a pod's place cannot be promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unmodelled {
    /// It must be near other pods.
    PodAffinity,
    /// It must be far from other pods.
    PodAntiAffinity,
    /// A pod that runs, or comes before it, keeps it away by anti-affinity.
    AntiAffinityOf(PodKey),
    /// It must be spread evenly.
    TopologySpread,
    /// It mounts a volume that may tie it to some nodes.
    Volume(Arc<str>),
    /// It claims devices by ResourceClaims.
    ResourceClaims,
    /// It is placed by this scheduler, which does not ask Sublet.
    Scheduler(Arc<str>),
    /// No node has room for it, but pods of lower priority run.
    Preemption,
}

impl fmt::Display for Unmodelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unmodelled::PodAffinity => write!(f, "its pod affinity is not looked at"),
            Unmodelled::PodAntiAffinity => write!(f, "its pod anti-affinity is not looked at"),
            Unmodelled::AntiAffinityOf(other) => {
                write!(f, "the anti-affinity of pod {other} may keep it away")
            }
            Unmodelled::TopologySpread => {
                write!(f, "its topology spread constraints are not looked at")
            }
            Unmodelled::Volume(name) => {
                write!(f, "its volume {name} may bind it to other nodes")
            }
            Unmodelled::ResourceClaims => write!(f, "its resource claims are not looked at"),
            Unmodelled::Preemption => {
                write!(f, "pods of lower priority may be evicted for it")
            }
            Unmodelled::Scheduler(name) => {
                write!(
                    f,
                    "it is placed by the scheduler {name}, which does not ask Sublet"
                )
            }
        }
    }
}

/// One term of a pod's required anti-affinity: the pods that it keeps away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodTerm {
    /// The namespaces of these pods; `None` for any namespace.
    pub namespaces: Option<Vec<Arc<str>>>,
    /// Requirements on their labels; `None` if the term selects no pod.
    pub labels: Option<Vec<Requirement>>,
}

impl PodTerm {
    /// Does it select a pod of this namespace with these labels?
    #[must_use]
    pub fn means<'a>(&self, namespace: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        let within = |all: &Vec<Arc<str>>| all.iter().any(|known| **known == *namespace);
        let alike = |wanted: &Vec<Requirement>| wanted.iter().all(|w| w.accepts(label(&w.key)));
        self.namespaces.as_ref().is_none_or(within) && self.labels.as_ref().is_some_and(alike)
    }
}
