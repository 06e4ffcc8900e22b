//! Files of other projects, out of their own Go modules: by exact version, and checked by content.
//! Nothing is built.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A Go module.
#[derive(Debug, Clone, Copy)]
pub struct GoModule {
    /// Path and version, as `go mod download` takes them.
    name: &'static str,
    /// Its content, as `go.sum` writes it.
    sum: &'static str,
}

/// Koordinator, whose CRDs are in the module.
pub const KOORDINATOR: GoModule = GoModule {
    name: "github.com/koordinator-sh/koordinator@v1.7.0",
    sum: "h1:G4O5uwqre+gMFjnm72xoA9nCtRdCyd9YfRe65jP7A3A=",
};

/// scheduler-plugins, whose documentation is in the module.
pub const SCHEDULER_PLUGINS: GoModule = GoModule {
    name: "sigs.k8s.io/scheduler-plugins@v0.34.7",
    sum: "h1:GENSA4rKpCKBrPvNSo2AV2QHU7j3a6LT14kNlHhXfeg=",
};

/// Kubeflow's MPI operator, whose CRD is in the module.
pub const MPI_JOB_FILES: GoModule = GoModule {
    name: "github.com/kubeflow/mpi-operator@v0.7.0",
    sum: "h1:ID1eyzAFOMofgynEvfy4//S3q7Ra1OSexrggb1VcC1o=",
};

/// Kubeflow's training operator, whose CRDs are in the module.
pub const TRAINING_JOB_FILES: GoModule = GoModule {
    name: "github.com/kubeflow/training-operator@v1.9.3",
    sum: "h1:aaSHqskOtCY8Dn8sVd+l9p5XAczW6O0nYMPjVLAw/lc=",
};

/// Kueue, whose performance test's work is in the module.
pub(crate) const KUEUE_FILES: GoModule = GoModule {
    name: "sigs.k8s.io/kueue@v0.15.0",
    sum: "h1:9Khzc2ne6/eWuZx5o+R4KlVBzh3kZkTIMzpPC2e8Spg=",
};

impl GoModule {
    /// The folder of the module's files, fetched the first time (Koordinator: a second).
    ///
    /// # Errors
    /// When it cannot be fetched, or differs from the pinned one.
    pub fn folder(&self) -> Result<PathBuf> {
        // Outside of a Go module, so that no go.mod is changed.
        let outside = tempfile::tempdir()?;
        let out = Command::new("go")
            .args(["mod", "download", "-json", self.name])
            .env("GOTOOLCHAIN", "local")
            .env("GOFLAGS", "-mod=mod")
            .current_dir(outside.path())
            .output()
            .context("run `go`")?;
        let said: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        let errors = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "fetch {}: {errors}{said}", self.name);
        ensure!(
            said["Sum"] == self.sum,
            "{} is {}, not {}",
            self.name,
            said["Sum"],
            self.sum
        );
        let folder = said["Dir"].as_str().context("no folder")?;
        Ok(folder.into())
    }
}

/// A module's source with these lines changed: each line of the original, and its replacement. The
/// line must stand in exactly one place.
pub(crate) fn with_changes(source: String, changes: &[(&str, &str)]) -> Result<String> {
    changes.iter().try_fold(source, |source, (from, to)| {
        let places = source.matches(from).count();
        ensure!(
            places == 1,
            "`{}` stands there {places} times, not once: look at what the project has changed, and \
             change what Sublet changes of it accordingly",
            from.trim()
        );
        Ok(source.replace(from, to))
    })
}
