//! A real node on this machine: containerd, runc and a kubelet that joined a [`Cluster`].
//!
//! Containers are real: control groups, namespaces, overlay mounts. So a node needs root. A machine
//! can have only one at a time, because the kubelet's device-plugin folder is a constant that no
//! flag changes. This module never touches a foreign kubelet: it refuses a folder without our mark.
//! There are two images, each made from one static program: `sublet.test/busybox:1` and the pause
//! container's.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::build::Binaries;
use crate::cluster::Cluster;
use crate::guard::{self, Kind};
use crate::kubectl::Kubectl;
use crate::loopback::{free_port, http_get};
use crate::node_config::{self, name};
use crate::supervisor::Supervisor;

/// The folder in which the kubelet keeps pods and device-plugin sockets. The place of the sockets
/// is a constant in its source (`pluginapi.DevicePluginPath`).
const KUBELET_DIR: &str = "/var/lib/kubelet";

/// A file in [`KUBELET_DIR`] with the name of the directory of the node that owns the folder. It is
/// the first file that is made there, and the last that is removed.
const MARK: &str = ".sublet-testbed";

const CONTAINERD: &str = "containerd";
const KUBELET: &str = "kubelet";

/// Longest time until a node is Ready. It usually takes 2 s; a loaded machine takes longer.
const START_LIMIT: Duration = Duration::from_secs(120);

/// Longest wait until another process's node is gone.
const TURN_LIMIT: Duration = Duration::from_secs(600);

/// The options of a node.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    /// More lines of the `KubeletConfiguration`.
    pub kubelet_config: Vec<String>,
    /// More flags of the kubelet.
    pub kubelet_flags: Vec<String>,
}

/// A running node. Dropping it ends its pods, processes, mounts and control groups.
#[derive(Debug)]
pub struct Node {
    dir: PathBuf,
    kubectl: Kubectl,
    healthz: u16,
    processes: Supervisor,
}

impl Node {
    /// Whether this machine can run a node with these components.
    ///
    /// # Errors
    /// The reason why it cannot; a test prints it and is skipped.
    pub fn available(binaries: &Binaries) -> Result<(), String> {
        if let Some(reason) = env::var("SUBLET_NODE_SKIP")
            .ok()
            .filter(|text| !text.is_empty())
        {
            return Err(reason);
        }
        if !rustix::process::geteuid().is_root() {
            return Err("a real node needs root".to_owned());
        }
        if !binaries.has_node() {
            return Err("the container runtime was not built".to_owned());
        }
        let groups = Path::new("/sys/fs/cgroup");
        if !["cgroup.controllers", "memory"]
            .iter()
            .any(|name| groups.join(name).exists())
        {
            return Err("no control groups in /sys/fs/cgroup".to_owned());
        }
        let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if !filesystems
            .lines()
            .any(|line| line.trim_start_matches("nodev").trim() == "overlay")
        {
            return Err("this kernel has no overlay file system".to_owned());
        }
        let runc = Command::new(binaries.node("runc"))
            .arg("--version")
            .output();
        if !runc.is_ok_and(|output| output.status.success()) {
            return Err("the built runc does not run: is libseccomp installed?".to_owned());
        }
        // Look only once, since another process's node may be going away just now.
        let files = files_of_kubelet();
        if !files.is_empty() && !files.iter().any(|name| name == MARK) {
            let names = files.join(", ");
            return Err(format!("{KUBELET_DIR} belongs to another kubelet: {names}"));
        }
        Ok(())
    }

    /// Joins this machine to a cluster and waits until the node is Ready. First waits while another
    /// process has a node here.
    ///
    /// # Errors
    /// When the machine cannot run a node, or a component does not come up: with the end of its
    /// log.
    pub fn start(cluster: &Cluster, options: &NodeOptions) -> Result<Node> {
        let binaries = cluster.binaries();
        let lock = take_turn()?;
        clean_leftovers()?;
        Node::available(binaries).map_err(anyhow::Error::msg)?;
        let left = files_of_kubelet();
        ensure!(
            left.is_empty(),
            "an earlier node left what cannot be removed from {KUBELET_DIR}: {}",
            left.join(", ")
        );

        let dir = tempfile::Builder::new()
            .prefix("sublet-node-")
            .tempdir()?
            .keep();
        fs::create_dir_all(KUBELET_DIR).with_context(|| format!("create {KUBELET_DIR}"))?;
        let kubelet = Path::new(KUBELET_DIR);
        fs::write(kubelet.join(MARK), dir.to_string_lossy().as_bytes())?;
        let processes = Supervisor::new(Kind::Node(kubelet), &dir, Some(lock))?;
        let node = Node {
            dir,
            kubectl: cluster.kubectl_handle(),
            healthz: free_port()?,
            processes,
        };
        node.bring_up(cluster, options)?;
        Ok(node)
    }

    /// Puts an image archive where kubelet finds it.
    ///
    /// # Errors
    /// containerd does not take it.
    pub fn import_image(&self, binaries: &Binaries, archive: &Path) -> Result<()> {
        let archive = archive.display().to_string();
        self.ctr(binaries, &["images", "import", &archive])
            .map(drop)
    }

    /// Gives an image that is there another name.
    ///
    /// # Errors
    /// There is no such image.
    pub fn name_image(&self, binaries: &Binaries, image: &str, name: &str) -> Result<()> {
        self.ctr(binaries, &["images", "tag", image, name])
    }

    fn bring_up(&self, cluster: &Cluster, options: &NodeOptions) -> Result<()> {
        let binaries = cluster.binaries();
        for folder in ["cni", "cdi"] {
            fs::create_dir(self.dir.join(folder))?;
        }
        fs::write(self.dir.join("cni/10-none.conflist"), node_config::NETWORK)?;
        let config = self.dir.join("containerd.toml");
        fs::write(&config, node_config::containerd(binaries, &self.dir))?;
        let mut containerd = Command::new(binaries.node("containerd"));
        // containerd looks for its shim in PATH, and the shim looks for runc.
        containerd
            .arg("--config")
            .arg(&config)
            .env("PATH", path_with(&binaries.node(""))?);
        self.processes.spawn(CONTAINERD, &containerd)?;
        self.processes
            .wait(CONTAINERD, START_LIMIT, || self.ctr(binaries, &["version"]))?;
        for image in ["pause.tar", "busybox.tar"] {
            self.import_image(binaries, &binaries.node("images").join(image))?;
        }

        let config = self.dir.join("kubelet.yaml");
        let extra = &options.kubelet_config;
        let text = node_config::kubelet(
            &self.dir,
            &cluster.authority(),
            free_port()?,
            self.healthz,
            extra,
        );
        fs::write(&config, text)?;
        let mut kubelet = Command::new(binaries.cluster("kubelet"));
        let kubeconfig = cluster.kubeconfig(&format!("system:node:{}", name()))?;
        kubelet
            .arg(format!("--config={}", config.display()))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--root-dir={KUBELET_DIR}"))
            .arg(format!("--cert-dir={}", self.dir.join("pki").display()))
            .arg(format!("--hostname-override={}", name()))
            .args(&options.kubelet_flags);
        self.processes.spawn(KUBELET, &kubelet)?;
        self.wait_ready()
    }

    /// The node's name in the cluster.
    #[must_use]
    pub fn name(&self) -> String {
        name()
    }

    /// The directory that holds everything of this node except the kubelet's folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folder of the device plugins' sockets and of `kubelet.sock`.
    #[must_use]
    pub fn device_plugins(&self) -> PathBuf {
        Path::new(KUBELET_DIR).join("device-plugins")
    }

    /// Ends the kubelet and starts it again. Pods keep running; device plugins must register again.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn restart_kubelet(&self) -> Result<()> {
        self.processes.stop(KUBELET);
        self.processes.start(KUBELET)?;
        self.wait_ready()
    }

    /// Ends containerd and starts it again. Containers keep running; NRI plugins must connect again.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn restart_containerd(&self, binaries: &Binaries) -> Result<()> {
        self.processes.stop(CONTAINERD);
        self.processes.start(CONTAINERD)?;
        self.processes
            .wait(CONTAINERD, START_LIMIT, || self.ctr(binaries, &["version"]))
    }

    /// The specification that runc was given for a container.
    #[must_use]
    pub fn runc_spec(&self, container: &str) -> PathBuf {
        let bundles = self.dir.join("state/io.containerd.runtime.v2.task/k8s.io");
        bundles.join(container).join("config.json")
    }

    /// Sends a signal to the kubelet; SIGKILL also waits until it is gone.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill_kubelet(&self, signal: Signal) -> Result<()> {
        self.processes.kill(KUBELET, signal)
    }

    /// The last lines of the kubelet's log.
    #[must_use]
    pub fn kubelet_log(&self) -> String {
        self.processes.log_tail(KUBELET, 40)
    }

    fn wait_ready(&self) -> Result<()> {
        let name = name();
        let ready = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
        self.processes.wait(KUBELET, START_LIMIT, || {
            // After a restart the node is still Ready from before, so the kubelet itself must
            // answer.
            let (status, body) = http_get(self.healthz, "/healthz")?;
            ensure!(status == 200, "the kubelet's health: {body}");
            match self
                .kubectl
                .run(&["get", "node", &name, "--output", ready], None)?
                .as_str()
            {
                "True" => Ok(()),
                other => bail!("the node's condition Ready is `{other}`"),
            }
        })
    }

    fn ctr(&self, binaries: &Binaries, args: &[&str]) -> Result<()> {
        let output = Command::new(binaries.node("ctr"))
            .arg("--address")
            .arg(self.dir.join("containerd.sock"))
            .args(["--namespace", "k8s.io"])
            .args(args)
            .stdin(Stdio::null())
            .output()
            .context("run ctr")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "ctr {}: {}",
            args.join(" "),
            errors.trim()
        );
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.processes.stop(KUBELET);
        // Otherwise the next node of this name would count as Ready too early. If the API server is
        // gone, this may fail.
        let _ = self.kubectl.run(
            &[
                "delete",
                "node",
                &name(),
                "--ignore-not-found",
                "--request-timeout=5s",
            ],
            None,
        );
    }
}

/// Waits for the lock that allows one node on a machine. The guard keeps it until it has cleaned
/// up.
fn take_turn() -> Result<fs::File> {
    let path = env::temp_dir().join("sublet-node.lock");
    let lock = fs::File::create(&path).with_context(|| format!("open {}", path.display()))?;
    let deadline = Instant::now() + TURN_LIMIT;
    let mut said = false;
    while lock.try_lock().is_err() {
        ensure!(
            Instant::now() < deadline,
            "another process's node still holds {}",
            path.display()
        );
        if !said {
            eprintln!("another process has a node on this machine: waiting for it");
            said = true;
        }
        sleep(Duration::from_millis(100));
    }
    Ok(lock)
}

/// Removes what a node has left whose guard was killed too.
fn clean_leftovers() -> Result<()> {
    let kubelet = Path::new(KUBELET_DIR);
    match fs::read_to_string(kubelet.join(MARK)) {
        Ok(dir) => guard::clean_node(Path::new(&dir), kubelet),
        Err(_) => Ok(()),
    }
}

/// The names of the files in [`KUBELET_DIR`].
fn files_of_kubelet() -> Vec<String> {
    let files = fs::read_dir(KUBELET_DIR).into_iter().flatten().flatten();
    files
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .collect()
}

fn path_with(first: &Path) -> Result<std::ffi::OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(first.to_owned()).chain(env::split_paths(&path));
    env::join_paths(all).context("a folder of PATH holds a colon")
}
