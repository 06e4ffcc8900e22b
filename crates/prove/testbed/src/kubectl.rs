//! The program `kubectl` of a test cluster.

use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cluster::Cluster;

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

impl Cluster {
    /// Runs kubectl as admin; returns what it printed.
    ///
    /// # Errors
    /// When kubectl fails: the error has what it printed.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_handle().run(args, None)
    }

    /// Runs kubectl as another user of this cluster.
    ///
    /// # Errors
    /// When there is no such user, or kubectl fails.
    pub fn kubectl_as(&self, user: &str, args: &[&str]) -> Result<String> {
        self.kubectl_by(&self.kubeconfig(user)?, args, None)
    }

    /// Runs kubectl with this kubeconfig, and this standard input where there is one.
    ///
    /// # Errors
    /// When kubectl fails.
    pub fn kubectl_by(
        &self,
        kubeconfig: &Path,
        args: &[&str],
        input: Option<&str>,
    ) -> Result<String> {
        Kubectl {
            kubeconfig: kubeconfig.to_owned(),
            ..self.kubectl_handle()
        }
        .run(args, input)
    }

    /// `kubectl apply --filename -` as admin.
    ///
    /// # Errors
    /// When the API server refuses the objects.
    pub fn apply(&self, yaml: &str) -> Result<String> {
        self.kubectl_with_input(&["apply", "--filename", "-"], yaml)
    }

    /// Runs kubectl as admin with this standard input.
    ///
    /// # Errors
    /// When kubectl fails: the error has what it printed.
    pub fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<String> {
        self.kubectl_handle().run(args, Some(input))
    }
}
