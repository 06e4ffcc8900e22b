//! Doc comments begin with the noun or the verb. A comment that begins with a question word is a
//! relative clause without a noun, and must be read twice.

use std::fs;
use std::path::PathBuf;

use super::rust_files;
use crate::setup::repository;

/// Openings of such clauses.
const QUESTIONS: [&str; 10] = [
    "How", "Of", "Those", "What", "Where", "Which", "Who", "Whom", "Whose", "Why",
];

/// Share of doc comments that may begin so, in percent: a few have no better form.
const MOST_PERCENT: usize = 5;

/// Lines at which a doc comment begins, and whether it begins with a question word.
fn openings(source: &str) -> Vec<(usize, bool)> {
    let mut found = Vec::new();
    let mut is_inside = false;
    for (at, line) in source.lines().map(str::trim_start).enumerate() {
        let text = line.strip_prefix("///").or(line.strip_prefix("//!"));
        if let Some(text) = text.filter(|_| !is_inside) {
            let word = text.split_whitespace().next().unwrap_or_default();
            found.push((at + 1, QUESTIONS.contains(&word)));
        }
        is_inside = text.is_some();
    }
    found
}

#[test]
fn doc_comments_begin_with_the_noun_or_the_verb() {
    let root = repository().unwrap();
    let mut files: Vec<PathBuf> = Vec::new();
    for dir in ["crates", "xtask"] {
        rust_files(&root.join(dir), &mut files);
    }
    let (mut all, mut wrong) = (0, Vec::new());
    for path in files {
        for (line, is_question) in openings(&fs::read_to_string(&path).unwrap()) {
            all += 1;
            if is_question {
                let path = path.strip_prefix(root).unwrap_or(&path);
                wrong.push(format!("{}:{line}", path.display()));
            }
        }
    }
    assert!(all > 10_000, "these are not all: {all}");
    assert!(
        100 * wrong.len() <= MOST_PERCENT * all,
        "{} of {all} doc comments begin with a question word: {wrong:#?}",
        wrong.len()
    );
}

#[test]
fn a_question_word_is_found() {
    let source = "//! Whose it is.\n//! What it is.\nfn a() {}\n    /// The owner.\n/// Who.\n\
                  struct B;\n/// Whatever comes.\n// What is no doc comment.\n/// How it goes.\n";
    let expected = [(1, true), (4, false), (7, false), (9, true)];
    assert_eq!(openings(source), expected);
}
