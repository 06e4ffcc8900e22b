//! The real Kueue, out of its own Go module: its scheduler with its core controllers as its own
//! performance test runs them (`minimalkueue`), and the generator of that test.
//!
//! Only a benchmark asks for it. The list of modules is that of `tools/operators`, in which Kueue
//! stands. Nothing of Kueue is in our repository: the one file that must be changed is copied out of
//! the module and changed in a few known places, and if one of these is not as it was, that is an
//! error. The result has a cache entry of its own, named by everything that went into it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::build::{Go, default_cache, key, whole};
use crate::cluster::Cluster;
use crate::go_module::{GoModule, with_changes};
use crate::progress::Progress;

/// Kueue, with its CRDs and the generator's file.
const KUEUE: GoModule = GoModule::pinned(
    "sigs.k8s.io/kueue@v0.15.0",
    "h1:9Khzc2ne6/eWuZx5o+R4KlVBzh3kZkTIMzpPC2e8Spg=",
);

/// Folder of its performance test in the module.
const TEST: &str = "test/performance/scheduler";

/// Changes to the test's Kueue: its client's limit is an option, and is one limit for all kinds of
/// objects. As the test has it, each kind has 50 requests a second for itself; the Kueue that is
/// shipped has one limit for all of them (`cmd/kueue/main.go`).
const CHANGES: [(&str, &str); 3] = [
    (
        "\tctrl \"sigs.k8s.io/controller-runtime\"\n",
        "\t\"k8s.io/client-go/util/flowcontrol\"\n\tctrl \"sigs.k8s.io/controller-runtime\"\n",
    ),
    (
        "\tmetricsPort = flag.Int(",
        "\tqps = flag.Float64(\"qps\", 0, \"requests a second, all together; 0 for no limit\")\n\n\
         \tmetricsPort = flag.Int(",
    ),
    (
        "\tkubeConfig.QPS = 50\n\tkubeConfig.Burst = 100\n",
        "\tkubeConfig.QPS = -1\n\tif *qps > 0 {\n\t\tkubeConfig.QPS = float32(*qps)\n\
         \t\tkubeConfig.Burst = int(2 * *qps)\n\
         \t\tkubeConfig.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(kubeConfig.QPS, kubeConfig.Burst)\n\
         \t}\n",
    ),
];

/// Kueue's programs and files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kueue {
    programs: PathBuf,
    module: PathBuf,
}

impl Kueue {
    /// Version that is compared.
    pub const VERSION: &'static str = "0.15.0";

    /// Builds it, if that is not done.
    ///
    /// # Errors
    /// When Go is missing or too old, the module differs from the pinned one, its source is not as
    /// it was when the changes were written, or the build fails: the end of Go's output.
    pub fn build(repository: &Path, progress: &mut Progress) -> Result<Kueue> {
        let module = KUEUE.folder()?;
        let cache = default_cache()?.join("kueue");
        fs::create_dir_all(&cache).with_context(|| format!("create {}", cache.display()))?;
        let source = tempfile::tempdir_in(&cache)?;
        for file in ["go.mod", "go.sum"] {
            let from = repository.join("tools/operators").join(file);
            let copied = fs::copy(&from, source.path().join(file));
            copied.with_context(|| format!("copy {}", from.display()))?;
        }
        let path = module.join(TEST).join("minimalkueue/main.go");
        let main = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let main = with_changes(main, &CHANGES).with_context(|| path.display().to_string())?;
        fs::create_dir(source.path().join("minimalkueue"))?;
        fs::write(source.path().join("minimalkueue/main.go"), main)?;

        let root = cache.join(key(source.path())?);
        fs::create_dir_all(&root)?;
        let lock = fs::File::create(root.join("lock"))?;
        lock.lock()?;
        let programs = root.join("bin");
        if !programs.exists() {
            progress.say("building Kueue from its Go module (once: 3 to 8 minutes)");
            let mut go = Go {
                source: source.path().to_owned(),
                progress,
            };
            let runner = format!("sigs.k8s.io/kueue/{TEST}/runner");
            let what = format!("Kueue {}", Kueue::VERSION);
            whole(&root, "bin", |out| {
                go.build(".", &what, out, "", &[], &["./minimalkueue", &runner])
            })?;
        }
        Ok(Kueue { programs, module })
    }

    /// The file with the workloads that Kueue's own performance test makes.
    #[must_use]
    pub fn shape(&self) -> PathBuf {
        self.module.join(TEST).join("default_generator_config.yaml")
    }

    /// Defines Kueue's kinds of objects in a cluster.
    ///
    /// # Errors
    /// When a definition is refused.
    pub fn define(&self, cluster: &Cluster) -> Result<()> {
        let folder = self.module.join("config/components/crd/bases");
        let folder = folder.display().to_string();
        // They are too large for the annotation of a client-side apply.
        cluster.kubectl(&["create", "--filename", &folder])?;
        cluster.until_defined(&["crd", "--all"])
    }

    /// Kueue's scheduler and core controllers, with at most so many requests a second, or as many as
    /// it likes.
    #[must_use]
    pub fn scheduler(&self, kubeconfig: &Path, limit: Option<u32>) -> Command {
        let mut command = Command::new(self.programs.join("minimalkueue"));
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg(format!("--qps={}", limit.unwrap_or(0)));
        command
    }

    /// The generator: it makes what `shape` says, ends each workload when it has been admitted for
    /// as long as it runs, and stores what it saw in `results`.
    #[must_use]
    pub fn generator(&self, kubeconfig: &Path, shape: &Path, results: &Path) -> Command {
        let mut command = Command::new(self.programs.join("runner"));
        command
            .env("KUBECONFIG", kubeconfig)
            .arg("-o")
            .arg(results)
            .arg("-generatorConfig")
            .arg(shape)
            // Whoever starts it watches over the time.
            .args(["-timeout", "24h", "-qps", "1000", "-burst", "2000"])
            .arg("-zap-log-level=error");
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_is_not_as_it_was_is_an_error() {
        let as_it_was: String = CHANGES.iter().map(|(from, _)| *from).collect();
        let changed = |source: &str| with_changes(source.to_owned(), &CHANGES);
        let new = changed(&as_it_was).unwrap();
        assert!(new.contains("flowcontrol.NewTokenBucketRateLimiter"));
        assert!(!new.contains("kubeConfig.QPS = 50"));
        for (from, _) in CHANGES {
            let without = as_it_was.replace(from, "");
            let error = changed(&without).unwrap_err().to_string();
            assert!(error.contains("0 times"), "{error}");
            assert!(changed(&(as_it_was.clone() + from)).is_err());
        }
    }
}
