//! Disruption budgets (`policy/v1`): the number of pods that an eviction may take from a set.

use std::collections::BTreeMap;

use serde::Deserialize;
use sublet_model::PodKey;
use sublet_plan::breaking;
use sublet_plan::stock::Requirement;

use crate::object::{LabelSelector, Meta, or_default};
use crate::stock::pods_like;

/// From these nobody is evicted and deleted, and a policy of the API server refuses it
/// (`34-controller-policy.yaml`): the cluster needs their pods.
pub const SYSTEM_NAMESPACES: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// A pod by its name, and its labels if they are known.
pub type BudgetedPod<'a> = (&'a PodKey, Option<&'a BTreeMap<String, String>>);

/// For each of these pods, the most important first: would it break a disruption budget if all of them
/// went?
#[must_use]
pub fn breaks_budgets<'a>(
    budgets: &(impl Iterator<Item = &'a DisruptionBudget> + Clone),
    pods: &[BudgetedPod<'_>],
) -> Vec<bool> {
    let counted = pods.iter().map(|(pod, labels)| {
        let Some(labels) = labels else {
            return Vec::new();
        };
        let all = budgets.clone().enumerate();
        all.filter(|(_, budget)| budget.counts(pod.namespace(), pod.name(), labels))
            .map(|(index, _)| index)
            .collect()
    });
    let allowed = budgets.clone().map(|it| it.status.disruptions_allowed);
    breaking(&counted.collect::<Vec<_>>(), &allowed.collect::<Vec<_>>())
}

/// Is one of these the system's, or would the eviction of all break a disruption budget?
#[must_use]
pub fn is_guarded<'a>(
    budgets: &(impl Iterator<Item = &'a DisruptionBudget> + Clone),
    pods: &[BudgetedPod<'_>],
) -> bool {
    let mut namespaces = pods.iter().map(|(pod, _)| pod.namespace());
    namespaces.any(|namespace| SYSTEM_NAMESPACES.contains(&namespace))
        || breaks_budgets(budgets, pods).contains(&true)
}

/// A PodDisruptionBudget.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DisruptionBudget {
    /// Its metadata.
    pub metadata: Meta,
    /// Wanted state.
    #[serde(deserialize_with = "or_default")]
    pub spec: BudgetSpec,
    /// Present state.
    #[serde(deserialize_with = "or_default")]
    pub status: BudgetStatus,
}

/// Wanted state of a budget.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BudgetSpec {
    /// Pods of the budget.
    #[serde(deserialize_with = "or_default")]
    pub selector: LabelSelector,
}

/// Present state of a budget.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetStatus {
    /// Number of pods that may be disrupted now.
    pub disruptions_allowed: i32,
    /// Pods by name that are being evicted and are counted already.
    #[serde(deserialize_with = "or_default")]
    pub disrupted_pods: BTreeMap<String, String>,
}

impl DisruptionBudget {
    /// Does the eviction of that pod use up a part of the budget? Counts like the stock scheduler:
    /// an empty or unreadable selector matches nothing, and no selector matches a pod without
    /// labels.
    #[must_use]
    pub fn counts(&self, namespace: &str, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let Ok(requirements) = pods_like(&self.spec.selector, "spec.selector") else {
            return false;
        };
        let accepts = |wanted: &Requirement| {
            let value = labels.get(&*wanted.key);
            wanted.accepts(value.map(String::as_str))
        };
        self.metadata.namespace == namespace
            && !labels.is_empty()
            && !requirements.is_empty()
            && requirements.iter().all(accepts)
            && !self.status.disrupted_pods.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_counts_the_pods_that_its_selector_matches() {
        let check = |selector: &str, labels: &[(&str, &str)]| {
            let text = format!(
                r#"{{"metadata":{{"name":"b","namespace":"default"}},
                     "spec":{{"minAvailable":1,"selector":{selector}}},
                     "status":{{"disruptionsAllowed":0,"disruptedPods":{{"gone":"2026-11-22T00:00:00Z"}}}}}}"#
            );
            let budget: DisruptionBudget = serde_json::from_str(&text).unwrap();
            let own = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
            let labels = labels.iter().map(own).collect();
            assert!(!budget.counts("other", "p", &labels), "another namespace's");
            assert!(!budget.counts("default", "gone", &labels), "already gone");
            budget.counts("default", "p", &labels)
        };
        let web = [("app", "web"), ("tier", "1")];
        for (selector, expected) in [
            (r#"{"matchLabels":{"app":"web"}}"#, true),
            (r#"{"matchLabels":{"app":"db"}}"#, false),
            (r#"{"matchLabels":{"app":"web","new":"yes"}}"#, false),
            ("{}", false),
            ("null", false),
            (
                r#"{"matchExpressions":[{"key":"app","operator":"In","values":["db","web"]}]}"#,
                true,
            ),
            (
                r#"{"matchExpressions":[{"key":"app","operator":"NotIn","values":["web"]}]}"#,
                false,
            ),
            (
                r#"{"matchExpressions":[{"key":"no","operator":"NotIn","values":["web"]}]}"#,
                true,
            ),
            (
                r#"{"matchExpressions":[{"key":"tier","operator":"Exists"},{"key":"no","operator":"DoesNotExist"}]}"#,
                true,
            ),
            (
                r#"{"matchExpressions":[{"key":"app","operator":"Near"}]}"#,
                false,
            ),
        ] {
            assert_eq!(check(selector, &web), expected, "{selector}");
        }
        let absent = r#"{"matchExpressions":[{"key":"no","operator":"DoesNotExist"}]}"#;
        assert!(!check(absent, &[]), "a pod without labels");
    }
}
