//! The scheduler extender's messages (`k8s.io/kube-scheduler/extender/v1`).
//!
//! Node names are borrowed from the body; they are DNS names, so JSON never escapes them. Together
//! with a pod that has only the fields we read, this parses five times faster than owned
//! Kubernetes types (measured). Read messages by [`from_str`].

use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

pub use crate::go_json::from_str;
use crate::object::Pod;

/// Arguments of a filter or prioritize call.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderArgs<'a> {
    /// The pod to place.
    pub pod: Pod,
    /// The nodes to choose from (`nodeCacheCapable: true`).
    #[serde(borrow, default)]
    pub node_names: Option<Vec<&'a str>>,
    /// The same with everything that is known of them (`nodeCacheCapable: false`).
    #[serde(borrow, default)]
    pub nodes: Option<WholeNodes<'a>>,
}

impl<'a> ExtenderArgs<'a> {
    /// The names of the nodes to choose from, however they were given.
    #[must_use]
    pub fn names(&self) -> Option<Vec<&'a str>> {
        let whole = || {
            Some(
                self.nodes
                    .as_ref()?
                    .items
                    .iter()
                    .flatten()
                    .map(|it| it.name),
            )
        };
        self.node_names.clone().or_else(|| Some(whole()?.collect()))
    }

    /// The passed ones of the given nodes, for a caller that gave whole nodes and reads nothing
    /// else.
    #[must_use]
    pub fn whole(&self, passed: &[&str]) -> Option<WholeNodes<'a>> {
        if self.node_names.is_some() {
            return None;
        }
        let given = self.nodes.as_ref()?.items.iter().flatten();
        let given: BTreeMap<&str, WholeNode<'a>> = given.map(|it| (it.name, *it)).collect();
        let items = passed.iter().filter_map(|name| given.get(name).copied());
        Some(WholeNodes {
            items: Some(items.collect()),
        })
    }
}

/// A list of whole nodes.
#[derive(Debug, Serialize, Deserialize)]
pub struct WholeNodes<'a> {
    /// The nodes; Go writes an empty list as null.
    #[serde(borrow, default)]
    pub items: Option<Vec<WholeNode<'a>>>,
}

/// A node as it was given, to be returned unread: Sublet takes its own facts from its watch.
#[derive(Debug, Clone, Copy)]
pub struct WholeNode<'a> {
    /// Its name.
    pub name: &'a str,
    text: &'a RawValue,
}

impl<'de: 'a, 'a> Deserialize<'de> for WholeNode<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WholeNode<'a>, D::Error> {
        #[derive(Deserialize)]
        struct Named<'a> {
            #[serde(borrow)]
            metadata: NameOnly<'a>,
        }
        #[derive(Deserialize)]
        struct NameOnly<'a> {
            name: &'a str,
        }
        let text = <&RawValue>::deserialize(deserializer)?;
        let Named { metadata } = serde_json::from_str(text.get())
            .map_err(|error| D::Error::custom(format_args!("a node in Nodes: {error}")))?;
        Ok(WholeNode {
            name: metadata.name,
            text,
        })
    }
}

impl Serialize for WholeNode<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

/// The answer of filter.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct FilterResult<'a> {
    /// The nodes that can take the pod.
    pub node_names: Vec<&'a str>,
    /// The same with everything that the call said of them, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<WholeNodes<'a>>,
    /// Nodes that cannot now, and why.
    pub failed_nodes: FailedNodes<'a>,
    /// Nodes that never can, and why.
    pub failed_and_unresolvable_nodes: FailedNodes<'a>,
    /// Reason why the question could not be answered.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// Nodes and why each was refused: a JSON object, written without building a map of
/// thousands of names first.
#[derive(Debug, Default)]
pub struct FailedNodes<'a>(pub Vec<(&'a str, &'a str)>);

impl Serialize for FailedNodes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
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

/// Arguments of a bind call.
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
    /// Node for the pod.
    pub node: String,
}

/// The answer of bind.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct BindResult {
    /// Reason why it could not be bound; empty if it is bound.
    pub error: String,
}

/// Arguments of a preempt call.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct PreemptArgs {
    /// The pod that needs room.
    pub pod: Pod,
    /// Victims by node.
    #[serde(default)]
    pub node_name_to_meta_victims: Option<BTreeMap<String, MetaVictims>>,
    /// The same with whole pods (`nodeCacheCapable: false`).
    #[serde(default)]
    pub node_name_to_victims: Option<BTreeMap<String, WholeVictims>>,
}

impl PreemptArgs {
    /// Victims by node, in whichever form they were given.
    #[must_use]
    pub fn victims(self) -> BTreeMap<String, MetaVictims> {
        let whole = |victims: WholeVictims| {
            let pods = victims.pods.unwrap_or_default().into_iter();
            let uids = pods.map(|pod| MetaPod {
                uid: pod.metadata.uid,
            });
            MetaVictims {
                pods: Some(uids.collect()),
                pdb_violations: victims.pdb_violations,
            }
        };
        self.node_name_to_meta_victims.unwrap_or_else(|| {
            let given = self.node_name_to_victims.unwrap_or_default().into_iter();
            given.map(|(node, it)| (node, whole(it))).collect()
        })
    }
}

/// Victims, as whole pods.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct WholeVictims {
    /// The pods.
    #[serde(default)]
    pub pods: Option<Vec<Pod>>,
    /// Number of disruption budgets that the eviction would break.
    #[serde(rename = "NumPDBViolations", default)]
    pub pdb_violations: i64,
}

/// The answer of preempt.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct PreemptResult {
    /// The nodes where the evictions would make room.
    pub node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

/// Victims, as UIDs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct MetaVictims {
    /// The pods; Go writes an empty list as null.
    #[serde(default)]
    pub pods: Option<Vec<MetaPod>>,
    /// Number of disruption budgets that the eviction would break.
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
        let args: ExtenderArgs<'_> = serde_json::from_str(body).unwrap();
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
    const WHOLE: &str = concat!(
        r#"{"Pod":{"metadata":{"uid":"u"},"spec":{"containers":[]}},"Nodes":{"metadata":{},"#,
        r#""items":[{"metadata":{"name":"a"},"x":[1, {}]},{"metadata":{"name":"b"}}]}}"#
    );

    #[test]
    fn whole_nodes_come_back_as_they_were() {
        let args: ExtenderArgs<'_> = from_str(WHOLE).unwrap();
        assert_eq!(args.names().unwrap(), ["a", "b"]);
        let text = |passed: &[&str]| serde_json::to_string(&args.whole(passed)).unwrap();
        assert_eq!(
            text(&["b", "a", "c"]),
            r#"{"items":[{"metadata":{"name":"b"}},{"metadata":{"name":"a"},"x":[1, {}]}]}"#
        );
        assert_eq!(text(&[]), r#"{"items":[]}"#);
        let args: ExtenderArgs<'_> = from_str(CALL).unwrap();
        assert_eq!(args.names().unwrap(), ["a"]);
        assert!(args.whole(&["a"]).is_none());
        let names = |nodes: &str| {
            let text = format!(r#"{{"Pod":{{}},{nodes}}}"#);
            from_str::<ExtenderArgs<'_>>(&text)
                .map(|args| args.names().map(|names| names.join(" ")))
        };
        let given = r#""NodeNames":["a"],"Nodes":{"items":[{"metadata":{"name":"b"}}]}"#;
        assert_eq!(names(given).unwrap().unwrap(), "a", "names go first");
        let none = r#""NodeNames":null,"Nodes":{"items":null}"#;
        assert_eq!(names(none).unwrap().unwrap(), "");
        assert_eq!(names(r#""NodeNames":null,"Nodes":null"#).unwrap(), None);
        let nameless = names(r#""Nodes":{"items":[{"metadata":{}}]}"#).unwrap_err();
        assert!(
            nameless
                .to_string()
                .contains("a node in Nodes: missing field `name`")
        );
    }

    #[test]
    fn a_field_given_twice_and_a_list_are_refused() {
        let twice = r#"{"PodName":"a","podname":"b","PodNamespace":"","PodUID":"","Node":""}"#;
        let error = from_str::<BindArgs>(twice).unwrap_err().to_string();
        assert!(error.contains("duplicate field `PodName`"), "{error}");
        assert!(from_str::<BindArgs>(r#"["a","b","c","d"]"#).is_err());
        assert!(from_str::<BindArgs>("{} x").is_err());
    }

    /// The text with its letters in either case, as the bits say.
    fn shouted(text: &str, bits: &[bool]) -> String {
        let letters = text.chars().zip(bits.iter().cycle());
        let letter = |(letter, up): (char, &bool)| {
            if *up {
                letter.to_ascii_uppercase()
            } else {
                letter.to_ascii_lowercase()
            }
        };
        letters.map(letter).collect()
    }

    proptest! {
        /// One byte of a call is changed. The result is a call whose names stand in the text, or
        /// an error, never a panic.
        #[test]
        fn any_change_of_a_call_is_answered(
            whole in any::<bool>(), at in 0..WHOLE.len(), byte in 32u8..127
        ) {
            let mut text = if whole { WHOLE } else { CALL }.as_bytes().to_vec();
            let at = at % text.len();
            text[at] = byte;
            let text = String::from_utf8(text).unwrap();
            if let Ok(args) = from_str::<ExtenderArgs<'_>>(&text) {
                let names = args.names().unwrap_or_default();
                prop_assert!(names.iter().all(|name| text.contains(name)));
                if let Some(whole) = args.whole(&names) {
                    let again = serde_json::to_string(&whole).unwrap();
                    prop_assert!(from_str::<WholeNodes<'_>>(&again).is_ok());
                }
            }
            let _bind: Result<BindArgs, _> = from_str(&text);
            let _preempt: Result<PreemptArgs, _> = from_str(&text);
        }

        /// Names of fields mean the same in any case, and nothing else changes its case.
        #[test]
        fn fields_are_read_in_any_case(
            bits in prop::collection::vec(any::<bool>(), 1..40), value in "[a-zA-Z0-9-]{1,8}"
        ) {
            let key = |name: &str| shouted(name, &bits);
            let bind = format!(
                r#"{{"{}":"{value}","{}":"{value}2","{}":"{value}3","other":{{"node":1}},"{}":"{value}4"}}"#,
                key("PodName"), key("PodNamespace"), key("PodUID"), key("Node"),
            );
            let bind: BindArgs = from_str(&bind).unwrap();
            prop_assert_eq!(&bind.pod_name, &value);
            prop_assert_eq!(bind.pod_namespace, format!("{value}2"));
            prop_assert_eq!(bind.pod_uid, format!("{value}3"));
            prop_assert_eq!(bind.node, format!("{value}4"));
            let call = format!(
                r#"{{"{}":{{"metadata":{{"annotations":{{"Name":"x","name":"y"}}}}}},"{}":["{value}"]}}"#,
                key("Pod"), key("NodeNames"),
            );
            let args: ExtenderArgs<'_> = from_str(&call).unwrap();
            prop_assert_eq!(args.names().unwrap(), [&value]);
            prop_assert_eq!(args.pod.metadata.annotations.len(), 2);
            let call = call.replace(&key("NodeNames"), &key("Nodes"));
            let call = call.replace(
                &format!(r#"["{value}"]"#),
                &format!(r#"{{"items":[{{"metadata":{{"name":"{value}"}}}}]}}"#),
            );
            let args: ExtenderArgs<'_> = from_str(&call).unwrap();
            prop_assert_eq!(args.names().unwrap(), [&value]);
        }
    }
}
