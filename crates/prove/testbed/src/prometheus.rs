//! The real Prometheus and its `promtool`, built from their pinned Go module in `tools/prometheus`.
//!
//! They have a cache entry of their own, so that another Kubernetes does not build them again, and
//! only `cargo xtask test --all` builds them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::build::{Go, default_cache, key, whole};
use crate::progress::Progress;

const MODULE: &str = "github.com/prometheus/prometheus";

/// A folder with `prometheus` and `promtool`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prometheus {
    folder: PathBuf,
}

impl Prometheus {
    /// The one that `cargo xtask` built, in `SUBLET_PROMETHEUS`; `None` if it is not set.
    #[must_use]
    pub fn from_env() -> Option<Prometheus> {
        let folder = std::env::var_os("SUBLET_PROMETHEUS")?.into();
        Some(Prometheus { folder })
    }

    /// Builds it, if that is not done.
    ///
    /// # Errors
    /// When Go is missing or too old, or the build fails: the end of Go's output.
    pub fn build(repository: &Path, progress: &mut Progress) -> Result<Prometheus> {
        let source = repository.join("tools");
        let root = default_cache()?
            .join("prometheus")
            .join(key(&source.join("prometheus"))?);
        fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
        let lock = fs::File::create(root.join("lock"))?;
        lock.lock()?;
        let folder = root.join("bin");
        if !folder.exists() {
            progress.say("building Prometheus from its pinned Go module (once: 5 to 10 minutes)");
            let mut go = Go { source, progress };
            whole(&root, "bin", |out| {
                let version = go.list("prometheus", "Version", MODULE)?;
                let programs =
                    ["prometheus", "promtool"].map(|name| format!("{MODULE}/cmd/{name}"));
                let programs = programs.each_ref().map(String::as_str);
                let what = format!("Prometheus {version}");
                go.build("prometheus", &what, out, "", &[], &programs)
            })?;
        }
        Ok(Prometheus { folder })
    }

    /// Folder of Prometheus, for `SUBLET_PROMETHEUS`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Prometheus itself with this configuration, on a port of loopback.
    #[must_use]
    pub fn command(&self, configuration: &Path, data: &Path, port: u16) -> Command {
        let mut command = Command::new(self.folder.join("prometheus"));
        command
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        command
    }

    /// Returns the output of `promtool check rules` for a file.
    ///
    /// # Errors
    /// When promtool finds something wrong: the error has its words.
    pub fn check_rules(&self, file: &Path) -> Result<String> {
        let output = Command::new(self.folder.join("promtool"))
            .args(["check", "rules", "--lint=all", "--lint-fatal"])
            .arg(file)
            .stdin(Stdio::null())
            .output()
            .context("run promtool")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        ensure!(
            output.status.success(),
            "promtool: {}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        Ok(text(&output.stdout))
    }
}
