//! Files of a crate that point at each other around a circle can only be read, tested and moved
//! together. `circles.txt` lists the circles that are left, and can only get shorter.
//!
//! A file points at another if its code names a path into the other's module. A parent points at
//! the child that it uses or exports again; `mod b;` is no pointing. A name that a parent only
//! exports or uses leads to the file that declares it, so a child points at its parent by
//! `super::Item` only for the parent's own items. Tests do not count, nor does generated code.
//! Paths that a macro puts together from parts, and methods that need no path, are not seen.
//! Inside `machine/hook/src/cuda` the rule is stricter: no circle, also not of folders or by way
//! of an account (`modules_point_at_each_other_in_no_circle`).

mod code;
mod paths;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use self::code::{after_bracket, token, tokens, without_tests};
use self::paths::{Modules, Path, Uses, joined, resolve, written};
use super::{members, rust_files};
use crate::setup::repository;

/// Stored circles, one a line: the crate, and its files below `src`.
const LIST: &str = "xtask/src/tidy/circles.txt";

/// Command that shortens the list.
const BLESS: &str = "SUBLET_BLESS=1 cargo test -p xtask circle";

/// Sources of a crate by file, from its `src` folder.
type Sources = BTreeMap<String, String>;

/// Names that each file uses of each other file.
type Edges = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Files that all point at each other, directly or by way of the others.
type Circle = BTreeSet<String>;

fn module_of(file: &str) -> Vec<String> {
    let names = file.trim_end_matches(".rs").split('/');
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    if names.last().is_some_and(|name| name == "mod") || names == ["lib"] || names == ["main"] {
        names.pop();
    }
    names
}

/// Names that the files of a crate use of each other. A `main.rs` beside a `lib.rs` is a crate of
/// its own and does not count.
fn edges(sources: &Sources) -> Edges {
    let mut codes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut tests: BTreeSet<Vec<String>> = BTreeSet::new();
    for (file, source) in sources {
        let (code, names) = without_tests(&tokens(source));
        let module = module_of(file);
        tests.extend(names.iter().map(|name| joined(&module, name)));
        codes.insert(file.clone(), code);
    }
    let mut modules = Modules::new();
    for file in sources.keys() {
        let module = module_of(file);
        let is_test = module.iter().any(|name| name == "tests")
            || (1..=module.len()).any(|n| tests.contains(&module[..n]));
        if !is_test {
            modules.entry(module).or_insert_with(|| file.clone());
        }
    }
    // A module without a file here is generated.
    for (module, file) in modules.clone() {
        let parts = codes[&file].windows(3);
        for part in parts.filter(|part| part[0] == "mod" && part[2] == ";") {
            let generated = joined(&module, &part[1]);
            modules.entry(generated).or_insert_with(|| part[1].clone());
        }
    }
    let paths: BTreeMap<&String, Vec<Path>> = modules
        .iter()
        .filter_map(|(module, file)| Some((file, written(codes.get(file)?, module))))
        .collect();
    let uses: Uses = paths.values().flatten().filter_map(Path::known).collect();
    let mut edges = Edges::new();
    for (file, paths) in &paths {
        for path in paths {
            if let Some((other, name)) = resolve(path, &modules, &uses)
                && other != **file
            {
                let used = edges.entry((*file).clone()).or_default();
                used.entry(other).or_default().insert(name);
            }
        }
    }
    edges
}

/// Modules in the types of `CudaAccounts`' fields, by field.
fn account_modules(code: &[String]) -> BTreeMap<&str, &str> {
    let is_there = |part: &[String]| *part == ["struct", "CudaAccounts"];
    let open = code.windows(2).position(is_there).expect("the accounts") + 2;
    let (mut field, mut found) = ("", BTreeMap::new());
    for at in open..after_bracket(code, open) {
        if token(code, at) == "pub" && token(code, at + 2) == ":" {
            field = token(code, at + 1);
        } else if token(code, at + 1) == "::" {
            found.entry(field).or_insert(token(code, at));
        }
    }
    found
}

/// Modules of `cuda` in `sublet-hook` that point at each other, each with its folder as one.
/// `mod.rs` puts all together and does not count. A module that uses an account points at the
/// module of the account's type.
fn cuda_edges(sources: &Sources) -> Edges {
    let module_of = |file: &str| {
        let (name, _) = file.strip_prefix("cuda/")?.split_once(['/', '.'])?;
        (name != "mod").then(|| name.to_owned())
    };
    let code_of = |file: &str| without_tests(&tokens(&sources[file])).0;
    let root = code_of("cuda/mod.rs");
    let accounts = account_modules(&root);
    let mut found = Edges::new();
    for (file, mut used) in edges(sources) {
        let Some(module) = module_of(&file) else {
            continue;
        };
        let code = code_of(&file);
        for part in code
            .windows(3)
            .filter(|part| part[..2] == ["accounts", "."])
        {
            if let Some(other) = accounts.get(part[2].as_str()) {
                let names = used.entry(format!("cuda/{other}.rs")).or_default();
                names.insert(part[2].clone());
            }
        }
        for (other, names) in used {
            if let Some(other) = module_of(&other).filter(|other| *other != module) {
                let used = found.entry(module.clone()).or_default();
                used.entry(other).or_default().extend(names);
            }
        }
    }
    found
}

fn circles(edges: &Edges) -> BTreeSet<Circle> {
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for start in edges.keys() {
        let mut seen = BTreeSet::new();
        let mut left = vec![start.as_str()];
        while let Some(file) = left.pop() {
            for next in edges.get(file).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(next.as_str()) {
                    left.push(next.as_str());
                }
            }
        }
        reached.insert(start.as_str(), seen);
    }
    let mut found = BTreeSet::new();
    for (file, seen) in &reached {
        let mut circle = Circle::new();
        for other in seen {
            if reached.get(other).is_some_and(|back| back.contains(file)) {
                circle.insert((*other).to_owned());
            }
        }
        if !circle.is_empty() {
            found.insert(circle);
        }
    }
    found
}

/// Line of the list for a circle.
fn line(name: &str, circle: &Circle) -> String {
    let files: Vec<&str> = circle.iter().map(String::as_str).collect();
    format!("{name}: {}\n", files.join(" "))
}

/// Whether a circle, or a larger one, is in the list.
fn is_listed(list: &str, name: &str, circle: &Circle) -> bool {
    let circles = list.lines().filter_map(|line| line.split_once(": "));
    let mut files = circles
        .filter(|(of, _)| *of == name)
        .map(|(_, files)| files);
    files.any(|files| {
        let files: BTreeSet<&str> = files.split(' ').collect();
        circle.iter().all(|file| files.contains(file.as_str()))
    })
}

/// Names by which the files of a circle point at each other, so that a reader sees what to cut.
fn reasons(name: &str, circle: &Circle, edges: &Edges) -> String {
    let mut text = line(name, circle);
    for (file, used) in edges.iter().filter(|(file, _)| circle.contains(*file)) {
        for (other, names) in used.iter().filter(|(other, _)| circle.contains(*other)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            text += &format!("    {file} -> {other}: {}\n", names.join(", "));
        }
    }
    text
}

fn sources(name: &str) -> Sources {
    let root = repository().unwrap();
    let folder = root.join(&members()[name].folder).join("src");
    let mut files = Vec::new();
    rust_files(&folder, &mut files);
    let read = |path: PathBuf| {
        let file = path.strip_prefix(&folder).unwrap().display().to_string();
        (file, fs::read_to_string(&path).unwrap())
    };
    files.into_iter().map(read).collect()
}

#[test]
fn files_of_a_crate_point_at_each_other_in_no_new_circle() {
    let place = repository().unwrap().join(LIST);
    let list = fs::read_to_string(&place).unwrap();
    let (mut now, mut new, mut n_edges) = (String::new(), String::new(), 0);
    for name in members().keys() {
        let edges = edges(&sources(name));
        n_edges += edges.values().map(BTreeMap::len).sum::<usize>();
        for circle in circles(&edges) {
            now += &line(name, &circle);
            if !is_listed(&list, name, &circle) {
                new += &reasons(name, &circle, &edges);
            }
        }
    }
    assert!(n_edges > 1000, "these are not all: {n_edges}");
    assert!(
        new.is_empty(),
        "a new circle of files; cut one direction, for example by a move of the named item into \
         a file that both can use:\n{new}"
    );
    if std::env::var_os("SUBLET_BLESS").is_some() {
        fs::write(&place, &now).unwrap();
        return;
    }
    assert!(
        now == list,
        "circles of {LIST} are gone or smaller: `{BLESS}` writes what is left:\n{now}"
    );
}

#[test]
fn modules_point_at_each_other_in_no_circle() {
    let edges = cuda_edges(&sources("sublet-hook"));
    // A path and an account are found.
    for (module, other) in [("launch", "real"), ("context", "small")] {
        assert!(edges[module].contains_key(other), "{module}: {edges:#?}");
    }
    let reasons = |circle: &Circle| reasons("sublet-hook", circle, &edges);
    let wrong: String = circles(&edges).iter().map(reasons).collect();
    assert!(wrong.is_empty(), "{wrong}");
}

/// Circles of a crate of these files, as lines of the list.
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let owned = |(file, source): &(&str, &str)| ((*file).to_owned(), (*source).to_owned());
    let sources: Sources = files.iter().map(owned).collect();
    let circles = circles(&edges(&sources));
    circles.iter().map(|circle| line("x", circle)).collect()
}

#[test]
fn a_circle_of_files_is_found() {
    let root = ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;");
    let b = ("b.rs", "use super::c::{self, C as D};");
    let c = ("c.rs", "fn c() -> u8 {\n    crate::a::f(1)\n}");
    let a = ("a.rs", "use crate::{b::{B, g}, c};");
    let none = ("a.rs", "use std::fs;\nmod z {\n    use super::A;\n}");
    assert_eq!(found(&[root, a, b, c]), ["x: a.rs b.rs c.rs\n"]);
    assert_eq!(found(&[root, none, b, c]), [""; 0]);
    let two = [
        root,
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "use super::a::*;"),
    ];
    assert_eq!(found(&two), ["x: a.rs b.rs\n"]);
    // A re-export, and its use by the child or by way of the parent.
    let uses_root = ("a.rs", "use super::Other;\npub(in crate::b) struct A;");
    assert_eq!(found(&[root, uses_root]), ["x: a.rs lib.rs\n"]);
    assert_eq!(
        found(&[("main.rs", "mod a;\nfn main() {}"), uses_root]),
        [""; 0]
    );
    let parent = ("b/mod.rs", "mod d;\npub(crate) use self::d::D;");
    let child = (
        "b/d.rs",
        "mod row {\n    type E = super::super::E;\n}\nstruct D(self::row::E);",
    );
    assert_eq!(found(&[root, parent, child]), ["x: b/d.rs b/mod.rs\n"]);
}

#[test]
fn a_name_that_a_parent_exports_again_leads_to_its_own_file() {
    let root = ("lib.rs", "mod b;\npub use self::b::{E as F, d};");
    let parent = (
        "b/mod.rs",
        "pub mod d;\nmod e;\nuse self::d::D;\npub use e::*;\npub use self::e::E;",
    );
    let d = ("b/d.rs", "use crate::F;\nuse super::D as Own;");
    assert_eq!(found(&[root, parent, d, ("b/e.rs", "struct E;")]), [""; 0]);
    for e in [
        "use super::D;",
        "use crate::d::{self};",
        "fn e() { crate::d::f() }",
    ] {
        assert_eq!(
            found(&[root, parent, d, ("b/e.rs", e)]),
            ["x: b/d.rs b/e.rs\n"],
            "{e}"
        );
    }
}

#[test]
fn tests_comments_and_strings_make_no_circle() {
    let root = ("lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod e;");
    let a = ("a.rs", "use crate::b::B;");
    for b in [
        "// use crate::a::A;\n/* use crate::a::A; */\nstruct B;",
        "/// [`crate::a::A`]\nstruct B<'a>(&'a str, char);\nfn b() { x('\"', '\\'', '\"') }",
        "const B: &str = \"crate::a::A \\\" crate::a::A\";\nconst C: &str = r#\"\" crate::a::A\"#;",
        "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\nstruct B;",
        "#[cfg(test)]\n#[rustfmt::skip]\nuse crate::a::{A, f};\nstruct B;",
        "struct B {\n    #[cfg(test)]\n    a: crate::a::A,\n    b: u8,\n}",
        "pub(in crate::a) struct B;\nfn b() { self.a::<u8>() }",
    ] {
        assert_eq!(found(&[root, a, ("b.rs", b)]), [""; 0], "{b}");
        let more = format!("{b}\nuse crate::a::A;");
        assert_eq!(
            found(&[root, a, ("b.rs", more.as_str())]),
            ["x: a.rs b.rs\n"],
            "{b}"
        );
    }
    for test in ["e.rs", "e/mod.rs", "a/tests.rs", "a/tests/b.rs"] {
        let uses = ("a.rs", "mod tests;\nuse self::tests::T;\nuse super::e::E;");
        assert_eq!(
            found(&[root, uses, (test, "use crate::a::A;")]),
            [""; 0],
            "{test}"
        );
    }
}

#[test]
fn a_circle_may_only_shrink() {
    let circle =
        |files: &[&str]| -> Circle { files.iter().map(|file| (*file).to_owned()).collect() };
    let list = "x: a.rs b.rs c.rs\ny: a.rs d.rs\n";
    assert!(is_listed(list, "x", &circle(&["a.rs", "b.rs", "c.rs"])));
    assert!(is_listed(list, "x", &circle(&["a.rs", "c.rs"])));
    assert!(!is_listed(list, "x", &circle(&["a.rs", "d.rs"])));
    assert!(!is_listed(list, "y", &circle(&["a.rs", "b.rs"])));
    let edges = edges(&Sources::from([
        ("a.rs".to_owned(), "use crate::b::{B, b};".to_owned()),
        ("b.rs".to_owned(), "use crate::a::A;".to_owned()),
        ("c.rs".to_owned(), "use crate::a::A;".to_owned()),
    ]));
    let text = reasons("x", &circle(&["a.rs", "b.rs"]), &edges);
    let expected = "x: a.rs b.rs\n    a.rs -> b.rs: B, b\n    b.rs -> a.rs: A\n";
    assert_eq!(text, expected);
}
