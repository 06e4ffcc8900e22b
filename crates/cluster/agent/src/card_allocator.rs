//! Answers kubelet's Allocate: reads the node's pods afresh, has `allocate` decide, and writes the
//! decision on the pod *before* kubelet gets its answer. If the process dies in between, the pod
//! fails its admission; no card is handed out twice. No lock is held during a wait for the API
//! server, the arbiter or a device: a decision is reserved in the same moment, so that the next
//! Allocate does not decide it again, and given back if it comes to nothing.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sublet_client::{Client, Write};
use sublet_kubelet::deviceplugin::{
    CdiDevice, ContainerAllocateResponse, ContainerPreferredAllocationRequest,
};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tonic::Status;
use tracing::debug;

use crate::allocate::{AllocateError, AllocationResponse, Given, KubeletAsk, Site, decide, prefer};
use crate::api_calls::{is_final, is_passing, now_ns, send};
use crate::card_injector::{CardInjector, Patience};
use crate::checkpoint::KubeletCheckpoint;
use crate::isolate::inject::Injection;
use crate::lifecycle_manager::{LifecycleManager, PATIENCE};
use crate::nri;
use crate::plugin::DeviceIds;
use crate::pods::{PodList, PodSource};

/// Time for which a pod that is not found is looked for. The API server had the pod before kubelet
/// did, so this is for servers that lag behind.
const NOBODY_PATIENCE: Duration = Duration::from_secs(2);

/// Time for which an API server that does not answer is tried. Giving up fails the pod for good,
/// and an API server restarts in seconds. Kubelet sets no deadline on Allocate and starts no other
/// pod meanwhile.
const SERVER_PATIENCE: Duration = Duration::from_secs(10);

/// The patience of kubelet. What it does not get fails the pod for good, and an arbiter is back within
/// seconds.
const KUBELETS: Patience = Patience {
    arbiter: PATIENCE,
    clean: PATIENCE,
    may_block: false,
};

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(250);

/// Hands out the node's cards, by whatever resource kubelet asks for them.
pub(crate) struct CardAllocator {
    pub(crate) client: Client,
    pub(crate) pods: PodSource,
    /// Does the runtime name the container later?
    pub(crate) is_named_later: bool,
    pub(crate) injector: CardInjector,
    pub(crate) site: watch::Receiver<Arc<Site>>,
    /// One for all resources of the node.
    pub(crate) given: Arc<Mutex<Given>>,
    /// Kubelet's checkpoint.
    pub(crate) checkpoint: PathBuf,
    /// Told of answers for a pod that only kubelet's checkpoint can name.
    pub(crate) doubt: Arc<Notify>,
}

impl CardAllocator {
    /// Answers for the container that kubelet has given these devices.
    pub(crate) async fn allocate(
        &self,
        resource: &'static str,
        devices: &DeviceIds,
        lifecycles: &LifecycleManager,
    ) -> Result<ContainerAllocateResponse, Status> {
        if self.is_named_later {
            return Ok(nri::start_block());
        }
        let count = devices.len() as u64;
        let asked = KubeletAsk { resource, count };
        let outcome = self.hand_over(asked, devices.first(), lifecycles).await;
        self.injector.tell(&asked, &outcome);
        let (_, injection) = outcome?;
        let devices = injection.devices.into_iter();
        Ok(ContainerAllocateResponse {
            envs: injection.environment.into_iter().collect(),
            mounts: injection.mounts,
            cdi_devices: devices.map(|name| CdiDevice { name }).collect(),
            ..ContainerAllocateResponse::default()
        })
    }

    /// The devices that each container had best get. Kubelet may know of a pod before the agent's
    /// watch does; then the watch is waited for.
    pub(crate) async fn preferred(
        &self,
        resource: &'static str,
        containers: &[ContainerPreferredAllocationRequest],
    ) -> Vec<DeviceIds> {
        let started = Instant::now();
        loop {
            let advice = self.advice(resource, containers).await;
            // What was listed just now is newer than what kubelet knows.
            let may_wait = self.is_named_later && started.elapsed() < NOBODY_PATIENCE;
            // Kubelet admits no other pod meanwhile, so pods without cards must not make it wait.
            let is_unknown = |one: &Result<_, AllocateError>| match one {
                Err(AllocateError::Nobody { others, .. }) => !others.has_strays(),
                _ => false,
            };
            if !may_wait || !advice.iter().any(is_unknown) {
                let kubelets_choice = |error: AllocateError| {
                    debug!(%error, "no preference");
                    DeviceIds::new()
                };
                let ids = advice.into_iter();
                return ids.map(|one| one.unwrap_or_else(kubelets_choice)).collect();
            }
            self.pods.changed(PAUSE).await;
        }
    }

    /// The devices that each container had best get, as far as the pods are known now.
    async fn advice(
        &self,
        resource: &'static str,
        containers: &[ContainerPreferredAllocationRequest],
    ) -> Vec<Result<DeviceIds, AllocateError>> {
        let site = self.site.borrow().clone();
        // Only advice. Where nothing is known kubelet picks, and Allocate says what is wrong.
        let pods = self.pods.now().await.unwrap_or_else(|error| {
            debug!(%error, "no preference");
            PodList::new(Vec::new(), Instant::now())
        });
        // Of equal pods the checkpoint says who has been served. It is long, and where the runtime waits
        // for the agent the pods say it themselves soon enough.
        let checkpoint = match self.is_named_later {
            true => Some(KubeletCheckpoint::default()),
            false => KubeletCheckpoint::read(&self.checkpoint),
        };
        let mut given = self.given();
        given.learn(&pods, checkpoint.as_ref(), Instant::now());
        let answer = |one: &ContainerPreferredAllocationRequest| {
            let count = u64::try_from(one.allocation_size).unwrap_or(0);
            prefer(
                &pods,
                &site.facts,
                KubeletAsk { resource, count },
                &given,
                &one.available_device_i_ds,
                &one.must_include_device_i_ds,
            )
        };
        containers.iter().map(answer).collect()
    }

    async fn hand_over(
        &self,
        asked: KubeletAsk,
        device: Option<&String>,
        lifecycles: &LifecycleManager,
    ) -> Result<(AllocationResponse, Injection), Status> {
        let started = Instant::now();
        let (reserved, pods) = self.find(asked, started).await?;
        let handed = AllocationResponse {
            device: device.cloned(),
            ..reserved.handed.clone()
        };
        let injector = &self.injector;
        let injection = injector
            .inject(&handed, &pods, lifecycles, KUBELETS)
            .await?;
        if handed.twins.is_empty() {
            self.write(&handed, started).await?;
            reserved.keep();
        } else {
            self.doubt.notify_one();
        }
        Ok((handed, injection))
    }

    /// The container that kubelet means, reserved, and the pods by which it was found.
    async fn find(
        &self,
        asked: KubeletAsk,
        started: Instant,
    ) -> Result<(Reserved, PodList), Status> {
        loop {
            let site = self.site.borrow().clone();
            match self.pods.now().await {
                Ok(pods) => match self.decide(&pods, &site, asked) {
                    Ok(reserved) => return Ok((reserved, pods)),
                    Err(AllocateError::Nobody { .. }) if started.elapsed() < NOBODY_PATIENCE => {}
                    Err(refusal) => return Err(refusal.into()),
                },
                Err(error) if started.elapsed() >= SERVER_PATIENCE || !is_passing(&error) => {
                    let why = format!("the pods of the node cannot be listed: {error}");
                    return Err(Status::unavailable(why));
                }
                Err(error) => debug!(%error, "pods not listed, will try again"),
            }
            sleep(PAUSE).await;
        }
    }

    /// Decides, with a look into kubelet's checkpoint where an earlier answer was for one of several
    /// pods, or this one would be.
    fn decide(
        &self,
        pods: &PodList,
        site: &Site,
        asked: KubeletAsk,
    ) -> Result<Reserved, AllocateError> {
        let try_with = |checkpoint: Option<&KubeletCheckpoint>, given: &mut Given| {
            given.learn(pods, checkpoint, Instant::now());
            let handed = decide(pods, site, asked, given, now_ns())?;
            Ok(Reserved::new(handed, &self.given, given))
        };
        let mut given = self.given();
        given.keep(pods, pods.asked());
        if given.is_settled() {
            let decided = try_with(None, &mut given);
            if !matches!(decided, Err(AllocateError::Ambiguous { .. })) {
                return decided;
            }
        }
        drop(given);
        let checkpoint = KubeletCheckpoint::read(&self.checkpoint);
        try_with(checkpoint.as_ref(), &mut self.given())
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the decision on the pod. Only the same write is tried again, never a new
    /// decision: a write whose answer was lost makes its container look served, and the
    /// next decision would be for another one.
    async fn write(&self, handed: &AllocationResponse, started: Instant) -> Result<(), Status> {
        loop {
            let AllocationResponse {
                pod,
                uid,
                annotations,
                ..
            } = handed;
            let write = Write::pod_annotations(pod, uid, annotations);
            match send(&self.client, &write).await {
                Ok(()) => return Ok(()),
                Err(error) if started.elapsed() >= SERVER_PATIENCE || is_final(&error) => {
                    let why = format!("pod {pod}: its hand-over cannot be noted on it: {error}");
                    return Err(Status::unavailable(why));
                }
                Err(error) => debug!(%pod, %error, "hand-over not noted, will try again"),
            }
            sleep(PAUSE).await;
        }
    }
}

/// A decision. While it lives, and after it was kept, that container's devices go to no other
/// container.
struct Reserved {
    handed: AllocationResponse,
    given: Arc<Mutex<Given>>,
    kept: bool,
}

impl Reserved {
    /// `now`: the locked content of `given`. For one of several equal pods nothing can be reserved:
    /// kubelet's checkpoint will name the pod later.
    fn new(handed: AllocationResponse, given: &Arc<Mutex<Given>>, now: &mut Given) -> Reserved {
        let kept = !handed.twins.is_empty();
        match kept {
            true => now.doubt(Instant::now()),
            false => now.note(&handed.uid, &handed.container, Instant::now()),
        }
        let given = Arc::clone(given);
        Reserved {
            handed,
            given,
            kept,
        }
    }

    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Reserved {
    /// Kubelet has not got its answer: it was refused, or kubelet has hung up.
    fn drop(&mut self) {
        if !self.kept {
            let (uid, container) = (&self.handed.uid, &self.handed.container);
            let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
            given.withdraw(uid, container);
        }
    }
}

#[cfg(test)]
mod tests;
