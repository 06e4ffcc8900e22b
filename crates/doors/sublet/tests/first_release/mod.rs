//! Answers in JSON of release 0.1.0, from what its arbiter and its cluster said: whoever reads those
//! finds all of it in today's answers. `fixtures/0.1.0/README.md` says what may be changed there.

use std::path::PathBuf;

use serde_json::Value;

use crate::stage::{SPEC, Stage, text};

fn fixture(name: &str) -> PathBuf {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/0.1.0");
    PathBuf::from(fixtures).join(name)
}

/// Fails where something that was said is not said any more, or differently. More may be said, and in
/// other words where people are spoken to.
fn check_includes(today: &Value, before: &Value, place: &str) {
    match (today, before) {
        (Value::Object(today), Value::Object(before)) => {
            for (key, value) in before {
                let place = format!("{place}.{key}");
                let now = today.get(key);
                check_includes(
                    now.unwrap_or_else(|| panic!("{place} is gone")),
                    value,
                    &place,
                );
            }
        }
        (Value::Array(today), Value::Array(before)) if today.len() == before.len() => {
            for (at, (today, before)) in today.iter().zip(before).enumerate() {
                check_includes(today, before, &format!("{place}[{at}]"));
            }
        }
        (Value::String(today), Value::String(before)) if before.contains(' ') => {
            assert!(today.contains(' '), "{place}: {today}");
        }
        _ => assert_eq!(today, before, "{place}"),
    }
}

/// Compares what a command says with what it said then.
fn check(stage: &Stage, name: &str, words: &[&str]) {
    let output = stage.sublet(words).output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{words:?}: {error}: {}", text(&output.stderr)));
    let file = fixture(&format!("json/{name}.json"));
    if std::env::var_os("SUBLET_RELEASE").is_some() {
        let pretty = serde_json::to_string_pretty(&said).unwrap();
        std::fs::write(&file, pretty + "\n").unwrap();
    }
    let before = std::fs::read(&file).unwrap();
    let before: Value = serde_json::from_slice(&before).unwrap();
    check_includes(&said, &before, name);
}

#[test]
fn a_machine_is_told_as_before() {
    let stage = Stage::new();
    let replies = std::fs::read_to_string(fixture("arbiter/replies.jsonl")).unwrap();
    let replies = replies
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let replies: Vec<Value> = replies.collect();
    let of_kind = move |kind: &str| -> Vec<Value> {
        let found = replies.iter().find(|reply| reply["kind"] == kind);
        found.cloned().into_iter().collect()
    };
    let _arbiter = stage.arbiter_that(move |request| match request["kind"].as_str() {
        Some("list" | "watch") => of_kind("snapshot"),
        Some("limit" | "limitPinned" | "limitCompute") => of_kind("limited"),
        _ => Vec::new(),
    });
    let here = ["--fake-gpu", SPEC, "-o", "json"];
    for (name, words) in [
        ("ps", &["ps"][..]),
        ("top", &["top", "--once"]),
        ("queue", &["queue"]),
        ("limit", &["limit", "1", "--memory", "5GiB"]),
    ] {
        check(&stage, name, &[words, &here].concat());
    }
}

#[test]
fn a_cluster_is_planned_as_before() {
    let stage = Stage::new();
    let objects = fixture("cluster/objects.yaml");
    let objects = objects.to_str().unwrap();
    check(&stage, "plan", &["plan", "-f", objects, "-o", "json"]);
    check(
        &stage,
        "quota",
        &["quota", "plan", "-f", objects, "-o", "json"],
    );
}
