//! Each stored page of figures is a benchmark's, and each benchmark names the crates that it
//! measures, with all that they use. Whether it measures them is for people to judge.

use std::collections::BTreeSet;
use std::fs;

use sublet_testbed::bench::{BENCHES, Bench};

use super::{dependencies, members};
use crate::setup::repository;

/// Links every command: a benchmark of one command does not measure the crates of the others.
const DOOR: &str = "sublet-cli";

/// Crates of ours that a crate's own code uses.
fn used_by(manifest: &str) -> Vec<String> {
    let found = dependencies(manifest).into_iter();
    let ours = found.filter(|used| !used.tests && used.name.starts_with("sublet-"));
    ours.map(|used| used.name).collect()
}

#[test]
fn every_benchmark_names_all_crates_that_it_measures() {
    let members = members();
    let wrong = |Bench { page, crates, .. }: &&Bench| -> Vec<String> {
        let mut wrong = Vec::new();
        for name in *crates {
            let Some(member) = members.get(*name) else {
                wrong.push(format!("{page} names {name}, which is gone"));
                continue;
            };
            let used = match *name {
                DOOR => Vec::new(),
                _ => used_by(&member.manifest),
            };
            let missing = used.iter().filter(|used| !crates.contains(&used.as_str()));
            wrong.extend(missing.map(|used| format!("{page} names {name}, but not its {used}")));
        }
        let in_order = crates.is_sorted_by(|one, next| one < next);
        wrong.extend((!in_order).then(|| format!("{page}: each once, by name")));
        wrong.extend(
            crates
                .is_empty()
                .then(|| format!("{page} measures no crate")),
        );
        wrong
    };
    let wrong: Vec<String> = BENCHES.iter().flat_map(wrong).collect();
    assert!(
        wrong.is_empty(),
        "crates/prove/testbed/src/bench.rs: {wrong:#?}"
    );
}

#[test]
fn every_stored_page_is_the_page_of_one_benchmark() {
    let folder = repository().unwrap().join("docs/benchmarks");
    let files = fs::read_dir(folder).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let stored: BTreeSet<String> = names.filter(|name| name.ends_with(".md")).collect();
    assert!(stored.len() > 5, "{stored:?}");
    let pages: Vec<String> = BENCHES.map(|bench| format!("{}.md", bench.page)).to_vec();
    let nobodys: Vec<_> = stored.iter().filter(|name| !pages.contains(name)).collect();
    assert!(nobodys.is_empty(), "no benchmark makes {nobodys:?}");
    let distinct: BTreeSet<_> = pages.iter().collect();
    assert_eq!(distinct.len(), pages.len(), "two benchmarks of one page");
}
