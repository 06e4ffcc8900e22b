//! Fields that only a scheduler reads: taints and tolerations, affinity, spreading, volumes.
//!
//! The structs have the form of Kubernetes' text. [`crate::stock`] turns them into the types of
//! `sublet_plan::stock`, which decide.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::lenient::{Anything, or_default};

/// A taint that a pod does not mind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TolerationSpec {
    /// The taint's key; empty with `Exists` means any.
    #[serde(deserialize_with = "or_default")]
    pub key: String,
    /// `Equal` (default) or `Exists`.
    #[serde(deserialize_with = "or_default")]
    pub operator: String,
    /// The taint's value, for `Equal`.
    #[serde(deserialize_with = "or_default")]
    pub value: String,
    /// The taint's effect; empty means any.
    #[serde(deserialize_with = "or_default")]
    pub effect: String,
}

/// A node's mark that keeps pods away.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TaintSpec {
    /// Key.
    #[serde(deserialize_with = "or_default")]
    pub key: String,
    /// Value.
    #[serde(deserialize_with = "or_default")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    #[serde(deserialize_with = "or_default")]
    pub effect: String,
}

/// Wishes about nodes and other pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Affinity {
    /// About nodes.
    #[serde(deserialize_with = "or_default")]
    pub node_affinity: NodeAffinity,
    /// About pods to be near.
    #[serde(deserialize_with = "or_default")]
    pub pod_affinity: PodAffinity,
    /// About pods to be far from.
    #[serde(deserialize_with = "or_default")]
    pub pod_anti_affinity: PodAffinity,
}

/// Wishes about nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAffinity {
    /// Terms that a node must meet.
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<NodeSelector>,
    /// Terms that only rank nodes.
    #[serde(
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "or_default"
    )]
    pub preferred: Vec<PreferredTerm>,
}

/// Terms; a node must meet one of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelector {
    /// The terms.
    #[serde(deserialize_with = "or_default")]
    pub node_selector_terms: Vec<NodeTerm>,
}

/// Requirements on a node; it must meet all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTerm {
    /// About its labels.
    #[serde(deserialize_with = "or_default")]
    pub match_expressions: Vec<SelectorRequirement>,
    /// About its fields.
    #[serde(deserialize_with = "or_default")]
    pub match_fields: Vec<SelectorRequirement>,
}

/// A term and its weight.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PreferredTerm {
    /// 1 to 100.
    #[serde(deserialize_with = "or_default")]
    pub weight: u32,
    /// The term.
    #[serde(deserialize_with = "or_default")]
    pub preference: NodeTerm,
}

/// Requirement on one label or field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SelectorRequirement {
    /// Which.
    #[serde(deserialize_with = "or_default")]
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`; of nodes also `Gt` and `Lt`.
    #[serde(deserialize_with = "or_default")]
    pub operator: String,
    /// Values for the comparison.
    #[serde(deserialize_with = "or_default")]
    pub values: Vec<String>,
}

/// Wishes about other pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodAffinity {
    /// Terms that must be met.
    #[serde(
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "or_default"
    )]
    pub required: Vec<PodAffinityTerm>,
    /// Terms that only order nodes; only whether there are any.
    #[serde(
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "or_default"
    )]
    pub preferred: Vec<Anything>,
}

/// Selection of pods in a term.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAffinityTerm {
    /// By their labels; none are meant without it.
    pub label_selector: Option<LabelSelector>,
    /// In these namespaces; in the pod's own if neither field names namespaces.
    #[serde(deserialize_with = "or_default")]
    pub namespaces: Vec<String>,
    /// And in namespaces with such labels.
    pub namespace_selector: Option<Anything>,
}

/// Selection of labels; all of its requirements must be met.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// These values.
    #[serde(deserialize_with = "or_default")]
    pub match_labels: BTreeMap<String, String>,
    /// These comparisons.
    #[serde(deserialize_with = "or_default")]
    pub match_expressions: Vec<SelectorRequirement>,
}

/// A wish about even spreading.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpreadConstraint {
    /// `ScheduleAnyway` makes it soft.
    #[serde(deserialize_with = "or_default")]
    pub when_unsatisfiable: String,
}

/// A volume that a pod mounts; its kind only as far as a scheduler needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// May it be on some nodes only?
    pub is_bound: bool,
}

/// Kinds of volumes that every node can mount, as far as a scheduler knows.
const ANYWHERE: [&str; 12] = [
    "configMap",
    "secret",
    "emptyDir",
    "hostPath",
    "projected",
    "downwardAPI",
    "image",
    "nfs",
    "csi",
    "cephfs",
    "glusterfs",
    "gitRepo",
];

impl<'de> Deserialize<'de> for Volume {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Volume, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Volume;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a volume")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Volume, A::Error> {
                let mut volume = Volume::default();
                while let Some(key) = map.next_key::<String>()? {
                    if key == "name" {
                        volume.name = map.next_value::<Option<String>>()?.unwrap_or_default();
                    } else {
                        // Go writes what is absent as null.
                        let given = map.next_value::<Option<IgnoredAny>>()?.is_some();
                        volume.is_bound |= given && !ANYWHERE.contains(&&*key);
                    }
                }
                Ok(volume)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use crate::object::PodSpec;

    fn check(spec: &str) -> bool {
        serde_json::from_str::<PodSpec>(spec)
            .unwrap()
            .has_soft_wishes()
    }

    #[test]
    fn soft_wishes_are_seen() {
        let soft = r#"{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1}]}"#;
        assert!(check(&format!(
            r#"{{"affinity":{{"nodeAffinity":{soft}}}}}"#
        )));
        assert!(check(&format!(
            r#"{{"affinity":{{"podAntiAffinity":{soft}}}}}"#
        )));
        assert!(check(
            r#"{"topologySpreadConstraints":[{"whenUnsatisfiable":"ScheduleAnyway"}]}"#
        ));
        assert!(!check(
            r#"{"topologySpreadConstraints":[{"whenUnsatisfiable":"DoNotSchedule"}]}"#
        ));
    }

    #[test]
    fn volumes_that_are_on_some_nodes_only_are_seen() {
        let text = r#"{"volumes":[{"name":"a","configMap":{"name":"x"}},{"emptyDir":{},"name":"b"},
            {"name":"c","persistentVolumeClaim":{"claimName":"x"}},{"name":"d","somethingNew":{}},
            {"name":"e","iscsi":null,"secret":{}}]}"#;
        let spec: PodSpec = serde_json::from_str(text).unwrap();
        let bound = spec.volumes.iter().filter(|volume| volume.is_bound);
        let names: Vec<&str> = bound.map(|volume| volume.name.as_str()).collect();
        assert_eq!(names, ["c", "d"]);
    }
}
