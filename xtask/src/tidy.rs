//! Rules of the house that no compiler checks; `cargo test -p xtask` does.
//!
//! Each failure names the file and what to do. Rules that clippy or rustc can hold are in the
//! workspace's lint table instead.

mod benchmarks;
mod circles;
mod comments;
mod documents;
mod names;
mod packages;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::setup::repository;

/// The rings of ARCHITECTURE.md, innermost first: the folders of `crates/` that each consists of. A
/// crate may use crates of its own ring and of the rings before it; its tests also crates of the last
/// ring, which prove.
const RINGS: [&[&str]; 4] = [
    &["decide"],
    &["speak"],
    &["machine", "cluster", "doors", "fake"],
    &["prove"],
];

/// Crates that the purely deciding crates never link: wire formats, clocks, threads, sockets.
const NOT_FOR_DECIDING: [&str; 7] = [
    "serde",
    "serde_json",
    "tokio",
    "kube",
    "k8s-openapi",
    "rustix",
    "libc",
];

/// The crates of ours that `xtask` links: the one for tests, and one that stands by itself.
const FOR_XTASK: [&str; 2] = ["sublet-testbed", "sublet-library"];

/// Our crates that link the fake driver: its two libraries, the view of its cards, and the crates
/// that make fake machines. All others meet it as they meet the real one.
const FOR_FAKE: [&str; 5] = [
    "sublet-fakecuda",
    "sublet-fakenvml",
    "sublet-fakeview",
    "sublet-cli",
    "sublet-agent",
];

/// Names that say nothing about the contents.
const BANNED_MODULES: [&str; 5] = ["utils", "helpers", "common", "misc", "types"];

const MAX_LINES: usize = 500;

/// A dependency of a crate.
#[derive(Debug, PartialEq, Eq)]
struct Dependency {
    name: String,
    /// By its tests alone.
    tests: bool,
}

/// Reads the tables of dependencies in a manifest.
fn dependencies(manifest: &str) -> Vec<Dependency> {
    let mut table = "";
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            table = name.trim_end_matches(']');
        } else if table.ends_with("dependencies") && !line.starts_with('#') {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            found.extend((!name.is_empty()).then(|| Dependency {
                name: name.to_owned(),
                tests: table.ends_with("dev-dependencies"),
            }));
        }
    }
    found
}

/// One of our crates.
#[derive(Debug)]
struct Member {
    /// Its folder, from the root of the repository.
    folder: PathBuf,
    manifest: String,
}

impl Member {
    /// Its ring; `xtask` proves, too.
    fn ring(&self) -> Option<usize> {
        let mut parts = self.folder.iter().filter_map(|part| part.to_str());
        match (parts.next(), parts.next()) {
            (Some("xtask"), None) => Some(RINGS.len() - 1),
            (Some("crates"), Some(part)) => RINGS.iter().position(|ring| ring.contains(&part)),
            _ => None,
        }
    }
}

/// All our crates by name.
fn members() -> &'static BTreeMap<String, Member> {
    static MEMBERS: LazyLock<BTreeMap<String, Member>> = LazyLock::new(|| {
        let root = repository().unwrap();
        let within = |folder: PathBuf| {
            let entries = fs::read_dir(folder).unwrap();
            entries.map(|entry| entry.unwrap().path())
        };
        let crates = within(root.join("crates")).flat_map(within);
        let read = |path: PathBuf| {
            let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap();
            let name = manifest
                .lines()
                .find_map(|line| line.strip_prefix("name = "));
            let folder = path.strip_prefix(root).unwrap().to_owned();
            let name = name.unwrap().trim_matches('"').to_owned();
            (name, Member { folder, manifest })
        };
        crates.chain([root.join("xtask")]).map(read).collect()
    });
    &MEMBERS
}

fn ring(name: &str) -> Option<usize> {
    members().get(name).and_then(Member::ring)
}

/// Faults in the dependencies of one crate.
fn wrong_edges(name: &str, dependencies: &[Dependency]) -> Vec<String> {
    let Some(own) = ring(name) else {
        return vec![format!(
            "{name} stands in no ring: its folder is in none of {RINGS:?} of crates/"
        )];
    };
    let mut wrong = Vec::new();
    for Dependency { name: used, tests } in dependencies {
        let proves = |ring| *tests && ring == RINGS.len() - 1;
        if ring(used).is_some_and(|ring| ring > own && !proves(ring)) {
            wrong.push(format!("{name} uses {used}, which stands in an outer ring"));
        }
        if used == "sublet-fakegpu" && own < RINGS.len() - 1 && !tests && !FOR_FAKE.contains(&name)
        {
            wrong.push(format!(
                "{name} uses sublet-fakegpu: load it as a driver, by path"
            ));
        }
        if own == 0 && NOT_FOR_DECIDING.contains(&used.as_str()) {
            wrong.push(format!("{name} only decides, and must not link {used}"));
        }
        if name == "xtask" && used.starts_with("sublet-") && !FOR_XTASK.contains(&used.as_str()) {
            wrong.push(format!(
                "xtask uses {used}: a broken product must not break this door"
            ));
        }
    }
    wrong
}

/// Faults in one source file.
fn wrong_lines(path: &Path, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if !text.starts_with("//!") {
        wrong.push("must open with `//!`: why it exists, what it never does".to_owned());
    }
    let lines = text.lines().count();
    if lines > MAX_LINES {
        wrong.push(format!(
            "has {lines} lines, more than {MAX_LINES}: split it"
        ));
    }
    let parts = path.with_extension("");
    for part in parts.iter().filter_map(|part| part.to_str()) {
        if BANNED_MODULES.contains(&part) {
            wrong.push(format!("`{part}` says nothing about what is inside"));
        }
    }
    // Put together here, so that this file is not its own finding.
    for banned in ["ignore", "should_panic"].map(|name| format!("#[{name}")) {
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim_start().starts_with(&banned) {
                wrong.push(format!(
                    "line {number}: `{banned}]` hides a test: fix or remove it"
                ));
            }
        }
    }
    wrong
        .into_iter()
        .map(|what| format!("{}: {what}", path.display()))
        .collect()
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // Generated code is checked by being generated again.
            if !path.ends_with("gen") && !path.ends_with("target") {
                rust_files(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn crates_keep_to_their_rings() {
    let wrong: Vec<String> = members()
        .iter()
        .flat_map(|(name, member)| wrong_edges(name, &dependencies(&member.manifest)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A crate is found where its name says.
#[test]
fn the_folder_of_a_crate_has_its_name() {
    for (name, Member { folder, .. }) in members() {
        let last = folder.file_name().unwrap().to_str().unwrap();
        let short = name.strip_prefix("sublet-").unwrap_or(name);
        assert_eq!(last, short, "{name} stands in {}", folder.display());
    }
}

/// `crates_keep_to_their_rings` holds the manifests to it.
#[test]
fn only_what_makes_fake_machines_links_the_fake_driver() {
    let links = |name: &str, table: &str| {
        let manifest = format!("[{table}]\nsublet-fakegpu.workspace = true\n");
        wrong_edges(name, &dependencies(&manifest)).is_empty()
    };
    for name in FOR_FAKE {
        assert!(links(name, "dependencies"), "{name}");
    }
    for name in ["sublet-hook", "sublet-libcuda", "sublet-arbiter"] {
        assert!(!links(name, "dependencies"), "{name}");
        assert!(links(name, "dev-dependencies"), "{name}");
    }
}

#[test]
fn source_files_keep_to_the_house_style() {
    let root = repository().unwrap();
    let mut files = Vec::new();
    for dir in ["crates", "xtask"] {
        rust_files(&root.join(dir), &mut files);
    }
    assert!(files.len() > 20, "only {} source files found", files.len());
    let wrong: Vec<String> = files
        .iter()
        .flat_map(|path| {
            wrong_lines(
                path.strip_prefix(root).unwrap(),
                &fs::read_to_string(path).unwrap(),
            )
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_wrong_edge_is_found() {
    let manifest = "[package]\nname = \"sublet-model\"\n\n[dependencies]\nserde.workspace = true\n\
        # tokio.workspace = true\n[dev-dependencies]\nsublet-api = { workspace = true }\n[lints]\nkube = 1\n";
    let found = dependencies(manifest);
    let found = found.iter().map(|one| (one.name.as_str(), one.tests));
    assert_eq!(
        found.collect::<Vec<_>>(),
        [("serde", false), ("sublet-api", true)]
    );
    let wrong = |name: &str, manifest: &str| wrong_edges(name, &dependencies(manifest)).len();
    assert_eq!(wrong("sublet-model", manifest), 2);
    assert_eq!(wrong("sublet-api", manifest), 0);
    assert_eq!(wrong("xtask", manifest), 1);
    for (table, n_wrong) in [
        ("dependencies", 1),
        ("build-dependencies", 1),
        ("dev-dependencies", 0),
    ] {
        let manifest = format!("[{table}]\nsublet-fakearbiter.workspace = true\n");
        assert_eq!(wrong("sublet-libcuda", &manifest), n_wrong, "{table}");
    }
    assert_eq!(wrong_edges("sublet-new", &[]).len(), 1);
}

#[test]
fn a_wrong_file_is_found() {
    let bad = format!(
        "use std::fs;\n{}]\nfn f() {{}}\n{}",
        "    #[ignore",
        "\n".repeat(500)
    );
    assert_eq!(
        wrong_lines(Path::new("crates/a/src/utils.rs"), &bad).len(),
        4
    );
    assert_eq!(
        wrong_lines(Path::new("crates/a/src/types/b.rs"), "//! Why.\n").len(),
        1
    );
    assert_eq!(
        wrong_lines(Path::new("crates/a/src/b.rs"), "//! Why.\n"),
        [""; 0]
    );
}
