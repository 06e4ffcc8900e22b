//! Holds that no two modules of this folder point at each other, directly or around a circle.
//!
//! A module points at another if it names it in a path, or if it uses an account whose type is
//! declared there. The folder's own `mod.rs` puts all together and is not counted, nor are tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each module, with the modules that it points at.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Code without comments, tests and spaces.
fn code_of(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("a source file");
    let product = text.split("#[cfg(test)]\nmod tests").next();
    let lines = product.into_iter().flat_map(str::lines);
    let code = lines.map(|line| line.split("//").next().unwrap_or_default());
    code.flat_map(str::split_whitespace).collect()
}

fn name_at(code: &str) -> &str {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    &code[..code.find(|c| !is_name(c)).unwrap_or(code.len())]
}

/// Returns the first names of a path's continuation: `a` of `a::B`, `a` and `c` of `{a::{B, D},
/// c}`.
fn first_names(rest: &str) -> Vec<&str> {
    if !rest.starts_with('{') {
        return vec![name_at(rest)];
    }
    let mut names = Vec::new();
    let mut depth = 0;
    for (at, c) in rest.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        if depth == 1 && matches!(c, '{' | ',') {
            names.push(name_at(&rest[at + 1..]));
        }
    }
    names
}

/// Returns the code after each `mark`.
fn after<'code>(code: &'code str, mark: &str) -> impl Iterator<Item = &'code str> {
    code.match_indices(mark)
        .map(|(at, _)| &code[at + mark.len()..])
}

/// All modules that some code names in paths from this folder; `depth` counts the folders
/// between it and this one.
fn named(code: &str, depth: usize) -> BTreeSet<&str> {
    let relative = "super::".repeat(depth + 1);
    let absolute = after(code, "crate::cuda::").flat_map(first_names);
    let from_here: Vec<&str> = after(code, &relative).flat_map(first_names).collect();
    absolute.chain(from_here).collect()
}

/// Returns the modules that the types of each account come from.
fn accounts(root: &str, modules: &Graph) -> BTreeMap<String, Vec<String>> {
    let list = after(root, "pubstructCudaAccounts{")
        .next()
        .expect("the accounts");
    let list = &list[..list.find('}').expect("their end")];
    let fields = list
        .split(",pub")
        .map(|field| field.trim_start_matches("pub"));
    let account = |field: &str| {
        let (name, declared) = field.split_once(':')?;
        let is_of = |module: &&String| declared.contains(&format!("{module}::"));
        Some((
            name.to_owned(),
            modules.keys().filter(is_of).cloned().collect(),
        ))
    };
    fields.filter_map(account).collect()
}

/// The source files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

fn graph() -> Graph {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda");
    let own = folder.join("directions.rs");
    let root = folder.join("mod.rs");
    let mut sources: Vec<(String, usize, String)> = Vec::new();
    for path in files(&folder) {
        if path == own || path == root || path.ends_with("tests.rs") {
            continue;
        }
        let inside = path.strip_prefix(&folder).expect("a file of the folder");
        let inside = inside.with_extension("");
        let mut parts = inside.iter().map(|part| part.to_string_lossy());
        let module = parts.next().expect("a name").into_owned();
        sources.push((module, parts.count(), code_of(&path)));
    }
    let mut graph: Graph = sources
        .iter()
        .map(|(module, ..)| (module.clone(), BTreeSet::new()))
        .collect();
    let found = accounts(&code_of(&root), &graph);
    for (module, depth, code) in &sources {
        let mut all: BTreeSet<String> = named(code, *depth).into_iter().map(String::from).collect();
        let used = after(code, "accounts.").filter_map(|rest| found.get(name_at(rest)));
        all.extend(used.flatten().cloned());
        all.retain(|other| other != module && graph.contains_key(other));
        graph.entry(module.clone()).or_default().extend(all);
    }
    graph
}

#[test]
fn modules_point_at_each_other_in_no_circle() {
    let mut left = graph();
    // The parts of the graph are found: a path, a list, an account.
    for (module, other) in [("launch", "real"), ("linear", "c"), ("context", "owned")] {
        assert!(left[module].contains(other), "{module}: {:?}", left[module]);
    }
    // Who points at nobody, or is pointed at by nobody, is in no circle.
    loop {
        let before = left.len();
        let pointed_at: BTreeSet<String> = left.values().flatten().cloned().collect();
        left.retain(|module, all| !all.is_empty() && pointed_at.contains(module));
        let there: BTreeSet<String> = left.keys().cloned().collect();
        left.values_mut().for_each(|all| {
            all.retain(|other| there.contains(other));
        });
        if left.len() == before {
            break;
        }
    }
    assert!(left.is_empty(), "in a circle: {left:#?}");
}
