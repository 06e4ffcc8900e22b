//! Alerts and dashboards name metrics as text, and nobody notices a wrong one: an expression about
//! a metric that does not exist is never true. So each metric and label is looked up in the
//! reference, which is made from the code, and each alert in the guide, which tells how to react.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Labels that Prometheus adds to every target, and the label of a histogram's buckets.
const ADDED: [&str; 3] = ["instance", "job", "le"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn read(path: &str) -> String {
    let place = repository().join(path);
    fs::read_to_string(&place).unwrap_or_else(|error| panic!("{}: {error}", place.display()))
}

/// The metrics of the reference with their labels; a histogram by the names of its series.
fn declared() -> BTreeMap<String, BTreeSet<String>> {
    let page = read("docs/guide/reference.md");
    let mut declared = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| `sublet_")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells[1].trim_matches('`');
        let labels = cells[3]
            .split(", ")
            .map(|label| label.trim_matches('`').to_owned());
        let labels: BTreeSet<String> = labels.filter(|label| !label.is_empty()).collect();
        let ends: &[&str] = match cells[2] {
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        for end in ends {
            declared.insert(format!("{name}{end}"), labels.clone());
        }
    }
    declared
}

/// The alerts: name, expression, and all its texts.
fn alerts() -> Vec<(String, String, String)> {
    let text = read("deploy/chart/sublet/files/alerts.yaml");
    let file: Value = serde_saphyr::from_str(&text).unwrap();
    let rules = file["groups"].as_array().unwrap().iter().flat_map(|group| {
        let rules = group["rules"].as_array().unwrap();
        rules.iter().map(|rule| {
            let text = |key: &str| rule[key].as_str().unwrap().to_owned();
            (text("alert"), text("expr"), rule["annotations"].to_string())
        })
    });
    rules.collect()
}

/// Queries of the dashboards: their place, the expression, and the text that names its lines.
fn panels() -> Vec<(String, String, String)> {
    let mut asked = Vec::new();
    for name in ["cluster", "node"] {
        let text = read(&format!("deploy/chart/sublet/files/dashboards/{name}.json"));
        let board: Value = serde_json::from_str(&text).unwrap();
        for variable in board["templating"]["list"].as_array().unwrap() {
            let query = variable["query"].as_str().unwrap().to_owned();
            asked.push((
                format!("{name}: {}", variable["name"]),
                query,
                String::new(),
            ));
        }
        for panel in board["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let text = |key: &str| target[key].as_str().unwrap().to_owned();
                let place = format!("{name}: {}", panel["title"]);
                asked.push((place, text("expr"), text("legendFormat")));
            }
        }
    }
    asked
}

/// Words of letters, digits and underscores.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(move |c| !is_word(c))
        .filter(|word| !word.is_empty())
}

/// The insides of brackets that begin so.
fn inside<'a>(text: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(begin)
        .skip(1)
        .filter_map(move |rest| Some(rest.split_once(end)?.0))
}

/// Faults of an expression, and of a text about its results.
fn wrong(
    expression: &str,
    text: &str,
    declared: &BTreeMap<String, BTreeSet<String>>,
) -> Vec<String> {
    let names: Vec<&str> = words(expression)
        .filter(|word| word.starts_with("sublet_"))
        .collect();
    let mut wrong: Vec<String> = names
        .iter()
        .filter(|name| !declared.contains_key(**name))
        .map(|name| format!("no metric {name}"))
        .collect();
    let known: BTreeSet<&str> = names
        .iter()
        .filter_map(|name| declared.get(*name))
        .flatten()
        .map(String::as_str)
        .chain(ADDED)
        .collect();
    let mut used = Vec::new();
    for matchers in inside(expression, "{", "}") {
        used.extend(
            matchers
                .split(',')
                .filter_map(|matcher| words(matcher).next()),
        );
    }
    for labels in inside(expression, "by (", ")") {
        used.extend(words(labels));
    }
    for label in inside(text, "{{", "}}") {
        used.extend(words(label.trim().trim_start_matches("$labels.")));
    }
    let unknown = used.into_iter().filter(|label| !known.contains(label));
    wrong.extend(unknown.map(|label| format!("no label {label} on {names:?}")));
    wrong
}

#[test]
fn alerts_and_dashboards_name_metrics_and_labels_that_exist() {
    let declared = declared();
    assert!(declared.len() > 20, "{declared:?}");
    let asked = [alerts(), panels()].concat();
    assert!(asked.len() > 25, "{}", asked.len());
    for (place, expression, text) in asked {
        assert_eq!(
            wrong(&expression, &text, &declared),
            [""; 0],
            "{place}: {expression}"
        );
    }
}

#[test]
fn a_wrong_metric_or_label_is_noticed() {
    let declared = declared();
    let none: [&str; 0] = [];
    assert_eq!(
        wrong(
            "sum by (outcome) (sublet_binds_total)",
            "{{outcome}}",
            &declared
        ),
        none
    );
    for (expression, text) in [
        ("sublet_bind_total", ""),
        ("sublet_extender_call_seconds", ""),
        ("sublet_binds_total{verb=\"a\"}", ""),
        ("sum by (node) (sublet_binds_total)", ""),
        ("sublet_binds_total", "of {{ $labels.node }}"),
    ] {
        assert_eq!(
            wrong(expression, text, &declared).len(),
            1,
            "{expression} {text}"
        );
    }
}

#[test]
fn the_guide_says_what_to_do_about_each_alert() {
    let guide = read("docs/guide/operations.md");
    let rows = guide
        .lines()
        .filter_map(|line| line.strip_prefix("| `Sublet")?.split_once('`'));
    let told: BTreeSet<String> = rows.map(|(name, _)| format!("Sublet{name}")).collect();
    let alerts: BTreeSet<String> = alerts().into_iter().map(|(name, ..)| name).collect();
    assert_eq!(told, alerts);
}
