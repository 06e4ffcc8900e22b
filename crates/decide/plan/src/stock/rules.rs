//! Rules that concern only one pod and one node: NodeUnschedulable, TaintToleration, NodeAffinity.
//!
//! A rule that can never match (an unknown operator, a bound that is not a number) is refused when
//! text becomes these types, as the API server refuses it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::taint::{Taint, TaintEffect, Toleration};
use crate::Reason;

/// The comparison of a label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    /// The label is one of these values.
    In(Vec<Arc<str>>),
    /// The label is none of these values, or is missing.
    NotIn(Vec<Arc<str>>),
    /// The label exists.
    Exists,
    /// The label is missing.
    DoesNotExist,
    /// The label is a larger number than this.
    Gt(i64),
    /// The label is a smaller number than this.
    Lt(i64),
}

/// A requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    /// The label's key.
    pub key: Arc<str>,
    /// The requirement on its value.
    pub operator: Operator,
}

impl Requirement {
    /// Does a label with this value (`None`: no such label) meet the requirement?
    #[must_use]
    pub fn accepts(&self, value: Option<&str>) -> bool {
        let one_of = |values: &[Arc<str>]| value.is_some_and(|v| values.iter().any(|w| **w == *v));
        let number = || value?.parse::<i64>().ok();
        match &self.operator {
            Operator::In(values) => one_of(values),
            Operator::NotIn(values) => !one_of(values),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt(bound) => number().is_some_and(|number| number > *bound),
            Operator::Lt(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match &self.operator {
            Operator::In(values) => write!(f, "{key} in ({})", values.join(", ")),
            Operator::NotIn(values) => write!(f, "{key} not in ({})", values.join(", ")),
            Operator::Exists => write!(f, "a label {key}"),
            Operator::DoesNotExist => write!(f, "no label {key}"),
            Operator::Gt(bound) => write!(f, "{key} > {bound}"),
            Operator::Lt(bound) => write!(f, "{key} < {bound}"),
        }
    }
}

/// Requirements that must all be met. A term without any matches no node.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term {
    /// Requirements for labels.
    pub labels: Vec<Requirement>,
    /// Requirements for the node's name, which is the only field that Kubernetes allows.
    pub names: Vec<Requirement>,
}

impl Term {
    /// The first requirement that is not met, and the node's value.
    fn unmet<'a>(&'a self, node: &'a NodeRules) -> Option<(&'a Requirement, Option<&'a Arc<str>>)> {
        let labels = self.labels.iter().map(|want| {
            let found = node.labels.get(&want.key);
            (want, found)
        });
        let names = self.names.iter().map(|want| (want, Some(&node.name)));
        let mut all = labels.chain(names);
        all.find(|(want, found)| !want.accepts(found.map(|value| &**value)))
    }

    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.names.is_empty()
    }

    fn matches(&self, node: &NodeRules) -> bool {
        !self.is_empty() && self.unmet(node).is_none()
    }
}

/// A pod's requirements on its node.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRules {
    /// The taints that it tolerates.
    pub tolerations: Vec<Toleration>,
    /// Labels that the node must have (`nodeSelector`).
    pub selector: BTreeMap<Arc<str>, Arc<str>>,
    /// Terms; at least one must match. `None` if there is no such requirement.
    pub required: Option<Vec<Term>>,
    /// Terms that only order nodes, each with its weight.
    pub preferred: Vec<(u32, Term)>,
}

/// The facts of a node that these rules check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRules {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// True if it is closed to new pods (`kubectl cordon`).
    pub unschedulable: bool,
}

impl PodRules {
    /// Can the pod go on this node, by the rules that count nothing?
    ///
    /// # Errors
    /// The first rule that refuses it, in the order of the stock scheduler's plugins.
    pub fn check(&self, node: &NodeRules) -> Result<(), Reason> {
        if node.unschedulable && !self.tolerates(&cordon()) {
            return Err(Reason::Unschedulable);
        }
        let hard = |taint: &&Taint| taint.effect != TaintEffect::PreferNoSchedule;
        let mut taints = node.taints.iter().filter(hard);
        if let Some(taint) = taints.find(|taint| !self.tolerates(taint)) {
            return Err(Reason::Taint {
                taint: Arc::new(taint.clone()),
            });
        }
        for (key, wanted) in &self.selector {
            let found = node.labels.get(key);
            if found != Some(wanted) {
                return Err(Reason::NodeSelector {
                    wanted: format!("{key}={wanted}").into(),
                    found: found.cloned(),
                });
            }
        }
        self.check_affinity(node)
    }

    fn check_affinity(&self, node: &NodeRules) -> Result<(), Reason> {
        let Some(terms) = &self.required else {
            return Ok(());
        };
        if terms.iter().any(|term| term.matches(node)) {
            return Ok(());
        }
        let unmet = terms.iter().find_map(|term| term.unmet(node));
        Err(Reason::NodeAffinity {
            terms: terms.len(),
            unmet: unmet.map(|(wanted, found)| (wanted.to_string().into(), found.cloned())),
        })
    }

    fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|t| t.tolerates(taint))
    }

    /// Number of the node's PreferNoSchedule taints that the pod does not tolerate.
    #[must_use]
    pub fn soft_taints(&self, node: &NodeRules) -> u32 {
        soft_taints(&node.taints, &self.tolerations)
    }

    /// The sum of the weights of the preferred terms that match the node.
    pub(super) fn preference(&self, node: &NodeRules) -> u64 {
        let worth = self.preferred.iter();
        let met = worth.filter(|(_, term)| term.matches(node));
        met.map(|(weight, _)| u64::from(*weight)).sum()
    }
}

/// Number of PreferNoSchedule taints that no toleration covers.
#[must_use]
pub fn soft_taints(taints: &[Taint], tolerations: &[Toleration]) -> u32 {
    let minded = |taint: &&Taint| {
        taint.effect == TaintEffect::PreferNoSchedule
            && !tolerations.iter().any(|t| t.tolerates(taint))
    };
    taints.iter().filter(minded).count() as u32
}

/// The taint of a cordoned node: pods that tolerate it, such as DaemonSets' pods, still go there.
fn cordon() -> Taint {
    Taint {
        key: Arc::from("node.kubernetes.io/unschedulable"),
        value: Arc::from(""),
        effect: TaintEffect::NoSchedule,
    }
}

#[cfg(test)]
mod tests;
