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

impl GoModule {
    /// The module of this path and version, with this content.
    pub(crate) const fn pinned(name: &'static str, sum: &'static str) -> GoModule {
        GoModule { name, sum }
    }

    /// The folder of the module's files, fetched the first time (Koordinator: a second).
    ///
    /// # Errors
    /// When it cannot be fetched, or is not what is pinned here.
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
