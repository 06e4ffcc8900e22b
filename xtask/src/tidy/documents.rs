//! Statements of the documents about the code: the tests that they name exist, and links lead
//! somewhere. People judge whether a sentence is true.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{RINGS, dependencies, rust_files};
use crate::setup::repository;

/// The names of the tests in a source file.
fn tests_in(source: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim_start) {
        if matches!(line, "#[test]" | "#[tokio::test]") {
            is_test = true;
        } else if is_test && let Some((_, rest)) = line.split_once("fn ") {
            found.extend(rest.split('(').next());
            is_test = false;
        }
    }
    found
}

/// The names of all tests of the repository.
fn all_tests() -> BTreeSet<String> {
    let root = repository().unwrap();
    let mut files = Vec::new();
    for dir in ["crates", "xtask"] {
        rust_files(&root.join(dir), &mut files);
    }
    let names = |path: &PathBuf| -> Vec<String> {
        let source = fs::read_to_string(path).unwrap();
        tests_in(&source).into_iter().map(str::to_owned).collect()
    };
    files.iter().flat_map(names).collect()
}

/// The names of tests between backticks.
fn named(text: &str) -> Vec<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|name| name.contains('_')).collect()
}

/// The last cell of a row of the threat model that nothing holds.
const NOT_PREVENTED: &str = "not prevented";

/// The tests that SECURITY.md names in the last column of its tables. A row without a test is the
/// error, unless it says that nothing prevents the attack that it describes.
fn tests_of_promises(security: &str) -> Result<Vec<&str>, String> {
    let lines: Vec<&str> = security.lines().collect();
    let is_heading = |at: usize| {
        lines
            .get(at + 1)
            .is_some_and(|next| next.starts_with("|---"))
    };
    let mut names = Vec::new();
    for (at, row) in lines.iter().enumerate() {
        if !row.starts_with("| ") || is_heading(at) {
            continue;
        }
        let tried_by = row.trim_end_matches('|').rsplit('|').next();
        let tried_by = tried_by.unwrap_or_default();
        let found = named(tried_by);
        if found.is_empty() && tried_by.trim() != NOT_PREVENTED {
            return Err(format!("SECURITY.md names no test in: {row}"));
        }
        names.extend(found);
    }
    Ok(names)
}

/// The tests that ARCHITECTURE.md names after `Checked by`; an invariant without one is the
/// error.
fn tests_of_invariants(architecture: &str) -> Result<Vec<&str>, String> {
    let mut names = Vec::new();
    for line in architecture.lines() {
        let checked = line.split_once("Checked by ");
        let found = checked.map_or(Vec::new(), |(_, tests)| named(tests));
        if found.is_empty() && line.contains("**Architecture Invariant:**") {
            return Err(format!("ARCHITECTURE.md names no test in: {line}"));
        }
        names.extend(found);
    }
    Ok(names)
}

/// Fails for each name that no test has.
fn check_named(document: &str, names: &[&str]) {
    assert!(names.len() > 10, "these are not all: {names:?}");
    let all = all_tests();
    let missing: Vec<_> = names.iter().filter(|name| !all.contains(**name)).collect();
    assert!(
        missing.is_empty(),
        "{document} names tests that are not there: {missing:?}"
    );
}

#[test]
fn each_promise_names_a_test_that_is_there() {
    let security = fs::read_to_string(repository().unwrap().join("SECURITY.md")).unwrap();
    check_named("SECURITY.md", &tests_of_promises(&security).unwrap());
}

#[test]
fn each_invariant_names_a_test_that_is_there() {
    let architecture = fs::read_to_string(repository().unwrap().join("ARCHITECTURE.md")).unwrap();
    check_named(
        "ARCHITECTURE.md",
        &tests_of_invariants(&architecture).unwrap(),
    );
}

/// The tests that CONTRIBUTING.md names: a name of a test is a sentence, and has three underscores
/// or more.
fn tests_of_recipes(contributing: &str) -> Vec<&str> {
    let is_sentence = |name: &&str| {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        name.matches('_').count() >= 3 && name.chars().all(is_plain)
    };
    named(contributing)
        .into_iter()
        .filter(is_sentence)
        .collect()
}

#[test]
fn each_recipe_names_tests_that_are_there() {
    let contributing = fs::read_to_string(repository().unwrap().join("CONTRIBUTING.md")).unwrap();
    check_named("CONTRIBUTING.md", &tests_of_recipes(&contributing));
}

#[test]
fn each_dependency_has_its_reason() {
    let read = |file: &str| fs::read_to_string(repository().unwrap().join(file)).unwrap();
    let (manifest, reasons) = (read("Cargo.toml"), read("deny.toml"));
    let comments = reasons.lines().filter_map(|line| line.strip_prefix("# "));
    let words: BTreeSet<&str> = comments.flat_map(|line| line.split([' ', ','])).collect();
    let used: Vec<String> = dependencies(&manifest)
        .into_iter()
        .map(|one| one.name)
        .collect();
    assert!(used.len() > 30, "these are not all: {used:?}");
    let is_unexplained =
        |name: &&String| !name.starts_with("sublet") && !words.contains(name.as_str());
    let unexplained: Vec<&String> = used.iter().filter(is_unexplained).collect();
    assert!(
        unexplained.is_empty(),
        "no reason in deny.toml for {unexplained:?}"
    );
}

#[test]
fn a_promise_without_a_test_is_found() {
    let table = |tried_by| {
        format!("| Promise | Held by | Tried by |\n|---|---|---|\n| a | b | {tried_by} |")
    };
    let named = table("`a_b`, in `crate`: `c_d`");
    assert_eq!(tests_of_promises(&named), Ok(vec!["a_b", "c_d"]));
    assert!(tests_of_promises(&table("-")).is_err());
    assert_eq!(tests_of_promises(&table("not prevented")), Ok(vec![]));
    assert!(tests_of_promises(&table("not prevented, mostly")).is_err());
    let two = format!("{}\n\n{}", table("not prevented"), table("-"));
    assert!(tests_of_promises(&two).is_err(), "each table has a heading");
    let with = "**Architecture Invariant:** `x_y` holds. Checked by `a_b`, `c_d`.\n";
    assert_eq!(tests_of_invariants(with), Ok(vec!["a_b", "c_d"]));
    assert!(tests_of_invariants("**Architecture Invariant:** `x_y` holds.").is_err());
    let recipe = "`a_b_c_d` fails without `X_Y_Z_W`, `sublet_<noun>_a_b` and `e_f`.";
    assert_eq!(tests_of_recipes(recipe), ["a_b_c_d"]);
    let source =
        "#[test]\n    #[cfg(unix)]\n    fn a_b() {\n#[tokio::test]\nasync fn c_d() {\nfn e_f() {";
    assert_eq!(tests_in(source), BTreeSet::from(["a_b", "c_d"]));
}

/// The files that the first table of ARCHITECTURE.md names, from the root of the repository.
fn places(architecture: &str) -> Vec<String> {
    let section = architecture
        .split("\n## ")
        .find(|s| s.starts_with("To change"));
    let rows = section.unwrap_or_default().lines();
    let cells = rows.filter_map(|row| {
        row.strip_prefix("| ")?
            .trim_end_matches('|')
            .rsplit('|')
            .next()
    });
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let paths = names.filter(|name| name.contains('/') && !name.contains(' '));
    let whole = paths.map(|path| match path.split('/').next() {
        Some("templates") => format!("deploy/chart/sublet/{path}"),
        Some(first) if RINGS.concat().contains(&first) => format!("crates/{path}"),
        _ => path.to_owned(),
    });
    whole.collect()
}

#[test]
fn each_row_of_the_map_leads_to_a_file() {
    let root = repository().unwrap();
    let architecture = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let places = places(&architecture);
    assert!(places.len() > 50, "these are not all: {places:?}");
    let gone: Vec<_> = places
        .iter()
        .filter(|path| !root.join(path).exists())
        .collect();
    assert!(
        gone.is_empty(),
        "ARCHITECTURE.md leads to nothing: {gone:?}"
    );
    let n_words = architecture.split_whitespace().count();
    assert!(
        n_words <= 3200,
        "ARCHITECTURE.md has {n_words} words; details belong into `lib.rs`"
    );
}

#[test]
fn paths_of_the_map_are_read() {
    let map = "# A\n## To change X\n| a | b |\n|---|---|\n| x | `speak/a/src/b.rs`, then `c`: \
               `templates/1.yaml` |\n## B\n| y | `d/e.rs` |";
    assert_eq!(
        places(map),
        [
            "crates/speak/a/src/b.rs",
            "deploy/chart/sublet/templates/1.yaml"
        ]
    );
}

/// The anchors of a document, as GitHub makes them from its headings.
fn anchors(document: &str) -> BTreeSet<String> {
    let headings = document.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// Faults in the links of one document that lead to files.
fn wrong_links(path: &Path, document: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for rest in document.split("](").skip(1) {
        let link = rest.split(')').next().unwrap_or_default();
        if link.contains("://") {
            continue;
        }
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = match file {
            "" => path.to_owned(),
            file => path.parent().unwrap().join(file),
        };
        let text = fs::read_to_string(&target).unwrap_or_default();
        let leads = target.exists() && (anchor.is_empty() || anchors(&text).contains(anchor));
        if !leads {
            wrong.push(format!("{}: {link} leads nowhere", path.display()));
        }
    }
    wrong
}

/// All Markdown files of a folder, and with `deep` also of its subfolders.
fn documents(dir: &Path, deep: bool, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && deep {
            documents(&path, deep, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

#[test]
fn every_link_of_a_document_leads_somewhere() {
    let root = repository().unwrap();
    let mut files = Vec::new();
    documents(root, false, &mut files);
    documents(&root.join("docs"), true, &mut files);
    assert!(files.len() > 10, "these are not all: {files:?}");
    let wrong: Vec<String> = files
        .iter()
        .flat_map(|path| wrong_links(path, &fs::read_to_string(path).unwrap()))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_wrong_link_is_found() {
    let readme = repository().unwrap().join("README.md");
    let check = |link: &str| wrong_links(&readme, &format!("[a]({link})")).len();
    assert_eq!(check("https://example.com/#x"), 0);
    assert_eq!(check("SECURITY.md#what-does-not-hold"), 0);
    assert_eq!(check("docs/benchmarks"), 0);
    assert_eq!(check("SECURITY.md#no-such-heading"), 1);
    assert_eq!(check("docs/no-such-file.md"), 1);
    assert_eq!(check("#no-such-heading"), 1);
}
