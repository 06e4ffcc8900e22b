//! Paths in the code of a module, and the file that declares what each names, as far as `circles`
//! asks.

use std::collections::BTreeMap;

use super::code::{after_bracket, is_word, token};

/// Most names under which one item is exported again. A macro may export a name as itself.
const EXPORTS_MAX: usize = 8;

/// Files of the modules of a crate, by the names that lead to a module.
pub(super) type Modules = BTreeMap<Vec<String>, String>;

/// Paths of `use`, by the names that lead to the item that each brings in.
pub(super) type Uses<'paths> = BTreeMap<Vec<String>, &'paths Path>;

/// Path in the code of a module.
pub(super) struct Path {
    here: Vec<String>,
    names: Vec<String>,
    /// Name that a `use` brings in.
    brought: Option<String>,
}

impl Path {
    /// Returns a path of `use` with the names that lead to what it brings in.
    pub(super) fn known(&self) -> Option<(Vec<String>, &Self)> {
        Some((joined(&self.here, self.brought.as_ref()?), self))
    }
}

pub(super) fn joined(module: &[String], name: &str) -> Vec<String> {
    let mut names = module.to_vec();
    names.push(name.to_owned());
    names
}

/// Paths that are written at `at`, each with the name that a `use` of it brings in, and the
/// position after them.
fn paths(code: &[String], at: usize) -> (Vec<(Vec<String>, String)>, usize) {
    let is_name = |at: usize| token(code, at) == "*" || token(code, at).starts_with(is_word);
    if token(code, at) == "{" {
        let end = after_bracket(code, at);
        let mut found = Vec::new();
        let mut next = at + 1;
        while next + 1 < end {
            let (more, end_of_path) = paths(code, next);
            found.extend(more);
            next = end_of_path;
            while next + 1 < end && token(code, next) != "," {
                next += 1;
            }
            next += 1;
        }
        return (found, end);
    }
    if !is_name(at) {
        return (Vec::new(), at + 1);
    }
    let first = token(code, at).to_owned();
    if token(code, at + 1) != "::" || !(is_name(at + 2) || token(code, at + 2) == "{") {
        let is_renamed = token(code, at + 1) == "as";
        let brought = token(code, if is_renamed { at + 2 } else { at }).to_owned();
        return (vec![(vec![first], brought)], at + 1);
    }
    let (mut found, end) = paths(code, at + 2);
    for (path, brought) in &mut found {
        path.insert(0, first.clone());
        if brought == "self" {
            brought.clone_from(&first);
        }
    }
    (found, end)
}

/// Paths in the code of a module.
pub(super) fn written(code: &[String], module: &[String]) -> Vec<Path> {
    let mut found = Vec::new();
    let mut here = module.to_vec();
    // Depths in brackets at which modules inside the file begin.
    let mut inside = Vec::new();
    let (mut depth, mut at) = (0_usize, 0);
    while at < code.len() {
        let (word, before) = (token(code, at), token(code, at.wrapping_sub(1)));
        let is_visibility = before == "in" && token(code, at.wrapping_sub(2)) == "(";
        let is_used = before == "use";
        let is_path = word.starts_with(is_word)
            && token(code, at + 1) == "::"
            && before != "::"
            && !is_visibility;
        if is_used || is_path {
            let (all, end) = paths(code, at);
            let all = all
                .into_iter()
                .filter(|(names, _)| is_used || names.len() > 1);
            found.extend(all.map(|(names, brought)| Path {
                here: here.clone(),
                names,
                brought: (is_used && brought != "*").then_some(brought),
            }));
            at = end;
            continue;
        }
        match word {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            "mod" if token(code, at + 2) == "{" => {
                inside.push(depth);
                here.push(token(code, at + 1).to_owned());
                at += 1;
            }
            _ => {}
        }
        if word == "}" && inside.last() == Some(&depth) {
            inside.pop();
            here.pop();
        }
        at += 1;
    }
    found
}

/// Module that the names lead to from the module `here`, and the names that are left.
fn follow<'names>(
    names: &'names [String],
    here: &[String],
    modules: &Modules,
) -> Option<(Vec<String>, &'names [String])> {
    let first = names.first()?.as_str();
    let (mut module, mut rest) = (here.to_vec(), names);
    if first == "crate" {
        module.clear();
        rest = &names[1..];
    } else if first != "self" && first != "super" && !modules.contains_key(&joined(here, first)) {
        return None;
    }
    while let Some(name) = rest.first() {
        let inner = joined(&module, name);
        if name == "super" {
            module.pop();
        } else if modules.contains_key(&inner) {
            module = inner;
        } else if name != "self" {
            break;
        }
        rest = &rest[1..];
    }
    Some((module, rest))
}

/// Returns the file that declares what a path names, and the name that the path uses there. What
/// comes from another crate belongs to the file that brings it in.
pub(super) fn resolve(path: &Path, modules: &Modules, uses: &Uses) -> Option<(String, String)> {
    let (mut here, mut names) = (path.here.clone(), path.names.clone());
    let mut found = None;
    for _ in 0..EXPORTS_MAX {
        let Some((mut module, rest)) = follow(&names, &here, modules) else {
            break;
        };
        let name = rest.first().map_or("self", String::as_str).to_owned();
        let used = uses.get(&joined(&module, &name));
        // A module inside a file belongs to the file.
        while !modules.contains_key(&module) {
            module.pop()?;
        }
        found = Some((modules[&module].clone(), name));
        let Some(used) = used else {
            break;
        };
        here = used.here.clone();
        names = [&used.names, rest.get(1..).unwrap_or_default()].concat();
    }
    found
}
