//! The Helm chart as a user's `helm` sees it, before any cluster: what it renders, and what it
//! refuses.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sublet_testbed::{Helm, NAMESPACE_MANIFEST, chart_folder};

/// The root of the checkout.
fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The real helm. If there is none, prints why the test is skipped.
fn helm() -> Option<Helm> {
    let helm = Helm::from_env();
    if helm.is_none() {
        println!("skipped: SUBLET_HELM is not set; run `cargo xtask test`");
    }
    helm
}

/// What kubectl's users apply is the chart with its default values. The namespace is a file of its
/// own: `helm install --create-namespace` makes it for users of helm.
#[test]
fn the_manifests_are_the_chart_with_its_default_values() -> Result<()> {
    let Some(helm) = helm() else {
        return Ok(());
    };
    let rendered = helm.manifests(&chart_folder(repository()), &[])?;
    let folder = repository().join("deploy/kubernetes");
    let mut shipped = BTreeMap::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        let name = path.file_name().context("no name")?.to_string_lossy();
        if name != NAMESPACE_MANIFEST {
            shipped.insert(name.into_owned(), fs::read_to_string(&path)?);
        }
    }
    let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&rendered), names(&shipped), "run `cargo xtask chart`");
    for (name, text) in rendered {
        assert!(
            text == shipped[&name],
            "{name} is not what the chart makes; change deploy/chart/sublet/templates/{name} and \
             run `cargo xtask chart`"
        );
        assert!(
            text.starts_with("# Why: "),
            "{name} does not say why it is there"
        );
    }
    Ok(())
}
