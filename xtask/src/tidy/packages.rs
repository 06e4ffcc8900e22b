//! Packages of others, as `deny.toml` allows them: their licences, where they come from, which never
//! come in, and which stand there twice. `cargo deny` checks the same and known weaknesses too, where
//! it is installed; it is not fetched for the tests, because building it takes minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::setup::{cargo, repository};

/// The rules of `deny.toml` that are checked here.
#[derive(Debug, Default)]
struct Rules {
    licences: BTreeSet<String>,
    banned: BTreeSet<String>,
    /// Packages that may stand there in another version too: name, and how that begins.
    twice: Vec<(String, String)>,
}

impl Rules {
    fn read(text: &str) -> Rules {
        let quoted = |key: &str| -> Vec<&str> {
            let start = format!("\n{key} = [\n");
            let list = text.split_once(&start).map_or("", |(_, rest)| rest);
            let list = list.split_once("\n]").map_or("", |(list, _)| list);
            list.lines()
                .filter_map(|line| line.split('"').nth(1))
                .collect()
        };
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        let twice = quoted("skip")
            .into_iter()
            .filter_map(|one| one.split_once('@'));
        Rules {
            licences: owned(quoted("allow")),
            banned: owned(quoted("deny")),
            twice: twice
                .map(|(name, version)| (name.to_owned(), version.to_owned()))
                .collect(),
        }
    }

    /// Does an SPDX expression ask for nothing but what is allowed? (SPDX 2.3, annex D; `/` is an
    /// older form of `OR`.)
    fn allows(&self, expression: &str) -> bool {
        let spaced = expression
            .replace('/', " OR ")
            .replace('(', " ( ")
            .replace(')', " ) ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let mut rest = words.as_slice();
        self.any(&mut rest) && rest.is_empty()
    }

    fn any(&self, rest: &mut &[&str]) -> bool {
        let mut allowed = self.all(rest);
        while let ["OR", after @ ..] = *rest {
            *rest = after;
            allowed |= self.all(rest);
        }
        allowed
    }

    fn all(&self, rest: &mut &[&str]) -> bool {
        let mut allowed = self.one(rest);
        while let ["AND", after @ ..] = *rest {
            *rest = after;
            allowed &= self.one(rest);
        }
        allowed
    }

    fn one(&self, rest: &mut &[&str]) -> bool {
        match *rest {
            ["(", after @ ..] => {
                *rest = after;
                let allowed = self.any(rest);
                if let [")", after @ ..] = *rest {
                    *rest = after;
                }
                allowed
            }
            [name, "WITH", exception, after @ ..] => {
                *rest = after;
                self.licences.contains(&format!("{name} WITH {exception}"))
            }
            [name, after @ ..] => {
                *rest = after;
                self.licences.contains(*name)
            }
            [] => false,
        }
    }

    /// Faults of the packages, which `cargo metadata` has told.
    fn faults(&self, packages: &[&Value]) -> Vec<String> {
        let text = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
        let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut faults = Vec::new();
        for one in packages {
            let (name, version) = (text(one, "name"), text(one, "version"));
            let licence = text(one, "license");
            if !self.allows(&licence) {
                faults.push(format!("{name} {version} has the licence `{licence}`"));
            }
            if self.banned.contains(&name) {
                faults.push(format!("{name} {version} is banned"));
            }
            let source = text(one, "source");
            if !source.starts_with("registry+") && !source.starts_with("sparse+") {
                faults.push(format!("{name} {version} comes from `{source}`"));
            }
            let is_skipped = |(known, begins): &&(String, String)| {
                *known == name && (version == *begins || version.starts_with(&format!("{begins}.")))
            };
            if self.twice.iter().find(is_skipped).is_none() {
                versions.entry(name).or_default().insert(version);
            }
        }
        let several = versions
            .into_iter()
            .filter(|(_, versions)| versions.len() > 1);
        faults.extend(several.map(|(name, versions)| format!("{name} is there as {versions:?}")));
        faults
    }
}

#[test]
fn packages_of_others_are_those_that_are_allowed() {
    let root = repository().unwrap();
    let rules = Rules::read(&fs::read_to_string(root.join("deny.toml")).unwrap());
    assert!(
        rules.licences.len() > 5 && rules.banned.len() > 2 && rules.twice.len() > 5,
        "{rules:?}"
    );
    let mut command = cargo(&["metadata", "--format-version=1", "--locked"]).unwrap();
    command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let used = metadata["resolve"]["nodes"].as_array().unwrap().iter();
    let used: BTreeSet<&str> = used.filter_map(|node| node["id"].as_str()).collect();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let others: Vec<&Value> = packages
        .filter(|one| !one["source"].is_null() && used.contains(one["id"].as_str().unwrap()))
        .collect();
    assert!(others.len() > 200, "these are not all: {}", others.len());
    let faults = rules.faults(&others);
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn licences_are_read_as_expressions() {
    let rules = Rules::read(
        "\nallow = [\n    \"MIT\",\n    \"Apache-2.0\",\n    \"Apache-2.0 WITH LLVM-exception\",\n]\n\
         deny = [\n    { crate = \"bad\", reason = \"r\" },\n]\nskip = [\n    { crate = \"two@1\" },\n]\n",
    );
    for allowed in [
        "MIT",
        "MIT OR GPL-3.0",
        "GPL-3.0 OR (MIT AND Apache-2.0)",
        "MIT/Apache-2.0",
        "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
    ] {
        assert!(rules.allows(allowed), "{allowed}");
    }
    for refused in [
        "",
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "MIT MIT",
        "(MIT OR X) AND GPL-3.0",
        "MIT WITH X",
    ] {
        assert!(!rules.allows(refused), "{refused}");
    }
    let package = |name: &str, version: &str, source: &str| serde_json::json!({ "name": name, "version": version, "license": "MIT", "source": source });
    let faults = |all: &[Value]| rules.faults(&all.iter().collect::<Vec<_>>());
    let from = "registry+x";
    assert_eq!(
        faults(&[package("two", "1.3.0", from), package("two", "2.0.0", from)]),
        [""; 0]
    );
    assert_eq!(
        faults(&[package("one", "1.0.0", from), package("one", "2.0.0", from)]).len(),
        1
    );
    assert_eq!(
        faults(&[
            package("two", "10.0.0", from),
            package("two", "2.0.0", from)
        ])
        .len(),
        1
    );
    assert_eq!(faults(&[package("bad", "1.0.0", "git+x")]).len(), 2);
}
