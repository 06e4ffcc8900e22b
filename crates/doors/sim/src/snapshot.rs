//! A cluster that is not empty: the pods that run on it before anything arrives, and the nodes that
//! are open to a pod.
//!
//! A trace says neither. `sublet simulate --snapshot` reads both from Kubernetes' objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::Entry;

/// A pod that runs from the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its allocation; its node is in `node`, even if the entry has another name for it.
    pub entry: Entry,
    /// Row of the node list.
    pub node: u32,
    /// The nodes that are open to it; `None` for all.
    pub reach: Option<Reach>,
    /// Reason why it cannot be ended here and started elsewhere; `None` if it can.
    pub stays: Option<&'static str>,
}

/// The nodes that are open to a pod. Pods of the same wishes share it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Reach {
    /// By row of the node list: marks of the node that the pod does not tolerate, and which
    /// only put it behind others.
    nodes: Arc<BTreeMap<u32, u32>>,
}

impl Reach {
    /// These rows of the node list, each with the soft marks that the pod does not tolerate.
    #[must_use]
    pub fn new(rows: impl IntoIterator<Item = (u32, u32)>) -> Reach {
        Reach {
            nodes: Arc::new(rows.into_iter().collect()),
        }
    }

    /// The rows, in their order.
    pub fn rows(&self) -> impl Iterator<Item = &u32> {
        self.nodes.keys()
    }

    /// Is that row among them?
    #[must_use]
    pub fn contains(&self, row: u32) -> bool {
        self.nodes.contains_key(&row)
    }

    /// Soft marks of that row that the pod does not tolerate.
    #[must_use]
    pub fn untolerated(&self, row: u32) -> u32 {
        self.nodes.get(&row).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
