//! The Helm chart as a user's `helm` sees it, before any cluster: what it renders, and what it
//! refuses.

mod changes;
mod refused;
mod site;
mod takeover;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_testbed::{Helm, NAMESPACE_MANIFEST, chart_folder, chart_values, with_table_of_values};

/// The root of the checkout.
pub(crate) fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
}

/// The real helm. If there is none, prints why the test is skipped.
pub(crate) fn helm() -> Option<Helm> {
    let helm = Helm::from_env();
    if helm.is_none() {
        println!("skipped: SUBLET_HELM is not set; run `cargo xtask test`");
    }
    helm
}

/// The manifests for users of kubectl are the chart with its default values. The namespace is a
/// file of its own: `helm install --create-namespace` makes it for users of helm.
#[test]
fn the_manifests_are_the_chart_with_its_default_values() -> Result<()> {
    let Some(helm) = helm() else {
        return Ok(());
    };
    for (folder, rendered) in helm.shipped(&chart_folder(repository()))? {
        let mut shipped = BTreeMap::new();
        for entry in fs::read_dir(repository().join(folder))? {
            let path = entry?.path();
            let name = path.file_name().context("no name")?.to_string_lossy();
            if path.is_file() && name != NAMESPACE_MANIFEST {
                shipped.insert(name.into_owned(), fs::read_to_string(&path)?);
            }
        }
        let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&rendered), names(&shipped), "run `cargo xtask chart`");
        for (name, text) in rendered {
            assert!(
                text == shipped[&name],
                "{folder}/{name} is not what the chart makes; change \
                 deploy/chart/sublet/templates/{name} and run `cargo xtask chart`"
            );
            assert!(
                text.starts_with("# Why: "),
                "{name} does not say why it is there"
            );
        }
    }
    Ok(())
}

/// Nothing of them is left, and above all not the right to create pods.
#[test]
fn without_share_pods_the_controller_may_create_no_pod() -> Result<()> {
    let Some(helm) = helm() else {
        return Ok(());
    };
    let off = ["--set", "sharePods.enabled=false"];
    let files = helm.manifests(&chart_folder(repository()), &off)?;
    let text = |name: &str| files.get(name).cloned().unwrap_or_default();
    assert_eq!(text("16-sharepods.yaml"), "");
    assert!(text("70-controller.yaml").contains("- --no-share-pods\n"));
    for (name, gone) in [
        ("23-rbac-controller.yaml", "kubeshare.nthu"),
        ("23-rbac-controller.yaml", "# create: the pod of a SharePod"),
        ("34-controller-policy.yaml", "SharePod"),
        ("71-webhook.yaml", "resources: [sharepods]"),
    ] {
        let with = helm.manifests(&chart_folder(repository()), &[])?;
        assert!(
            with[name].contains(gone),
            "{name} has no {gone} with them either"
        );
        assert!(!text(name).contains(gone), "{gone} is left in {name}");
    }
    Ok(())
}

/// The notice on removal has a command for all that `helm uninstall` leaves: whatever values made them,
/// each of these has the label by which the command selects.
#[test]
fn the_notice_names_every_definition_that_stays() -> Result<()> {
    let Some(helm) = helm() else {
        return Ok(());
    };
    let folder = chart_folder(repository());
    let dry = [
        "install",
        "sublet",
        &folder.display().to_string(),
        "--dry-run=client",
    ];
    for (values, definitions) in [
        ("queue.enabled=true", 7),
        ("queue.enabled=false", 2),
        ("crds.install=false", 0),
        ("crds.install=false,queue.enabled=true", 4),
    ] {
        let files = helm.manifests(&folder, &["--set", values])?;
        let documents = files.values().flat_map(|text| text.split("---\n"));
        let kept: Vec<&str> = documents
            .filter(|text| text.contains("resource-policy: keep"))
            .collect();
        assert_eq!(kept.len(), definitions, "{values}");
        for text in kept {
            ensure!(
                text.contains("\nkind: CustomResourceDefinition\n"),
                "{text}"
            );
            ensure!(
                text.contains("  labels: {app.kubernetes.io/name: sublet,"),
                "{text}"
            );
        }
        let said = helm.run(&[&dry[..], &["--set", values]].concat(), None)?;
        let (_, notice) = said.split_once("\nNOTES:\n").context("no notice")?;
        let command = "kubectl delete crd --selector app.kubernetes.io/name=sublet\n";
        assert_eq!(
            notice.contains(command),
            definitions > 0,
            "{values}: {notice}"
        );
    }
    Ok(())
}

/// A digest names one image for ever, where somebody may move a tag: it counts, for each container.
#[test]
fn a_digest_counts_in_place_of_the_tag_for_every_container() -> Result<()> {
    let Some(helm) = helm() else {
        return Ok(());
    };
    let (ours, stock) = ("a".repeat(64), "b".repeat(64));
    let values = format!(
        "image.repository=r/s,image.tag=moved,image.digest=sha256:{ours},\
         scheduler.image.repository=r/k,scheduler.image.digest=sha256:{stock}"
    );
    let files = helm.manifests(&chart_folder(repository()), &["--set", &values])?;
    let mut images: BTreeMap<&str, usize> = BTreeMap::new();
    for line in files.values().flat_map(|text| text.lines()) {
        if let Some((_, image)) = line.split_once(" image: ") {
            let image = image.split_whitespace().next().context("no image")?;
            *images.entry(image).or_default() += 1;
        }
    }
    let (ours, stock) = (format!("r/s@sha256:{ours}"), format!("r/k@sha256:{stock}"));
    assert_eq!(images, BTreeMap::from([(&*ours, 4), (&*stock, 1)]));
    Ok(())
}

/// In another namespace nothing is left of the usual one: accounts, policies and webhooks know it.
#[test]
fn another_namespace_is_named_everywhere() -> Result<()> {
    let Some(helm) = helm() else {
        return Ok(());
    };
    let files = helm.manifests(&chart_folder(repository()), &["--namespace", "gpus"])?;
    for (name, text) in files {
        assert!(!text.contains("sublet-system"), "{name}:\n{text}");
    }
    Ok(())
}

/// Helm's own opinion, and the version: an image of another one would not know its flags.
#[test]
fn helm_finds_nothing_wrong_with_the_chart() -> Result<()> {
    let Some(helm) = helm() else {
        return Ok(());
    };
    let folder = chart_folder(repository());
    let said = helm.run(&["lint", "--strict", &folder.display().to_string()], None)?;
    ensure!(said.contains("0 chart(s) failed"), "{said}");
    let about = fs::read_to_string(folder.join("Chart.yaml"))?;
    let version = env!("CARGO_PKG_VERSION");
    ensure!(
        about.contains(&format!("\nversion: {version}\n")),
        "{about}"
    );
    ensure!(
        about.contains(&format!("\nappVersion: \"{version}\"\n")),
        "{about}"
    );
    Ok(())
}

/// The guide has each value as the chart has it, and the schema knows no other.
#[test]
fn the_guide_and_the_schema_have_the_values_of_the_chart() -> Result<()> {
    let yaml = fs::read_to_string(chart_folder(repository()).join("values.yaml"))?;
    let page = fs::read_to_string(repository().join("docs/guide/install.md"))?;
    assert!(
        page == with_table_of_values(&page, &yaml)?,
        "run `cargo xtask chart`"
    );
    let schema = fs::read_to_string(chart_folder(repository()).join("values.schema.json"))?;
    let mut known = BTreeSet::new();
    leaves("", &serde_json::from_str(&schema)?, &mut known);
    known.remove("global"); // helm's own
    let there = chart_values(&yaml)?.into_iter().map(|value| value.path);
    assert_eq!(known, there.collect());
    Ok(())
}

/// The paths of all properties that have none below.
fn leaves(path: &str, schema: &Value, found: &mut BTreeSet<String>) {
    match schema["properties"].as_object() {
        None => {
            found.insert(path.to_owned());
        }
        Some(properties) => {
            for (name, below) in properties {
                let dot = if path.is_empty() { "" } else { "." };
                leaves(&format!("{path}{dot}{name}"), below, found);
            }
        }
    }
}
