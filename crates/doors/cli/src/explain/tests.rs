//! Each state that a pod can be in, as people and programs read it.

use std::collections::{BTreeMap, BTreeSet};

use sublet_model::{GpuIndex, NodeName, Unit};

use super::*;
use crate::plan::Input;

const NODES: &str = "\
kind: Node
metadata: {name: n1}
status: {capacity: {aliyun.com/gpu-mem: 20, aliyun.com/gpu-count: 2}}
---
kind: Node
metadata: {name: n2}
";

fn pod(meta: &str, amount: &str, rest: &str) -> String {
    format!(
        "---\nkind: Pod\nmetadata: {{namespace: team, uid: u-1, {meta}}}\nspec:\n  \
         schedulerName: sublet-scheduler\n  containers: [{{name: c, resources: {{limits: \
         {{aliyun.com/gpu-mem: {amount}}}}}}}]\n{rest}"
    )
}

/// Quotas of each namespace that a test may use. Most pods' namespace has none.
fn quotas() -> Vec<sublet_api::ResourceQuota> {
    let quota = r#"{"metadata": {"namespace": "held", "name": "q"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "10"}}}"#;
    vec![serde_json::from_str(quota).unwrap()]
}

fn explained(objects: &str, format: Format) -> Answer {
    explained_with(objects, format, BTreeMap::new())
}

fn explained_with(
    objects: &str,
    format: Format,
    sick: BTreeMap<NodeName, BTreeSet<GpuIndex>>,
) -> Answer {
    let mut input = Input::default();
    input.read("test", objects);
    assert!(input.errors.is_empty() && input.unreadable.is_empty());
    // The only one with a quota.
    let is_held = objects.contains("namespace: held");
    let namespace = if is_held { "held" } else { "team" };
    let parsed = ClusterObjects {
        nodes: input.nodes.into_iter().map(|node| node.object).collect(),
        pods: input.pods.into_iter().map(|pod| pod.object).collect(),
        sick,
        quotas: quotas(),
    };
    let options = ExplainOptions {
        schedulers: vec!["sublet-scheduler".to_owned()],
        unit: Unit::MiB,
        policy: Policy::default(),
    };
    explain_pod(&parsed, namespace, "p-0", &options, format).unwrap()
}

/// The first line about pod `p-0`.
fn check(meta: &str, amount: &str, rest: &str) -> String {
    let objects = NODES.to_owned() + &pod(&format!("name: p-0, {meta}"), amount, rest);
    let answer = explained(&objects, Format::Table);
    assert_eq!(answer.code, DONE);
    let line = answer.text.lines().next().unwrap_or_default();
    line.strip_prefix("pod team/p-0: it ")
        .unwrap_or(line)
        .to_owned()
}

#[test]
fn every_state_is_told_in_a_sentence() {
    assert_eq!(
        check("", "0", ""),
        "asks for no GPU, so Sublet has no part in placing it"
    );
    assert!(check("", "1.5", "").contains("what it asks for cannot be served: container c"));
    assert_eq!(
        check("", "3", "  schedulingGates: [{name: queue}]\n"),
        "may not be scheduled before these scheduling gates are lifted: queue"
    );
    assert_eq!(
        check("", "3", "status: {phase: Succeeded}\n"),
        "has ended (Succeeded) and holds no GPU memory"
    );
    assert_eq!(
        check("deletionTimestamp: \"2026-01-01T00:00:00Z\"", "3", ""),
        "is being deleted and was never placed"
    );
    assert_eq!(
        check("", "3", "  nodeName: n1\n"),
        "is on node n1, but which GPU it has is not known: whoever bound it, or wrote `nodeName` into \
         it, recorded no GPU; meanwhile 3 MiB of each GPU there is kept free for it"
    );
    let index = |value| format!("annotations: {{ALIYUN_COM_GPU_MEM_IDX: \"{value}\"}}");
    assert_eq!(
        check(&index("1"), "3", "  nodeName: n1\n"),
        "is on node n1 and has its devices"
    );
    assert!(check(&index("x"), "3", "  nodeName: n1\n").contains("has is not known: annotation"));
    assert_eq!(
        check("", "3", ""),
        "waits, though 1 of 2 nodes has room for it"
    );
    assert_eq!(
        check("", "11", ""),
        "waits in vain: none of 2 nodes can ever take it as it is"
    );
}

#[test]
fn a_pod_of_another_scheduler_is_not_ours() {
    let objects = NODES.to_owned()
        + &pod("name: p-0", "3", "").replace("sublet-scheduler", "default-scheduler");
    let answer = explained(&objects, Format::Table);
    assert!(
        answer
            .text
            .contains("the scheduler default-scheduler, which does not ask Sublet")
    );
    assert!(answer.notes[0].starts_with("hint: set schedulerName: sublet-scheduler in the pod"));
    // It has placed the pod, and the node had no card for it.
    let failed = "  nodeName: n1\nstatus: {phase: Failed}\n";
    let objects = NODES.to_owned()
        + &pod("name: p-0", "3", failed).replace("sublet-scheduler", "default-scheduler");
    let answer = explained(&objects, Format::Table);
    assert_eq!(
        answer.text,
        "pod team/p-0: it has ended (Failed) and holds no GPU memory; which GPU it had is not \
         known: it was placed by the scheduler default-scheduler, which does not ask Sublet\n"
    );
    assert_eq!(
        answer.notes,
        ["hint: give it `schedulerName: sublet-scheduler`"]
    );
}

/// Its author has chosen the node, or a kubelet runs it from a file: to delete it mends neither.
#[test]
fn a_pod_that_nobody_placed_is_advised_by_who_made_it() {
    let advice = |meta: &str| {
        let pod = pod(&format!("name: p-0, {meta}"), "3", "  nodeName: n1\n");
        let answer = explained(&(NODES.to_owned() + &pod), Format::Table);
        (answer.text, answer.notes)
    };
    let (text, notes) = advice("");
    assert!(text.contains("whoever bound it, or wrote `nodeName` into it, recorded no GPU"));
    let cure = "hint: leave `spec.nodeName` out of what it is made from, if it is there, and delete \
                the pod, so that it is placed anew";
    assert_eq!(notes[1], cure);
    let mirror = "annotations: {kubernetes.io/config.mirror: x}";
    let (text, notes) = advice(mirror);
    assert!(text.contains("it is a static pod, which its node's kubelet runs from a file"));
    let cure = "hint: take the GPU out of that file, and ask for it in a pod that a scheduler places, \
                such as a DaemonSet's";
    assert_eq!(notes[1], cure);
    // By whichever scheduler's name.
    let pod = pod(&format!("name: p-0, {mirror}"), "300", "  nodeName: n1\n");
    let stock = pod.replace("sublet-scheduler", "default-scheduler");
    let answer = explained(&(NODES.to_owned() + &stock), Format::Table);
    assert_eq!(answer.notes, [cure]);
}

#[test]
fn few_units_of_a_mib_are_remarked_on_whatever_becomes_of_the_pod() {
    for rest in [
        "",
        "  nodeName: n1\n",
        "  schedulingGates: [{name: queue}]\n",
    ] {
        let answer = explained(
            &(NODES.to_owned() + &pod("name: p-0", "2", rest)),
            Format::Table,
        );
        let warning =
            "warning: container c asks for 2 of `aliyun.com/gpu-mem`, and one is a MiB here";
        assert!(answer.notes[0].starts_with(warning), "{:?}", answer.notes);
    }
}

#[test]
fn a_pod_that_is_not_there_has_a_hint() {
    let objects = pod("name: p-1x", "3", "")
        + &pod("name: p-0", "3", "").replace("namespace: team", "namespace: other");
    let answer = explained(&objects, Format::Table);
    assert_eq!((answer.code, answer.text.as_str()), (NOT_DONE, ""));
    assert_eq!(
        answer.notes,
        [
            "error: there is no pod team/p-0",
            "hint: similar names: other/p-0, team/p-1x"
        ]
    );
    let none = explained(NODES, Format::Json);
    assert_eq!(none.code, NOT_DONE);
    assert!(none.text.contains("\"state\": \"notFound\""));
}

#[test]
fn a_waiting_pod_has_each_node_s_verdict_with_numbers() {
    let full = "annotations: {ALIYUN_COM_GPU_MEM_IDX: \"0\"}, name: a";
    let objects = NODES.to_owned()
        + &pod(full, "8", "  nodeName: n1\n").replace("u-1", "u-2")
        + &pod(
            &full.replace("\"0\"", "\"1\"").replace("name: a", "name: b"),
            "7",
            "  nodeName: n1\n",
        )
        .replace("u-1", "u-3")
        + &pod(
            "name: p-0",
            "5",
            "status: {conditions: [{type: PodScheduled, status: \"False\", message: no node}]}\n",
        );
    assert_eq!(
        explained(&objects, Format::Table).text,
        "\
pod team/p-0: it waits for room: none of 2 nodes can take it now

the scheduler says: no node

not on:
  n1  GPU 1 lacks 2 MiB: 5 MiB asked, and the largest hole on this node is 3 MiB
  n2  the node has no GPU
"
    );
    let json: serde_json::Value =
        serde_json::from_str(&explained(&objects, Format::Json).text).unwrap();
    assert_eq!(json["state"], "waiting");
    assert_eq!(json["condition"], "no node");
    assert_eq!(json["fits"], serde_json::json!([]));
    assert_eq!(json["refusals"]["n2"], "the node has no GPU");
}

#[test]
fn what_the_stock_scheduler_says_of_a_node_is_said_too() {
    let closed = NODES.replace(
        "kind: Node\nmetadata: {name: n1}\n",
        "kind: Node\nmetadata: {name: n1}\nspec: {unschedulable: true}\n",
    );
    let text = explained(&(closed + &pod("name: p-0", "5", "")), Format::Table).text;
    assert!(
        text.contains("\n  n1  the node takes no new pods: it is cordoned\n"),
        "{text}"
    );
    let claims = "  resourceClaims: [{name: g}]\n";
    let waits = NODES.to_owned() + &pod("name: p-0", "5", claims);
    let text = explained(&waits, Format::Table).text;
    let expected = "the scheduler also considers what this command does not:\n  its resource claims are not looked at\n";
    assert!(text.contains(expected), "{text}");
    let json = explained(&waits, Format::Json).text;
    assert!(
        json.contains("\"notLookedAt\": [\n    \"its resource claims"),
        "{json}"
    );
}

/// A pod that has its cards.
fn bound() -> String {
    let meta = "name: p-0, annotations: {ALIYUN_COM_GPU_MEM_IDX: \"1\", \
                ALIYUN_COM_GPU_MEM_ASSIGNED: \"false\"}";
    NODES.to_owned() + &pod(meta, "3", "  nodeName: n1\n")
}

/// Table and JSON of examples.
pub(crate) fn answers() -> Vec<[String; 2]> {
    let forms =
        |objects: &str| [Format::Table, Format::Json].map(|form| explained(objects, form).text);
    let [_, waiting] = forms(&(NODES.to_owned() + &pod("name: p-0", "5", "")));
    // Of a pod that waits people get sentences.
    vec![forms(&bound()), [String::new(), waiting]]
}

#[test]
fn a_bound_pod_shows_its_devices() {
    let objects = bound();
    assert_eq!(
        explained(&objects, Format::Table).text,
        "\
pod team/p-0: it is on node n1, which has not handed over its devices yet

CONTAINER  GPU  GRANTED  UUID
c          1    3 MiB    -
"
    );
    let yaml = explained(&objects, Format::Yaml).text;
    assert!(
        yaml.contains("state: bound\n") && yaml.contains("- container: c\n"),
        "{yaml}"
    );
}

#[test]
fn cards_that_an_operator_listed_are_avoided() {
    let gpus = BTreeSet::from([GpuIndex(0), GpuIndex(1)]);
    let sick = BTreeMap::from([(NodeName::new("n1").unwrap(), gpus)]);
    let objects = NODES.to_owned() + &pod("name: p-0", "3", "");
    let text = explained_with(&objects, Format::Table, sick).text;
    assert!(
        text.contains("; 2 GPUs are unhealthy (the first: "),
        "{text}"
    );
}

#[test]
fn a_quota_is_counted_as_the_scheduler_counts_it() {
    let held = |text: String| text.replace("namespace: team", "namespace: held");
    let placed = pod("name: a", "7", "  nodeName: n1\n").replace("u-1", "u-2");
    let explain = |amount: &str| {
        let waiting = pod("name: p-0", amount, "");
        explained(
            &(NODES.to_owned() + &held(placed.clone() + &waiting)),
            Format::Json,
        )
    };
    let over = explain("4").text;
    let why = "it waits for its namespace's quota: 4 MiB of GPU memory asked, and namespace held has 7 \
               MiB of the 10 MiB that its quota limits.nvidia.com/gpumem allows";
    assert!(
        over.contains(why) && over.contains("\"overQuota\""),
        "{over}"
    );
    assert!(explain("3").text.contains("\"waiting\""));
}
