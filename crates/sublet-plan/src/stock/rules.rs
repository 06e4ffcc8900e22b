//! Rules between one pod and one node that nothing else has a part in: NodeUnschedulable,
//! TaintToleration, NodeAffinity.
//!
//! What cannot match (an operator nobody knows, a bound that is no number) is refused where
//! text becomes these types, as the API server refuses it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::Reason;

/// What a taint does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaintEffect {
    /// Keeps new pods away.
    NoSchedule,
    /// Puts the node behind others.
    PreferNoSchedule,
    /// Keeps pods away, and ends those that are there.
    NoExecute,
}

impl fmt::Display for TaintEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A node's mark that keeps pods away.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Taint {
    /// Its key.
    pub key: Arc<str>,
    /// Its value.
    pub value: Arc<str>,
    /// What it does.
    pub effect: TaintEffect,
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equals = if self.value.is_empty() { "" } else { "=" };
        write!(f, "{}{equals}{}:{}", self.key, self.value, self.effect)
    }
}

/// A mark that a pod does not mind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Toleration {
    /// The taint's key; empty for any.
    pub key: Arc<str>,
    /// The taint's value; `None` for any.
    pub value: Option<Arc<str>>,
    /// What it does; `None` for anything.
    pub effect: Option<TaintEffect>,
}

impl Toleration {
    /// Does the pod not mind that taint? (`k8s.io/api/core/v1`, ToleratesTaint.)
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

/// How a label is compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    /// It is one of these.
    In(Vec<Arc<str>>),
    /// It is none of these, or there is no such label.
    NotIn(Vec<Arc<str>>),
    /// There is such a label.
    Exists,
    /// There is none.
    DoesNotExist,
    /// It is a larger number.
    Gt(i64),
    /// It is a smaller number.
    Lt(i64),
}

/// What is wanted of one label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    /// The label's key.
    pub key: Arc<str>,
    /// What is wanted of it.
    pub operator: Operator,
}

impl Requirement {
    /// Does a label of that value, or none, fulfil it?
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

/// Wishes of which all must come true. One without any matches no node.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term {
    /// About labels.
    pub labels: Vec<Requirement>,
    /// About the node's name, which is the only field there is.
    pub names: Vec<Requirement>,
}

impl Term {
    /// The first wish that does not come true, and what the node has in its place.
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

/// What a pod wants of its node.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRules {
    /// Marks that it does not mind.
    pub tolerations: Vec<Toleration>,
    /// Labels that the node must have (`nodeSelector`).
    pub selector: BTreeMap<Arc<str>, Arc<str>>,
    /// Terms of which one must come true; `None` where there is no such wish.
    pub required: Option<Vec<Term>>,
    /// Terms that only order nodes, and what each is worth.
    pub preferred: Vec<(u32, Term)>,
}

/// What of a node decides about pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRules {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Its marks.
    pub taints: Vec<Taint>,
    /// Closed to new pods (`kubectl cordon`).
    pub unschedulable: bool,
}

impl PodRules {
    /// May the pod go on that node, as far as nothing is counted?
    ///
    /// # Errors
    /// The first rule against it, in the order of the stock scheduler's plugins.
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

    /// Marks of a node that only put it behind others, and which the pod does not tolerate.
    #[must_use]
    pub fn soft_taints(&self, node: &NodeRules) -> u32 {
        soft_taints(&node.taints, &self.tolerations)
    }

    /// What a node's labels are worth to the pod.
    pub(super) fn preference(&self, node: &NodeRules) -> u64 {
        let worth = self.preferred.iter();
        let met = worth.filter(|(_, term)| term.matches(node));
        met.map(|(weight, _)| u64::from(*weight)).sum()
    }
}

/// Marks among these that only put a node behind others, and that none of these tolerates.
#[must_use]
pub fn soft_taints(taints: &[Taint], tolerations: &[Toleration]) -> u32 {
    let minded = |taint: &&Taint| {
        taint.effect == TaintEffect::PreferNoSchedule
            && !tolerations.iter().any(|t| t.tolerates(taint))
    };
    taints.iter().filter(minded).count() as u32
}

/// Who tolerates this goes on a cordoned node too: DaemonSets do.
fn cordon() -> Taint {
    Taint {
        key: Arc::from("node.kubernetes.io/unschedulable"),
        value: Arc::from(""),
        effect: TaintEffect::NoSchedule,
    }
}

#[cfg(test)]
mod tests;
