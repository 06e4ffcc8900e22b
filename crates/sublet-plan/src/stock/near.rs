//! What pods that have a node make of the nodes near it, for other pods: InterPodAffinity's score
//! (Kubernetes 1.36), as far as it comes from the pods that are there. A pod's own preferences
//! about others are not weighed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{NodeRules, PodTerm};

/// A preference of a pod that has a node, about other pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sway {
    /// Which pods.
    pub pods: PodTerm,
    /// The label that nodes near its own share with it.
    pub topology_key: Arc<str>,
    /// How much better nodes near it are for them; less than nothing where they are worse.
    pub weight: i64,
}

/// How much nodes draw a pod, by a label and its value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pulls(BTreeMap<(Arc<str>, Arc<str>), i64>);

impl Pulls {
    /// A pod on that node sways the pod that is asked about.
    pub fn add(&mut self, sway: &Sway, node: &NodeRules) {
        if let Some(value) = node.labels.get(&sway.topology_key) {
            let domain = (Arc::clone(&sway.topology_key), Arc::clone(value));
            *self.0.entry(domain).or_default() += sway.weight;
        }
    }

    /// How much that node draws the pod.
    pub(super) fn of(&self, node: &NodeRules) -> i64 {
        let near = self.0.iter();
        let near = near.filter(|((key, value), _)| node.labels.get(key) == Some(value));
        near.map(|(_, weight)| weight).sum()
    }
}
