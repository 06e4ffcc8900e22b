//! `cargo xtask chart`: renders the Helm chart into `deploy/kubernetes/`, for those who use kubectl
//! alone. A test holds the two equal.

use std::fs;

use anyhow::{Context, Result};
use sublet_testbed::{Helm, NAMESPACE_MANIFEST, Progress, chart_folder};

use crate::setup::repository;

/// Writes the files anew, and removes those of templates that are gone.
pub(crate) fn run() -> Result<()> {
    let repository = repository()?;
    let helm = Helm::build(repository, &mut Progress::new())?;
    let manifests = helm.manifests(&chart_folder(repository), &[])?;
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
    println!("{} files in {}", manifests.len(), folder.display());
    Ok(())
}
