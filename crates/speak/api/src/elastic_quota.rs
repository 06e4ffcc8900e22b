//! ElasticQuotas of Koordinator (`scheduling.sigs.k8s.io/v1alpha1`), and of scheduler-plugins
//! (`scheduling.x-k8s.io/v1alpha1`). The latter have one quota for each namespace and no tree.
//!
//! Sources: Koordinator's `apis/extension/elastic_quota.go`, scheduler-plugins'
//! `apis/scheduling/v1alpha1/types.go`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use sublet_queue::{Amounts, Quota};

use crate::duration::milliseconds;
use crate::keys;
use crate::object::{Meta, Node, Quantity, or_default};
use crate::quantity::{QuantityError, bytes, milli_cpu};

/// The API group of scheduler-plugins.
const PLUGINS_GROUP: &str = "scheduling.x-k8s.io/";

/// The root that stands above every tree, and has no limit (Koordinator).
const ROOT: &str = "koordinator-root-quota";

/// An ElasticQuota of either group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ElasticQuota {
    /// Group and version.
    #[serde(deserialize_with = "or_default")]
    pub api_version: String,
    /// Its metadata.
    pub metadata: Meta,
    /// Wanted state.
    #[serde(deserialize_with = "or_default")]
    pub spec: ElasticQuotaSpec,
    /// Present state.
    #[serde(deserialize_with = "or_default")]
    pub status: ElasticQuotaStatus,
}

/// Wanted state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ElasticQuotaSpec {
    /// Amount that is guaranteed to it on request.
    #[serde(deserialize_with = "or_default")]
    pub min: BTreeMap<String, Quantity>,
    /// The most it may have.
    #[serde(deserialize_with = "or_default")]
    pub max: BTreeMap<String, Quantity>,
}

/// Present state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ElasticQuotaStatus {
    /// Amount that its pods have.
    #[serde(deserialize_with = "or_default")]
    pub used: BTreeMap<String, Quantity>,
}

/// Kind of pods that a quota is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaScope {
    /// A quota in a tree, and pods by label or namespace.
    Tree,
    /// Not in a tree: the root itself, and the quotas of pods that belong to none
    /// (`koordinator-default-quota`) or to the system (`koordinator-system-quota`).
    Outside,
}

/// Facts in an ElasticQuota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaFacts {
    /// As the tree counts it.
    pub quota: Quota,
    /// Is it in a tree?
    pub scope: QuotaScope,
    /// The top of a tree of its own.
    pub is_root: bool,
    /// The total of its tree is taken from the total of the cluster's own tree.
    pub takes_from_default: bool,
    /// Namespaces whose pods count for it.
    pub namespaces: Vec<String>,
    /// Total of its tree, if the quota gives one.
    pub total: Option<Amounts>,
    /// Request of its pods, as its controller last wrote it.
    pub request: Amounts,
    /// Usage of its pods, as its controller last wrote it.
    pub used: Amounts,
    /// A field that cannot be read, and counts as if it was not there: all else of the quota counts.
    pub odd: Option<ElasticQuotaError>,
}

/// A field of an ElasticQuota that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ElasticQuotaError {
    /// A wrong amount.
    #[error("{value:?}: {cause}")]
    Amount {
        /// Path of the field.
        field: String,
        /// As written.
        value: String,
        /// The fault.
        cause: QuantityError,
    },
    /// A text that is no JSON of the wanted form.
    #[error("{problem}")]
    Json {
        /// Path of the field.
        field: String,
        /// The fault.
        problem: String,
    },
    /// A text that is no duration.
    #[error("{value:?}: it is no duration such as `0s`, `1h` or `24h`")]
    Duration {
        /// Path of the field.
        field: String,
        /// As written.
        value: String,
    },
}

impl ElasticQuotaError {
    /// The field that cannot be read.
    #[must_use]
    pub fn field(&self) -> &str {
        match self {
            ElasticQuotaError::Amount { field, .. }
            | ElasticQuotaError::Json { field, .. }
            | ElasticQuotaError::Duration { field, .. } => field,
        }
    }
}

impl ElasticQuota {
    /// Is it one of scheduler-plugins, for its namespace alone?
    #[must_use]
    pub fn is_of_plugins(&self) -> bool {
        self.api_version.starts_with(PLUGINS_GROUP)
    }

    /// Reads the quota's facts.
    ///
    /// # Errors
    /// The first field that cannot be read.
    pub fn facts(&self) -> Result<QuotaFacts, ElasticQuotaError> {
        let label = |key: &str| self.metadata.labels.get(key).map(String::as_str);
        let is = |key: &str| label(key) == Some("true");
        let name: Arc<str> = self.metadata.name.as_str().into();
        let is_of_plugins = self.is_of_plugins();
        let parent = label(keys::QUOTA_PARENT).filter(|&name| !name.is_empty() && name != ROOT);
        let tree = label(keys::QUOTA_TREE).filter(|_| !is_of_plugins);
        let total = match self.listed(keys::QUOTA_TOTAL)? {
            Some(total) => Some(without(total, self.listed(keys::QUOTA_UNSCHEDULABLE)?)),
            None => None,
        };
        let namespaces = match is_of_plugins {
            true => vec![self.metadata.namespace.clone()],
            false => self.json(keys::QUOTA_NAMESPACES)?.unwrap_or_default(),
        };
        let (min_within_ms, odd) = match self.duration(keys::QUOTA_MIN_WITHIN) {
            Ok(within) => (within, None),
            Err(error) => (None, Some(error)),
        };
        Ok(QuotaFacts {
            quota: Quota {
                parent: parent.filter(|_| !is_of_plugins).map(Arc::from),
                lends: label(keys::QUOTA_LENDS) != Some("false"),
                min: amounts("spec.min", &self.spec.min)?,
                max: amounts("spec.max", &self.spec.max)?,
                weight: self.listed(keys::QUOTA_WEIGHT)?,
                guarantee: self.listed(keys::QUOTA_GUARANTEED)?.unwrap_or_default(),
                tree: tree.unwrap_or_default().into(),
                name: name.clone(),
                min_within_ms,
            },
            scope: match &*name {
                ROOT | "koordinator-default-quota" | "koordinator-system-quota" => {
                    QuotaScope::Outside
                }
                _ => QuotaScope::Tree,
            },
            is_root: is(keys::QUOTA_IS_ROOT),
            takes_from_default: !is(keys::QUOTA_IGNORE_DEFAULT),
            namespaces,
            total,
            request: self.listed(keys::QUOTA_REQUEST)?.unwrap_or_default(),
            used: amounts("status.used", &self.status.used)?,
            odd,
        })
    }

    /// An annotation that is a duration, in milliseconds.
    fn duration(&self, key: &str) -> Result<Option<u64>, ElasticQuotaError> {
        let Some(text) = self.metadata.annotations.get(key) else {
            return Ok(None);
        };
        let wrong = || ElasticQuotaError::Duration {
            field: annotation(key),
            value: text.clone(),
        };
        milliseconds(text).map(Some).ok_or_else(wrong)
    }

    /// An annotation that lists amounts.
    fn listed(&self, key: &str) -> Result<Option<Amounts>, ElasticQuotaError> {
        let list: Option<BTreeMap<String, Quantity>> = self.json(key)?;
        let field = || annotation(key);
        list.map(|list| amounts(&field(), &list)).transpose()
    }

    /// An annotation in JSON.
    fn json<'a, T: Deserialize<'a>>(&'a self, key: &str) -> Result<Option<T>, ElasticQuotaError> {
        let text = self.metadata.annotations.get(key);
        let read = text.map(|text| serde_json::from_str(text)).transpose();
        read.map_err(|error| ElasticQuotaError::Json {
            field: annotation(key),
            problem: error.to_string(),
        })
    }
}

fn annotation(key: &str) -> String {
    format!("metadata.annotations[{key}]")
}

/// Subtracts the part that no pod can have.
fn without(mut total: Amounts, unschedulable: Option<Amounts>) -> Amounts {
    for (resource, amount) in unschedulable.unwrap_or_default() {
        if let Some(total) = total.get_mut(&resource) {
            *total = total.saturating_sub(amount);
        }
    }
    total
}

/// Reads an amount of a resource: CPU in thousandths of a core, all else in its base unit.
fn amount(resource: &str, text: &str) -> Result<u64, QuantityError> {
    match resource {
        "cpu" => milli_cpu(text),
        _ => bytes(text),
    }
}

fn amounts(field: &str, list: &BTreeMap<String, Quantity>) -> Result<Amounts, ElasticQuotaError> {
    let read = |(resource, quantity): (&String, &Quantity)| {
        let amount = amount(resource, &quantity.0);
        let amount = amount.map_err(|cause| ElasticQuotaError::Amount {
            field: format!("{field}[{resource}]"),
            value: quantity.0.clone(),
            cause,
        })?;
        Ok((Arc::from(resource.as_str()), amount))
    };
    list.iter().map(read).collect()
}

/// Amounts of a node that pods can have, by resource.
///
/// # Errors
/// The first amount that cannot be read.
pub fn node_amounts(node: &Node) -> Result<Amounts, ElasticQuotaError> {
    let status = &node.status;
    match status.allocatable.is_empty() {
        // As the API server fills it in.
        true => amounts("status.capacity", &status.capacity),
        false => amounts("status.allocatable", &status.allocatable),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(yaml: &str) -> Result<QuotaFacts, String> {
        let quota: ElasticQuota = serde_saphyr::from_str(yaml).unwrap();
        let facts = quota.facts();
        facts.map_err(|error| format!("{}: {error}", error.field()))
    }

    fn amounts_as(list: &[(&str, u64)]) -> Amounts {
        let each = list.iter().map(|&(name, amount)| (Arc::from(name), amount));
        each.collect()
    }

    #[test]
    fn koordinators_labels_and_annotations_are_read() {
        let facts = read(
            r#"
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: ElasticQuota
metadata:
  name: team
  namespace: kube-system
  labels:
    quota.scheduling.koordinator.sh/parent: company
    quota.scheduling.koordinator.sh/is-parent: "false"
    quota.scheduling.koordinator.sh/allow-lent-resource: "false"
    quota.scheduling.koordinator.sh/tree-id: t1
  annotations:
    quota.scheduling.koordinator.sh/shared-weight: '{"cpu":"40","nvidia.com/gpu":8}'
    quota.scheduling.koordinator.sh/namespaces: '["a","b"]'
    quota.scheduling.koordinator.sh/total-resource: '{"cpu":"10","memory":"1Gi"}'
    quota.scheduling.koordinator.sh/unschedulable-resource: '{"cpu":"1500m"}'
    quota.scheduling.koordinator.sh/request: '{"cpu":"2"}'
spec:
  min: {cpu: 500m, memory: 1Gi}
  max: {cpu: 2, memory: 2Gi, nvidia.com/gpu: 4}
status:
  used: {cpu: "1"}
"#,
        )
        .unwrap();
        let expected = QuotaFacts {
            quota: Quota {
                name: "team".into(),
                tree: "t1".into(),
                parent: Some("company".into()),
                lends: false,
                min: amounts_as(&[("cpu", 500), ("memory", 1 << 30)]),
                max: amounts_as(&[("cpu", 2000), ("memory", 2 << 30), ("nvidia.com/gpu", 4)]),
                weight: Some(amounts_as(&[("cpu", 40_000), ("nvidia.com/gpu", 8)])),
                guarantee: Amounts::new(),
                min_within_ms: None,
            },
            scope: QuotaScope::Tree,
            is_root: false,
            takes_from_default: true,
            namespaces: vec!["a".into(), "b".into()],
            total: Some(amounts_as(&[("cpu", 8500), ("memory", 1 << 30)])),
            request: amounts_as(&[("cpu", 2000)]),
            used: amounts_as(&[("cpu", 1000)]),
            odd: None,
        };
        assert_eq!(facts, expected);
    }

    #[test]
    fn a_quota_of_scheduler_plugins_is_its_namespaces() {
        let facts = read(
            "{apiVersion: scheduling.x-k8s.io/v1alpha1, kind: ElasticQuota, metadata: {name: q, \
             namespace: team, labels: {quota.scheduling.koordinator.sh/parent: x}}, \
             spec: {min: {cpu: 1}}}",
        )
        .unwrap();
        assert_eq!(facts.namespaces, ["team"]);
        assert_eq!((facts.quota.parent, facts.quota.lends), (None, true));
        assert_eq!(facts.quota.max, Amounts::new());
    }

    /// Only the field is lost, not the quota.
    #[test]
    fn a_quota_says_how_long_its_minimum_may_take() {
        let said = |text: &str| {
            let facts = read(&format!(
                "kind: ElasticQuota\nmetadata: {{annotations: {{sublet.dev/min-within: '{text}'}}}}\n\
                 spec: {{min: {{cpu: 1}}}}"
            ));
            let facts = facts.unwrap();
            let odd = facts.odd.map(|error| format!("{}: {error}", error.field()));
            assert_eq!(facts.quota.min["cpu"], 1000);
            (facts.quota.min_within_ms, odd)
        };
        assert_eq!(said("0s"), (Some(0), None));
        assert_eq!(said("24h"), (Some(86_400_000), None));
        let odd = "metadata.annotations[sublet.dev/min-within]: \"soon\": it is no duration such as \
                   `0s`, `1h` or `24h`";
        assert_eq!(said("soon"), (None, Some(odd.to_owned())));
    }

    #[test]
    fn a_field_that_cannot_be_read_is_named() {
        for (rest, expected) in [
            (
                "spec: {min: {cpu: lots}}",
                "spec.min[cpu]: \"lots\": it is not a number",
            ),
            (
                "spec: {max: {memory: -1}}",
                "spec.max[memory]: \"-1\": it is negative",
            ),
            (
                "metadata: {annotations: {quota.scheduling.koordinator.sh/shared-weight: 'x'}}",
                "metadata.annotations[quota.scheduling.koordinator.sh/shared-weight]: expected",
            ),
            (
                "metadata: {annotations: {quota.scheduling.koordinator.sh/namespaces: '[1]'}}",
                "metadata.annotations[quota.scheduling.koordinator.sh/namespaces]: invalid type",
            ),
        ] {
            let error = read(&format!("kind: ElasticQuota\n{rest}")).unwrap_err();
            assert!(error.starts_with(expected), "{rest}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_annotation_is_read_or_named(text in ".{0,60}", at in 0..5usize) {
            let key = [
                keys::QUOTA_WEIGHT,
                keys::QUOTA_NAMESPACES,
                keys::QUOTA_TOTAL,
                keys::QUOTA_REQUEST,
                keys::QUOTA_MIN_WITHIN,
            ][at];
            let mut quota = ElasticQuota::default();
            quota.metadata.annotations.insert(key.to_owned(), text);
            let faults = quota.facts().map_or_else(Some, |facts| facts.odd);
            if let Some(error) = faults {
                prop_assert!(error.field().contains(key));
            }
        }
    }
}
