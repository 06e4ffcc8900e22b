//! `cargo xtask chart`: renders the Helm chart into `deploy/kubernetes/`, for those who use kubectl
//! alone, and its values into the guide. Tests hold them equal.

use std::fs;

use anyhow::{Context, Result};
use sublet_testbed::{Helm, NAMESPACE_MANIFEST, Progress, chart_folder, with_table_of_values};

use crate::setup::repository;

/// Writes the files anew, and removes those of templates that are gone.
pub(crate) fn run() -> Result<()> {
    let repository = repository()?;
    let helm = Helm::build(repository, &mut Progress::new())?;
    let chart = chart_folder(repository);
    let manifests = helm.manifests(&chart, &[])?;
    let folder = repository.join("deploy/kubernetes");
    for entry in fs::read_dir(&folder).context("read deploy/kubernetes")? {
        let path = entry?.path();
        let name = path.file_name().context("no name")?.to_string_lossy();
        if name != NAMESPACE_MANIFEST && !manifests.contains_key(name.as_ref()) {
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    for (name, text) in &manifests {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    let page = repository.join("docs/guide/install.md");
    let values = fs::read_to_string(chart.join("values.yaml")).context("read values.yaml")?;
    let text = fs::read_to_string(&page).context("read docs/guide/install.md")?;
    fs::write(&page, with_table_of_values(&text, &values)?).context("write the guide")?;
    println!("{} files in {}", manifests.len(), folder.display());
    Ok(())
}
