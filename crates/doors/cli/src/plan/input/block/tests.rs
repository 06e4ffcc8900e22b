//! A rewritten text means the same as the full YAML parser reads.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Result of the full parser for a text.
fn parsed(text: &str) -> Option<Value> {
    serde_saphyr::from_str_with_options(text, super::super::limits::parser_options()).ok()
}

/// Value of the JSON, which must be the same; `None` if the text was left alone.
#[track_caller]
fn check(text: &str) -> Option<Value> {
    let json = json_of(text)?;
    let value: Value = serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {json}"));
    assert_eq!(Some(&value), parsed(text).as_ref(), "{text}");
    Some(value)
}

#[test]
fn what_kubectl_prints_is_rewritten() {
    let text = "\
apiVersion: v1
items:
- apiVersion: v1
  kind: Pod
  metadata:
    annotations:
      empty: \"\"
      quoted: '{\"a\":\"it''s\"}'
      kubectl.kubernetes.io/last-applied-configuration: |
        {\"apiVersion\":\"v1\"}
    labels:
      pod-template-hash: 5d4f8c7b9
      \"on\": \"1\"
    uid: 00000000-0000-4000-8000-000000000001
  spec:
    containers:
    - args:
      - -c
      - --flag=x
      - |-
        two

         lines
      image: registry.example:5000/a/b:1.2
      resources:
        requests:
          cpu: 1500m
          memory: 16Gi
    hostIP: 10.0.0.1
    priority: -5
    securityContext: {}
    tolerations: []
    terminationGracePeriodSeconds: 30
    nothing:
    hostNetwork: true
  status:
    startTime: \"2026-01-01T00:00:00Z\"
# the end
kind: List
metadata:
  resourceVersion: \"\"
";
    let value = check(text).expect("it is not unusual");
    let pod = &value["items"][0];
    assert_eq!(pod["metadata"]["annotations"]["quoted"], r#"{"a":"it's"}"#);
    assert_eq!(pod["spec"]["containers"][0]["args"][2], "two\n\n lines");
    assert_eq!(pod["spec"]["nothing"], Value::Null);
    assert_eq!(value["kind"], "List");
}

#[test]
fn what_is_unusual_is_left_alone() {
    let odd = [
        "a: &x 1\nb: *x\n",
        "a: !!str 1\n",
        "a: [1, 2]\n",
        "a: {b: 1}\n",
        "a: 1 # one\n",
        "a: >\n  b\n",
        "a: b\n  c\n",
        "a: 1e3\n",
        "a: 0x10\n",
        "a: 010\n",
        "a: 0.5\n",
        "a: 1_000\n",
        "a: yes\n",
        "a: ~\n",
        "a: 12:30\n",
        "a: \"\\x41\"\n",
        "a: 'b\n",
        "a: \"b\"c\n",
        "\ta: 1\n",
        "a: 1\n...\n",
        "a: 1\na: 2\n",
        "a: 1\n  b: 2\n",
        "  a: 1\n b: 2\n",
        "- a\nb: 1\n",
        "? a\n: b\n",
        "a: b: c\n",
        "a: - b\n",
        "a:\n- b\n c: 1\n",
        "a: |2\n   b\n",
        "a: |\n  b \n",
        "a: -0\n",
        "a: .inf\n",
        "a: +5\n",
        "",
        "# nothing\n",
        "a: @b\n",
    ];
    for text in odd {
        assert_eq!(json_of(text), None, "{text}");
    }
}

#[test]
fn the_usual_forms_are_read_as_they_are_meant() {
    let cases = [
        ("a: 1\n", json!({"a": 1})),
        ("a: v1.36.3\n", json!({"a": "v1.36.3"})),
        ("a: 1.36.3\n", json!({"a": "1.36.3"})),
        ("a: 10.0.0.0/24\n", json!({"a": "10.0.0.0/24"})),
        ("a: 8k\nb: 1e\n", json!({"a": "8k", "b": "1e"})),
        (
            "- a\n- - b\n  - c\n-\n  d: 1\n-\n",
            json!(["a", ["b", "c"], {"d": 1}, null]),
        ),
        ("a:\n  b\n", json!({"a": "b"})),
        (
            "a:\n- b: 1\n  c: 2\n- 3\nd: 4\n",
            json!({"a": [{"b": 1, "c": 2}, 3], "d": 4}),
        ),
        ("a:\n\n  # why\n  b: 1\n", json!({"a": {"b": 1}})),
        (
            "a: |\n  # x\n\n  y\n\nb: 1\n",
            json!({"a": "# x\n\ny\n", "b": 1}),
        ),
        ("plain\n", json!("plain")),
    ];
    for (text, expected) in cases {
        match check(text) {
            Some(value) => assert_eq!(value, expected, "{text}"),
            None => assert!(text.contains("1e\n"), "left alone: {text}"),
        }
    }
}

fn value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[ -~]{0,12}".prop_map(Value::from),
        "[a-z0-9./:-]{1,16}".prop_map(Value::from),
        "[0-9eE+._x-]{1,8}".prop_map(Value::from),
        "([a-z #:'\"-]{0,6}\n){0,3}[a-z]{0,3}".prop_map(Value::from),
        "\\PC{0,6}".prop_map(Value::from),
    ];
    scalar.prop_recursive(4, 40, 5, |inner| {
        let key = "[a-zA-Z][a-z0-9./_-]{0,10}|[ -~]{1,6}";
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..5)
                .prop_map(|map| Value::from(map.into_iter().collect::<serde_json::Map<_, _>>())),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_is_written_is_read_back_or_left_alone(value in value()) {
        let text = serde_saphyr::to_string(&value).unwrap();
        check(&text);
    }

    #[test]
    fn any_lines_are_read_as_the_other_parser_reads_them_or_left_alone(
        lines in proptest::collection::vec(
            (0..4usize, r#"(- ){0,2}([a-c]|"a"): ?([a-z0-9.:'"|#>{}-]{0,6}|[|]|[|]-|'a''b'|"a\\n"|\[\]|\{\})?|- [a-z0-9]{0,3}|[a-z ]{0,6}|#x|"#),
            0..9
        )
    ) {
        let text: String = lines.iter().map(|(indent, line)| format!("{}{line}\n", " ".repeat(*indent))).collect();
        check(&text);
    }
}
