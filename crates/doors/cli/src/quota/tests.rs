//! Quotas from files: requests and totals, in every notation, and odd input.

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::answer::{BAD_INPUT, DONE, NOT_DONE};

/// An example that the guide shows.
const TREE: &str = include_str!("../../../../../examples/quota/tree.yaml");

/// Table and JSON of an example.
pub(crate) fn answers() -> Vec<[String; 2]> {
    vec![[Format::Table, Format::Json].map(|form| asked(&[TREE], form).text)]
}

fn asked(files: &[&str], format: Format) -> Answer {
    let mut input = Input::default();
    for (at, text) in files.iter().enumerate() {
        input.read(&format!("file{}", at + 1), text);
    }
    answer(input, false, format).unwrap()
}

/// `name resource min max request entitlement used` of each quota.
fn rows(files: &[&str]) -> Vec<String> {
    let answer = asked(files, Format::Json);
    let json: Value = serde_json::from_str(&answer.text).unwrap();
    let quotas = json["quotas"].as_array().unwrap().iter();
    let fields = [
        "name",
        "resource",
        "min",
        "max",
        "request",
        "entitlement",
        "used",
    ];
    let row = |quota: &Value| fields.map(|field| quota[field].to_string()).join(" ");
    quotas.map(|quota| row(quota).replace('"', "")).collect()
}

/// A quota of Koordinator's, as `name parent min max` in GPUs.
fn quota(line: &str, more: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, parent, min, max] = words[..] else {
        panic!("four words: {line}");
    };
    format!(
        "{{apiVersion: scheduling.sigs.k8s.io/v1alpha1, kind: ElasticQuota, metadata: {{name: {name}, \
         labels: {{quota.scheduling.koordinator.sh/parent: {parent}}}{more}}}, \
         spec: {{min: {{nvidia.com/gpu: {min}}}, max: {{nvidia.com/gpu: {max}}}}}}}\n---\n"
    )
}

fn annotated(key: &str, gpus: u64) -> String {
    format!(
        ", annotations: {{quota.scheduling.koordinator.sh/{key}: '{{\"nvidia.com/gpu\":\"{gpus}\"}}'}}"
    )
}

fn pod(name: &str, namespace: &str, gpus: u64, more: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: {namespace}}}, \
         spec: {{{more}containers: [{{name: c, resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}}}]}}}}\n---\n"
    )
}

fn node(gpus: u64) -> String {
    format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: n{gpus}}}, \
         status: {{allocatable: {{cpu: 8, nvidia.com/gpu: {gpus}}}}}}}\n---\n"
    )
}

#[test]
fn the_example_lends_what_nobody_asks() {
    let answer = asked(&[TREE], Format::Table);
    assert_eq!(
        (answer.code, &answer.notes[..]),
        (DONE, &[][..]),
        "{}",
        answer.text
    );
    let expected = "\
NAME        RESOURCE        MIN  MAX  REQUEST  ENTITLEMENT  USED
product     nvidia.com/gpu  4    16   3        3            2
research    nvidia.com/gpu  12   16   16       13           8
  language  nvidia.com/gpu  8    16   12       9            4
  vision    nvidia.com/gpu  4    16   4        4            4
";
    assert_eq!(answer.text, expected);
}

#[test]
fn annotations_count_where_there_is_no_pod() {
    let files = [
        quota(
            "top koordinator-root-quota 0 16",
            &annotated("total-resource", 10),
        ),
        quota("a top 2 16", &annotated("request", 9)),
        quota("b top 4 16", &annotated("request", 3)),
    ]
    .concat();
    let expected = [
        "top nvidia.com/gpu 0 16 12 10 0",
        "a nvidia.com/gpu 2 16 9 7 0",
        "b nvidia.com/gpu 4 16 3 3 0",
    ];
    assert_eq!(rows(&[&files]), expected);
}

#[test]
fn pods_count_for_the_quota_of_their_label_name_or_namespace() {
    let files = [
        node(10),
        quota("a '' 0 9", ""),
        quota(
            "b '' 0 9",
            ", annotations: {quota.scheduling.koordinator.sh/namespaces: '[\"team\"]'}",
        ),
        pod("one", "a", 1, "nodeName: n10, "),
        pod("two", "team", 2, ""),
        pod("three", "elsewhere", 1, "nodeName: n10, "),
        pod("four", "elsewhere", 4, "").replace(
            "namespace: elsewhere",
            "namespace: elsewhere, labels: {quota.scheduling.koordinator.sh/name: a}",
        ),
    ]
    .concat();
    // One of ten is used by a pod of no quota, and is not divided.
    assert_eq!(
        rows(&[&files]),
        ["a nvidia.com/gpu 0 9 5 5 1", "b nvidia.com/gpu 0 9 2 2 0"]
    );
}

#[test]
fn a_tree_of_its_own_takes_its_part_from_the_cluster() {
    let own = |more: &str| {
        let labels = ", quota.scheduling.koordinator.sh/tree-id: t1";
        let root = quota("root '' 0 6", &annotated("total-resource", 6));
        let all = [
            root.replace("parent: ''", &format!("parent: ''{labels}{more}")),
            quota("leaf root 0 6", "").replace("parent: root", &format!("parent: root{labels}")),
            quota("other '' 0 100", ""),
            node(10),
            pod("p", "leaf", 9, ""),
            pod("q", "other", 9, ""),
        ];
        rows(&[&all.concat()])
    };
    let expected = |other: &str| {
        [
            format!("other nvidia.com/gpu 0 100 9 {other} 0"),
            "root nvidia.com/gpu 0 6 6 6 0".to_owned(),
            "leaf nvidia.com/gpu 0 6 9 6 0".to_owned(),
        ]
    };
    assert_eq!(own(""), expected("4"));
    let ignores = ", quota.scheduling.koordinator.sh/ignore-default-tree: 'true'";
    assert_eq!(own(ignores), expected("9"));
}

#[test]
fn quotas_of_scheduler_plugins_are_their_namespaces_and_may_share_a_name() {
    let of = |namespace: &str, spec: &str| {
        format!(
            "{{apiVersion: scheduling.x-k8s.io/v1alpha1, kind: ElasticQuota, metadata: {{name: q, \
             namespace: {namespace}}}, spec: {spec}}}\n---\n"
        )
    };
    let files = [
        of("one", "{min: {nvidia.com/gpu: 2}}"),
        of("two", "{max: {nvidia.com/gpu: 3}}"),
        node(10),
        pod("p", "one", 12, ""),
        pod("p", "two", 5, ""),
    ]
    .concat();
    let expected = [
        "one/q nvidia.com/gpu 2 null 12 8 0",
        "two/q nvidia.com/gpu 0 3 5 2 0",
    ];
    assert_eq!(rows(&[&files]), expected);
}

#[test]
fn a_bad_object_costs_only_itself() {
    let good = [node(4), quota("a '' 1 4", "")].concat();
    for (odd, code, words) in [
        (
            quota("b '' lots 4", ""),
            NOT_DONE,
            "field `spec.min[nvidia.com/gpu]`",
        ),
        (
            pod("p", "a", 1, "").replace("gpu: 1", "gpu: x"),
            NOT_DONE,
            "pod a/p",
        ),
        (
            quota("b '' 5 4", ""),
            DONE,
            "min of nvidia.com/gpu is 5, above its max of 4",
        ),
        (quota("b a 5 9", ""), DONE, "its children have 5 together"),
        (
            node(5).replace("gpu: 5", "gpu: -4"),
            NOT_DONE,
            "it is negative",
        ),
        (
            quota("b ghost 1 2", "")
                .replace(
                    "labels: {",
                    "labels: {quota.scheduling.koordinator.sh/tree-id: t, ",
                )
                .replace(
                    "}, spec",
                    ", annotations: {quota.scheduling.koordinator.sh/total-resource: '{}'}}, spec",
                ),
            NOT_DONE,
            "parent ghost, which is not there",
        ),
    ] {
        let answer = asked(&[&good, &odd], Format::Json);
        assert_eq!(answer.code, code, "{odd}: {:?}", answer.notes);
        let notes = answer.notes.join("\n");
        assert!(notes.contains(words), "{odd}: {notes}");
        assert!(answer.text.contains("\"name\": \"a\""), "{}", answer.text);
    }
}

#[test]
fn nothing_to_compute_is_said() {
    for (text, words) in [
        ("", "there is no Kubernetes object in it"),
        ("kind: Node", "there is no ElasticQuota in it"),
        (
            &*quota("a '' 1 4", ""),
            "nothing says what there is to divide",
        ),
        ("kind: ElasticQuota\nspec: 7", "spec"),
    ] {
        let answer = asked(&[text], Format::Table);
        assert_eq!((answer.code, &*answer.text), (BAD_INPUT, ""), "{text}");
        let notes = answer.notes.join("\n");
        assert!(notes.contains(words), "{text}: {notes}");
    }
}

proptest! {
    #[test]
    fn any_text_is_answered(text in "[a-z:{}\\[\\]'\" \\n0-9-]{0,80}") {
        let text = format!("kind: ElasticQuota\nmetadata: {{name: a}}\nspec: {text}");
        let answer = asked(&[&text], Format::Json);
        prop_assert!(answer.code == BAD_INPUT && !answer.notes.is_empty());
    }
}
