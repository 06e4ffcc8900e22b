//! The real Kueue as it is shipped (`cmd/kueue` of its own Go module), and the file of work of its own
//! performance test.
//!
//! Only a benchmark asks for it. It is built and started as the operators of jobs are; nothing of it
//! is in our repository.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::cluster::Cluster;
use crate::go_module::KUEUE_FILES;
use crate::operators::{KUEUE, Operators};
use crate::progress::Progress;

/// An object of its kinds, by which is seen that they are served.
const SAMPLE: &str =
    "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ResourceFlavor\nmetadata: {name: sample}\n";

/// Lines of a definition that say which of its two versions is stored.
const STORED: &str = "storage: true";
const NOT_STORED: &str = "storage: false";

/// Kueue's program and files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kueue {
    operators: Operators,
    /// The file with the workloads that its own performance test makes.
    pub shape: PathBuf,
}

impl Kueue {
    /// Version that is compared.
    pub const VERSION: &'static str = "0.15.0";

    /// Name of its process.
    pub const PROCESS: &'static str = KUEUE.name;

    /// Builds it, if that is not done.
    ///
    /// # Errors
    /// When Go is missing or too old, the module differs from the pinned one, its source is not as
    /// it was when the changes were written, or the build fails: the end of Go's output.
    pub fn build(repository: &Path, progress: &mut Progress) -> Result<Kueue> {
        let test = "test/performance/scheduler/default_generator_config.yaml";
        Ok(Kueue {
            shape: KUEUE_FILES.folder()?.join(test),
            operators: Operators::build_those(repository, &[&KUEUE], progress)?,
        })
    }

    /// Defines its kinds in a cluster and starts it, with at most so many requests a second, or as
    /// many as it likes.
    ///
    /// # Errors
    /// When a definition is refused, or it does not come up: the error has the end of its log.
    pub fn start(&self, cluster: &Cluster, limit: Option<u32>) -> Result<()> {
        self.define(cluster)?;
        // Its burst is twice its limit as it is shipped; below zero there is no limit.
        let (limit, burst) = match limit {
            Some(limit) => (limit.to_string(), (2 * limit).to_string()),
            None => ("-1".to_owned(), "1".to_owned()),
        };
        let words = [("{limit}", limit), ("{burst}", burst)];
        self.operators.start_with(&KUEUE, cluster, SAMPLE, &words)
    }

    /// Waits until all of its queues may admit.
    ///
    /// # Errors
    /// When one does not come to that.
    pub fn until_active(&self, cluster: &Cluster) -> Result<()> {
        let wait = ["wait", "--for=condition=Active", "--timeout=60s", "--all"];
        for queues in ["clusterqueues", "localqueues"] {
            let kind = format!("{queues}.v1beta2.kueue.x-k8s.io");
            cluster.kubectl(&[&wait[..], &["--all-namespaces", &kind]].concat())?;
        }
        Ok(())
    }

    fn define(&self, cluster: &Cluster) -> Result<()> {
        let mut all = String::new();
        for entry in fs::read_dir(self.operators.definitions(&KUEUE))? {
            let path = entry?.path();
            let text = fs::read_to_string(&path);
            let text = text.with_context(|| format!("read {}", path.display()))?;
            all += &newest_stored(&text).with_context(|| path.display().to_string())?;
            all += "\n---\n";
        }
        // They are too large for the annotation of a client-side apply.
        cluster.kubectl_with_input(&["create", "--filename", "-"], &all)?;
        cluster.until_defined(&["crd", "--all"])
    }
}

/// A definition that stores the version that Kueue itself speaks. As they are shipped, the older one is
/// stored, and the API server asks Kueue to convert each object that it reads or writes; without
/// that call it would drop the fields that only the newer one has, such as a queue's cohort.
fn newest_stored(definition: &str) -> Result<String> {
    for line in [STORED, NOT_STORED] {
        let places = definition.matches(line).count();
        ensure!(
            places == 1,
            "`{line}` stands there {places} times, not once"
        );
    }
    let (older, newer) = definition.split_once(STORED).context("nothing is stored")?;
    ensure!(newer.contains(NOT_STORED), "the newest version is stored");
    let newer = newer.replace(NOT_STORED, STORED);
    Ok(format!("{older}{NOT_STORED}{newer}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_stored() {
        let definition = "a\n    storage: true\nb\n    storage: false\n";
        assert_eq!(
            newest_stored(definition).unwrap(),
            "a\n    storage: false\nb\n    storage: true\n"
        );
        let stored = newest_stored(definition).unwrap();
        newest_stored(&stored).unwrap_err();
        newest_stored("storage: true\n").unwrap_err();
    }

    #[test]
    fn the_version_is_that_of_the_list_of_modules() {
        let list = include_str!("../../../../tools/operators/go.mod");
        assert!(list.contains(&format!("\tsigs.k8s.io/kueue v{}\n", Kueue::VERSION)));
    }
}
