//! Labels of metrics. Their values are few and fixed, or names of objects of the cluster.

use prometheus_client::encoding::EncodeLabelSet;

/// The label of a count by the extender's verb.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct VerbLabel {
    /// `filter`, `prioritize`, `bind` or `preempt`.
    pub verb: &'static str,
}

/// The label of a count of refusals.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabel {
    /// A fixed word.
    pub reason: &'static str,
}

/// The labels of a count of connections and calls that a listener refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RefusedLabels {
    /// `extender`, `peers`, `webhook`, `pages`, `top`.
    pub listener: &'static str,
    /// `handshake_time`, `head_time`, `body_time`, `answer_time`: the caller took too long.
    /// `crowd`, `memory`: the connection kept us waiting, and another needed its place. `size`: too
    /// large. `handshake`: no TLS, or an untrusted certificate. `stranger`: a process of a user who
    /// may not call.
    pub reason: &'static str,
}

/// The label of a count by node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct NodeLabel {
    /// Its name.
    pub node: String,
}

/// The label of a count of attempts, by how they ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabel {
    /// `bound`, `refused`, `failed`; of the webhook `unchanged`, `changed`, `refused`,
    /// `unreadable`; of calls to another extender `answered`, `refused`, `lost`.
    pub outcome: &'static str,
}

/// The label of a node's isolation: 1 is the state that it is in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct IsolationLabel {
    /// `on`, `pending` (no part of a card is handed out), `unsupported` (nothing limits containers),
    /// `disabled` by the operator, `no-gpus`.
    pub state: &'static str,
}

/// The label of a count by a device plugin's resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResourceLabel {
    /// Its name.
    pub resource: String,
}

/// The label of a count by controller.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ControllerLabel {
    /// Its name.
    pub controller: &'static str,
}

/// The labels of a count of a controller's writes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WriteLabels {
    /// Its name.
    pub controller: &'static str,
    /// `written`, `refused`, `unanswered`.
    pub outcome: &'static str,
}

/// The labels of a figure about one container on one of its cards.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct ContainerLabels {
    /// Its pod's namespace.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// Its name.
    pub container: String,
    /// The card's number on the node.
    pub gpu: u16,
}
