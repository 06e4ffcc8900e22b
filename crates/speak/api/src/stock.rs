//! Rules that the stock scheduler checks, read from pods and nodes into the types of
//! `sublet_plan::stock`. Rules that the API server would refuse are refused here too, with their
//! field.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_plan::stock::{
    NodeRules, Operator, PodRules, PodTerm, Requirement, Taint, TaintEffect, Term, Toleration,
    Unmodelled,
};

use crate::object::{self, Node, NodeTerm, Pod, PodAffinityTerm, SelectorRequirement};

/// A rule that the API server would not accept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}`: {what}")]
pub struct RuleError {
    /// Path of the field.
    pub field: String,
    /// The fault.
    pub what: String,
}

/// Rules of a pod about its node.
///
/// # Errors
/// A comparison that the API server would refuse.
pub fn pod_rules(pod: &Pod) -> Result<PodRules, RuleError> {
    let affinity = &pod.spec.affinity.node_affinity;
    let field = "spec.affinity.nodeAffinity";
    let required = affinity.required.as_ref().map(|required| {
        let terms = required.node_selector_terms.iter().enumerate();
        let term = |(at, written)| {
            let hard = "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
            term(written, &format!("{field}.{hard}[{at}]"))
        };
        terms.map(term).collect::<Result<Vec<Term>, RuleError>>()
    });
    let mut preferred = Vec::new();
    for (at, written) in affinity.preferred.iter().enumerate() {
        let soft = "preferredDuringSchedulingIgnoredDuringExecution";
        let field = format!("{field}.{soft}[{at}].preference");
        preferred.push((written.weight, term(&written.preference, &field)?));
    }
    Ok(PodRules {
        tolerations: tolerations(&pod.spec.tolerations),
        selector: shared(&pod.spec.node_selector),
        required: required.transpose()?,
        preferred,
    })
}

/// Parts of a node that decide about pods.
#[must_use]
pub fn node_rules(node: &Node) -> NodeRules {
    NodeRules {
        name: Arc::from(node.metadata.name.as_str()),
        labels: shared(&node.metadata.labels),
        taints: taints(&node.spec.taints),
        unschedulable: node.spec.unschedulable,
    }
}

/// Taints for the engine; a taint with an unknown effect has no effect.
#[must_use]
pub fn taints(taints: &[object::TaintSpec]) -> Vec<Taint> {
    let read = |taint: &object::TaintSpec| {
        Some(Taint {
            key: Arc::from(taint.key.as_str()),
            value: Arc::from(taint.value.as_str()),
            effect: effect(&taint.effect)?,
        })
    };
    taints.iter().filter_map(read).collect()
}

/// Tolerations for the engine; one with an unknown operator or effect tolerates nothing.
#[must_use]
pub fn tolerations(tolerations: &[object::TolerationSpec]) -> Vec<Toleration> {
    let read = |written: &object::TolerationSpec| {
        let value = match written.operator.as_str() {
            "" | "Equal" => Some(Arc::from(written.value.as_str())),
            "Exists" => None,
            _ => return None,
        };
        Some(Toleration {
            key: Arc::from(written.key.as_str()),
            value,
            effect: match written.effect.as_str() {
                "" => None,
                text => Some(effect(text)?),
            },
        })
    };
    tolerations.iter().filter_map(read).collect()
}

fn effect(text: &str) -> Option<TaintEffect> {
    match text {
        "NoSchedule" => Some(TaintEffect::NoSchedule),
        "PreferNoSchedule" => Some(TaintEffect::PreferNoSchedule),
        "NoExecute" => Some(TaintEffect::NoExecute),
        _ => None,
    }
}

fn shared(map: &BTreeMap<String, String>) -> BTreeMap<Arc<str>, Arc<str>> {
    let pair = |(key, value): (&String, &String)| (Arc::from(&**key), Arc::from(&**value));
    map.iter().map(pair).collect()
}

fn term(written: &NodeTerm, field: &str) -> Result<Term, RuleError> {
    let labels = written.match_expressions.iter().enumerate();
    let labels =
        labels.map(|(at, wish)| requirement(wish, &format!("{field}.matchExpressions[{at}]")));
    let names = written.match_fields.iter().enumerate();
    let names =
        names.map(|(at, wish)| name_requirement(wish, &format!("{field}.matchFields[{at}]")));
    Ok(Term {
        labels: labels.collect::<Result<_, RuleError>>()?,
        names: names.collect::<Result<_, RuleError>>()?,
    })
}

fn requirement(written: &SelectorRequirement, field: &str) -> Result<Requirement, RuleError> {
    let values = || written.values.iter().map(|value| Arc::from(&**value));
    let wrong = |what: String| RuleError {
        field: field.to_owned(),
        what,
    };
    let word = written.operator.as_str();
    let bound = || match &written.values[..] {
        [value] => value
            .parse()
            .map_err(|_| wrong(format!("`{value}` is no whole number, which {word} needs"))),
        _ => Err(wrong(format!("{word} needs exactly one value"))),
    };
    let some = |operator| match written.values[..] {
        [] => Err(wrong(format!("{word} needs a value"))),
        _ => Ok(operator),
    };
    let none = |operator| match written.values[..] {
        [] => Ok(operator),
        _ => Err(wrong(format!("{word} takes no value"))),
    };
    let operator = match word {
        "In" => some(Operator::In(values().collect()))?,
        "NotIn" => some(Operator::NotIn(values().collect()))?,
        "Exists" => none(Operator::Exists)?,
        "DoesNotExist" => none(Operator::DoesNotExist)?,
        "Gt" => Operator::Gt(bound()?),
        "Lt" => Operator::Lt(bound()?),
        _ => {
            let known = "In, NotIn, Exists, DoesNotExist, Gt or Lt";
            return Err(wrong(format!("`{word}` is no operator; it is {known}")));
        }
    };
    Ok(Requirement {
        key: Arc::from(written.key.as_str()),
        operator,
    })
}

/// Reads a requirement on a node's field. Only the name can be compared, and with one value.
fn name_requirement(written: &SelectorRequirement, field: &str) -> Result<Requirement, RuleError> {
    let one = matches!(written.operator.as_str(), "In" | "NotIn") && written.values.len() == 1;
    if written.key == "metadata.name" && one {
        return requirement(written, field);
    }
    let what = "only metadata.name can be compared, by In or NotIn with one value".to_owned();
    let field = field.to_owned();
    Err(RuleError { field, what })
}

/// Rules of a pod that the stock scheduler checks and `sublet_plan::stock` does not.
#[must_use]
pub fn unmodelled(pod: &Pod) -> Vec<Unmodelled> {
    let spec = &pod.spec;
    let mut found = Vec::new();
    if !spec.affinity.pod_affinity.required.is_empty() {
        found.push(Unmodelled::PodAffinity);
    }
    if !spec.affinity.pod_anti_affinity.required.is_empty() {
        found.push(Unmodelled::PodAntiAffinity);
    }
    let spread = &spec.topology_spread_constraints;
    if spread
        .iter()
        .any(|s| s.when_unsatisfiable != "ScheduleAnyway")
    {
        found.push(Unmodelled::TopologySpread);
    }
    let bound = spec.volumes.iter().filter(|volume| volume.is_bound);
    found.extend(bound.map(|volume| Unmodelled::Volume(Arc::from(&*volume.name))));
    if !spec.resource_claims.is_empty() {
        found.push(Unmodelled::ResourceClaims);
    }
    found
}

/// The pods that a pod keeps away from its node, or its node's neighbours.
///
/// # Errors
/// A comparison that the API server would refuse.
pub fn kept_away(pod: &Pod) -> Result<Vec<PodTerm>, RuleError> {
    let required = &pod.spec.affinity.pod_anti_affinity.required;
    let read = |(at, written): (usize, &PodAffinityTerm)| {
        let hard = "requiredDuringSchedulingIgnoredDuringExecution";
        let field = format!("spec.affinity.podAntiAffinity.{hard}[{at}].labelSelector");
        let own = || vec![Arc::from(pod.metadata.namespace.as_str())];
        let named = || written.namespaces.iter().map(|name| Arc::from(&**name));
        Ok(PodTerm {
            namespaces: match (&written.namespace_selector, &written.namespaces[..]) {
                (Some(_), _) => None,
                (None, []) => Some(own()),
                (None, _) => Some(named().collect()),
            },
            labels: match &written.label_selector {
                Some(selector) => Some(pods_like(selector, &field)?),
                None => None,
            },
        })
    };
    required.iter().enumerate().map(read).collect()
}

/// The pods that a selector selects: the required value of each label.
pub(crate) fn pods_like(
    selector: &object::LabelSelector,
    field: &str,
) -> Result<Vec<Requirement>, RuleError> {
    let same = |(key, value): (&String, &String)| Requirement {
        key: Arc::from(&**key),
        operator: Operator::In(vec![Arc::from(&**value)]),
    };
    let mut all: Vec<Requirement> = selector.match_labels.iter().map(same).collect();
    for (at, written) in selector.match_expressions.iter().enumerate() {
        let field = format!("{field}.matchExpressions[{at}]");
        all.push(requirement(written, &field)?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
