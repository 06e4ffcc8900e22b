//! A cluster with the product on it and one real node that plays two GPUs.
//!
//! Kubelet, containerd and runc are real, and so are the calls between them and our agent. Only
//! the cards are not: a file describes them. Everything is read where a user could read it: node
//! and pod objects, a container's environment from inside, kubelet's own checkpoint of containers
//! and their devices. Nothing here decides what is right; the tests do.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use sublet_testbed::{Node, NodeOptions, Signal, deployed, free_port, http_get};

use crate::world::{World, binaries, eventually};

pub use sublet_testbed::deployed::AGENT;

/// Two cards of GPUShare's published example.
pub const TWO_CARDS: &str = "gpus: [{memory: 16276MiB, count: 2}]";

/// A container's environment.
pub type Environment = BTreeMap<String, String>;

/// A cluster with a real node and our agent.
pub struct GpuNode {
    // Declared before the cluster, because the node leaves the cluster when it is dropped.
    node: Node,
    /// The cluster and the rest of the product.
    pub world: World,
    health: u16,
    uuids: Vec<String>,
}

impl GpuNode {
    /// Starts everything, with two cards of 16,276 MiB and more flags for the agent. If this
    /// machine cannot, prints why and returns `None`.
    ///
    /// # Errors
    /// A component does not come up.
    pub fn start(flags: &[&str]) -> Result<Option<GpuNode>> {
        let Some(binaries) = binaries()? else {
            return Ok(None);
        };
        if let Err(reason) = Node::available(&binaries) {
            println!("skipped: {reason}");
            return Ok(None);
        }
        let Some(world) = World::start()? else {
            return Ok(None);
        };
        let node = Node::start(&world.cluster, &NodeOptions::default())?;
        let mut gpu_node = GpuNode {
            node,
            world,
            health: free_port()?,
            uuids: Vec::new(),
        };
        gpu_node.set_devices(TWO_CARDS)?;
        gpu_node.start_agent(flags)?;
        gpu_node.uuids = gpu_node.reported_uuids()?;
        Ok(Some(gpu_node))
    }

    /// The node's name.
    #[must_use]
    pub fn name(&self) -> String {
        self.node.name()
    }

    /// Folder in which the agent keeps the files that containers mount.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.node.dir().join("sublet")
    }

    /// Socket on which containerd listens for plugins.
    #[must_use]
    pub fn nri_socket(&self) -> PathBuf {
        self.node.dir().join("nri.sock")
    }

    /// The folder of the arbiter's own sockets.
    #[must_use]
    pub fn run_folder(&self) -> PathBuf {
        self.node.dir().join("run")
    }

    /// The agent's metrics.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn metrics(&self) -> Result<String> {
        let (_, page) = http_get(self.health, "/metrics")?;
        Ok(page)
    }

    /// Replaces the inventory file as an editor does: with a new file in its place.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn set_devices(&self, yaml: &str) -> Result<()> {
        let new = self.world.cluster.dir().join("gpus.new");
        fs::write(&new, yaml)?;
        fs::rename(&new, self.world.cluster.dir().join("gpus.yaml"))?;
        Ok(())
    }

    /// Puts an image archive where kubelet finds it.
    ///
    /// # Errors
    /// containerd does not take it.
    pub fn import_image(&self, archive: &Path) -> Result<()> {
        let binaries = self.world.cluster.binaries();
        self.node.import_image(binaries, archive)
    }

    /// Starts the agent, as its own account, with more flags, and waits until kubelet knows it.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start_agent(&self, flags: &[&str]) -> Result<()> {
        let cluster = &self.world.cluster;
        let inventory = cluster.dir().join("gpus.yaml");
        deployed::start_agent(
            cluster,
            self.world.sublet_path(),
            &self.node,
            &inventory,
            self.health,
            flags,
        )?;
        self.until_registered(1)
    }

    /// Kills the agent, as a crash would, and starts it again.
    ///
    /// # Errors
    /// It does not come back.
    pub fn restart_agent(&self) -> Result<()> {
        self.world.cluster.kill(AGENT, Signal::KILL)?;
        self.world.cluster.start_again(AGENT)?;
        self.until_registered(1)
    }

    /// Restarts kubelet and waits until the agent has registered with the new one.
    ///
    /// # Errors
    /// It does not come back.
    pub fn restart_kubelet(&self) -> Result<()> {
        let before = self.registrations()?;
        self.node.restart_kubelet()?;
        self.until_registered(before + 1)
    }

    /// Restarts containerd.
    ///
    /// # Errors
    /// It does not come back.
    pub fn restart_containerd(&self) -> Result<()> {
        self.node.restart_containerd(self.world.cluster.binaries())
    }

    /// Reads runc's specification of a container that runs.
    ///
    /// # Errors
    /// The container does not run.
    pub fn runc_spec(&self, pod: &Value, container: &str) -> Result<Value> {
        let all = pod["status"]["containerStatuses"].as_array();
        let status = all
            .into_iter()
            .flatten()
            .find(|one| one["name"] == container);
        let id = status.and_then(|one| one["containerID"].as_str()?.strip_prefix("containerd://"));
        let path = self.node.runc_spec(id.context("no container's ID")?);
        let text = fs::read_to_string(&path);
        let text = text.with_context(|| path.display().to_string())?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Waits until the agent reports that it recognises containers by these means.
    ///
    /// # Errors
    /// It does not.
    pub fn until_identity(&self, wanted: &str) -> Result<()> {
        eventually(|| {
            let object = self.world.get(&["node", &self.name()])?;
            let report = object["metadata"]["annotations"]["sublet.dev/inventory"].as_str();
            let report: Value = serde_json::from_str(report.context("no inventory")?)?;
            ensure!(report["identity"] == wanted, "{}", report["identity"]);
            Ok(())
        })
    }

    /// Sends a signal to kubelet.
    ///
    /// # Errors
    /// It does not run.
    pub fn signal_kubelet(&self, signal: Signal) -> Result<()> {
        self.node.kill_kubelet(signal)
    }

    fn until_registered(&self, count: u64) -> Result<()> {
        let limit = Duration::from_secs(30);
        self.world
            .cluster
            .wait_http(AGENT, self.health, "/healthz", limit)?;
        eventually(|| {
            let now = self.registrations()?;
            ensure!(now >= count, "{now} registrations with kubelet");
            Ok(())
        })
        .with_context(|| self.world.cluster.log_tail(AGENT))
    }

    /// Number of times this agent has registered a plugin with kubelet.
    fn registrations(&self) -> Result<u64> {
        let page = self.metrics()?;
        let lines = page
            .lines()
            .filter(|line| line.starts_with("sublet_agent_registrations_total"));
        lines
            .map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse::<u64>()?))
            .sum()
    }

    /// Amount of a resource that the node offers to pods; 0 if it has none.
    ///
    /// # Errors
    /// The node cannot be read.
    pub fn allocatable(&self, resource: &str) -> Result<u64> {
        let node = self.world.get(&["node", &self.name()])?;
        let amount = node["status"]["allocatable"][resource].as_str();
        amount.map_or(Ok(0), |amount| {
            amount
                .parse()
                .with_context(|| format!("{resource}: `{amount}`"))
        })
    }

    /// Waits until the node has that much of a resource.
    ///
    /// # Errors
    /// It does not have that much in time.
    pub fn until_allocatable(&self, resource: &str, amount: u64) -> Result<()> {
        eventually(|| {
            let now = self.allocatable(resource)?;
            ensure!(now == amount, "{resource}: {now}, not {amount}");
            Ok(())
        })
        .with_context(|| self.world.cluster.log_tail(AGENT))
    }

    /// The UUIDs of the cards, in order, as the node object reported them at the start.
    #[must_use]
    pub fn uuids(&self) -> &[String] {
        &self.uuids
    }

    fn reported_uuids(&self) -> Result<Vec<String>> {
        let node = self.world.get(&["node", &self.name()])?;
        let report = node["metadata"]["annotations"]["sublet.dev/inventory"].as_str();
        let report: Value = serde_json::from_str(report.context("the node has no inventory")?)?;
        let gpus = report["gpus"].as_array().context("no list of GPUs")?;
        let uuid = |gpu: &Value| gpu["uuid"].as_str().map(str::to_owned);
        let uuids = gpus.iter().map(uuid).collect::<Option<_>>();
        uuids.with_context(|| format!("a GPU without UUID: {report}"))
    }

    /// Waits until all containers of a pod run, and returns the pod.
    ///
    /// # Errors
    /// The pod failed, or does not run in time.
    pub fn until_running(&self, pod: &str) -> Result<Value> {
        let outcome = self.until_settled(pod)?;
        let phase = outcome["status"]["phase"].as_str().unwrap_or_default();
        ensure!(
            phase == "Running",
            "{pod} is {phase}: {}",
            outcome["status"]["message"]
        );
        Ok(outcome)
    }

    /// Waits until a pod runs or has failed, and returns it.
    ///
    /// # Errors
    /// The pod does neither in time.
    pub fn until_settled(&self, pod: &str) -> Result<Value> {
        eventually(|| {
            let object = self.world.get(&["pod", pod])?;
            let status = &object["status"];
            let containers = status["containerStatuses"].as_array();
            let ready = containers.is_some_and(|all| all.iter().all(|one| one["ready"] == true));
            match status["phase"].as_str() {
                Some("Running") if ready => Ok(object),
                Some("Failed") => Ok(object),
                _ => bail!("{pod} neither runs nor has failed: {status}"),
            }
        })
        .with_context(|| self.world.cluster.log_tail(AGENT))
    }

    /// Waits until kubelet has refused a pod, and returns kubelet's message.
    ///
    /// # Errors
    /// The pod runs.
    pub fn until_not_admitted(&self, pod: &str) -> Result<String> {
        let object = self.until_settled(pod)?;
        let status = &object["status"];
        ensure!(
            status["reason"] == "UnexpectedAdmissionError",
            "{pod}: {status}"
        );
        Ok(status["message"].as_str().unwrap_or_default().to_owned())
    }

    /// A running container's environment, from inside.
    ///
    /// # Errors
    /// The container does not run.
    pub fn environment(&self, pod: &str, container: &str) -> Result<Environment> {
        let args = ["exec", pod, "-c", container, "--", "env"];
        Ok(parse_environment(&self.world.cluster.kubectl(&args)?))
    }

    /// The IDs of the devices that kubelet believes a container has, from its checkpoint.
    ///
    /// # Errors
    /// The checkpoint has no devices of the container.
    pub fn devices_of(&self, pod: &Value, container: &str) -> Result<Vec<String>> {
        let path = self
            .node
            .device_plugins()
            .join("kubelet_internal_checkpoint");
        let checkpoint: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
        let entries = checkpoint["Data"]["PodDeviceEntries"].as_array();
        let entry = entries.into_iter().flatten().find(|entry| {
            entry["PodUID"] == pod["metadata"]["uid"] && entry["ContainerName"] == container
        });
        let by_numa = entry.and_then(|entry| entry["DeviceIDs"].as_object());
        let ids = by_numa.with_context(|| format!("no devices of {container}: {checkpoint}"))?;
        let ids = ids.values().filter_map(Value::as_array).flatten();
        Ok(ids
            .filter_map(|id| id.as_str().map(str::to_owned))
            .collect())
    }
}

/// Reads what `env` prints.
#[must_use]
pub fn parse_environment(text: &str) -> Environment {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}
