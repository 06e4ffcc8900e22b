//! Sizes and offsets of C types, measured by a C program that includes the headers.
//!
//! A struct of ours with another layout than the driver's corrupts memory, and no compiler
//! says so. A unit test compares ours with the values measured here.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};

use super::declarations::Headers;
use super::definitions::{Kind, Member, definitions};

/// Offset of a member, or alignment of a whole type; and its size.
type Place = (u64, u64);

/// A type and a member of it (empty for the whole type), to their place.
pub(super) type Layout = BTreeMap<(String, String), Place>;

/// The types to measure: those that the crate declares.
pub(super) const CUDA_TYPES: &str = include_str!("cuda_types.txt");
pub(super) const NVML_TYPES: &str = include_str!("nvml_types.txt");

/// Measures the types of a list, as far as these headers have them.
pub(super) fn measure(headers: &Headers, defines: &[&str], list: &str) -> Result<Layout> {
    let text = headers.compile(&["-E", "-P"], defines, "")?;
    let defined = definitions(&text);
    let mut wanted: Vec<(String, String)> = Vec::new();
    for name in list.split_whitespace() {
        let record = defined
            .iter()
            .find(|one| one.kind == Kind::Record && one.name == name);
        wanted.push((name.to_owned(), String::new()));
        if let Some(record) = record {
            list_members(name, "", &record.members, &mut wanted);
        }
    }
    let mut program = "#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n".to_owned();
    for (name, member) in &wanted {
        writeln!(program, "{}", print_place(name, member))?;
    }
    program.push_str("return 0; }\n");
    let output = headers.run(defines, &program)?;
    let places: Vec<&str> = output.lines().collect();
    ensure!(
        places.len() == wanted.len(),
        "the C program printed too little"
    );
    wanted
        .into_iter()
        .zip(places)
        .map(|(key, place)| {
            let (at, size) = place.split_once(' ').context("a place is two numbers")?;
            Ok((key, (at.parse()?, size.parse()?)))
        })
        .collect()
}

/// A record inside another is a type of its own, named by its path: `CUarrayMapInfo.resource`.
fn list_members(name: &str, path: &str, members: &[Member], wanted: &mut Vec<(String, String)>) {
    let own = format!("{name}{path}");
    for member in members {
        wanted.push((own.clone(), member.name.clone()));
        if !member.inside.is_empty() {
            let path = format!("{path}.{}", member.name);
            wanted.push((format!("{name}{path}"), String::new()));
            list_members(name, &path, &member.inside, wanted);
        }
    }
}

fn print_place(own: &str, member: &str) -> String {
    let (name, path) = own.split_once('.').unwrap_or((own, ""));
    let (at, what) = match (path, member) {
        ("", "") => (format!("_Alignof({name})"), name.to_owned()),
        (path, "") => {
            let what = format!("((({name} *)0)->{path})");
            (format!("_Alignof(__typeof__{what})"), what)
        }
        ("", member) => (
            format!("offsetof({name}, {member})"),
            format!("((({name} *)0)->{member})"),
        ),
        (path, member) => (
            format!("offsetof({name}, {path}.{member}) - offsetof({name}, {path})"),
            format!("((({name} *)0)->{path}.{member})"),
        ),
    };
    format!("printf(\"%zu %zu\\n\", (size_t)({at}), sizeof({what}));")
}

/// The newer layout. Members of the older one must keep their places, and types their sizes.
pub(super) fn join(old: &Layout, new: Layout) -> Result<Layout> {
    let same = |(_, member): &(String, String), was: Place, now: Place| match member.as_str() {
        "" => was == now,
        // Newer members are made of these.
        "reserved" => true,
        _ => was.0 == now.0,
    };
    let moved: Vec<String> = old
        .iter()
        .map(|(key, was)| (key, *was, new.get(key).copied()))
        .filter(|(key, was, now)| !now.is_some_and(|now| same(key, *was, now)))
        .map(|(key, was, now)| format!("{key:?} from {was:?} to {now:?}"))
        .collect();
    ensure!(
        moved.is_empty(),
        "layouts changed between the packages: {moved:#?}"
    );
    Ok(new)
}

/// As the lines of a table.
pub(super) fn lines(layout: &Layout) -> Vec<String> {
    let line = |((name, member), (at, size)): (&(String, String), &Place)| {
        let member = if member.is_empty() { "-" } else { member };
        format!("{name}\t{member}\t{at}\t{size}")
    };
    layout.iter().map(line).collect()
}
