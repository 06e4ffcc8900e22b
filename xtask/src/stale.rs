//! `cargo xtask bench --stale`: stored pages of figures whose crates changed since.
//!
//! A page counts from the commit that it names: the one that was built. The commit that last wrote
//! the file is later. By then there may be changes that no one measured, and a corrected word in
//! the page would make old figures look new. It counts only if the named one is not in the
//! repository, as after a rebase. A page of several runs counts from the oldest.
//!
//! It measures nothing, and fails for no page: without the history it says so.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sublet_testbed::bench::{BENCHES, Bench};

use crate::setup::repository;

/// Tests change no figure.
const NO_TESTS: [&str; 2] = [":(exclude,glob)**/tests.rs", ":(exclude,glob)**/tests/**"];

/// The list for this checkout, or why there is none.
pub(crate) fn list() -> String {
    let found = repository()
        .map_err(|error| error.to_string())
        .and_then(|root| stale(root, &BENCHES, SystemTime::now()));
    match found {
        Err(reason) => format!("whether stored figures are stale is not known: {reason}"),
        Ok(pages) if pages.is_empty() => {
            "no crate changed since its figures were stored".to_owned()
        }
        Ok(pages) => {
            let lines: Vec<String> = pages.iter().map(Page::to_string).collect();
            format!(
                "stored figures whose crates changed since, with lines changed (no tests):\n{}",
                lines.join("\n")
            )
        }
    }
}

/// A page with changed crates.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    bench: &'static Bench,
    since: Since,
    /// Lines added and removed, by crate.
    lines: BTreeMap<String, u64>,
}

/// The commit that a page counts from.
#[derive(Debug, PartialEq, Eq)]
struct Since {
    /// As short as git makes it.
    commit: String,
    age: Duration,
    /// True if this is the commit that last wrote the page, and not the built one.
    is_writer: bool,
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Page {
            bench,
            since,
            lines,
        } = self;
        let all: u64 = lines.values().sum();
        let mut crates: Vec<(&String, &u64)> = lines.iter().collect();
        crates.sort_by_key(|(name, lines)| (std::cmp::Reverse(**lines), *name));
        let crates: Vec<_> = crates
            .iter()
            .map(|(name, lines)| format!("{name} {lines}"))
            .collect();
        let writer = match since.is_writer {
            true => ", which last wrote it (what it names is not here)",
            false => "",
        };
        write!(
            f,
            "  {}: {} since {}{writer}, {} old; cargo xtask bench {} --write\n    {}",
            bench.page,
            count(all, "line"),
            since.commit,
            age(since.age),
            bench.command,
            crates.join(", ")
        )
    }
}

fn count(count: u64, unit: &str) -> String {
    match count {
        1 => format!("1 {unit}"),
        _ => format!("{count} {unit}s"),
    }
}

/// Days, or hours on the first.
fn age(age: Duration) -> String {
    match age.as_secs() / 3_600 {
        hours @ 0..24 => count(hours, "hour"),
        hours => count(hours / 24, "day"),
    }
}

/// The pages of `benches` in `root` with crates that changed since, the most changed first.
/// Uncommitted changes count too.
///
/// # Errors
/// Reason why git cannot answer.
fn stale(root: &Path, benches: &[&'static Bench], now: SystemTime) -> Result<Vec<Page>, String> {
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    let is_ours = fs::canonicalize(root).is_ok_and(|root| root == Path::new(&top));
    if !is_ours {
        return Err(format!(
            "the checkout has no history, it only lies in that of {top}"
        ));
    }
    if git(root, &["rev-parse", "--is-shallow-repository"])? == "true" {
        return Err("this clone is shallow; `git fetch --unshallow` gets the rest".to_owned());
    }
    let mut pages = Vec::new();
    for bench in benches {
        let Ok(text) = fs::read_to_string(root.join(bench.file())) else {
            // Never stored: a card's are not, for one.
            continue;
        };
        let Some(since) = since(root, bench, &text, now)? else {
            // Just written, by a build of something that is not here.
            continue;
        };
        let lines = changed(root, &since.commit, bench.crates)?;
        if !lines.is_empty() {
            pages.push(Page {
                bench,
                since,
                lines,
            });
        }
    }
    pages.sort_by_key(|page| std::cmp::Reverse(page.lines.values().sum::<u64>()));
    Ok(pages)
}

/// The commit that a page with this text counts from, if git knows one.
fn since(root: &Path, bench: &Bench, text: &str, now: SystemTime) -> Result<Option<Since>, String> {
    let time_of = |commit: &str| {
        let commit = format!("{commit}^{{commit}}");
        let found = git(root, &["show", "--no-patch", "--format=%ct %h", &commit]).ok()?;
        let (seconds, short) = found.split_once(' ')?;
        Some((seconds.parse::<u64>().ok()?, short.to_owned()))
    };
    let all: Option<Vec<_>> = named(text).into_iter().map(time_of).collect();
    let built = all.and_then(|commits| commits.into_iter().min());
    let is_writer = built.is_none();
    let found = match built {
        Some(built) => Some(built),
        None => time_of(&git(
            root,
            &["log", "-1", "--format=%h", "--", &bench.file()],
        )?),
    };
    Ok(found.map(|(seconds, commit)| {
        let then = UNIX_EPOCH + Duration::from_secs(seconds);
        Since {
            commit,
            age: now.duration_since(then).unwrap_or_default(),
            is_writer,
        }
    }))
}

/// The commits that a page names. If changes were not committed at the measurement (`-dirty`), the
/// commit counts as changed since, because they cannot be told from later changes.
fn named(text: &str) -> Vec<&str> {
    let versions = text.lines().filter_map(|line| {
        let (_, rest) = line.strip_prefix("- Versions: ")?.split_once('(')?;
        rest.split([',', ')']).next()
    });
    versions
        .map(|commit| commit.strip_suffix("-dirty").unwrap_or(commit))
        .collect()
}

/// Lines added and removed in the sources of crates since a commit, by crate.
fn changed(root: &Path, since: &str, crates: &[&str]) -> Result<BTreeMap<String, u64>, String> {
    // A file that only moved has not changed, nor has a crate.
    let diff = [
        "diff",
        "--numstat",
        "--find-renames",
        "-l0",
        "-z",
        since,
        "--",
        "crates",
    ];
    let told = git(root, &[&diff[..], &NO_TESTS].concat())?;
    let mut fields = told.split('\0').filter(|field| !field.is_empty());
    let mut lines = BTreeMap::new();
    while let Some(field) = fields.next() {
        let mut words = field.splitn(3, '\t');
        // Of a binary file there is `-`.
        let mut count = || words.next().and_then(|count| count.parse::<u64>().ok());
        let count = count().unwrap_or(0) + count().unwrap_or(0);
        let path = match words.next() {
            // A file that moved: its old name and its new one follow.
            Some("") => fields.nth(1),
            path => path,
        };
        let name = crates
            .iter()
            .find(|name| is_of(path.unwrap_or_default(), name));
        if let (Some(name), true) = (name, count > 0) {
            *lines.entry((*name).to_owned()).or_default() += count;
        }
    }
    Ok(lines)
}

/// Is the file one of the crate's? Its folder has its name, once with `sublet-` before it.
fn is_of(path: &str, name: &str) -> bool {
    let folder = path.split("/src/").next().unwrap_or_default();
    let last = folder.rsplit('/').next().unwrap_or_default();
    let short = |name: &str| name.strip_prefix("sublet-").unwrap_or(name).to_owned();
    short(last) == short(name)
}

/// Git's output, without the last line's end. The error is its own words, or why there is no git.
fn git(root: &Path, words: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(root).args(words);
    // A hook of git's runs with these of another checkout.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        command.env_remove(name);
    }
    let output = command
        .output()
        .map_err(|error| format!("git cannot be run ({error})"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let first = text.lines().next().unwrap_or("git failed");
        return Err(first.to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.trim_end_matches('\n').to_owned())
}

#[cfg(test)]
mod tests;
