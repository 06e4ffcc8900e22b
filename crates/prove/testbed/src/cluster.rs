//! A Kubernetes control plane in a directory.
//!
//! It has etcd, the API server, the controller manager and, on request, KWOK, with RBAC and the
//! Node authorizer in force. Schedulers and the product's own processes are started later, by
//! name. Every cluster is independent, so tests may run two at once (about 0.7 GiB each). When a
//! [`Cluster`] is dropped, or the process that holds it ends, every process ends and the directory
//! is removed. No scheduler starts by itself, because tests choose which one decides.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::build::Binaries;
use crate::components::{self, APISERVER, CONTROLLERS, ETCD, GANG_FEATURE_GATES, KWOK, Ports};
use crate::guard::Kind;
use crate::kubectl::Kubectl;
use crate::loopback::{free_port, http_get, is_open};
use crate::pki::{Pki, User};
use crate::supervisor::Supervisor;

/// Longest time until a component is healthy. Cold start is 5 s on two idle cores.
const START_LIMIT: Duration = Duration::from_secs(120);

/// The user with all rights.
const ADMIN: &str = "admin";

/// The parts of a cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The built components.
    pub binaries: Binaries,
    /// Users besides `admin`, the components' own, and the real node's.
    pub users: Vec<User>,
    /// Whether KWOK plays the nodes labelled `type=kwok`.
    pub kwok: bool,
    /// Whether the API server writes [`Cluster::audit_log`].
    pub audit: bool,
    /// More flags: the component's name ([`APISERVER`], ...) and one flag each.
    pub flags: Vec<(&'static str, String)>,
}

impl ClusterOptions {
    /// A cluster with KWOK, no further users and no audit log.
    #[must_use]
    pub fn new(binaries: Binaries) -> ClusterOptions {
        ClusterOptions {
            binaries,
            users: Vec::new(),
            kwok: true,
            audit: false,
            flags: Vec::new(),
        }
    }

    /// The same without the garbage collector of pods. That controller runs every 20 s, and ends
    /// pods that were deleted before they were bound and that a finalizer keeps.
    #[must_use]
    pub fn keeping_deleted(mut self) -> ClusterOptions {
        let without = "--controllers=*,-pod-garbage-collector-controller";
        self.flags.push((CONTROLLERS, without.to_owned()));
        self
    }

    /// The same with Kubernetes' own gang API, which is off by default.
    #[must_use]
    pub fn with_gangs(mut self) -> ClusterOptions {
        let gates = [APISERVER, CONTROLLERS].map(|to| (to, GANG_FEATURE_GATES.to_owned()));
        self.flags.extend(gates);
        let served = "--runtime-config=scheduling.k8s.io/v1alpha2=true";
        self.flags.push((APISERVER, served.to_owned()));
        self
    }
}

/// A running control plane.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    binaries: Binaries,
    pki: Pki,
    ports: Ports,
    processes: Supervisor,
    kubectl: Kubectl,
}

impl Cluster {
    /// Starts a control plane and waits until every part is healthy.
    ///
    /// # Errors
    /// When a component does not come up: the error has its name and the end of its log.
    pub fn start(options: ClusterOptions) -> Result<Cluster> {
        let dir = tempfile::Builder::new()
            .prefix("sublet-cluster-")
            .tempdir()?
            .keep();
        let processes = Supervisor::new(Kind::Cluster, &dir, None)?;
        let mut users = vec![
            User::new(ADMIN, &["system:masters"]),
            User::new("system:kube-scheduler", &[]),
            User::new("system:kube-controller-manager", &[]),
            User::new("system:kwok", &["system:masters"]),
            User::new(
                &format!("system:node:{}", crate::node_config::name()),
                &["system:nodes"],
            ),
        ];
        users.extend(options.users);
        let pki = Pki::create(&dir.join("pki"), &users)?;
        let ports = Ports {
            etcd: free_port()?,
            etcd_peer: free_port()?,
            apiserver: free_port()?,
            controllers: free_port()?,
        };
        let kubectl = Kubectl {
            binary: options.binaries.cluster("kubectl"),
            cache: dir.join("kubectl-cache"),
            kubeconfig: write_kubeconfig(&dir, &pki, ports, ADMIN)?,
        };
        let binaries = options.binaries;
        let cluster = Cluster {
            dir,
            binaries,
            pki,
            ports,
            processes,
            kubectl,
        };
        cluster.bring_up(options.kwok, options.audit, &options.flags)?;
        Ok(cluster)
    }

    fn bring_up(&self, kwok: bool, audit: bool, flags: &[(&str, String)]) -> Result<()> {
        let spawn = |name: &str, mut command: Command| {
            command.args(
                flags
                    .iter()
                    .filter(|(to, _)| *to == name)
                    .map(|(_, flag)| flag),
            );
            self.processes.spawn(name, &command)
        };
        spawn(
            ETCD,
            components::etcd(&self.binaries, &self.dir, self.ports),
        )?;
        self.wait_http(ETCD, self.ports.etcd, "/readyz", START_LIMIT)?;

        let mut apiserver = components::apiserver(&self.binaries, &self.pki, self.ports);
        if audit {
            fs::write(self.dir.join("audit-policy.yaml"), components::AUDIT_POLICY)?;
            apiserver.args(components::audit(&self.dir));
        }
        spawn(APISERVER, apiserver)?;
        self.wait_apiserver()?;

        let kubeconfig = self.kubeconfig("system:kube-controller-manager")?;
        let controllers =
            components::controllers(&self.binaries, &self.pki, &kubeconfig, self.ports);
        spawn(CONTROLLERS, controllers)?;
        if kwok {
            let kubeconfig = self.kubeconfig("system:kwok")?;
            spawn(KWOK, components::kwok(&self.binaries, &kubeconfig))?;
        }
        self.wait_https(CONTROLLERS, self.ports.controllers, "/healthz")?;
        // The API server makes no pod in the namespace before this account exists.
        let account = || {
            self.kubectl(&["get", "serviceaccount", "default"])
                .map(drop)
        };
        self.processes.wait(CONTROLLERS, START_LIMIT, account)
    }

    /// The directory that holds everything of this cluster.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The built components this cluster runs.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// The API server's address.
    #[must_use]
    pub fn server(&self) -> String {
        server(self.ports)
    }

    /// A kubeconfig file for a user of this cluster.
    ///
    /// # Errors
    /// When the user is not among those that the cluster was started with.
    pub fn kubeconfig(&self, user: &str) -> Result<PathBuf> {
        write_kubeconfig(&self.dir, &self.pki, self.ports, user)
    }

    /// A kubeconfig file with a token that the API server has issued.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn kubeconfig_of_token(&self, name: &str, token: &str) -> Result<PathBuf> {
        let text = self.pki.kubeconfig_of_token(&self.server(), token);
        write_private(&self.dir, &format!("{name}.kubeconfig"), &text)
    }

    /// The authority that signed the API server's certificate, as a PEM file.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.pki.path("authority.crt")
    }

    /// Puts the API server's certificate and its key into a folder, for another server on loopback.
    pub(crate) fn lend_certificate(&self, folder: &Path) -> Result<()> {
        for (from, to) in [("apiserver.crt", "tls.crt"), ("apiserver.key", "tls.key")] {
            fs::copy(self.pki.path(from), folder.join(to))
                .with_context(|| format!("copy {from} to {}", folder.display()))?;
        }
        Ok(())
    }

    /// The audit log: one JSON object a line (`audit.k8s.io/v1` Event, level Metadata), if on.
    #[must_use]
    pub fn audit_log(&self) -> PathBuf {
        self.dir.join("audit.log")
    }

    /// Waits until the API server serves these definitions, named as for `kubectl wait`. That ends at
    /// once where one is so new that it has no status yet.
    ///
    /// # Errors
    /// One is not served in time, or is not there.
    pub fn until_defined(&self, which: &[&str]) -> Result<()> {
        let wait = [&["wait", "--for=condition=Established"][..], which].concat();
        let deadline = Instant::now() + START_LIMIT;
        loop {
            match self.kubectl(&wait) {
                Err(error)
                    if Instant::now() < deadline
                        && error.to_string().contains("accessor error") =>
                {
                    sleep(Duration::from_millis(100));
                }
                last => return last.map(drop),
            }
        }
    }

    pub(crate) fn kubectl_handle(&self) -> Kubectl {
        self.kubectl.clone()
    }

    /// Starts a stock kube-scheduler under a name, and waits until it is ready. `more` are further
    /// flags. Its `KubeSchedulerConfiguration` must name the same kubeconfig.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start_scheduler(
        &self,
        name: &str,
        kubeconfig: &Path,
        config: &str,
        flags: &[String],
    ) -> Result<()> {
        let path = self.dir.join(format!("{name}.yaml"));
        fs::write(&path, config).with_context(|| format!("write {}", path.display()))?;
        let port = free_port()?;
        let mut command = components::scheduler(&self.binaries, &path, kubeconfig, port);
        command.args(flags);
        self.processes.spawn(name, &command)?;
        self.wait_https(name, port, "/readyz")
    }

    /// Starts a process of the product; its output goes to `log/NAME.log`.
    ///
    /// # Errors
    /// When it cannot be started, or one of this name runs.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "nobody needs the command afterwards"
    )]
    pub fn spawn(&self, name: &str, command: Command) -> Result<()> {
        self.processes.spawn(name, &command)
    }

    /// Starts a process again, exactly as the first time. It must have ended.
    ///
    /// # Errors
    /// When no process of this name was started, or it still runs.
    pub fn start_again(&self, name: &str) -> Result<()> {
        self.processes.start(name)
    }

    /// Ends a process: by SIGTERM, and by SIGKILL after ten seconds. It may have ended already.
    pub fn stop(&self, name: &str) {
        self.processes.stop(name);
    }

    /// Sends a signal to a process; SIGKILL also waits until it is gone.
    ///
    /// # Errors
    /// When no process of this name runs.
    pub fn kill(&self, name: &str, signal: Signal) -> Result<()> {
        self.processes.kill(name, signal)
    }

    /// Kills the API server, starts it again on the same port, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn restart_apiserver(&self) -> Result<()> {
        self.kill(APISERVER, Signal::KILL)?;
        self.start_again(APISERVER)?;
        self.wait_apiserver()
    }

    /// Waits until `http://127.0.0.1:PORT/PATH` answers 200.
    ///
    /// # Errors
    /// When the process ends or the time is over: the error has the end of its log.
    pub fn wait_http(&self, name: &str, port: u16, path: &str, limit: Duration) -> Result<()> {
        self.processes
            .wait(name, limit, || match http_get(port, path)? {
                (200, _) => Ok(()),
                (status, body) => bail!("{path} answers {status}: {body}"),
            })
    }

    /// Waits for something that a process does; fails at once when that process ends.
    pub(crate) fn wait(
        &self,
        name: &str,
        limit: Duration,
        ready: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        self.processes.wait(name, limit, ready)
    }

    /// The process id of a running process.
    ///
    /// # Errors
    /// When no process of this name runs.
    pub fn pid(&self, name: &str) -> Result<u32> {
        self.processes.pid(name)
    }

    /// CPU time that a running process has used, user and system, in seconds.
    ///
    /// # Errors
    /// When no process of this name runs.
    pub fn cpu_seconds(&self, name: &str) -> Result<f64> {
        self.processes.cpu_seconds(name)
    }

    /// Resident memory of a running process, in MiB.
    ///
    /// # Errors
    /// When no process of this name runs.
    pub fn rss_mib(&self, name: &str) -> Result<u64> {
        self.processes.rss_mib(name)
    }

    /// Memory of the running process that belongs to no file, neither to its program's nor to a
    /// library's, in MiB.
    ///
    /// # Errors
    /// When no process of this name runs.
    pub fn anonymous_mib(&self, name: &str) -> Result<u64> {
        self.processes.anonymous_mib(name)
    }

    /// The file that a process writes its output to.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.processes.log(name)
    }

    /// The last twenty lines that a process wrote.
    #[must_use]
    pub fn log_tail(&self, name: &str) -> String {
        self.processes.log_tail(name, 20)
    }

    fn wait_apiserver(&self) -> Result<()> {
        self.processes.wait(APISERVER, START_LIMIT, || {
            is_open(self.ports.apiserver)?;
            self.kubectl(&["get", "--raw", "/readyz"]).map(drop)
        })
    }

    /// Waits for a component that made its own certificate; kubectl asks, because it speaks TLS.
    ///
    /// # Errors
    /// When it does not answer in time: the end of its log.
    pub fn wait_https(&self, name: &str, port: u16, path: &str) -> Result<()> {
        let server = format!("--server=https://127.0.0.1:{port}");
        let nobody = Kubectl {
            kubeconfig: PathBuf::from("/dev/null"),
            ..self.kubectl.clone()
        };
        // Without any credentials kubectl would ask for them on stdin. Nobody checks this password:
        // to the component this is an anonymous request, and it answers such requests for its
        // health.
        let nobody_at_all = ["--username=nobody", "--password=none"];
        let health = ["--insecure-skip-tls-verify", "get", "--raw", path];
        let args = [&[server.as_str()], &nobody_at_all[..], &health].concat();
        self.processes.wait(name, START_LIMIT, || {
            is_open(port)?;
            nobody.run(&args, None).map(drop)
        })
    }
}

fn server(ports: Ports) -> String {
    format!("https://127.0.0.1:{}", ports.apiserver)
}

fn write_kubeconfig(dir: &Path, pki: &Pki, ports: Ports, user: &str) -> Result<PathBuf> {
    let text = pki.kubeconfig(&server(ports), user)?;
    write_private(
        dir,
        &format!("{}.kubeconfig", user.replace(':', ".")),
        &text,
    )
}

/// Writes a file that is ours alone to read, and never seen half: another thread may use it.
fn write_private(dir: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.persist(&path)
        .with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}
