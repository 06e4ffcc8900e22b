//! GPU models that a pod accepts, from its node selector and its required node affinity.
//!
//! Only rules that one list can express: the wanted values of a label by which nodes name their
//! model. The stock scheduler checks the pod's other rules about nodes.

use std::sync::Arc;

use sublet_model::Models;

use crate::keys;
use crate::object::{NodeTerm, Pod, SelectorRequirement};

/// The GPU models that a pod accepts.
pub(crate) fn models_of(pod: &Pod) -> Models {
    let selected = keys::MODEL_LABELS
        .iter()
        .filter_map(|label| pod.spec.node_selector.get(*label));
    let selected: Vec<&str> = selected.map(String::as_str).collect();
    let required = pod.spec.affinity.node_affinity.required.as_ref();
    let required = required.and_then(|required| of_any(&required.node_selector_terms));
    let models = match (selected.is_empty(), required) {
        (true, required) => required.unwrap_or_default(),
        (false, None) => selected,
        (false, Some(required)) => both(selected, &required),
    };
    Models::new(models.into_iter().map(Arc::from))
}

/// The models that any of the terms accepts; `None` if one of them accepts all.
fn of_any(terms: &[NodeTerm]) -> Option<Vec<&str>> {
    let mut any: Vec<&str> = Vec::new();
    for term in terms {
        for model in of_all(term)? {
            if !any.contains(&model) {
                any.push(model);
            }
        }
    }
    Some(any)
}

/// The models that all requirements of a term accept; `None` if none of them is about models.
fn of_all(term: &NodeTerm) -> Option<Vec<&str>> {
    let about = |wish: &&SelectorRequirement| {
        wish.operator == "In" && keys::MODEL_LABELS.contains(&wish.key.as_str())
    };
    let named = term.match_expressions.iter().filter(about);
    let lists = named.map(|wish| wish.values.iter().map(String::as_str).collect());
    lists.reduce(|one: Vec<&str>, other| both(one, &other))
}

/// The models in both lists, in the order of the first. If there are none the pod can go nowhere.
/// Then the first list alone is returned, for the stock scheduler refuses the pod anyway.
fn both<'a>(one: Vec<&'a str>, other: &[&str]) -> Vec<&'a str> {
    let common: Vec<&str> = one.iter().copied().filter(|m| other.contains(m)).collect();
    if common.is_empty() { one } else { common }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The models of a pod with that selector (`P100`, or nothing) and those terms.
    fn check(selected: &str, terms: &str) -> String {
        let mut text = String::from(r#"{"spec":{"#);
        if !selected.is_empty() {
            text += &format!(r#""nodeSelector":{{"nvidia.com/gpu.product":"{selected}"}},"#);
        }
        text += &format!(
            r#""affinity":{{"nodeAffinity":{{"requiredDuringSchedulingIgnoredDuringExecution":
               {{"nodeSelectorTerms":[{terms}]}}}}}}}}}}"#
        );
        let pod: Pod = serde_json::from_str(&text).unwrap();
        let models = models_of(&pod);
        let names: Vec<&str> = models.iter().map(|model| &**model).collect();
        names.join("|")
    }

    /// A term: `product in P100,T4 & zone in a`.
    fn term(text: &str) -> String {
        let wishes = text
            .split(" & ")
            .filter(|wish| !wish.is_empty())
            .map(|wish| {
                let words: Vec<&str> = wish.split(' ').collect();
                let key = match words[0] {
                    "product" => "nvidia.com/gpu.product",
                    "name" => "aliyun.accelerator/nvidia_name",
                    other => other,
                };
                let values: Vec<String> = words[2].split(',').map(|v| format!("{v:?}")).collect();
                let values = values.join(",");
                format!(
                    r#"{{"key":"{key}","operator":"{}","values":[{values}]}}"#,
                    words[1]
                )
            });
        let wishes: Vec<String> = wishes.collect();
        format!(r#"{{"matchExpressions":[{}]}}"#, wishes.join(","))
    }

    #[test]
    fn models_come_from_selector_and_required_affinity() {
        let terms = |all: &[&str]| {
            let all: Vec<String> = all.iter().map(|text| term(text)).collect();
            all.join(",")
        };
        let cases: &[(&str, &[&str], &str)] = &[
            ("", &[], ""),
            ("P100", &[], "P100"),
            ("", &["product In T4,P100"], "T4|P100"),
            ("", &["name In T4"], "T4"),
            ("", &["product In T4 & zone In a"], "T4"),
            ("", &["product In T4,P100 & product In P100,V100"], "P100"),
            ("", &["product In T4", "product In P100,T4"], "T4|P100"),
            // One term that any model fulfils.
            ("", &["product In T4", "zone In a"], ""),
            ("", &["product NotIn T4"], ""),
            ("P100", &["product In T4,P100"], "P100"),
            ("P100", &["zone In a"], "P100"),
            ("P100", &["product In T4"], "P100"),
        ];
        for (selected, of, expected) in cases {
            assert_eq!(check(selected, &terms(of)), *expected, "{selected} {of:?}");
        }
    }
}
