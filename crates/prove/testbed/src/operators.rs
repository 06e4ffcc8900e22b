//! The real operators of jobs, built from their Go modules in `tools/operators`, and started beside
//! a test cluster.
//!
//! Each has a cache entry of its own, with the definitions of its kinds and its webhooks as its
//! module has them. Nothing of them is in our repository. If an operator insists on a port or a
//! folder that a test cannot give it, a line of its `main` is replaced; if that line is not as it
//! was, the build fails.

mod known;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

pub use known::{
    JOB_SET, KUBEDL, LEADER_WORKER_SET, MPI_OPERATOR, Operator, TRAINER, TRAINING_OPERATOR,
};

pub(crate) use known::KUEUE;

use self::known::Changed;
use crate::build::{Go, default_cache, key, name_of, whole};
use crate::cluster::Cluster;
use crate::components::APISERVER;
use crate::go_module::with_changes;
use crate::loopback::{free_port, is_open};
use crate::progress::Progress;

/// Longest time until an operator is ready.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// Folder in which webhooks look for their certificate by default, below the temporary folder.
const CERTIFICATES: &str = "k8s-webhook-server/serving-certs";

/// Text by which the modules' manifests name the Service that the API server is to call.
const SERVICE: &str =
    "service:\n      name: webhook-service\n      namespace: system\n      path: ";

/// Every operator.
const OPERATORS: [&Operator; 6] = [
    &JOB_SET,
    &LEADER_WORKER_SET,
    &MPI_OPERATOR,
    &TRAINING_OPERATOR,
    &TRAINER,
    &KUBEDL,
];

/// The folder of the built operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operators {
    folder: PathBuf,
}

impl Operators {
    /// Operators that `cargo xtask` built, in `SUBLET_OPERATORS`; `None` if it is not set.
    #[must_use]
    pub fn from_env() -> Option<Operators> {
        let folder = std::env::var_os("SUBLET_OPERATORS")?.into();
        Some(Operators { folder })
    }

    /// Builds them, each if that is not done: all, or only those that cost little beside a control
    /// plane.
    ///
    /// # Errors
    /// When Go is missing or too old, a module's source is not as it was when the changes were
    /// written, or a build fails: the end of Go's output.
    pub fn build(repository: &Path, all: bool, progress: &mut Progress) -> Result<Operators> {
        let is_asked = |operator: &&Operator| all || operator.list == known::CHEAP;
        let asked: Vec<&Operator> = OPERATORS.into_iter().filter(is_asked).collect();
        Operators::build_those(repository, &asked, progress)
    }

    /// Builds these, each if that is not done.
    pub(crate) fn build_those(
        repository: &Path,
        asked: &[&Operator],
        progress: &mut Progress,
    ) -> Result<Operators> {
        let source = repository.join("tools/operators");
        let folder = default_cache()?.join("operators").join(key(&source)?);
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let lock = fs::File::create(folder.join("lock"))?;
        lock.lock()?;
        for operator in asked {
            let name = operator.folder();
            if !folder.join(&name).exists() {
                progress.say(&format!(
                    "building the operator {} from its pinned Go module (once: up to 2 minutes)",
                    operator.name
                ));
                let list = source.join(operator.list);
                whole(&folder, &name, |out| operator.build(&list, progress, out))?;
            }
        }
        Ok(Operators { folder })
    }

    /// Was that one built?
    #[must_use]
    pub fn has(&self, operator: &Operator) -> bool {
        self.folder.join(operator.folder()).exists()
    }

    /// Folder of the operators, for `SUBLET_OPERATORS`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Defines an operator's kinds in a cluster; nothing if they are there.
    ///
    /// # Errors
    /// When a definition is refused.
    pub fn define(&self, operator: &Operator, cluster: &Cluster) -> Result<()> {
        let folder = self.definitions(operator);
        let folder = folder.display().to_string();
        if cluster.kubectl(&["get", "--filename", &folder]).is_ok() {
            return Ok(());
        }
        // They are too large for the annotation of a client-side apply.
        cluster.kubectl(&["create", "--filename", &folder])?;
        cluster.until_defined(&["--filename", &folder])
    }

    /// The folder of the definitions of an operator's kinds.
    pub(crate) fn definitions(&self, operator: &Operator) -> PathBuf {
        self.folder.join(operator.folder()).join("definitions")
    }

    /// Defines an operator's kinds in a cluster, and starts it; nothing if it runs there. `sample`: an
    /// object of its kind, by which is seen that the API server asks it. Nothing is made of that.
    ///
    /// # Errors
    /// When a definition is refused, or it does not come up: the error has the end of its log.
    pub fn start(&self, operator: &Operator, cluster: &Cluster, sample: &str) -> Result<()> {
        self.start_with(operator, cluster, sample, &[])
    }

    /// The same with more words of its texts, and what goes there.
    pub(crate) fn start_with(
        &self,
        operator: &Operator,
        cluster: &Cluster,
        sample: &str,
        words: &[(&str, String)],
    ) -> Result<()> {
        if cluster.pid(operator.name).is_ok() {
            return Ok(());
        }
        self.define(operator, cluster)?;
        let built = self.folder.join(operator.folder());
        let folder = cluster.dir().join(operator.name);
        let place = Place {
            health: free_port()?,
            calls: free_port()?,
            folder: &folder,
            words,
        };
        let certificates = folder.join(CERTIFICATES);
        fs::create_dir_all(&certificates)
            .with_context(|| format!("create {}", certificates.display()))?;
        cluster.lend_certificate(&certificates)?;
        // What asks its webhook is refused until it runs. So whatever passes afterwards was judged.
        let try_sample =
            || cluster.kubectl_with_input(&["create", "--dry-run=server", "-f", "-"], sample);
        if operator.calls.is_some() {
            let calls = built.join("calls.yaml");
            let calls = fs::read_to_string(&calls).context("read what it is asked")?;
            let calls = called(&calls, operator.name, place.calls, &authority(cluster)?);
            cluster.apply(&calls)?;
            cluster.wait(APISERVER, READY_LIMIT, || {
                let refused = try_sample().err();
                let refused = refused.map(|error| error.to_string()).unwrap_or_default();
                ensure!(
                    refused.contains("failed calling webhook"),
                    "not asked yet: {refused}"
                );
                Ok(())
            })?;
        }
        cluster.wait(APISERVER, READY_LIMIT, || match operator.calls {
            Some(_) => Ok(()),
            // An operator may end if what it looks after is not served yet.
            None => try_sample().map(drop),
        })?;
        let program = built.join("program");
        let command = operator.command(&program, &place, &cluster.kubeconfig("admin")?)?;
        cluster.spawn(operator.name, command)?;
        cluster.wait_http(operator.name, place.health, operator.ready, READY_LIMIT)?;
        if operator.calls.is_some() {
            cluster.wait(operator.name, READY_LIMIT, || is_open(place.calls))?;
        }
        cluster.wait(operator.name, READY_LIMIT, || try_sample().map(drop))
    }
}

/// Ports and folder of a started operator, and what stands for more words of its texts.
struct Place<'a> {
    health: u16,
    calls: u16,
    folder: &'a Path,
    words: &'a [(&'a str, String)],
}

impl Place<'_> {
    fn fill(&self, text: &str) -> String {
        let text = text
            .replace("{health}", &self.health.to_string())
            .replace("{calls}", &self.calls.to_string())
            .replace("{folder}", &self.folder.display().to_string());
        let words = self.words.iter();
        words.fold(text, |text, (word, value)| text.replace(word, value))
    }
}

impl Operator {
    /// Its folder in the cache, named by all that stands here of it.
    fn folder(&self) -> String {
        format!("{}-{}", self.name, name_of(&format!("{self:?}")))
    }

    fn build(&self, list: &Path, progress: &mut Progress, out: &Path) -> Result<()> {
        let mut go = Go {
            source: list.to_owned(),
            progress,
        };
        let version = go.list(".", "Version", self.module)?;
        let module = go.folder(".", self.module)?;
        let mut package = format!("{}/{}", self.module, self.program);
        // Its own files below ours, if some of them are others: Go changes no module.
        let ours = tempfile::tempdir()?;
        if !self.changed.is_empty() {
            for file in ["go.mod", "go.sum"] {
                fs::copy(list.join(file), ours.path().join(file)).context("copy the list")?;
            }
            for file in self.changed {
                file.write(&module, &ours.path().join(self.name))?;
            }
            go.source = ours.path().to_owned();
            package = format!("./{}", self.name);
        }
        let what = format!("{} {version}", self.name);
        let bin = out.join("bin");
        fs::create_dir(&bin)?;
        go.build(".", &what, &bin, "", &[], &[package.trim_end_matches('/')])?;
        // Go calls a program as its folder is called.
        for entry in fs::read_dir(&bin)? {
            fs::rename(entry?.path(), out.join("program"))?;
        }
        fs::remove_dir(&bin)?;

        let copy = |from: &str, to: &Path| {
            let from = module.join(from);
            let text = fs::read(&from).with_context(|| format!("read {}", from.display()))?;
            fs::write(to, text).with_context(|| format!("write {}", to.display()))
        };
        let definitions = out.join("definitions");
        fs::create_dir(&definitions)?;
        for (number, file) in self.definitions.iter().enumerate() {
            copy(file, &definitions.join(format!("{number}.yaml")))?;
        }
        if let Some(file) = self.calls {
            copy(file, &out.join("calls.yaml"))?;
        }
        Ok(())
    }

    fn command(&self, program: &Path, place: &Place<'_>, kubeconfig: &Path) -> Result<Command> {
        if let Some(text) = self.configuration {
            fs::write(place.folder.join("configuration.yaml"), place.fill(text))?;
        }
        let mut command = Command::new(program);
        command
            .args(self.arguments.iter().map(|text| place.fill(text)))
            .env("KUBECONFIG", kubeconfig)
            .env("HEALTH_PORT", place.health.to_string())
            // Those that are not told where their certificate is look below it.
            .env("TMPDIR", place.folder);
        Ok(command)
    }
}

impl Changed {
    /// Writes it below that folder.
    fn write(&self, module: &Path, folder: &Path) -> Result<()> {
        let path = module.join(self.file);
        let source = fs::read_to_string(&path);
        let source = source.with_context(|| format!("read {}", path.display()))?;
        let to = folder.join(self.to);
        fs::create_dir_all(to.parent().context("a file without a folder")?)?;
        let new = with_changes(source, self.lines).with_context(|| path.display().to_string())?;
        fs::write(&to, new).with_context(|| format!("write {}", to.display()))
    }
}

/// The cluster's authority as a webhook's `caBundle`.
fn authority(cluster: &Cluster) -> Result<String> {
    let field = "jsonpath={.clusters[0].cluster.certificate-authority-data}";
    cluster.kubectl(&["config", "view", "--flatten", "--raw", "--output", field])
}

/// A module's webhooks under names of their own, asked at a port of loopback.
fn called(manifest: &str, name: &str, port: u16, authority: &str) -> String {
    let place = format!("caBundle: {authority}\n    url: https://127.0.0.1:{port}");
    let names = ["mutating", "validating"];
    names
        .iter()
        .fold(manifest.replace(SERVICE, &place), |text, kind| {
            let own = format!("{kind}-webhook-configuration");
            text.replace(&own, &format!("{name}-{own}"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_is_not_as_it_was_is_an_error() {
        for operator in OPERATORS.into_iter().chain([&KUEUE]) {
            for file in operator.changed {
                let as_it_was: String = file.lines.iter().map(|(from, _)| *from).collect();
                let new = with_changes(as_it_was.clone(), file.lines).unwrap();
                assert!(file.lines.iter().all(|(_, to)| new.contains(to)), "{new}");
                for (from, _) in file.lines {
                    let error = with_changes(as_it_was.replace(from, ""), file.lines).unwrap_err();
                    assert!(error.to_string().contains("0 times"), "{error}");
                    with_changes(as_it_was.clone() + from, file.lines).unwrap_err();
                }
            }
        }
    }

    #[test]
    fn webhooks_are_asked_at_a_port() {
        let manifest = format!(
            "metadata:\n  name: mutating-webhook-configuration\n  clientConfig:\n    {SERVICE}/p\n"
        );
        let wanted = "metadata:\n  name: a-mutating-webhook-configuration\n  clientConfig:\n    \
                      caBundle: Qg==\n    url: https://127.0.0.1:7/p\n";
        assert_eq!(called(&manifest, "a", 7, "Qg=="), wanted);
    }
}
