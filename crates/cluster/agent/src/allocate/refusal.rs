//! Reasons why no container gets its devices, in words that kubelet puts into the pod's status.

use std::fmt;
use std::sync::Arc;

use sublet_api::keys;
use sublet_api::object::Pod;
use sublet_model::{GpuIndex, MiB, Milli, NodeName, PodKey};

/// Number of pods that a message names before it says "and N more". The message ends up in the
/// pod's status, and a node holds a hundred pods.
const NAMED_MAX: usize = 8;

/// Devices that kubelet asks for one container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KubeletAsk {
    /// The resource.
    pub resource: &'static str,
    /// The number of device IDs.
    pub count: u64,
}

impl fmt::Display for KubeletAsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.count, self.resource)
    }
}

/// Advice on a pod that needs another card. The API server has only a mirror of a static pod: kubelet
/// makes it again if it is deleted.
pub(super) fn anew(pod: &Pod) -> &'static str {
    match is_static(pod) {
        true => "it is a static pod: take the GPU out of its file on the node",
        false => "delete the pod so that it is placed anew",
    }
}

/// Advice on several pods, of which kubelet could mean each.
pub(super) fn one_only<'a>(mut pods: impl Iterator<Item = &'a Pod>) -> &'static str {
    match pods.any(is_static) {
        true => "delete all but one, and take the GPU out of a static pod's file on the node",
        false => "delete all but one",
    }
}

fn is_static(pod: &Pod) -> bool {
    pod.metadata.annotations.contains_key(keys::MIRROR)
}

/// Reason why no container gets devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// No pod waits for that. The only refusal that a fresher list may lift.
    #[error("no pod on node {node} waits for {asked} in one container; {others}")]
    Nobody {
        /// The node.
        node: NodeName,
        /// The devices that kubelet asked for.
        asked: KubeletAsk,
        /// The pods that wait for something else, and those that cannot.
        others: Others,
    },
    /// The container has no GPU to get.
    #[error("kubelet was asked for a GPU that the pod does not ask for")]
    NotAsked,
    /// Several pods do.
    #[error(
        "{} {} wait for {asked}, and kubelet does not say which of them it means; \
         {advice}",
        Names(pods),
        if pods.len() == 2 { "both" } else { "all" }
    )]
    Ambiguous {
        /// The devices that kubelet asked for.
        asked: KubeletAsk,
        /// The pods.
        pods: Vec<PodKey>,
        /// A way to have them start.
        advice: &'static str,
    },
    /// A pod that asks for a GPU and does not say which cards it has.
    #[error("pod {pod} has no card: {why}; {advice}")]
    Unplaced {
        /// The pod.
        pod: PodKey,
        /// Reason why the pod has no card.
        why: String,
        /// A way to have it start.
        advice: &'static str,
    },
    /// The allocation names a card that is not here.
    #[error("pod {pod}: {card} is not on node {node}; {advice}")]
    NoCard {
        /// The pod.
        pod: PodKey,
        /// The card as the allocation names it.
        card: String,
        /// The node.
        node: NodeName,
        /// A way to have it start.
        advice: &'static str,
    },
    /// The card got sick after the pod was bound.
    #[error("pod {pod}: GPU {gpu} is unhealthy ({why}); {advice}")]
    Sick {
        /// The pod.
        pod: PodKey,
        /// The card.
        gpu: GpuIndex,
        /// Problem of the card.
        why: Arc<str>,
        /// A way to have it start.
        advice: &'static str,
    },
    /// More of the card's compute time is promised than there is.
    #[error(
        "pod {pod}: {promised} of the compute time of GPU {gpu} are promised to {tenants} pods"
    )]
    OverCompute {
        /// The pod.
        pod: PodKey,
        /// Its card.
        gpu: GpuIndex,
        /// Compute time that is promised.
        promised: Milli,
        /// Number of pods with a promise.
        tenants: u32,
    },
    /// More memory of the card is promised than it has.
    #[error(
        "pod {pod}: GPU {gpu} lacks {lacks}: {promised} of its {capacity} are promised to {tenants} pods"
    )]
    Over {
        /// The pod.
        pod: PodKey,
        /// The card.
        gpu: GpuIndex,
        /// Memory that the card lacks.
        lacks: MiB,
        /// Memory that is promised to all pods together.
        promised: MiB,
        /// Memory of the card.
        capacity: MiB,
        /// Number of pods.
        tenants: u32,
    },
}

/// The pods of the node that kubelet cannot mean, by the reason why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// They wait for other amounts.
    pub waiting: Vec<PodKey>,
    /// Bound by a scheduler that did not say on which cards.
    pub without_cards: Vec<PodKey>,
    /// Their annotations are garbage.
    pub garbled: Vec<(PodKey, String)>,
}

impl Others {
    /// Is there a pod that has no cards? Kubelet may mean that one.
    pub(crate) fn has_strays(&self) -> bool {
        !self.without_cards.is_empty() || !self.garbled.is_empty()
    }
}

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.waiting.is_empty() {
            parts.push(format!(
                "waiting for other amounts: {}",
                Names(&self.waiting)
            ));
        }
        if !self.without_cards.is_empty() {
            let names = Names(&self.without_cards);
            parts.push(format!(
                "bound without an allocation, not by Sublet: {names}"
            ));
        }
        for (pod, problem) in self.garbled.iter().take(NAMED_MAX) {
            parts.push(format!("pod {pod}: {problem}"));
        }
        if parts.is_empty() {
            return f.write_str("none waits for any GPU");
        }
        f.write_str(&parts.join("; "))
    }
}

/// `a/x, a/y and a/z`.
struct Names<'a>(&'a [PodKey]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Names(pods) = self;
        let shown = pods.len().min(NAMED_MAX);
        for (at, pod) in pods[..shown].iter().enumerate() {
            let separator = match at {
                0 => "",
                _ if at + 1 == pods.len() => " and ",
                _ => ", ",
            };
            write!(f, "{separator}{pod}")?;
        }
        match pods.len() - shown {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
