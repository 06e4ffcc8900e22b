//! The strongest proof of a container's identity: the runtime says it. The agent is an NRI plugin.
//! The runtime asks it about each container that it creates, by the pod's UID and the container's
//! name. The answer is decided from the pod as the API server has it, which a watch has brought: no
//! call to another program is on the way. The things that a pod's containers need are made when the
//! watch brings the pod, some tenths of a second before; the runtime waits for a look at them.
//!
//! Kubelet's Allocate comes before, and does not name the container. The agent answers it with a
//! [`start_block`]: something with which no container can start, until this module takes it away. So if
//! the runtime did not ask about a container, because the agent was away or too late, the runtime
//! refuses that container, and kubelet tries again. The sandbox's annotations decide nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sublet_api::keys;
use sublet_api::object::Pod;
use sublet_kubelet::deviceplugin::{ContainerAllocateResponse, Mount};
use sublet_model::{ContainerName, Identity, Pauses, PodUid};
use sublet_nri::{
    CdiDevice, ConfigureRequest, Container, ContainerAdjustment, ContainerState, KeyValue,
    PodSandbox,
};
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tonic::Status;
use tracing::{debug, info, warn};

use crate::allocate::named::decide_for;
use crate::allocate::{AllocationResponse, Site};
use crate::card_injector::{CardInjector, Patience};
use crate::isolate::inject::Injection;
use crate::lifecycle_manager::LifecycleManager;
use crate::pods::{PodList, WatchedPods};

/// The plugin's name, as the scheduler writes it on pods ([`keys::REQUIRED_PLUGINS`]).
const NAME: &str = keys::NRI_PLUGIN;

/// Its place among the plugins: late, so that what others add is there.
const INDEX: &str = "80";

/// Longest wait for a pod that the watch has not brought. The runtime waits two seconds for an
/// answer, and creates no other container meanwhile.
const PATIENCE: Duration = Duration::from_millis(1_000);

/// The patience of the runtime: the rest of these two seconds. Kubelet asks again.
const RUNTIMES: Patience = Patience {
    arbiter: Duration::ZERO,
    clean: Duration::from_millis(500),
    may_block: true,
};

/// Patience where nobody asks yet.
const AHEAD: Patience = Patience {
    clean: Duration::ZERO,
    ..RUNTIMES
};

/// The pauses before a new connection. A runtime that restarts takes a second or two, and creates no
/// container before it serves NRI.
const PAUSES: Pauses = Pauses::new(Duration::from_millis(100), Duration::from_secs(5));

/// A connection that lived so long was none that failed.
const LONG: Duration = Duration::from_secs(5);

/// Path at which Allocate has a container mount a file. Every runtime refuses to make a file here.
const START_BLOCK: &str = "/proc/sublet-agent-was-not-asked";

/// Kubelet's answer for a container that only the runtime can name: no device, and no way to start
/// without our answer to the runtime.
pub(crate) fn start_block() -> ContainerAllocateResponse {
    let visible = (keys::NVIDIA_VISIBLE_DEVICES.to_owned(), "void".to_owned());
    ContainerAllocateResponse {
        envs: [visible].into(),
        mounts: vec![Mount {
            container_path: START_BLOCK.to_owned(),
            host_path: "/dev/null".to_owned(),
            read_only: true,
        }],
        ..ContainerAllocateResponse::default()
    }
}

/// Containers that the runtime has, as far as it said so.
#[derive(Clone, Default)]
pub(crate) struct Created(Arc<Mutex<BTreeMap<PodUid, BTreeSet<ContainerName>>>>);

impl Created {
    fn note(&self, uid: &str, container: &str) {
        if let (Ok(uid), Ok(name)) = (PodUid::new(uid), ContainerName::new(container)) {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.entry(uid).or_default().insert(name);
        }
    }

    /// Was that container created?
    pub(crate) fn has(&self, uid: &PodUid, container: &ContainerName) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(uid).is_some_and(|names| names.contains(container))
    }

    /// Forgets pods that are not on the node any more. `newest` is asked only while nothing can be
    /// noted: a list from before a container was created may lack its pod.
    pub(crate) fn keep(&self, newest: impl FnOnce() -> Option<PodList>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pods) = newest() {
            all.retain(|uid, _| pods.iter().any(|pod| pod.metadata.uid == uid.as_str()));
        }
    }
}

/// The agent as the runtime's plugin.
pub(crate) struct RuntimePlugin {
    pub(crate) pods: Arc<WatchedPods>,
    pub(crate) site: watch::Receiver<Arc<Site>>,
    pub(crate) injector: CardInjector,
    pub(crate) lifecycles: Arc<LifecycleManager>,
    pub(crate) created: Created,
    /// Told of containers that have their devices: it is to be written on their pods.
    pub(crate) news: Arc<Notify>,
}

impl RuntimePlugin {
    /// Serves the runtime for ever, whatever becomes of it.
    pub(crate) async fn keep(&self, socket: &Path) -> Infallible {
        let mut failures: u32 = 0;
        loop {
            let begun = Instant::now();
            let why = match UnixStream::connect(socket).await {
                Ok(stream) => match sublet_nri::serve(stream, NAME, INDEX, self).await {
                    Ok(()) => "the runtime closed the connection".to_owned(),
                    Err(error) => {
                        let cause = std::error::Error::source(&error).map(ToString::to_string);
                        format!("{error} {}", cause.unwrap_or_default())
                    }
                },
                Err(error) => error.to_string(),
            };
            if begun.elapsed() > LONG {
                failures = 0;
            }
            failures = failures.saturating_add(1);
            warn!(socket = %socket.display(), why, "no containers can start, will connect again");
            sleep(PAUSES.after(failures)).await;
        }
    }

    /// Makes the things that the containers of each pod need as soon as the watch brings it, for
    /// ever. An obstacle is reported later, when the runtime asks.
    pub(crate) async fn keep_ahead(self: Arc<Self>) -> Infallible {
        let mut changes = self.pods.changes();
        let mut done = BTreeSet::new();
        loop {
            let pods = self.pods.known(|_| true).filter(|_| self.knows_its_node());
            let pods: &[Pod] = pods.as_deref().unwrap_or_default();
            done.retain(|uid| pods.iter().any(|pod| pod.metadata.uid == *uid));
            for pod in pods.iter().filter(|pod| pod.status.phase == "Pending") {
                let (uid, spec) = (&pod.metadata.uid, &pod.spec);
                if done.insert(uid.clone()) {
                    for container in spec.init_containers.iter().chain(&spec.containers) {
                        self.prepare(uid, &container.name).await;
                    }
                }
            }
            // Never an error: the sender is ours.
            let _changed = changes.changed().await;
        }
    }

    /// Makes what that container needs, on a thread that may block.
    async fn prepare(self: &Arc<Self>, uid: &str, container: &str) {
        let is_there = |pods: &[Pod]| pods.iter().any(|pod| pod.metadata.uid == uid);
        let Some(pods) = self.pods.known(is_there) else {
            return;
        };
        let (own, here) = (Arc::clone(self), Handle::current());
        let (uid, name) = (uid.to_owned(), container.to_owned());
        let prepared =
            spawn_blocking(move || here.block_on(own.hand_over(&pods, &uid, &name, AHEAD)));
        if let Ok(Err(status)) = prepared.await {
            debug!(container, why = status.message(), "not prepared");
        }
    }

    fn knows_its_node(&self) -> bool {
        self.site.borrow().facts.identity == Identity::Nri
    }

    /// Decides the devices of the container, and hands them over.
    async fn hand_over(
        &self,
        pods: &PodList,
        uid: &str,
        container: &str,
        patience: Patience,
    ) -> Result<(AllocationResponse, Injection), Status> {
        if !self.knows_its_node() {
            let why = "the agent has not read its node yet; kubelet will try again";
            return Err(Status::unavailable(why));
        }
        let site = self.site.borrow().clone();
        let handed = decide_for(pods, &site, uid, container)?;
        let newest = self.pods.known(|_| true).unwrap_or_else(|| pods.clone());
        let injector = &self.injector;
        let injection = injector
            .inject(&handed, &newest, &self.lifecycles, patience)
            .await?;
        Ok((handed, injection))
    }
}

impl sublet_nri::NriPlugin for RuntimePlugin {
    fn configured(&self, runtime: &ConfigureRequest) {
        let ConfigureRequest {
            runtime_name,
            runtime_version,
        } = runtime;
        info!(
            runtime = runtime_name,
            version = runtime_version,
            "the runtime asks us"
        );
    }

    fn synchronized(&self, pods: Vec<PodSandbox>, containers: Vec<Container>) {
        let uids: BTreeMap<&str, &str> = pods
            .iter()
            .map(|pod| (pod.id.as_str(), pod.uid.as_str()))
            .collect();
        let is_there = |one: &&Container| one.state() != ContainerState::ContainerUnknown;
        for one in containers.iter().filter(is_there) {
            if let Some(uid) = uids.get(one.pod_sandbox_id.as_str()) {
                self.created.note(uid, &one.name);
            }
        }
        self.news.notify_one();
        debug!(
            pods = pods.len(),
            containers = containers.len(),
            "told of what there is"
        );
    }

    async fn create(
        &self,
        pod: PodSandbox,
        container: Container,
    ) -> Result<ContainerAdjustment, String> {
        let name = container.name.as_str();
        if !container
            .mounts
            .iter()
            .any(|one| one.destination == START_BLOCK)
        {
            // It asks for no GPU, or kubelet still has the answer of an agent that went by size.
            self.created.note(&pod.uid, name);
            return Ok(ContainerAdjustment::default());
        }
        let outcome = match self.pods.with(&pod.uid, PATIENCE).await {
            Some(pods) => self.hand_over(&pods, &pod.uid, name, RUNTIMES).await,
            None => {
                let why =
                    "the API server has not told the agent of this pod yet; kubelet will try again";
                Err(Status::unavailable(why))
            }
        };
        let asked = format!("{}/{}/{name}", pod.namespace, pod.name);
        self.injector.tell(&asked, &outcome);
        let (_, injection) = outcome.map_err(|status| status.message().to_owned())?;
        self.created.note(&pod.uid, name);
        self.news.notify_one();
        Ok(adjustment(injection))
    }
}

/// The answer in the runtime's words. It takes the start block away.
fn adjustment(injection: Injection) -> ContainerAdjustment {
    let environment = injection.environment.into_iter();
    let devices = injection.devices.into_iter();
    let unblocked = sublet_nri::Mount {
        // A minus in front: take it away.
        destination: format!("-{START_BLOCK}"),
        ..sublet_nri::Mount::default()
    };
    let mounts = injection.mounts.into_iter().map(|mount| sublet_nri::Mount {
        destination: mount.container_path,
        r#type: "bind".to_owned(),
        source: mount.host_path,
        options: [
            "rbind",
            "rprivate",
            if mount.read_only { "ro" } else { "rw" },
        ]
        .map(str::to_owned)
        .into(),
    });
    ContainerAdjustment {
        env: environment
            .map(|(key, value)| KeyValue { key, value })
            .collect(),
        mounts: [unblocked].into_iter().chain(mounts).collect(),
        cdi_devices: devices.map(|name| CdiDevice { name }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_created_while_the_pods_are_compared_is_not_forgotten() {
        let created = Created::default();
        created.note("a", "c0");
        let newest = || {
            assert!(created.0.try_lock().is_err(), "noted in between");
            Some(PodList::new(Vec::new(), std::time::Instant::now()))
        };
        created.keep(|| None);
        let (uid, name) = (PodUid::new("a").unwrap(), ContainerName::new("c0").unwrap());
        assert!(created.has(&uid, &name), "without a list nothing is known");
        created.keep(newest);
        assert!(!created.has(&uid, &name));
    }
}
