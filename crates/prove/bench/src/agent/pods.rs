//! Pods that are started on the node, alone or together, and wait until they are gone.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use sublet_e2e::GpuNode;

/// Pods that are created at once. Ten of them fill a card of the node but for six units.
pub(super) const PODS: usize = 20;
const PART: usize = 1_627;

/// If not all run after so long, something is wrong.
const STALL: Duration = Duration::from_secs(120);

/// Interval between looks whether they run.
const LOOK: Duration = Duration::from_millis(100);

/// The pods that are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// No two pods ask for the same amount.
    Different,
    /// All do, and the runtime says whose each container is.
    Nri,
    /// All do, and kubelet's checkpoint tells them apart.
    Checkpoint,
    /// All do, and each waits until the one before it has its devices.
    SizeAndOrder,
    /// None asks for a GPU.
    NoGpu,
}

pub(super) const WAYS: [Way; 4] = [Way::Different, Way::Nri, Way::Checkpoint, Way::SizeAndOrder];

impl Way {
    pub(super) fn label(self) -> &'static str {
        match self {
            Way::Different => "no two are equal (bound)",
            Way::Nri => "equal, told apart by `nri`",
            Way::Checkpoint => "equal, told apart by `kubelet-checkpoint`",
            Way::SizeAndOrder => "equal, told apart by `size-and-order`",
            Way::NoGpu => "no GPU",
        }
    }

    /// The agent's `--identity`, and what it reports.
    pub(super) fn identity(self) -> &'static str {
        match self {
            Way::Nri | Way::NoGpu => "nri",
            Way::Different | Way::Checkpoint => "kubelet-checkpoint",
            Way::SizeAndOrder => "size-and-order",
        }
    }

    /// Limits of the pod of that number.
    fn limits(self, number: usize) -> Value {
        let units = match self {
            Way::Different => PART - number,
            Way::Nri | Way::Checkpoint | Way::SizeAndOrder => PART,
            Way::NoGpu => return json!({}),
        };
        json!({"aliyun.com/gpu-mem": units.to_string()})
    }
}

/// Starts a pod, and returns when it is gone.
pub(super) async fn run_alone(node: &GpuNode, way: Way, number: usize) -> Result<()> {
    let pods = pods_of(node).await?;
    let pod = pod(way, number)?;
    pods.create(&PostParams::default(), &pod).await?;
    until_running(&pods, 1).await?;
    delete_all(&pods).await
}

async fn pods_of(node: &GpuNode) -> Result<Api<Pod>> {
    let kubeconfig = node.world.cluster.kubeconfig("admin")?;
    let client = sublet_client::connect(Some(&kubeconfig)).await?;
    Ok(Api::namespaced(client, "default"))
}

/// Creates all pods, and waits until all run.
pub(super) async fn started(node: &GpuNode, way: Way) -> Result<Api<Pod>> {
    let pods = pods_of(node).await?;
    let creations = (0..PODS).map(|number| {
        let pods = pods.clone();
        async move {
            pods.create(&PostParams::default(), &pod(way, number)?)
                .await
                .context("a pod")
        }
    });
    futures::future::try_join_all(creations).await?;
    until_running(&pods, PODS).await?;
    Ok(pods)
}

async fn until_running(pods: &Api<Pod>, count: usize) -> Result<()> {
    let begun = Instant::now();
    loop {
        let list = pods.list(&ListParams::default()).await?;
        let running = list.items.iter().filter(|pod| is_ready(pod)).count();
        if running == count {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < STALL,
            "after {STALL:?} {running} of {count} pods run: {}",
            states(&list.items)
        );
        tokio::time::sleep(LOOK).await;
    }
}

/// Status of each pod, for an error.
fn states(pods: &[Pod]) -> String {
    let state = |pod: &Pod| serde_json::to_string(&pod.status).unwrap_or_default();
    pods.iter().map(state).collect::<Vec<_>>().join("\n")
}

pub(super) async fn delete_all(pods: &Api<Pod>) -> Result<()> {
    // Not by force: what a pod leaves running keeps its card from the next one.
    let delete = DeleteParams::default();
    pods.delete_collection(&delete, &ListParams::default())
        .await?;
    while !pods.list(&ListParams::default()).await?.items.is_empty() {
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

fn pod(way: Way, number: usize) -> Result<Pod> {
    let pod = json!({
        "metadata": {"name": format!("p{number}")},
        "spec": {
            "schedulerName": "sublet-scheduler",
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": "sublet.test/busybox:1",
                "imagePullPolicy": "Never",
                "command": ["sleep", "1000"],
                "resources": {"limits": way.limits(number)},
            }],
        },
    });
    Ok(serde_json::from_value(pod)?)
}

fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    containers.is_some_and(|all| !all.is_empty() && all.iter().all(|one| one.ready))
}
