//! A cluster with the product on it: control plane, extender, second stock scheduler.

mod lease;

pub use lease::Lease;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use sublet_client::{Write, connect, perform};
use sublet_model::{PodKey, PodUid};
use sublet_testbed::deployed::{ControllerPorts, SchedulerPod};
use sublet_testbed::{
    Binaries, Cluster, ClusterOptions, Helm, KOORDINATOR, chart_folder, deployed, http_get,
};

/// Place of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The node.
    pub node: String,
    /// `ALIYUN_COM_GPU_MEM_IDX`; empty where there is none.
    pub card: String,
}

/// A cluster with the product on it.
pub struct World {
    /// The control plane, and every process beside it.
    pub cluster: Cluster,
    /// The extender's port.
    pub port: u16,
    sublet: PathBuf,
    /// Whether jobs queue.
    queue: bool,
}

/// The control plane's programs. If there are none, prints why the test is skipped.
///
/// # Errors
/// The programs are not where the environment says.
pub fn binaries() -> Result<Option<Binaries>> {
    let binaries = Binaries::from_env()?;
    if binaries.is_none() {
        println!("skipped: SUBLET_CONTROL_PLANE is not set; run `cargo xtask test`");
    }
    Ok(binaries)
}

/// Polls until the check passes; if it never does, returns its last error.
///
/// # Errors
/// The check's last error after two minutes.
pub fn eventually<T>(mut check: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match check() {
            Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(100)),
            last => return last,
        }
    }
}

impl World {
    /// Starts everything. If this machine cannot, prints why and returns `None`.
    ///
    /// # Errors
    /// A component does not come up.
    pub fn start() -> Result<Option<World>> {
        World::start_with(&[])
    }

    /// The same with more flags for the extender.
    ///
    /// # Errors
    /// A component does not come up.
    pub fn start_with(flags: &[&str]) -> Result<Option<World>> {
        World::start_as(flags, |options| options)
    }

    /// The same, but a pod that is deleted before it is bound, and that a finalizer keeps, stays as
    /// it is.
    ///
    /// # Errors
    /// A component does not come up.
    pub fn start_keeping_deleted() -> Result<Option<World>> {
        World::start_as(&[], ClusterOptions::keeping_deleted)
    }

    fn start_as(
        flags: &[&str],
        change: impl FnOnce(ClusterOptions) -> ClusterOptions,
    ) -> Result<Option<World>> {
        World::start_of(None, flags, change)
    }

    /// `queue`: the further names of the kube-scheduler, where jobs queue.
    fn start_of(
        queue: Option<&[&str]>,
        flags: &[&str],
        change: impl FnOnce(ClusterOptions) -> ClusterOptions,
    ) -> Result<Option<World>> {
        let Some(binaries) = binaries()? else {
            return Ok(None);
        };
        let sublet = std::env::var_os("SUBLET_BIN").context("SUBLET_BIN is not set")?;
        let sublet = PathBuf::from(sublet);
        let mut options = change(ClusterOptions::new(binaries));
        options.users = deployed::accounts();
        options.audit = true;
        let cluster = Cluster::start(options)?;
        deployed::apply(&cluster, repository())?;
        if queue.is_some() {
            deployed::apply_queue(&cluster, repository())?;
        }
        let port = deployed::start_extender(&cluster, &sublet, flags)?;
        let more_names = queue.filter(|names| !names.is_empty());
        match more_names.and_then(|names| Some((names, Helm::from_env()?))) {
            Some((names, helm)) => {
                let names = format!("scheduler.moreNames={{{}}}", names.join(","));
                let chart = chart_folder(repository());
                let made = helm.manifests(&chart, &["--set", &names])?;
                let manifest = made.get("40-scheduler-config.yaml");
                let manifest = manifest.context("the chart makes no configuration")?;
                deployed::start_kube_scheduler_of(&cluster, repository(), manifest, port, &[])?;
            }
            None => deployed::start_kube_scheduler(&cluster, repository(), port, &[])?,
        }
        Ok(Some(World {
            cluster,
            port,
            sublet,
            queue: queue.is_some(),
        }))
    }

    /// The same with the queue, in a cluster that has Kubernetes' own gang API. Its kube-scheduler
    /// knows nothing of it until it is restarted with [`sublet_testbed::GANG_FEATURE_GATES`].
    ///
    /// # Errors
    /// A component does not come up.
    pub fn start_with_gangs() -> Result<Option<World>> {
        let world = World::start_of(Some(&[]), &["--queue"], ClusterOptions::with_gangs)?;
        if let Some(world) = &world {
            world.start_controller(&["--queue"])?;
        }
        Ok(world)
    }

    /// Ends our kube-scheduler, and starts it with these flags beside its own.
    ///
    /// # Errors
    /// It does not come up.
    pub fn restart_kube_scheduler(&self, flags: &[&str]) -> Result<()> {
        self.cluster.stop(deployed::KUBE_SCHEDULER);
        deployed::start_kube_scheduler(&self.cluster, repository(), self.port, flags)
    }

    /// Starts a cluster with that many pods of schedulers, as the shipped Deployment makes them.
    /// If this machine cannot, prints why and returns `None`.
    ///
    /// # Errors
    /// A component does not come up.
    pub fn start_replicated(count: usize) -> Result<Option<(World, Vec<SchedulerPod>)>> {
        let Some(binaries) = binaries()? else {
            return Ok(None);
        };
        let sublet = std::env::var_os("SUBLET_BIN").context("SUBLET_BIN is not set")?;
        let sublet = PathBuf::from(sublet);
        let mut options = ClusterOptions::new(binaries);
        options.users = deployed::accounts();
        let cluster = Cluster::start(options)?;
        deployed::apply(&cluster, repository())?;
        let mut world = World {
            cluster,
            port: 0,
            sublet,
            queue: false,
        };
        let pods = world.start_scheduler_pods(count)?;
        world.port = pods[0].calls;
        Ok(Some((world, pods)))
    }

    /// Starts that many pods of schedulers, as the shipped Deployment makes them.
    ///
    /// # Errors
    /// A component does not come up.
    pub fn start_scheduler_pods(&self, count: usize) -> Result<Vec<SchedulerPod>> {
        deployed::start_scheduler_pods(&self.cluster, repository(), &self.sublet, count)
    }

    /// Starts the controller, has the API server ask it about GPU pods, and waits until it is ready.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start_controller(&self, flags: &[&str]) -> Result<ControllerPorts> {
        let name = deployed::CONTROLLER;
        let ports = deployed::start_controller(&self.cluster, &self.sublet, name, flags)?;
        self.call_webhook_at(ports.calls)?;
        deployed::until_controller_ready(&self.cluster, name, ports)?;
        Ok(ports)
    }

    /// Has the API server ask about GPU pods at this port.
    ///
    /// # Errors
    /// The webhook configuration is refused.
    pub fn call_webhook_at(&self, port: u16) -> Result<()> {
        match self.queue {
            true => deployed::apply_queue_webhook(&self.cluster, repository(), port),
            false => deployed::apply_webhook(&self.cluster, repository(), port),
        }
    }

    /// Runs `sublet` with these arguments as the cluster's administrator. Returns exit code,
    /// standard output and standard error.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn sublet(&self, args: &[&str]) -> Result<(i32, String, String)> {
        let output = Command::new(&self.sublet)
            .args(args)
            .env("KUBECONFIG", self.cluster.kubeconfig("admin")?)
            .output()
            .with_context(|| format!("cannot run {}", self.sublet.display()))?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok((
            output.status.code().unwrap_or(-1),
            text(output.stdout),
            text(output.stderr),
        ))
    }

    /// The product's binary.
    #[must_use]
    pub fn sublet_path(&self) -> &Path {
        &self.sublet
    }

    /// An object as JSON.
    ///
    /// # Errors
    /// kubectl failed.
    pub fn get(&self, args: &[&str]) -> Result<Value> {
        let text = self
            .cluster
            .kubectl(&[&["get"], args, &["-o", "json"]].concat())?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Returns the place of a pod, once it is bound.
    ///
    /// # Errors
    /// It is not bound; the error has the message of its condition.
    pub fn placed(&self, pod: &str) -> Result<Placed> {
        let pod = self.get(&["pod", pod])?;
        let Some(node) = pod["spec"]["nodeName"].as_str() else {
            bail!("not bound: {}", waiting_because(&pod));
        };
        let card = pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"].as_str();
        Ok(Placed {
            node: node.to_owned(),
            card: card.unwrap_or_default().to_owned(),
        })
    }

    /// Waits until a pod is bound and returns its place.
    ///
    /// # Errors
    /// It was not bound in time.
    pub fn until_placed(&self, pod: &str) -> Result<Placed> {
        eventually(|| self.placed(pod))
    }

    /// Waits until the scheduler says that a pod cannot be placed, and returns its message.
    ///
    /// Messages while a new node still has its not-ready taint do not count: the scheduler tries
    /// the pod again when the node controller has removed that taint.
    ///
    /// # Errors
    /// The pod was bound, or there was no message in time.
    pub fn until_refused(&self, pod: &str) -> Result<String> {
        eventually(|| {
            let pod = self.get(&["pod", pod])?;
            ensure!(
                pod["spec"]["nodeName"].is_null(),
                "bound to {}",
                pod["spec"]["nodeName"]
            );
            let words = waiting_because(&pod);
            ensure!(!words.is_empty(), "nothing is said of it yet");
            ensure!(
                !words.contains("untolerated taint"),
                "a node is not ready: {words}"
            );
            Ok(words)
        })
    }

    /// Waits until an event of ours about a pod contains this text, and returns its message.
    ///
    /// # Errors
    /// There is no such event in time.
    pub fn until_event(&self, pod: &str, text: &str) -> Result<String> {
        eventually(|| {
            let field = format!("involvedObject.name={pod},source=sublet-extender");
            let events = self.get(&["events", "--field-selector", &field])?;
            let events = events["items"].as_array().cloned().unwrap_or_default();
            let messages: Vec<_> = events
                .iter()
                .filter_map(|event| event["message"].as_str())
                .collect();
            let found = messages.iter().find(|message| message.contains(text));
            found
                .map(|&m| m.to_owned())
                .with_context(|| format!("no `{text}` in {messages:?}"))
        })
    }

    /// Binds a pod by hand, as the extender's account, with these annotations.
    ///
    /// # Errors
    /// The API server refused the Binding.
    pub fn bind_by_hand(&self, pod: &str, node: &str, annotations: &Value) -> Result<()> {
        let user = deployed::account("sublet-scheduler").name;
        self.bind_as(&user, pod, node, annotations)
    }

    /// The same as that user.
    ///
    /// # Errors
    /// The API server refused the Binding.
    pub fn bind_as(&self, user: &str, pod: &str, node: &str, annotations: &Value) -> Result<()> {
        self.send_binding(user, pod, node, annotations, "")
    }

    /// The same as that user, without annotations and as if: nothing is bound.
    ///
    /// # Errors
    /// The API server would refuse the Binding.
    pub fn try_binding_as(&self, user: &str, pod: &str, node: &str) -> Result<()> {
        self.send_binding(user, pod, node, &serde_json::json!({}), "?dryRun=All")
    }

    fn send_binding(
        &self,
        user: &str,
        pod: &str,
        node: &str,
        annotations: &Value,
        how: &str,
    ) -> Result<()> {
        let binding = serde_json::json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": pod, "annotations": annotations },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let file = self.cluster.dir().join(format!("binding-{pod}.json"));
        std::fs::write(&file, binding.to_string())?;
        let path = format!("/api/v1/namespaces/default/pods/{pod}/binding{how}");
        let file = file.display().to_string();
        self.cluster
            .kubectl_as(user, &["create", "--raw", &path, "-f", &file])?;
        Ok(())
    }

    /// Writes an annotation of a node as its agent would: nobody else may.
    ///
    /// # Errors
    /// The API server refuses it.
    pub fn annotate_node_as_agent(&self, node: &str, key: &str, text: &str) -> Result<()> {
        let patch = serde_json::json!({ "metadata": { "annotations": { key: text } } }).to_string();
        let agent = deployed::as_agent_of(node);
        let mut args = vec!["patch", "node", node, "--type=merge", "-p", &patch];
        args.extend(agent.iter().map(String::as_str));
        self.cluster.kubectl(&args).map(drop)
    }

    /// Reports cards of that memory (MiB) on a node that only exists on paper, as its agent would.
    ///
    /// # Errors
    /// The API server refused the patch.
    pub fn report_as_agent(&self, node: &str, identity: &str, cards: &[u64]) -> Result<()> {
        let gpus = cards.iter().enumerate().map(|(index, memory)| {
            serde_json::json!({ "index": index, "uuid": format!("GPU-{index}"), "memoryMiB": memory })
        });
        let inventory = serde_json::json!({
            "version": 1, "unit": "MiB", "sharing": "memory", "identity": identity,
            "advertise": "units", "gpus": gpus.collect::<Vec<_>>(),
        });
        self.annotate_node_as_agent(node, "sublet.dev/inventory", &inventory.to_string())
    }

    /// Sets annotations of a pod. As the agent of its node it sends only the patch.
    ///
    /// # Errors
    /// The API server refused the patch.
    pub fn annotate_as_agent(&self, pod: &str, annotations: &[(&str, &str)]) -> Result<()> {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let object = self.get(&["pod", pod])?;
        let uid = PodUid::new(object["metadata"]["uid"].as_str().unwrap_or_default())?;
        let node = object["spec"]["nodeName"].as_str().context("not bound")?;
        let key = PodKey::new("default", pod)?;
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let annotations: BTreeMap<String, String> = annotations.iter().map(own).collect();
        let kubeconfig = deployed::agent_kubeconfig(&self.cluster, node)?;
        let executor = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        executor.block_on(async {
            let client = connect(Some(&kubeconfig)).await?;
            let write = Write::pod_annotations(&key, &uid, &annotations);
            Ok(perform(&client, &write, "sublet-agent", Duration::from_secs(30)).await?)
        })
    }

    /// The extender's page at this path.
    ///
    /// # Errors
    /// It does not answer.
    pub fn page(&self, path: &str) -> Result<String> {
        Ok(http_get(self.port, path)?.1)
    }
}

/// Installs the CRD of Koordinator's `Device`, from Koordinator's own module, and waits until it is
/// served.
///
/// # Errors
/// The module cannot be fetched, or the API server refuses the CRD.
pub fn install_device_crd(world: &World) -> Result<()> {
    let crd = "config/crd/bases/scheduling.koordinator.sh_devices.yaml";
    let crd = std::fs::read_to_string(KOORDINATOR.folder()?.join(crd))?;
    world.cluster.apply(&crd)?;
    let established = ["wait", "--for=condition=established", "crd"];
    let name = ["devices.scheduling.koordinator.sh"];
    let args = [&established[..], &name].concat();
    world.cluster.kubectl(&args).map(drop)
}

/// The root of the checkout.
fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
}

fn waiting_because(pod: &Value) -> String {
    let conditions = pod["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let scheduled = conditions.iter().find(|c| c["type"] == "PodScheduled");
    scheduled
        .and_then(|c| c["message"].as_str())
        .unwrap_or_default()
        .to_owned()
}
