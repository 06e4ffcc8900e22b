//! One public type name means one thing among the crates of the product, and each type in the
//! glossary of STYLE.md is there.
//!
//! A re-export is no second meaning. Types that are not public may repeat, since they are read in
//! their own file. Types that a macro names are not seen here, nor is generated code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::{RINGS, members, rust_files};
use crate::setup::repository;

/// Names that mean the same everywhere: `Args` are the arguments of the command in the same
/// module.
const CONVENTIONS: [&str; 1] = ["Args"];

/// The files that define a public type, by its name and by crate.
type Definitions = BTreeMap<String, BTreeMap<&'static str, BTreeSet<String>>>;

/// The type that a line defines, and whether it is public.
fn defined(line: &str) -> Option<(&str, bool)> {
    let mut words = line.trim_start();
    let is_public = words.starts_with("pub ");
    if let Some(rest) = words.strip_prefix("pub") {
        words = rest.trim_start_matches(|c| c != ' ').trim_start();
    }
    words = words.strip_prefix("unsafe ").unwrap_or(words);
    let (keyword, rest) = words.split_once(' ')?;
    let is_type = matches!(keyword, "struct" | "enum" | "union" | "trait" | "type");
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    let name = &rest[..end.unwrap_or(rest.len())];
    // A macro that defines types has no name to read.
    (is_type && !name.is_empty()).then_some((name, is_public))
}

/// The types of the product; the last ring proves and is not part of it.
fn definitions() -> (Definitions, BTreeSet<String>) {
    let root = repository().unwrap();
    let (mut public, mut all) = (Definitions::new(), BTreeSet::new());
    let product = members()
        .iter()
        .filter(|(_, member)| member.ring() < Some(RINGS.len() - 1));
    for (name, member) in product {
        let mut files = Vec::new();
        rust_files(&root.join(&member.folder).join("src"), &mut files);
        for path in files {
            let file = path.strip_prefix(root).unwrap().display().to_string();
            let source = fs::read_to_string(&path).unwrap();
            for (defined, is_public) in source.lines().filter_map(defined) {
                if is_public {
                    let places = public.entry(defined.to_owned()).or_default();
                    places.entry(name).or_default().insert(file.clone());
                }
                all.insert(defined.to_owned());
            }
        }
    }
    (public, all)
}

/// A line for each name that several crates give to a type of theirs.
fn ambiguous(definitions: &Definitions) -> Vec<String> {
    let several = definitions
        .iter()
        .filter(|(name, crates)| crates.len() > 1 && !CONVENTIONS.contains(&name.as_str()));
    let line = |(name, crates): (&String, &BTreeMap<_, BTreeSet<String>>)| {
        let files: Vec<_> = crates.values().flatten().map(String::as_str).collect();
        format!(
            "{name} is a public type in {}: rename all but one, or make them pub(crate)",
            files.join(" and ")
        )
    };
    several.map(line).collect()
}

/// The types in the last column of the glossary.
fn words(style: &str) -> Vec<&str> {
    let section = style.split("\n## ").find(|s| s.starts_with("Glossary"));
    let rows = section.unwrap_or_default().lines();
    let rows = rows.filter(|line| line.starts_with("| "));
    rows.filter_map(|row| row.trim_end_matches([' ', '|']).rsplit('|').next())
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter(|name| name.starts_with(char::is_uppercase))
        .collect()
}

#[test]
fn a_public_type_name_means_one_thing() {
    let (public, _) = definitions();
    let n = public.len();
    assert!(n > 300, "only {n} public types found");
    let wrong = ambiguous(&public);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn each_word_of_the_table_is_a_type() {
    let text = fs::read_to_string(repository().unwrap().join("STYLE.md")).unwrap();
    let words = words(&text);
    assert!(words.len() > 10, "these are not all: {words:?}");
    let (_, all) = definitions();
    let gone: Vec<_> = words.iter().filter(|word| !all.contains(**word)).collect();
    assert!(
        gone.is_empty(),
        "STYLE.md explains types that are not there: {gone:?}"
    );
}

#[test]
fn a_name_of_two_meanings_is_found() {
    for (line, expected) in [
        ("pub struct Ask<'a> {", Some(("Ask", true))),
        ("pub struct Mark;", Some(("Mark", true))),
        ("pub enum Kind", Some(("Kind", true))),
        ("    pub type Way = fn();", Some(("Way", true))),
        ("pub unsafe trait Raw: Sized {", Some(("Raw", true))),
        ("pub(crate) struct Ask {", Some(("Ask", false))),
        ("struct Ask(u8);", Some(("Ask", false))),
        ("pub use model::Ask;", None),
        ("pub struct $name {", None),
        ("pub fn ask() {", None),
        ("    pub kind: Kind,", None),
    ] {
        assert_eq!(defined(line), expected, "{line}");
    }
    let mut definitions = Definitions::new();
    for (name, place, file) in [
        ("Ask", "a", "a/src/lib.rs"),
        ("Ask", "b", "b/src/x.rs"),
        ("Args", "a", "a/src/lib.rs"),
        ("Args", "b", "b/src/x.rs"),
        ("Once", "a", "a/src/lib.rs"),
        ("Once", "a", "a/src/x.rs"),
    ] {
        let places = definitions.entry(name.to_owned()).or_default();
        places.entry(place).or_default().insert(file.to_owned());
    }
    let found = ambiguous(&definitions);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("Ask is a public type in a/src/lib.rs and b/src/x.rs:"),
        "{found:?}"
    );
    let table = "# A\n\n## Glossary\n| word | means | stands in |\n|---|---|---|\n\
        | `X` | y | `a-b`, `Ask`; `Part` |\n\n## Next\n| a | `Other` |\n";
    assert_eq!(words(table), ["Ask", "Part"]);
}
