//! Runs the user's `helm`. Its errors and warnings go to standard error as it words them.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use tempfile::TempDir;

use super::manifests::{CHART, NAMESPACE, RELEASE};
use super::values::Choices;
use crate::answer::Advised;

/// Ways to go on where there is no helm.
pub(super) const WITHOUT: &str = "install it (https://helm.sh/docs/intro/install), or give \
                                  kubectl what `sublet install --manifests` prints";

/// File of our values beside the chart.
const VALUES: &str = "values.json";

/// Its version; `None` if there is none that runs.
pub(super) fn version() -> Option<String> {
    let text = run(None, ["version", "--short"]).ok()?;
    Some(text.trim().to_owned())
}

/// Has helm do something with the carried chart: `words` are the command and its options. Returns
/// what it printed.
///
/// # Errors
/// There is no helm, or it fails.
pub(super) fn with_chart(
    kubeconfig: Option<&Path>,
    words: &[&str],
    choices: &Choices,
) -> anyhow::Result<String> {
    let folder = unpack(choices).context("cannot write the chart for helm")?;
    let chart = folder.path().join(RELEASE);
    let values = folder.path().join(VALUES);
    let mut args: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
    args.extend([OsStr::new(RELEASE), chart.as_os_str()]);
    args.extend([OsStr::new("--values"), values.as_os_str()]);
    for (flag, given) in [("--values", &choices.files), ("--set", &choices.set)] {
        for one in given {
            args.extend([OsStr::new(flag), OsStr::new(one)]);
        }
    }
    Ok(run(kubeconfig, args)?)
}

/// Runs it on the namespace of the release. Returns what it printed.
///
/// # Errors
/// There is no helm, or it fails.
pub(super) fn run(
    kubeconfig: Option<&Path>,
    words: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<String, Advised> {
    let mut helm = Command::new("helm");
    helm.args(words).args(["--namespace", NAMESPACE]);
    if let Some(file) = kubeconfig {
        helm.arg("--kubeconfig").arg(file);
    }
    // The cluster is the one that this program has looked at.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HELM_KUBE") {
            helm.env_remove(name);
        }
    }
    helm.stdin(Stdio::inherit()).stderr(Stdio::inherit());
    let output = helm.output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => Advised::new("there is no `helm` on this machine", WITHOUT),
        _ => Advised::new("cannot run `helm`", WITHOUT).caused_by(error),
    })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(Advised::new(
            format!("helm has failed: {}", output.status),
            "its own words are above",
        )),
    }
}

/// Writes the chart and our values into a new folder.
fn unpack(choices: &Choices) -> io::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    for (name, text) in CHART {
        let path = folder.path().join(RELEASE).join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder.path()))?;
        fs::write(path, text)?;
    }
    fs::write(folder.path().join(VALUES), choices.values().to_string())?;
    Ok(folder)
}
