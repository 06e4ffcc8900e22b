//! Documents and the chart repeat lists that the code has: dialects, policies, kinds of job, processes.
//! Each list is compared with the code here, because nobody notices an entry that is missing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sublet_api::dialect::DIALECTS;
use sublet_api::group::{GANG_DIALECTS, JOB_KINDS};
use sublet_plan::Policy;
use sublet_queue::{GROUP_FILTERS, GROUP_SCORES, QUEUE_PROFILES, SiteRule};

/// Command that writes the chart's list of policies anew.
const BLESS: &str = "SUBLET_BLESS=1 cargo test -p sublet --test lists";

fn place(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../..")
        .join(path)
}

fn read(path: &str) -> String {
    let place = place(path);
    fs::read_to_string(&place).unwrap_or_else(|error| panic!("{}: {error}", place.display()))
}

/// The names without which a document is not complete.
fn missing<'a>(document: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let names: Vec<&str> = names.into_iter().collect();
    assert!(!names.is_empty(), "nothing is looked for");
    let absent = |name: &&str| !document.contains(&format!("`{name}`"));
    names.into_iter().filter(absent).collect()
}

/// Rows of a Markdown table that begin with a cell.
fn row<'a>(document: &'a str, first: &str) -> &'a str {
    let begin = format!("| `{first}` |");
    let found = document.lines().find(|line| line.starts_with(&begin));
    found.unwrap_or_else(|| panic!("no row for {first}"))
}

#[test]
fn the_guide_names_every_dialect() {
    let names = DIALECTS.iter().map(|dialect| dialect.name().0);
    assert_eq!(missing(&read("docs/guide/concepts.md"), names), [""; 0]);
}

#[test]
fn the_guide_names_every_policy() {
    assert_eq!(
        missing(&read("docs/guide/cluster.md"), Policy::names()),
        [""; 0]
    );
}

#[test]
fn the_guide_names_every_kind_of_job_and_of_gang() {
    let page = read("docs/guide/queueing.md");
    for kind in JOB_KINDS {
        let api = kind.api();
        assert_eq!(missing(row(&page, api.group), [api.kind]), [""; 0]);
    }
    let groups = GANG_DIALECTS.iter().map(|dialect| dialect.api_group());
    let absent: Vec<&str> = groups.filter(|group| !page.contains(group)).collect();
    assert_eq!(absent, [""; 0]);
}

#[test]
fn the_guide_names_every_process_that_the_chart_starts() {
    let page = read("docs/guide/concepts.md");
    let folder = place("deploy/kubernetes");
    let mut workloads = 0;
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if !path.is_file() {
            continue;
        }
        for document in fs::read_to_string(&path).unwrap().split("\n---") {
            let lines: Vec<&str> = document.lines().collect();
            let kind = ["Deployment", "DaemonSet"].into_iter().find(|kind| {
                let line = format!("kind: {kind}");
                lines.contains(&line.as_str())
            });
            let Some(kind) = kind else { continue };
            let name = lines.iter().find_map(|line| line.strip_prefix("  name: "));
            let wanted = format!("{kind} `{}`", name.unwrap());
            assert!(
                page.contains(&wanted),
                "concepts.md says nothing of {wanted}"
            );
            workloads += 1;
        }
    }
    assert!(workloads >= 3, "only {workloads} workloads were found");
    for command in ["scheduler", "controller", "agent"] {
        assert_eq!(
            missing(&page, [format!("sublet {command}").as_str()]),
            [""; 0]
        );
    }
}

/// The controller watches only the kinds of job that it may read.
#[test]
fn the_controller_may_read_every_kind_of_job() {
    let words = |file: &str| -> BTreeSet<String> {
        let text = read(&format!("deploy/chart/sublet/templates/{file}"));
        let between = |c: char| !(c.is_alphanumeric() || matches!(c, '.' | '-'));
        text.split(between).map(str::to_owned).collect()
    };
    let rights = words("23-rbac-controller.yaml");
    let policy = words("34-controller-policy.yaml");
    for kind in JOB_KINDS {
        let api = kind.api();
        for word in [api.group, api.plural] {
            assert!(rights.contains(word), "no right on {word}: {}", api.kind);
        }
        assert!(policy.contains(api.group), "no policy on {}", api.group);
    }
}

#[test]
fn the_chart_and_the_guide_know_every_rule_of_the_queue() {
    let schema = read("deploy/chart/sublet/values.schema.json");
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let of_queue = &schema["properties"]["queue"]["properties"];
    let scores: Vec<&str> = GROUP_SCORES.iter().map(SiteRule::name).collect();
    assert_eq!(of_queue["score"]["enum"], json!(scores));
    let filters: Vec<&str> = GROUP_FILTERS.iter().map(SiteRule::name).collect();
    assert_eq!(of_queue["filters"]["items"]["enum"], json!(filters));
    let profiles: Vec<&str> = QUEUE_PROFILES.iter().map(SiteRule::name).collect();
    // Without a name the controller's own default counts.
    let of_chart: Vec<&str> = [""].into_iter().chain(profiles.clone()).collect();
    assert_eq!(of_queue["profile"]["enum"], json!(of_chart));
    let page = read("docs/guide/queueing.md");
    let all = scores.into_iter().chain(filters).chain(profiles);
    assert_eq!(missing(&page, all), [""; 0]);
}

/// The pattern of a policy, or a mix of some, as `Policy` reads it.
fn pattern() -> String {
    let names: Vec<&str> = Policy::names().collect();
    let part = format!(r"({})(=[0-9]{{1,4}}(\\.[0-9]{{1,3}})?)?", names.join("|"));
    format!("\"pattern\": \"^{part}(,{part})*$\"")
}

#[test]
fn the_chart_takes_every_policy() {
    const FILE: &str = "deploy/chart/sublet/values.schema.json";
    let schema = read(FILE);
    let begin = schema.find("\"policy\": {").expect("a policy");
    let begin = begin + schema[begin..].find("\"pattern\"").expect("its pattern");
    let end = begin + schema[begin..].find('\n').expect("a line");
    let wanted = pattern();
    if std::env::var_os("SUBLET_BLESS").is_some() {
        let new = [&schema[..begin], &wanted, &schema[end..]].concat();
        fs::write(place(FILE), new).unwrap();
    }
    let schema = read(FILE);
    assert!(
        schema.contains(&wanted),
        "{FILE} has another list of policies: `{BLESS}` writes it"
    );
}
