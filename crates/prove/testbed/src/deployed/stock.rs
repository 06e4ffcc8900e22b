//! Starts the second stock kube-scheduler: with the flags and the configuration of the shipped
//! manifests. Only addresses are replaced.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The flags of the shipped kube-scheduler that say how it works. Flags that say where it finds
/// things are left out, because the harness sets its own.
///
/// # Errors
/// When the manifest has no such container, or that container has no other flag.
pub fn scheduler_flags(repository: &Path) -> Result<Vec<String>> {
    const PLACES: [&str; 5] = [
        "--bind-address=",
        "--config=",
        "--authentication-kubeconfig=",
        "--authorization-kubeconfig=",
        "--secure-port=",
    ];
    let path = repository.join("deploy/kubernetes/50-scheduler.yaml");
    let manifest = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let (_, rest) = manifest
        .split_once("command: [kube-scheduler]\n        args:\n")
        .with_context(|| format!("{}: no kube-scheduler with args", path.display()))?;
    let lines = rest.lines().map(str::trim);
    let flags: Vec<String> = lines
        .take_while(|line| line.starts_with('#') || line.starts_with("- --"))
        .filter_map(|line| line.strip_prefix("- "))
        .filter(|flag| !PLACES.iter().any(|place| flag.starts_with(place)))
        .map(str::to_owned)
        .collect();
    ensure!(
        !flags.is_empty(),
        "{}: the kube-scheduler has no flag of its own",
        path.display()
    );
    Ok(flags)
}

/// The shipped `KubeSchedulerConfiguration` with this kubeconfig and this port.
///
/// # Errors
/// When the manifest does not contain the text to replace.
pub fn scheduler_config(repository: &Path, kubeconfig: &Path, port: u16) -> Result<String> {
    scheduler_config_of(&scheduler_manifest(repository)?, kubeconfig, port)
}

/// The manifest that has it, as it is shipped.
pub(super) fn scheduler_manifest(repository: &Path) -> Result<String> {
    let path = repository.join("deploy/kubernetes/40-scheduler-config.yaml");
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The configuration in such a manifest with this kubeconfig and this port.
pub(super) fn scheduler_config_of(manifest: &str, kubeconfig: &Path, port: u16) -> Result<String> {
    let mut config = block(manifest, "scheduler.yaml").context("no `scheduler.yaml: |`")?;
    for (from, to) in [
        (
            "/etc/sublet/config/kubeconfig",
            kubeconfig.display().to_string(),
        ),
        (
            "http://127.0.0.1:39999/",
            format!("http://127.0.0.1:{port}/"),
        ),
    ] {
        let found = config.find(from).with_context(|| format!("no `{from}`"))?;
        config.replace_range(found..found + from.len(), &to);
    }
    Ok(config)
}

/// The text under `key: |` of a ConfigMap.
fn block(manifest: &str, key: &str) -> Option<String> {
    let (_, rest) = manifest.split_once(&format!("\n  {key}: |\n"))?;
    let lines = rest
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("    "));
    Some(
        lines
            .map(|line| format!("{}\n", line.get(4..).unwrap_or_default()))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_ends_where_its_indentation_ends() {
        let manifest = "data:\n  a: |\n    one: 1\n\n    two:\n      three: 3\n  b: |\n    four\n";
        assert_eq!(
            block(manifest, "a").unwrap(),
            "one: 1\n\ntwo:\n  three: 3\n"
        );
        assert_eq!(block(manifest, "b").unwrap(), "four\n");
        assert_eq!(block(manifest, "c"), None);
    }

    #[test]
    fn the_shipped_configuration_takes_our_addresses() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let config = scheduler_config(&repository, Path::new("/k/c"), 1234).unwrap();
        assert!(
            config.starts_with("apiVersion: kubescheduler.config.k8s.io/"),
            "{config}"
        );
        assert!(config.contains("kubeconfig: /k/c\n"), "{config}");
        assert!(
            config.contains("urlPrefix: http://127.0.0.1:1234/"),
            "{config}"
        );
        assert_eq!(
            scheduler_flags(&repository).unwrap(),
            ["--pod-max-in-unschedulable-pods-duration=30s"]
        );
    }
}
