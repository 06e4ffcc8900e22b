//! `cargo xtask chart`: renders the Helm chart into `deploy/kubernetes/`, for users of plain
//! kubectl, the manifests that differ with the queue into `queue/` there, and its values into the
//! guide. Tests hold them equal.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sublet_testbed::{Helm, NAMESPACE_MANIFEST, Progress, chart_folder, with_table_of_values};

use crate::setup::repository;

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
