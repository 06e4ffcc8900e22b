//! The scheduler extender's messages (`k8s.io/kube-scheduler/extender/v1`).
//!
//! Node names are borrowed from the body (they are DNS names, so no JSON escape is ever needed): measured, that and a pod without the fields
//! nobody reads make parsing five times faster than owned Kubernetes types.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::object::Pod;

/// What filter and prioritize are called with.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Args<'a> {
    /// The pod to place.
    pub pod: Pod,
    /// The nodes to choose from (`nodeCacheCapable: true`).
    #[serde(borrow, default)]
    pub node_names: Option<Vec<&'a str>>,
}

/// The answer of filter.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct FilterResult<'a> {
    /// The nodes that can take the pod.
    pub node_names: Vec<&'a str>,
    /// Nodes that cannot now, and why.
    pub failed_nodes: Reasons<'a>,
    /// Nodes that never can, and why.
    pub failed_and_unresolvable_nodes: Reasons<'a>,
    /// Why the question could not be answered.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// Nodes and why each was refused: a JSON object, written without building a map of
/// thousands of names first.
#[derive(Debug, Default)]
pub struct Reasons<'a>(pub Vec<(&'a str, &'a str)>);

impl Serialize for Reasons<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

/// One node's score, 0 to 10.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostPriority<'a> {
    /// The node.
    pub host: &'a str,
    /// Its score.
    pub score: u8,
}

/// What bind is called with.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct BindArgs {
    /// The pod's name.
    pub pod_name: String,
    /// Its namespace.
    pub pod_namespace: String,
    /// Its UID.
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// Where it is to go.
    pub node: String,
}

/// The answer of bind.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct BindResult {
    /// Why it could not be bound; empty if it is.
    pub error: String,
}

/// What preempt is called with.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct PreemptArgs {
    /// The pod that needs room.
    pub pod: Pod,
    /// Who would have to go, by node.
    #[serde(default)]
    pub node_name_to_meta_victims: Option<BTreeMap<String, MetaVictims>>,
}

/// The answer of preempt.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct PreemptResult {
    /// The nodes where that would help.
    pub node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

/// Who would have to go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct MetaVictims {
    /// The pods; Go writes an empty list as null.
    #[serde(default)]
    pub pods: Option<Vec<MetaPod>>,
    /// How many disruption budgets that would break.
    #[serde(rename = "NumPDBViolations", default)]
    pub pdb_violations: i64,
}

/// A pod by its UID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaPod {
    /// The UID.
    #[serde(rename = "UID")]
    pub uid: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_call_of_the_stock_scheduler_is_read() {
        let body = r#"{"Pod":{"metadata":{"name":"a","namespace":"default","uid":"u1","creationTimestamp":null},
            "spec":{"containers":[{"name":"c","resources":{"limits":{"aliyun.com/gpu-mem":"3"}}}]},"status":{}},
            "Nodes":null,"NodeNames":["n1","n2"]}"#;
        let args: Args<'_> = serde_json::from_str(body).unwrap();
        let names = args.node_names.unwrap();
        assert_eq!(names, ["n1", "n2"]);
        assert_eq!(args.pod.metadata.uid, "u1");
    }

    #[test]
    fn answers_have_go_names() {
        let answer = FilterResult {
            node_names: vec!["n1"],
            ..FilterResult::default()
        };
        assert_eq!(
            serde_json::to_string(&answer).unwrap(),
            r#"{"NodeNames":["n1"],"FailedNodes":{},"FailedAndUnresolvableNodes":{}}"#
        );
        let victims: MetaVictims =
            serde_json::from_str(r#"{"Pods":[{"UID":"u"}],"NumPDBViolations":1}"#).unwrap();
        assert_eq!(victims.pdb_violations, 1);
        assert_eq!(
            serde_json::to_string(&BindResult::default()).unwrap(),
            r#"{"Error":""}"#
        );
    }

    const CALL: &str =
        r#"{"Pod":{"metadata":{"uid":"u"},"spec":{"containers":[]}},"NodeNames":["a"]}"#;

    proptest! {
        #[test]
        fn any_change_of_a_call_is_answered(at in 0..CALL.len(), byte in 32u8..127) {
            let mut text = CALL.as_bytes().to_vec();
            text[at] = byte;
            let text = String::from_utf8(text).unwrap();
            // Either a call with names that stand in the text, or an error: never a panic.
            if let Ok(args) = serde_json::from_str::<Args<'_>>(&text) {
                let names = args.node_names.unwrap_or_default();
                prop_assert!(names.iter().all(|name| text.contains(name)));
            }
            let _bind: Result<BindArgs, _> = serde_json::from_str(&text);
            let _preempt: Result<PreemptArgs, _> = serde_json::from_str(&text);
        }
    }
}
