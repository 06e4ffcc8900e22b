//! Words of everything that people and programs read: keys of JSON, columns, flags, metrics and their
//! labels. STYLE.md has the table, and these tests hold every command to it.
//!
//! Keys and columns come from the answers of the commands to examples. Flags and metrics come from
//! the reference, which is made from the code.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::align::{UNITS, title};

const STYLE: &str = include_str!("../../../../STYLE.md");
const REFERENCE: &str = include_str!("../../../../docs/guide/reference.md");

/// Words beside those of STYLE.md's table. A new one goes in if no word of the table means the same.
const WORDS: &str = include_str!("vocabulary/words.txt");

/// Title of the table in STYLE.md.
const TABLE: &str = "### Words that people and programs read";

/// Tables and JSON of a command's examples.
type Answers = fn() -> Vec<[String; 2]>;

/// Every command with `-o`, and its answers.
const COMMANDS: [(&str, Answers); 15] = [
    ("ps", crate::ps::tests::answers),
    ("top", top),
    ("limit", crate::limit::tests::answers),
    ("queue", queue),
    ("dataset get", crate::dataset::answers_of_one),
    ("dataset ls", crate::dataset::answers),
    ("dataset show", crate::dataset::answers_of_one),
    ("inspect", crate::inspect::tests::shares::answers),
    ("plan", crate::plan::tests::answers),
    ("explain pod", crate::explain::tests::answers),
    ("explain job", crate::queue::tests::answers),
    ("quota plan", crate::quota::tests::answers),
    ("simulate", crate::simulate::tests::answers),
    ("install", crate::install::print::tests::answers),
    ("uninstall", crate::install::print::tests::answers),
];

/// Keys of objects whose own keys are no words of ours: names of nodes, keys of Kubernetes, numbers of
/// GPUs.
const MAPS: [&str; 7] = [
    "annotations",
    "refusals",
    "droppedByReason",
    "neverPlaceable",
    "stayingPods",
    "gangsWaitedSeconds",
    "nodesWithFree",
];

/// Flags with the word of kubelet and of Koordinator for what is no GPU of ours.
const DEVICES: [&str; 3] = ["--device", "--device-plugin-dir", "--koordinator-device"];

/// Words of amounts. A number that is called by one has a unit, or says what it counts.
const AMOUNTS: [&str; 17] = [
    "allocated",
    "compute",
    "context",
    "fragmented",
    "free",
    "granted",
    "kept",
    "limit",
    "lost",
    "makespan",
    "memory",
    "overhead",
    "pinned",
    "request",
    "throttled",
    "used",
    "wait",
];

/// Things that are counted.
const COUNTED: [&str; 3] = ["gpus", "nodes", "pieces"];

fn top() -> Vec<[String; 2]> {
    [
        crate::top::tests::answers(),
        crate::top::node::tests::answers(),
    ]
    .concat()
}

fn queue() -> Vec<[String; 2]> {
    [
        crate::queue::line::tests::answers(),
        crate::queue::tests::answers(),
    ]
    .concat()
}

/// Words that are known, and words that are refused with the one to use.
struct Vocabulary {
    known: BTreeSet<&'static str>,
    refused: BTreeMap<&'static str, &'static str>,
}

impl Vocabulary {
    fn read() -> Vocabulary {
        let mut known: BTreeSet<&str> = WORDS.split_whitespace().collect();
        let mut refused = BTreeMap::new();
        let section = STYLE.lines().skip_while(|line| *line != TABLE).skip(1);
        let section = section.take_while(|line| !line.starts_with('#'));
        // The heading, and the line below it.
        for row in section.filter(|line| line.starts_with('|')).skip(2) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [words, _, never] = cells[..] else {
                panic!("three cells: {row}");
            };
            known.extend(words.split(", "));
            let never = never.split(", ").filter(|word| !word.is_empty());
            refused.extend(never.map(|word| (word, words)));
        }
        assert!(refused.len() > 10, "`{TABLE}` has no table");
        Vocabulary { known, refused }
    }

    /// Fault of a name that is made of these words, if there is any.
    fn fault(&self, name: &str, words: &[String]) -> Option<String> {
        words.iter().find_map(|word| {
            if let Some(right) = self.refused.get(word.as_str()) {
                return Some(format!("{name}: `{word}` is called {right}"));
            }
            let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
            let is_known = is_number || self.known.contains(word.as_str());
            (!is_known).then(|| format!("{name}: `{word}` is in no list of words"))
        })
    }
}

/// The words of a key, without its unit, and whether it has one.
fn words_of(key: &str) -> (Vec<String>, bool) {
    let stems = UNITS.iter().filter_map(|unit| key.strip_suffix(unit));
    let stem = stems.min_by_key(|stem| stem.len());
    let mut words = vec![String::new()];
    for letter in stem.unwrap_or(key).chars() {
        if letter.is_ascii_uppercase() {
            words.push(String::new());
        }
        let last = words.len() - 1;
        words[last].push(letter.to_ascii_lowercase());
    }
    (words, stem.is_some())
}

/// Keys of a document, the names of columns that may show them, and faults.
#[derive(Default)]
struct Found {
    keys: BTreeSet<String>,
    titles: BTreeSet<String>,
    faults: BTreeSet<String>,
}

impl Found {
    fn walk(&mut self, value: &Value, parent: &str) {
        match value {
            Value::Array(all) => all.iter().for_each(|one| self.walk(one, parent)),
            Value::Object(fields) => {
                for (key, child) in fields {
                    self.keys.insert(key.clone());
                    self.titles.insert(title(key));
                    self.titles.insert(title(&format!("{parent}.{key}")));
                    // Amounts of a quota have the unit of its resource.
                    if !fields.contains_key("resource") {
                        self.look_at(key, child);
                    }
                    if !MAPS.contains(&key.as_str()) {
                        self.walk(child, key);
                    }
                }
            }
            _ => {}
        }
    }

    /// Is an amount a number, and has it a unit?
    fn look_at(&mut self, key: &str, value: &Value) {
        let one = value.as_array().and_then(|all| all.first());
        let value = one.unwrap_or(value);
        let (words, has_unit) = words_of(key);
        let is_any = |of: &[&str]| words.iter().any(|word| of.contains(&word.as_str()));
        if value.is_number() && is_any(&AMOUNTS) && !has_unit && !is_any(&COUNTED) {
            self.faults.insert(format!("{key}: {value} has no unit"));
        }
        if value.as_str().is_some_and(is_amount) {
            self.faults.insert(format!("{key}: {value} is no number"));
        }
    }
}

/// Is a text made of numbers and units alone?
fn is_amount(text: &str) -> bool {
    let mut parts = text.split([' ', '.']).filter(|part| !part.is_empty());
    let is_unit =
        |part: &str| matches!(part, "MiB" | "GiB" | "KiB" | "B" | "%" | "s" | "ms" | "min");
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let has_both = text.split(' ').any(is_unit) && text.split([' ', '.']).any(is_number);
    has_both && parts.all(|part| is_unit(part) || is_number(part))
}

/// Headings of the tables in a text: lines of capitals.
fn headings(text: &str) -> Vec<Vec<&str>> {
    let is_capitals = |cell: &&str| {
        let mut letters = cell.bytes();
        letters.all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b' ')
            && cell.bytes().any(|byte| byte.is_ascii_uppercase())
    };
    let lines = text.lines().map(|line| {
        let cells = line.split("  ").map(str::trim);
        cells.filter(|cell| !cell.is_empty()).collect()
    });
    lines
        .filter(|cells: &Vec<&str>| cells.len() > 1 && cells.iter().all(is_capitals))
        .collect()
}

/// Sections of the reference that are the help of a command, by its words.
fn helps() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut helps: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut command = None;
    for line in REFERENCE.lines() {
        if let Some(rest) = line.strip_prefix("### ") {
            let words = rest
                .strip_prefix("`sublet")
                .and_then(|rest| rest.strip_suffix('`'));
            command = words.map(str::trim);
        }
        if let Some(command) = command {
            helps.entry(command).or_default().push(line);
        }
    }
    assert!(helps.len() > 10, "{:?}", helps.keys());
    helps
}

#[test]
fn every_key_and_column_keeps_to_the_vocabulary() {
    let vocabulary = Vocabulary::read();
    let mut faults = Vec::new();
    for (command, answers) in COMMANDS {
        for [table, json] in answers() {
            let json: Value = serde_json::from_str(&json).expect("a document");
            let mut found = Found::default();
            found.walk(&json, "");
            assert!(!found.keys.is_empty(), "{command}: {json}");
            let keys = found.keys.iter();
            found
                .faults
                .extend(keys.filter_map(|key| vocabulary.fault(key, &words_of(key).0)));
            let headings = headings(&table);
            assert!(
                table.is_empty() || !headings.is_empty(),
                "{command}:\n{table}"
            );
            let other = headings.into_iter().flatten();
            let other = other.filter(|name| !found.titles.contains(*name));
            let other = other.map(|name| format!("the column {name} has no key of that name"));
            let other: Vec<String> = other.collect();
            let all = other.into_iter().chain(found.faults);
            faults.extend(all.map(|fault| format!("{command}: {fault}")));
        }
    }
    faults.sort();
    faults.dedup();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_command_with_json_is_held_to_the_vocabulary() {
    let has_json =
        |(_, help): &(&str, Vec<&str>)| help.iter().any(|line| line.contains("--output"));
    let commands: Vec<&str> = helps()
        .into_iter()
        .filter(has_json)
        .map(|(name, _)| name)
        .collect();
    let mut held: Vec<&str> = COMMANDS.iter().map(|(command, _)| *command).collect();
    held.sort_unstable();
    assert_eq!(commands, held);
}

#[test]
fn every_flag_keeps_to_the_vocabulary() {
    let vocabulary = Vocabulary::read();
    let mut faults = BTreeSet::new();
    let mut flags = 0;
    for line in helps().into_values().flatten() {
        let words = line.trim_start().split([' ', ',']);
        let words = words.take_while(|word| word.is_empty() || word.starts_with('-'));
        for flag in words.filter(|word| word.starts_with("--")) {
            let is_of_flag = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
            let flag = flag.split(|letter| !is_of_flag(letter)).next();
            let flag = flag.unwrap_or_default();
            flags += 1;
            let words: Vec<String> = flag[2..].split('-').map(str::to_owned).collect();
            if !DEVICES.contains(&flag) {
                faults.extend(vocabulary.fault(flag, &words));
            }
        }
    }
    assert!(flags > 100, "only {flags} flags");
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn every_metric_and_label_keeps_to_the_vocabulary() {
    let vocabulary = Vocabulary::read();
    let mut faults = BTreeSet::new();
    let rows: Vec<&str> = REFERENCE
        .lines()
        .filter(|line| line.starts_with("| `sublet_"))
        .collect();
    assert!(rows.len() > 20, "{rows:?}");
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [metric, _, labels, ..] = cells[..] else {
            panic!("four cells: {row}");
        };
        let metric = metric.trim_matches('`');
        let name = metric.strip_suffix("_total").unwrap_or(metric);
        let words: Vec<String> = name.split('_').map(str::to_owned).collect();
        faults.extend(vocabulary.fault(metric, &words));
        let is_amount = words.iter().any(|word| AMOUNTS.contains(&word.as_str()));
        let has_unit = name.ends_with("_bytes") || name.ends_with("_seconds");
        if is_amount && !has_unit {
            faults.insert(format!("{metric} has no unit"));
        }
        for label in labels.split(", ").filter(|label| !label.is_empty()) {
            let label = label.trim_matches('`');
            faults.extend(vocabulary.fault(label, &[label.to_owned()]));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn faults_of_names_are_found() {
    let vocabulary = Vocabulary::read();
    let said = |key: &str| vocabulary.fault(key, &words_of(key).0);
    assert_eq!(said("pinnedUsedMiB"), None);
    assert_eq!(
        said("cards").as_deref(),
        Some("cards: `cards` is called gpu, gpus")
    );
    assert!(said("xyzzyMiB").is_some_and(|fault| fault.contains("in no list")));
    let faults = |document: Value| {
        let mut found = Found::default();
        found.walk(&document, "");
        found.faults.into_iter().collect::<Vec<_>>().join("; ")
    };
    for (document, expected) in [
        (serde_json::json!({"used": 3}), "used: 3 has no unit"),
        (
            serde_json::json!({"a": [{"limit": 0.5}]}),
            "limit: 0.5 has no unit",
        ),
        (
            serde_json::json!({"request": "1024 MiB"}),
            "request: \"1024 MiB\" is no number",
        ),
        (
            serde_json::json!({"limit": "0 %..100 %"}),
            "limit: \"0 %..100 %\" is no number",
        ),
        (
            serde_json::json!({"usedMiB": 3, "requestGpus": 2, "address": "10.0.0.1"}),
            "",
        ),
        (serde_json::json!({"resource": "cpu", "used": 3}), ""),
        (
            serde_json::json!({"reason": "30 MiB more than its limit"}),
            "",
        ),
    ] {
        assert_eq!(faults(document), expected);
    }
    assert_eq!(
        headings("a b\n\nNAME  IN USE\nx     3\n"),
        [["NAME", "IN USE"]]
    );
}
