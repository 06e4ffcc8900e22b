//! The packages of others inside the one file: their licences, which must be handed out with it, and a
//! list for programs that look for weaknesses (CycloneDX 1.6, ECMA-424). Both are what cargo itself says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::setup::{PRODUCT, cargo};

/// The platform of what is handed out: packages of others are not in it.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Beginnings of the names of files that a licence wants to be handed out.
const TEXTS: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// A package of somebody else.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Package {
    name: String,
    version: String,
    /// An SPDX expression.
    license: String,
    repository: Option<String>,
    /// Its texts of licences, each with the name of its file.
    texts: Vec<(String, String)>,
}

/// The packages that are compiled into the product, in the order of their names.
pub(crate) fn packages() -> Result<Vec<Package>> {
    let mut command = cargo(&["metadata", "--format-version=1", "--locked"])?;
    command.args(["--filter-platform", PLATFORM]);
    let output = command.output().context("run cargo metadata")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata: {errors}");
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let inside = inside(&metadata)?;
    let all = metadata["packages"].as_array().context("no packages")?;
    let others = all
        .iter()
        .filter(|one| !one["source"].is_null() && inside.contains(text(&one["id"])));
    let mut packages = others.map(package).collect::<Result<Vec<_>>>()?;
    packages.sort();
    Ok(packages)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The packages that the product's own depend on, but for those that only build or test them.
fn inside(metadata: &Value) -> Result<BTreeSet<&str>> {
    let nodes = metadata["resolve"]["nodes"]
        .as_array()
        .context("no nodes")?;
    let needs: BTreeMap<&str, &Value> = nodes
        .iter()
        .map(|node| (text(&node["id"]), &node["deps"]))
        .collect();
    let all = metadata["packages"].as_array().context("no packages")?;
    let own = all
        .iter()
        .filter(|one| PRODUCT.contains(&text(&one["name"])));
    let mut left: Vec<&str> = own.map(|one| text(&one["id"])).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = left.pop() {
        if !seen.insert(id) {
            continue;
        }
        let needed = needs.get(id).and_then(|deps| deps.as_array());
        for dep in needed.into_iter().flatten() {
            let kinds = dep["dep_kinds"].as_array();
            if kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null())) {
                left.push(text(&dep["pkg"]));
            }
        }
    }
    Ok(seen)
}

fn package(one: &Value) -> Result<Package> {
    let name = text(&one["name"]).to_owned();
    let license = one["license"].as_str();
    let license = license.with_context(|| format!("{name} names no licence"))?;
    let folder = Path::new(text(&one["manifest_path"])).parent();
    let folder = folder.with_context(|| format!("{name} lies in no folder"))?;
    Ok(Package {
        version: text(&one["version"]).to_owned(),
        // Cargo once took a slash for `OR`.
        license: license.replace('/', " OR "),
        repository: one["repository"].as_str().map(str::to_owned),
        texts: texts(folder).with_context(|| format!("read {}", folder.display()))?,
        name,
    })
}

fn texts(folder: &Path) -> Result<Vec<(String, String)>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.to_uppercase();
        if path.is_file() && TEXTS.iter().any(|text| name.starts_with(text)) {
            files.push(path);
        }
    }
    files.sort();
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let contents = fs::read(&path)?;
        let text = String::from_utf8_lossy(&contents);
        Ok((name.into_owned(), text.trim_end().to_owned()))
    };
    files.into_iter().map(read).collect()
}

/// The licences, for people. A text that several packages have stands once.
pub(crate) fn licenses(packages: &[Package]) -> String {
    let mut of_text: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let mut out = String::from(
        "Sublet is licensed under Apache-2.0; its text is in LICENSE. Rust's own library is compiled \
         into it (MIT OR Apache-2.0, https://github.com/rust-lang/rust), and these packages of \
         others, each under the licence that stands beside it. Where a package has no text of its own, \
         that of the same licence below stands for it, or LICENSE.\n\n",
    );
    for package in packages {
        let Package {
            name,
            version,
            license,
            ..
        } = package;
        let from = package.repository.as_deref().unwrap_or_default();
        let _never_fails = writeln!(out, "  {name} {version}: {license}  {from}");
        for (_, text) in &package.texts {
            let users = of_text.entry(text).or_default();
            users.insert(format!("{name} {version}"));
        }
    }
    for (text, users) in of_text {
        let users: Vec<String> = users.into_iter().collect();
        let line = "-".repeat(79);
        let _never_fails = write!(out, "\n{line}\n{}:\n\n{text}\n", users.join(", "));
    }
    out
}

/// The same packages, for programs.
pub(crate) fn bill_of_materials(packages: &[Package]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let component = |package: &Package| {
        let Package { name, version, .. } = package;
        let purl = format!("pkg:cargo/{name}@{version}");
        json!({
            "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
            "licenses": [{ "expression": package.license }],
        })
    };
    let components: Vec<Value> = packages.iter().map(component).collect();
    let bill = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": { "component": {
            "type": "application", "bom-ref": "sublet", "name": "sublet", "version": version,
            "licenses": [{ "expression": "Apache-2.0" }],
        }},
        "components": components,
    });
    format!("{bill:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inside_is_known_with_its_licence() {
        let packages = packages().unwrap();
        let named = |name: &str| packages.iter().find(|package| package.name == name);
        let tokio = named("tokio").unwrap();
        let has_text = |(_, text): &(String, String)| text.contains("Permission is hereby granted");
        assert!(tokio.texts.iter().any(has_text));
        assert_eq!(tokio.license, "MIT");
        // What only builds or tests it is not in it, nor what other systems want.
        for absent in [
            "proptest",
            "tonic-prost-build",
            "windows-sys",
            "sublet-model",
        ] {
            assert_eq!(named(absent), None, "{absent}");
        }
        let text = licenses(&packages);
        let copies = text.matches("TERMS AND CONDITIONS FOR USE").count();
        assert!(
            copies < packages.len() / 4,
            "{copies} copies of one licence"
        );
        let bill: Value = serde_json::from_str(&bill_of_materials(&packages)).unwrap();
        let listed = bill["components"].as_array().unwrap();
        assert_eq!(listed.len(), packages.len());
        let purl = format!("pkg:cargo/tokio@{}", tokio.version);
        assert!(listed.iter().any(|one| one["purl"] == purl.as_str()));
    }
}
