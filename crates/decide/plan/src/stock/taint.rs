//! Taints of nodes, and what of them a pod tolerates.

use std::fmt;
use std::sync::Arc;

/// The effect of a taint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaintEffect {
    /// Keeps new pods away.
    NoSchedule,
    /// Makes the node the last choice.
    PreferNoSchedule,
    /// Keeps pods away, and ends the pods that are there.
    NoExecute,
}

impl fmt::Display for TaintEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A taint of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Taint {
    /// Its key.
    pub key: Arc<str>,
    /// Its value.
    pub value: Arc<str>,
    /// Its effect.
    pub effect: TaintEffect,
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equals = if self.value.is_empty() { "" } else { "=" };
        write!(f, "{}{equals}{}:{}", self.key, self.value, self.effect)
    }
}

/// A toleration of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Toleration {
    /// The taint's key; empty for any.
    pub key: Arc<str>,
    /// The taint's value; `None` for any.
    pub value: Option<Arc<str>>,
    /// The taint's effect; `None` for any.
    pub effect: Option<TaintEffect>,
}

impl Toleration {
    /// Does this toleration cover the taint? (`k8s.io/api/core/v1`, ToleratesTaint.)
    #[must_use]
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.effect.is_none_or(|effect| effect == taint.effect)
            && (self.key.is_empty() || self.key == taint.key)
            && self
                .value
                .as_ref()
                .is_none_or(|value| *value == taint.value)
    }
}
