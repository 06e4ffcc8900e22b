//! The product as `deploy/kubernetes/` ships it, on a test cluster.
//!
//! The accounts, their rights, the policies, and the configuration of the second kube-scheduler
//! come from the shipped manifests. So a missing right fails here as it would on a real cluster.
//! Only addresses are replaced. The Deployment and the DaemonSet are not applied: their processes
//! run beside the cluster, not in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cluster::Cluster;
use crate::loopback::free_port;
use crate::node::Node;
use crate::pki::User;
use stock::{scheduler_config_of, scheduler_manifest};

mod stock;

pub use stock::{scheduler_config, scheduler_flags};

/// The name of the process that is our extender.
pub const EXTENDER: &str = "sublet-scheduler";
/// The name of the process that is a node's agent.
pub const AGENT: &str = "sublet-agent";
/// The name of the process that is the controller, if there is one.
pub const CONTROLLER: &str = "sublet-controller";
/// The name of the process that is the second stock kube-scheduler.
pub const KUBE_SCHEDULER: &str = "sublet-kube-scheduler";

const NAMESPACE: &str = "sublet-system";

/// The one file of `deploy/kubernetes/` that is not made by the chart: helm makes namespaces itself.
pub const NAMESPACE_MANIFEST: &str = "00-namespace.yaml";

/// Manifests that differ with the queue, or are there with it alone.
const QUEUE_FOLDER: &str = "deploy/kubernetes/queue";

/// Manifests that describe processes in pods, or configure them; they are not applied. The webhook
/// is, by [`apply_webhook`], where a controller is to answer: else each GPU pod would wait for one.
const NOT_APPLIED: [&str; 5] = [
    "40-scheduler-config.yaml",
    "50-scheduler.yaml",
    "60-agent.yaml",
    "70-controller.yaml",
    "71-webhook.yaml",
];

/// The capabilities that the agent keeps beyond those of any process of its user: none.
const AGENT_CAPABILITIES: &str = "--bounding-set=-all";

/// Longest time until the extender has completed its ledger.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// One of the product's service accounts, for [`crate::ClusterOptions::users`].
#[must_use]
pub fn account(name: &str) -> User {
    User::service_account(NAMESPACE, name)
}

/// All accounts in the manifests.
#[must_use]
pub fn accounts() -> Vec<User> {
    [
        "sublet-scheduler",
        "sublet-kube-scheduler",
        "sublet-agent",
        "sublet-controller",
    ]
    .map(account)
    .into()
}

/// Arguments with which the administrator's kubectl acts as the agent of a node: the API server
/// takes any holder of the token of that node's agent for this user.
#[must_use]
pub fn as_agent_of(node: &str) -> [String; 4] {
    let User { name, .. } = account("sublet-agent");
    [
        format!("--as={name}"),
        "--as-group=system:serviceaccounts".to_owned(),
        "--as-group=system:authenticated".to_owned(),
        format!("--as-user-extra=authentication.kubernetes.io/node-name={node}"),
    ]
}

/// A kubeconfig with a token of the agent that is good for this node, which must be there. The API
/// server issues it for the node itself: a pod on the node, as in a cluster, kubelet would run.
///
/// # Errors
/// When the API server issues none.
pub fn agent_kubeconfig(cluster: &Cluster, node: &str) -> Result<PathBuf> {
    let token = cluster.kubectl(&[
        "create",
        "token",
        "sublet-agent",
        &format!("--namespace={NAMESPACE}"),
        "--bound-object-kind=Node",
        &format!("--bound-object-name={node}"),
        "--duration=24h",
    ])?;
    cluster.kubeconfig_of_token(&format!("sublet-agent.{node}"), token.trim())
}

/// Applies accounts, rights and policies to a cluster.
///
/// # Errors
/// When a manifest is refused.
pub fn apply(cluster: &Cluster, repository: &Path) -> Result<()> {
    apply_folder(cluster, &repository.join("deploy/kubernetes"))
}

/// Applies what the queue needs beside that, or has in another form.
///
/// # Errors
/// When a manifest is refused.
pub fn apply_queue(cluster: &Cluster, repository: &Path) -> Result<()> {
    apply_folder(cluster, &repository.join(QUEUE_FOLDER))
}

fn apply_folder(cluster: &Cluster, dir: &Path) -> Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".yaml") && !NOT_APPLIED.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.sort(); // the numbers are the order
    for name in names {
        let path = dir.join(name).display().to_string();
        cluster.kubectl(&["apply", "--filename", &path])?;
    }
    Ok(())
}

/// Starts the extender from the binary `sublet`, as its own account, and waits until it is
/// ready; returns its port.
///
/// # Errors
/// When it does not come up: the error has the end of its log.
pub fn start_extender(cluster: &Cluster, sublet: &Path, more: &[&str]) -> Result<u16> {
    let port = free_port()?;
    start_extender_on(cluster, sublet, port, more)?;
    Ok(port)
}

/// The same on the port of an earlier extender, which must have ended.
///
/// # Errors
/// When it does not come up: the error has the end of its log.
pub fn start_extender_on(cluster: &Cluster, sublet: &Path, port: u16, more: &[&str]) -> Result<()> {
    let mut command = Command::new(sublet);
    command
        .args([
            "scheduler",
            "--listen",
            &format!("127.0.0.1:{port}"),
            "--kubeconfig",
        ])
        .arg(cluster.kubeconfig(&account("sublet-scheduler").name)?)
        .args(more);
    cluster.spawn(EXTENDER, command)?;
    cluster.wait_http(EXTENDER, port, "/readyz", READY_LIMIT)
}

/// The processes of one pod of the shipped Deployment of schedulers, side by side, and where they
/// listen on loopback.
#[derive(Debug, Clone)]
pub struct SchedulerPod {
    /// The name of its extender's process.
    pub extender: String,
    /// The name of its stand-in's process.
    pub stand_in: String,
    /// The name of its stock kube-scheduler's process.
    pub kube_scheduler: String,
    /// Port on which the kube-scheduler calls the extender, or the stand-in.
    pub calls: u16,
    /// Port on which other extenders hand over Binds.
    pub replicas: u16,
    /// The extender's health.
    pub health: u16,
    /// The stand-in's health.
    pub stand_in_health: u16,
}

impl SchedulerPod {
    /// Its processes, in the order in which they may start.
    #[must_use]
    pub fn processes(&self) -> [&str; 3] {
        [&self.extender, &self.stand_in, &self.kube_scheduler]
    }

    /// Waits until its extender has complete knowledge of the cluster.
    ///
    /// # Errors
    /// When it does not get ready: the error has the end of its log.
    pub fn until_ready(&self, cluster: &Cluster) -> Result<()> {
        cluster.wait_http(&self.extender, self.health, "/readyz", READY_LIMIT)
    }
}

/// Starts that many pods of schedulers, with the arguments of the shipped Deployment but for
/// addresses, and waits until all extenders are ready.
///
/// # Errors
/// When a process does not come up: the error has the end of its log.
pub fn start_scheduler_pods(
    cluster: &Cluster,
    repository: &Path,
    sublet: &Path,
    count: usize,
) -> Result<Vec<SchedulerPod>> {
    let pods = (0..count).map(|number| {
        Ok(SchedulerPod {
            extender: format!("{EXTENDER}-{number}"),
            stand_in: format!("sublet-stand-in-{number}"),
            kube_scheduler: format!("{KUBE_SCHEDULER}-{number}"),
            calls: free_port()?,
            replicas: free_port()?,
            health: free_port()?,
            stand_in_health: free_port()?,
        })
    });
    let pods = pods.collect::<Result<Vec<_>>>()?;
    let kubeconfig = cluster.kubeconfig(&account("sublet-scheduler").name)?;
    let local = |flag: &str, port: u16| format!("--{flag}=127.0.0.1:{port}");
    for pod in &pods {
        let scheduler = |health: u16| {
            let mut command = Command::new(sublet);
            command
                .arg("scheduler")
                .arg(local("listen", pod.calls))
                .arg(local("health-listen", health))
                .arg("--kubeconfig")
                .arg(&kubeconfig);
            command
        };
        let mut extender = scheduler(pod.health);
        extender.arg(local("replica-listen", pod.replicas));
        cluster.spawn(&pod.extender, extender)?;
        let mut stand_in = scheduler(pod.stand_in_health);
        stand_in.arg(local("stand-in-for", pod.health));
        let peers = pods.iter().map(|other| local("peer", other.replicas));
        cluster.spawn(&pod.stand_in, {
            stand_in.args(peers);
            stand_in
        })?;
    }
    for pod in &pods {
        pod.until_ready(cluster)?;
        let kubeconfig = cluster.kubeconfig(&account("sublet-kube-scheduler").name)?;
        let config = scheduler_config(repository, &kubeconfig, pod.calls)?;
        let flags = scheduler_flags(repository)?;
        cluster.start_scheduler(&pod.kube_scheduler, &kubeconfig, &config, &flags)?;
    }
    Ok(pods)
}

/// Starts a node's agent from the binary `sublet`, as its own account, with cards from a file.
/// Waits until it answers on the port `health`; kubelet may not know it yet.
///
/// # Errors
/// When it does not come up: the error has the end of its log.
pub fn start_agent(
    cluster: &Cluster,
    sublet: &Path,
    node: &Node,
    inventory: &Path,
    health: u16,
    more: &[&str],
) -> Result<()> {
    // The capabilities of the DaemonSet; a test below compares them with the manifest.
    let mut command = Command::new("setpriv");
    command
        .args(["--no-new-privs", AGENT_CAPABILITIES])
        .arg(sublet)
        .args(["agent", "--node-name", &node.name()])
        .args(["--health-listen", &format!("127.0.0.1:{health}")])
        .arg("--kubeconfig")
        .arg(agent_kubeconfig(cluster, &node.name())?)
        .arg("--inventory")
        .arg(inventory)
        .arg("--device-plugin-dir")
        .arg(node.device_plugins())
        // On a real host these are below /var/lib and /run, which a test must not use.
        .arg("--state-dir")
        .arg(node.dir().join("sublet"))
        .arg("--runtime-dir")
        .arg(node.dir().join("run"))
        .arg("--nri-socket")
        .arg(node.dir().join("nri.sock"))
        .arg("--cdi-dir")
        .arg(node.dir().join("cdi"))
        .args(more);
    cluster.spawn(AGENT, command)?;
    cluster.wait_http(AGENT, health, "/healthz", READY_LIMIT)
}

/// Has the API server ask about GPU pods and their Bindings at this port of loopback. The controller
/// may be started before or after.
///
/// # Errors
/// When the manifest does not contain the text to replace, or is refused.
pub fn apply_webhook(cluster: &Cluster, repository: &Path, port: u16) -> Result<()> {
    apply_calls(cluster, &repository.join("deploy/kubernetes"), port)
}

/// The same with the queue, for which it asks about more pods, and about quotas.
///
/// # Errors
/// When the manifest does not contain the text to replace, or is refused.
pub fn apply_queue_webhook(cluster: &Cluster, repository: &Path, port: u16) -> Result<()> {
    apply_calls(cluster, &repository.join(QUEUE_FOLDER), port)
}

fn apply_calls(cluster: &Cluster, folder: &Path, port: u16) -> Result<()> {
    let path = folder.join("71-webhook.yaml");
    let mut manifest =
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    for called in ["/admit", "/sharepods", "/bindings", "/quotas"] {
        let service = format!(
            "service: {{name: sublet-controller, namespace: sublet-system, port: 443, path: {called}}}"
        );
        ensure!(
            manifest.contains(&service),
            "{}: no `{service}`",
            path.display()
        );
        let url = format!("url: https://127.0.0.1:{port}{called}");
        manifest = manifest.replace(&service, &url);
    }
    cluster.apply(&manifest).map(drop)
}

/// Ports on which a controller listens on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControllerPorts {
    /// For the API server's calls.
    pub calls: u16,
    /// For health and metrics.
    pub health: u16,
}

/// Starts a replica of the controller from the binary `sublet`, as its own account, under this
/// name, and waits until it answers for its health. It is ready once there is a certificate.
///
/// # Errors
/// When it does not come up: the error has the end of its log.
pub fn start_controller(
    cluster: &Cluster,
    sublet: &Path,
    name: &str,
    more: &[&str],
) -> Result<ControllerPorts> {
    let ports = ControllerPorts {
        calls: free_port()?,
        health: free_port()?,
    };
    let mut command = Command::new(sublet);
    command
        .args([
            "controller",
            "--listen",
            &format!("127.0.0.1:{}", ports.calls),
        ])
        .args(["--health-listen", &format!("127.0.0.1:{}", ports.health)])
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig(&account("sublet-controller").name)?)
        .args(more);
    cluster.spawn(name, command)?;
    cluster.wait_http(name, ports.health, "/healthz", READY_LIMIT)?;
    Ok(ports)
}

/// Waits until a replica of the controller has a certificate and knows the namespaces.
///
/// # Errors
/// When it does not get ready: the error has the end of its log.
pub fn until_controller_ready(cluster: &Cluster, name: &str, ports: ControllerPorts) -> Result<()> {
    cluster.wait_http(name, ports.health, "/readyz", READY_LIMIT)
}

/// Starts the second stock kube-scheduler, as its own account; it asks the extender on `port`.
/// `more` are further flags.
///
/// # Errors
/// When it does not come up: the end of its log.
pub fn start_kube_scheduler(
    cluster: &Cluster,
    repository: &Path,
    port: u16,
    more: &[&str],
) -> Result<()> {
    let manifest = scheduler_manifest(repository)?;
    start_kube_scheduler_of(cluster, repository, &manifest, port, more)
}

/// The same by another configuration than the shipped one: `manifest` is what the chart makes of
/// `40-scheduler-config.yaml` with other values.
///
/// # Errors
/// When it does not come up: the end of its log.
pub fn start_kube_scheduler_of(
    cluster: &Cluster,
    repository: &Path,
    manifest: &str,
    port: u16,
    more: &[&str],
) -> Result<()> {
    let kubeconfig = cluster.kubeconfig(&account("sublet-kube-scheduler").name)?;
    let config = scheduler_config_of(manifest, &kubeconfig, port)?;
    let mut flags = scheduler_flags(repository)?;
    flags.extend(more.iter().map(ToString::to_string));
    cluster.start_scheduler(KUBE_SCHEDULER, &kubeconfig, &config, &flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_runs_with_the_capabilities_of_its_manifest() {
        let manifest = include_str!("../../../../deploy/kubernetes/60-agent.yaml");
        assert!(manifest.contains("capabilities: {drop: [ALL]}\n"));
        assert!(!manifest.contains("add: ["));
        assert!(AGENT_CAPABILITIES.ends_with("=-all"));
        assert!(manifest.contains("allowPrivilegeEscalation: false\n"));
    }
}
