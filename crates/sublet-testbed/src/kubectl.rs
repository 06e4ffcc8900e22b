//! The program `kubectl` of a test cluster.

use std::io::{Seek, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// kubectl as one user of one cluster.
#[derive(Debug, Clone)]
pub(crate) struct Kubectl {
    pub(crate) binary: PathBuf,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) cache: PathBuf,
}

impl Kubectl {
    pub(crate) fn run(&self, args: &[&str], input: Option<&str>) -> Result<String> {
        let stdin = match input {
            None => Stdio::null(),
            // A file instead of a pipe: kubectl writes while it still reads, and two full pipes
            // would block for ever.
            Some(input) => {
                let mut file = tempfile::tempfile()?;
                file.write_all(input.as_bytes())?;
                file.rewind()?;
                file.into()
            }
        };
        let output = Command::new(&self.binary)
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("KUBECACHEDIR", &self.cache)
            .stdin(stdin)
            .output()
            .with_context(|| format!("run {}", self.binary.display()))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "kubectl {}: {}",
            args.join(" "),
            errors.trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
