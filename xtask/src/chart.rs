//! `cargo xtask chart`: renders the Helm chart into `deploy/kubernetes/`, for users of plain
//! kubectl, the manifests that differ with the queue into `queue/` there, and its values into the
//! guide. Tests hold them equal. A release has the chart packed, as `helm package` packs it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sublet_testbed::{Helm, NAMESPACE_MANIFEST, Progress, chart_folder, with_table_of_values};

use crate::image;
use crate::setup::{repository, run as run_command};

/// Writes the files anew, and removes the files of deleted templates.
pub(crate) fn run() -> Result<()> {
    let repository = repository()?;
    let helm = Helm::build(repository, &mut Progress::new())?;
    let chart = chart_folder(repository);
    for (folder, manifests) in helm.shipped(&chart)? {
        let folder = repository.join(folder);
        write(&folder, &manifests)?;
        println!("{} files in {}", manifests.len(), folder.display());
    }
    let page = repository.join("docs/guide/install.md");
    let values = fs::read_to_string(chart.join("values.yaml")).context("read values.yaml")?;
    let text = fs::read_to_string(&page).context("read docs/guide/install.md")?;
    fs::write(&page, with_table_of_values(&text, &values)?).context("write the guide")
}

/// Name of the chart's archive.
pub(crate) fn file_name() -> String {
    format!("sublet-{}.tgz", env!("CARGO_PKG_VERSION"))
}

/// Packs the chart with the digest of its image: a site sets the registry alone, and gets the image
/// that came with the chart or none. The same chart and digest make the same bytes.
pub(crate) fn pack(digest: &str, archive: &Path) -> Result<()> {
    let work = tempfile::tempdir().context("make a folder for the chart")?;
    let mut copy = Command::new("cp");
    run_command(
        copy.arg("--recursive")
            .arg(chart_folder(repository()?))
            .arg(work.path()),
    )?;
    let values = work.path().join("sublet/values.yaml");
    let text = fs::read_to_string(&values).context("read values.yaml")?;
    fs::write(&values, with_digest(&text, digest)?).context("write values.yaml")?;
    let mut tar = image::tar("--gzip", archive);
    run_command(tar.arg("--directory").arg(work.path()).arg("sublet"))
}

/// The values with this digest of our own image, which is the first one in the file.
fn with_digest(values: &str, digest: &str) -> Result<String> {
    let (before, image) = values.split_once("\nimage:\n").context("no image")?;
    let (own, after) = image
        .split_once("\n  digest: \"\"\n")
        .context("the image has no empty digest")?;
    let own_lines = own.lines().all(|line| line.starts_with(' '));
    ensure!(own_lines, "the digest is not the image's own");
    Ok(format!(
        "{before}\nimage:\n{own}\n  digest: \"{digest}\"\n{after}"
    ))
}

fn write(folder: &Path, manifests: &BTreeMap<String, String>) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().context("no name")?.to_string_lossy();
        if path.is_file() && name != NAMESPACE_MANIFEST && !manifests.contains_key(name.as_ref()) {
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    for (name, text) in manifests {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
