//! Builds the stock components from the Go modules in `control-plane/`, once for each content.
//!
//! The result lies outside the checkout, in a folder named by a hash of everything that the build
//! reads. So a clean checkout with the same pins finds it, and a changed pin never runs an old
//! binary. A build writes to a folder beside the result and is renamed when it is complete; a lock
//! keeps two builds apart. It never changes a Go module, and never fetches a toolchain.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::progress::Progress;

/// Kubernetes and etcd are one program, which acts according to the name it is called by. This
/// takes a third of the disk space, and one link instead of six.
const NAMES: [&str; 6] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kubectl",
];

/// Behaviour that KWOK simulates: nodes become Ready, pods run, jobs complete.
const STAGES: [&str; 4] = [
    "node/fast/node-initialize",
    "pod/fast/pod-ready",
    "pod/fast/pod-complete",
    "pod/fast/pod-delete",
];

const CONTAINERD: &str = "github.com/containerd/containerd/v2";

/// The built components: a folder for the control plane and one for a real node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    root: PathBuf,
}

impl Binaries {
    /// The components that `cargo xtask` built, in `SUBLET_CONTROL_PLANE`; `None` if it is not set.
    ///
    /// # Errors
    /// When the variable names a folder without a control plane.
    pub fn from_env() -> Result<Option<Binaries>> {
        let Some(root) = std::env::var_os("SUBLET_CONTROL_PLANE") else {
            return Ok(None);
        };
        let binaries = Binaries { root: root.into() };
        ensure!(
            binaries.cluster("cluster").exists(),
            "SUBLET_CONTROL_PLANE: no control plane in {}",
            binaries.root.display()
        );
        Ok(Some(binaries))
    }

    /// The folder of the components, for `SUBLET_CONTROL_PLANE`.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A file of the control plane: a component by its usual name.
    #[must_use]
    pub fn cluster(&self, name: &str) -> PathBuf {
        self.root.join("cluster").join(name)
    }

    /// A file of the real node: containerd, runc, an image, ...
    #[must_use]
    pub fn node(&self, name: &str) -> PathBuf {
        self.root.join("node").join(name)
    }

    /// Whether the components of the real node were built.
    #[must_use]
    pub fn has_node(&self) -> bool {
        self.node("runc").exists()
    }
}

/// The folder of everything that is built once: `SUBLET_CACHE`, or `sublet` in the user's cache.
///
/// # Errors
/// When no variable names such a folder.
pub fn default_cache() -> Result<PathBuf> {
    let var = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    var("SUBLET_CACHE")
        .or_else(|| Some(var("XDG_CACHE_HOME")?.join("sublet")))
        .or_else(|| Some(var("HOME")?.join(".cache/sublet")))
        .context("no folder for built components: set SUBLET_CACHE")
}

/// Builds the control plane, and with `node` the components of a real node, if that is not done.
///
/// # Errors
/// When Go is missing or too old, or a build fails: the end of Go's output.
pub fn control_plane(repository: &Path, node: bool, progress: &mut Progress) -> Result<Binaries> {
    let source = repository.join("control-plane");
    let root = default_cache()?.join("control-plane").join(key(&source)?);
    fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
    let binaries = Binaries { root };
    let lock = fs::File::create(binaries.root.join("lock"))?;
    if lock.try_lock().is_err() {
        progress.say("another build of the same components runs: waiting for it");
        lock.lock()?;
    }
    let mut go = Go { source, progress };
    if !binaries.cluster("cluster").exists() {
        go.progress.say(
            "building the Kubernetes control plane from pinned Go modules (once: about 6 minutes \
             on two idle cores, up to 15 on busy ones)",
        );
        whole(&binaries.root, "cluster", |out| go.build_cluster(out))?;
    }
    if node && !binaries.has_node() {
        go.progress
            .say("building the container runtime of the real node (once: about 1 minute)");
        whole(&binaries.root, "node", |out| go.build_node(out))?;
    }
    Ok(binaries)
}

/// Makes `root/name` in one step: all of it or nothing.
pub(crate) fn whole(root: &Path, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let unfinished = root.join(format!("{name}.unfinished"));
    // Remains of a build that was killed: nobody else uses them, since we hold the lock.
    for old in [&unfinished, &root.join(name)] {
        if old.exists() {
            fs::remove_dir_all(old)?;
        }
    }
    fs::create_dir(&unfinished)?;
    make(&unfinished)?;
    fs::rename(&unfinished, root.join(name))?;
    Ok(())
}

/// The Go tool, on modules that are folders of `source`.
pub(crate) struct Go<'a> {
    pub(crate) source: PathBuf,
    pub(crate) progress: &'a mut Progress,
}

impl Go<'_> {
    fn build_cluster(&mut self, out: &Path) -> Result<()> {
        // Without a stamp, components report v0.0.0-master. With it, they report the release that
        // go.mod pins.
        let version = self.list("kube", "Version", "k8s.io/kubernetes")?;
        let minor = version.split('.').nth(1).unwrap_or_default();
        let stamp = "-X k8s.io/component-base/version";
        let flags = format!(
            "{stamp}.gitVersion={version} {stamp}.gitMajor=1 {stamp}.gitMinor={minor} \
             {stamp}.gitTreeState=archive"
        );
        self.build(
            "kube",
            &format!("Kubernetes {version}"),
            out,
            &flags,
            &[],
            &["."],
        )?;
        for name in NAMES {
            std::os::unix::fs::symlink("cluster", out.join(name))?;
        }

        let module = "sigs.k8s.io/kwok";
        let version = self.list("kwok", "Version", module)?;
        let flags = format!("-X {module}/pkg/consts.Version={version}");
        let package = format!("{module}/cmd/kwok");
        self.build(
            "kwok",
            &format!("KWOK {version}"),
            out,
            &flags,
            &[],
            &[&package],
        )?;
        let stages = Path::new(&self.list("kwok", "Dir", module)?).join("kustomize/stage");
        let mut all = String::new();
        for stage in STAGES {
            let path = stages.join(format!("{stage}.yaml"));
            all +=
                &fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            all += "\n---\n";
        }
        fs::write(out.join("stages.yaml"), all)?;
        Ok(())
    }

    fn build_node(&mut self, out: &Path) -> Result<()> {
        let version = self.list("runtime", "Version", CONTAINERD)?;
        let flags = format!("-X {CONTAINERD}/version.Version={version}");
        let packages = ["containerd", "containerd-shim-runc-v2", "ctr"]
            .map(|name| format!("{CONTAINERD}/cmd/{name}"));
        let packages = packages.each_ref().map(String::as_str);
        self.build(
            "runtime",
            &format!("containerd {version}"),
            out,
            &flags,
            &[],
            &packages,
        )?;
        // Without seccomp in runc no pod starts: containerd always gives it a seccomp profile.
        let runc = "github.com/opencontainers/runc";
        self.build("runtime", "runc", out, "", &["-tags", "seccomp"], &[runc])?;
        self.build("kube", "pause", out, "", &[], &["./pause"])?;

        fs::create_dir(out.join("images"))?;
        for (name, program) in [
            ("pause", out.join("pause")),
            ("busybox", crate::debian::busybox()?),
        ] {
            let archive = out.join("images").join(format!("{name}.tar"));
            let made = Command::new(self.source.join("node/image.sh"))
                .arg(format!("sublet.test/{name}:1"))
                .args([&program, &archive])
                .output()
                .context("run control-plane/node/image.sh")?;
            let errors = String::from_utf8_lossy(&made.stderr);
            ensure!(made.status.success(), "make the image {name}: {errors}");
        }
        fs::create_dir(out.join("cni"))?;
        fs::copy(self.source.join("node/cni.sh"), out.join("cni/none"))?;
        Ok(())
    }

    /// One field of a pinned module.
    pub(crate) fn list(&mut self, module: &str, field: &str, of: &str) -> Result<String> {
        let args = ["list", "-m", "-f", &format!("{{{{.{field}}}}}"), of].map(OsString::from);
        let out = self.run(module, &format!("look up {of}"), &args, None)?;
        Ok(out.trim().to_owned())
    }

    /// The folder of a pinned module, which is fetched if it is not there.
    pub(crate) fn folder(&mut self, module: &str, of: &str) -> Result<PathBuf> {
        let args = ["mod", "download", of].map(OsString::from);
        self.run(module, &format!("download {of}"), &args, None)?;
        Ok(self.list(module, "Dir", of)?.into())
    }

    pub(crate) fn build(
        &mut self,
        module: &str,
        what: &str,
        out: &Path,
        stamp: &str,
        more: &[&str],
        packages: &[&str],
    ) -> Result<()> {
        // Downloads what is missing, and counts the packages that will be built.
        let args = ["list", "-deps"]
            .into_iter()
            .chain(packages.iter().copied());
        let args: Vec<OsString> = args.map(OsString::from).collect();
        let total = self
            .run(module, &format!("download {what}"), &args, None)?
            .lines()
            .count();

        let mut args: Vec<OsString> = ["build", "-v", "-o"].map(OsString::from).into();
        // The slash at the end makes it a folder, in which each program keeps its own name.
        args.extend([
            out.join("").into(),
            // `-s -w` strips debug information, so do not make it.
            "-gcflags=all=-dwarf=false".into(),
            "-ldflags".into(),
            format!("-s -w {stamp}").into(),
        ]);
        args.extend(more.iter().chain(packages).map(OsString::from));
        self.run(module, &format!("build {what}"), &args, Some(total))?;
        Ok(())
    }

    /// Runs `go` in one of the modules and shows its progress; an error has the end of its output.
    fn run(
        &mut self,
        module: &str,
        what: &str,
        args: &[OsString],
        total: Option<usize>,
    ) -> Result<String> {
        let dir = self.source.join(module);
        // Only runc needs C, because of its seccomp tag.
        let cgo = if args.iter().any(|arg| arg == "seccomp") {
            "1"
        } else {
            "0"
        };
        let mut child = Command::new("go")
            .args(args)
            .current_dir(&dir)
            .env("CGO_ENABLED", cgo)
            .env("GOTOOLCHAIN", "local")
            .env("GOFLAGS", "-mod=readonly -trimpath -buildvcs=false")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("run `go`")?;
        let (send, said) = mpsc::channel();
        let errors = child.stderr.take().context("go's stderr")?;
        std::thread::spawn(move || {
            BufReader::new(errors)
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| send.send(line))
        });
        let mut stdout = child.stdout.take().context("go's stdout")?;
        let out = std::thread::spawn(move || std::io::read_to_string(&mut stdout));

        let mut words = Vec::new();
        loop {
            match said.recv_timeout(Duration::from_millis(500)) {
                Ok(line) => words.push(line),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            let done = words
                .iter()
                .filter(|line| !line.starts_with("go: "))
                .count();
            self.progress.tick(|| match total {
                Some(total) => format!("{what}: {done} of up to {total} packages compiled"),
                None => format!("{what}: {} modules fetched", words.len()),
            });
        }
        let out = out
            .join()
            .map_err(|_| anyhow::anyhow!("reading go's output panicked"))??;
        let status = child.wait()?;
        if !status.success() {
            let end = words[words.len().saturating_sub(20)..].join("\n");
            bail!(
                "{what} failed (go {} in {}):\n{end}",
                args[0].display(),
                dir.display()
            );
        }
        Ok(out)
    }
}

/// A hash of the path and content of every file under a folder, and of Go's version.
pub(crate) fn key(source: &Path) -> Result<String> {
    let version = Command::new("go")
        .args(["env", "GOVERSION"])
        .env("GOTOOLCHAIN", "local")
        .current_dir(source)
        .output()
        .context("run `go`: install Go 1.26.8 or newer (go.dev, or your distribution's package)")?;
    let mut hash = fnv(FNV_BASIS, &version.stdout);
    for path in files(source)? {
        let name = path.strip_prefix(source)?.to_string_lossy().into_owned();
        hash = fnv(fnv(hash, name.as_bytes()), &fs::read(&path)?);
    }
    Ok(format!("{hash:016x}"))
}

/// A name for a text: as good as the text to tell one from another.
pub(crate) fn name_of(text: &str) -> String {
    format!("{:016x}", fnv(FNV_BASIS, text.as_bytes()))
}

/// All files below a folder, in the order of their paths.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            all.extend(files(&path)?);
        } else {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a. It names a cache folder, so it must give the same in every Rust release.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    // With the length, "ab" + "c" differs from "a" + "bc".
    let length = bytes.len().to_le_bytes();
    length.iter().chain(bytes).fold(hash, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_follows_names_and_contents() {
        let dir = tempfile::tempdir().unwrap();
        let module = dir.path().join("kube");
        fs::create_dir(&module).unwrap();
        let listed = |content: &str, name: &str| {
            fs::write(module.join(name), content).unwrap();
            let all = files(dir.path()).unwrap();
            let hash = all.iter().fold(FNV_BASIS, |hash, path| {
                fnv(
                    fnv(hash, path.to_string_lossy().as_bytes()),
                    &fs::read(path).unwrap(),
                )
            });
            (all.len(), hash)
        };
        let first = listed("module a", "go.mod");
        assert_eq!(first, listed("module a", "go.mod"));
        assert_ne!(first, listed("module b", "go.mod"));
        let second = listed("", "go.sum");
        assert_eq!(second.0, 2);
        assert_ne!(
            fnv(fnv(FNV_BASIS, b"ab"), b"c"),
            fnv(fnv(FNV_BASIS, b"a"), b"bc")
        );
    }

    #[test]
    fn an_unfinished_build_is_made_again_and_a_failed_one_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("node.unfinished/rest")).unwrap();
        let failed = whole(dir.path(), "node", |_| bail!("no luck"));
        assert_eq!(failed.unwrap_err().to_string(), "no luck");
        assert!(!dir.path().join("node").exists());
        whole(dir.path(), "node", |out| {
            Ok(fs::write(out.join("runc"), "")?)
        })
        .unwrap();
        assert!(
            Binaries {
                root: dir.path().to_owned()
            }
            .has_node()
        );
    }
}
