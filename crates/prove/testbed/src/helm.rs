//! The real `helm`, built from its pinned Go module in `tools/helm`, and its output for the chart.
//!
//! It has a cache entry of its own, so that another Kubernetes does not build it again. Nothing here
//! knows what is in the chart: [`Helm::manifests`] only sorts the output of `helm template` into
//! files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::build::{Go, default_cache, key, whole};
use crate::progress::Progress;

const MODULE: &str = "helm.sh/helm/v4";

/// The name and the namespace under which `deploy/kubernetes/` is rendered.
const RELEASE: [&str; 3] = ["sublet", "--namespace", "sublet-system"];

/// The program `helm`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Helm {
    program: PathBuf,
}

impl Helm {
    /// The one that `cargo xtask` built, in `SUBLET_HELM`; `None` if it is not set.
    #[must_use]
    pub fn from_env() -> Option<Helm> {
        let program = std::env::var_os("SUBLET_HELM").filter(|path| !path.is_empty())?;
        Some(Helm {
            program: program.into(),
        })
    }

    /// Builds it, if that is not done.
    ///
    /// # Errors
    /// When Go is missing or too old, or the build fails: the end of Go's output.
    pub fn build(repository: &Path, progress: &mut Progress) -> Result<Helm> {
        let source = repository.join("tools");
        let root = default_cache()?
            .join("helm")
            .join(key(&source.join("helm"))?);
        fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
        let lock = fs::File::create(root.join("lock"))?;
        lock.lock()?;
        let program = root.join("bin/helm");
        if !program.exists() {
            progress.say("building helm from its pinned Go module (once: 2 to 5 minutes)");
            let mut go = Go { source, progress };
            whole(&root, "bin", |out| {
                let version = go.list("helm", "Version", MODULE)?;
                let stamp = format!("-X {MODULE}/internal/version.version={version}");
                let package = format!("{MODULE}/cmd/helm");
                let what = format!("helm {version}");
                go.build("helm", &what, out, &stamp, &[], &[&package])
            })?;
        }
        Ok(Helm { program })
    }

    /// The file, for `SUBLET_HELM`.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Has a program find it as `helm`, before any other.
    pub fn put_on_path(&self, command: &mut Command) {
        let mut folders = self.program.with_file_name("").into_os_string();
        folders.push(":");
        folders.push(std::env::var_os("PATH").unwrap_or_default());
        command.env("PATH", folders);
    }

    /// Runs it; returns what it printed. It keeps nothing in the user's folders.
    ///
    /// # Errors
    /// When it fails: the error has what it said.
    pub fn run(&self, args: &[&str], kubeconfig: Option<&Path>) -> Result<String> {
        let home = tempfile::tempdir()?;
        let output = Command::new(&self.program)
            .args(args)
            .env("HOME", home.path())
            .env("KUBECONFIG", kubeconfig.unwrap_or(Path::new("/dev/null")))
            .env_remove("HELM_NAMESPACE")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("run {}", self.program.display()))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "helm {}: {}",
            args.join(" "),
            errors.trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The manifests of a chart with more arguments, such as `--set`, file by file.
    ///
    /// # Errors
    /// When helm refuses the chart or a value.
    pub fn manifests(&self, chart: &Path, more: &[&str]) -> Result<BTreeMap<String, String>> {
        let chart = chart.display().to_string();
        let args = [&["template"], &RELEASE[..1], &[&chart], &RELEASE[1..], more].concat();
        Ok(by_file(&self.run(&args, None)?))
    }

    /// Files of the repository for users of kubectl, by folder: the chart with its default values,
    /// and the files that differ with the queue.
    ///
    /// # Errors
    /// When helm refuses the chart.
    pub fn shipped(&self, chart: &Path) -> Result<[(&'static str, BTreeMap<String, String>); 2]> {
        let plain = self.manifests(chart, &[])?;
        let mut queue = self.manifests(chart, &["--set", "queue.enabled=true"])?;
        queue.retain(|name, text| plain.get(name) != Some(text));
        Ok([
            ("deploy/kubernetes", plain),
            ("deploy/kubernetes/queue", queue),
        ])
    }
}

/// Folder of the chart in the repository.
#[must_use]
pub fn chart_folder(repository: &Path) -> PathBuf {
    repository.join("deploy/chart/sublet")
}

/// Splits the output of `helm template` by the template that each document comes from.
fn by_file(printed: &str) -> BTreeMap<String, String> {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for document in printed.split("---\n# Source: ").skip(1) {
        let (source, text) = document.split_once('\n').unwrap_or((document, ""));
        let name = source.rsplit('/').next().unwrap_or(source);
        let file = files.entry(name.to_owned()).or_default();
        if !file.is_empty() {
            file.push_str("---\n");
        }
        file.push_str(text.trim_end());
        file.push('\n');
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_of_one_template_are_one_file() {
        let printed = "---\n# Source: sublet/templates/1.yaml\n# Why: a.\na: 1\n\n---\n# Source: \
                       sublet/templates/2.yaml\nb: 2\n---\n# Source: sublet/templates/1.yaml\nc: 3\n";
        let files = by_file(printed);
        assert_eq!(files["1.yaml"], "# Why: a.\na: 1\n---\nc: 3\n");
        assert_eq!(files["2.yaml"], "b: 2\n");
        assert_eq!(files.len(), 2);
    }
}
