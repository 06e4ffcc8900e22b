//! Kinds of device: what a node offers to kubelet beside CPU and memory. A kind finds its devices,
//! says how they fare, prepares them, hands them to containers, and cleans them. When is decided in
//! `lifecycle`. Each has one file here, and one line in `kind/list`; the loop around them
//! (`agent/plugins`) treats all alike and knows none of them.

pub(crate) mod cards;
mod files;
pub(crate) mod gpu_memory;
pub(crate) mod list;
mod remains;
#[cfg(test)]
mod toy;
pub(crate) mod whole_gpu;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use sublet_api::object::Pod;
use sublet_kubelet::deviceplugin::{
    ContainerAllocateResponse, ContainerPreferredAllocationRequest, DeviceList,
};
use sublet_model::PodUid;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tonic::Status;

use crate::checkpoint::KubeletCheckpoint;
use crate::lifecycle::{Ailing, DeviceName, Held};
use crate::lifecycle_manager::LifecycleManager;
use crate::plugin::{Allocator, DeviceIds};

/// One resource as kubelet sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pool {
    /// The name of the plugin's socket in kubelet's folder.
    pub(crate) socket: String,
    /// Is kubelet to ask which devices a container had best get?
    pub(crate) prefers: bool,
    /// The devices, each with its health.
    pub(crate) devices: DeviceList,
}

/// By resource.
pub(crate) type Pools = BTreeMap<String, Pool>;

/// One kind on one node.
#[tonic::async_trait]
pub(crate) trait DeviceKind: Send + Sync + 'static {
    /// Finds the devices and how they fare, again and again, and keeps [`DeviceKind::offered`]
    /// true; never ends. Cards need it not: the node's report is made of them too, so the agent's
    /// own loop looks at them.
    async fn discover(&self) -> Infallible {
        std::future::pending().await
    }

    /// The pools that are offered, now and whenever that changes. No resource without a device,
    /// ever.
    fn offered(&self) -> watch::Receiver<Pools>;

    /// The device behind one of kubelet's IDs, by a name that no other kind gives; several IDs may be
    /// the same device.
    fn device_of(&self, id: &str) -> DeviceName {
        id.to_owned()
    }

    /// Is it of this kind?
    fn owns(&self, device: &str) -> bool {
        let pools = self.offered();
        let pools = pools.borrow();
        let mut ids = pools.values().flat_map(|pool| pool.devices.iter());
        ids.any(|one| self.device_of(&one.id) == device)
    }

    /// The pods that have each device: as kubelet's checkpoint says, unless there is something better.
    /// Pods that are gone may be among them.
    fn held(&self, pods: &[Pod], checkpoint: Option<&KubeletCheckpoint>) -> Held {
        let _by_the_checkpoint = pods;
        let mut held = Held::new();
        for resource in self.offered().borrow().keys() {
            for (uid, id) in checkpoint
                .into_iter()
                .flat_map(|checkpoint| checkpoint.holders(resource))
            {
                held.entry(self.device_of(id)).or_default().insert(uid);
            }
        }
        held
    }

    /// Prepares a device that nobody has.
    ///
    /// # Errors
    /// It cannot be given to anybody, and why.
    async fn prepare(&self, device: &str) -> Result<(), String> {
        let _is_as_it_was_left = device;
        Ok(())
    }

    /// Cleans a device that no pod has any more. `after`: the pods that had it since it was clean.
    /// The remains on any device are processes of pods that were deleted by force.
    ///
    /// # Errors
    /// Says why the device is not clean. Cleaning is tried again then.
    async fn clean(&self, device: &str, after: &BTreeSet<PodUid>) -> Result<(), String> {
        let _alike_for_all = device;
        let after = after.clone();
        let looked = spawn_blocking(move || remains::none_left(&after)).await;
        looked.unwrap_or_else(|panic| Err(panic.to_string()))
    }

    /// Shows these devices as unhealthy, those of them that are of this kind, and no others because
    /// they cannot be cleaned.
    fn show(&self, ailing: &Ailing);

    /// Answers for a container that kubelet has given these devices of one of the resources. Asks
    /// [`LifecycleManager::ready`] before it answers.
    ///
    /// # Errors
    /// The status fails the pod's admission; people read its message in the pod's status.
    async fn hand_over(
        &self,
        resource: &str,
        devices: DeviceIds,
        lifecycles: &LifecycleManager,
    ) -> Result<ContainerAllocateResponse, Status>;

    /// The devices that a container had best get, of those that it may have. Asked only of pools
    /// that say so.
    async fn preferred(
        &self,
        resource: &str,
        asked: Vec<ContainerPreferredAllocationRequest>,
    ) -> Vec<DeviceIds> {
        let _any_will_do = resource;
        asked.iter().map(|_| DeviceIds::new()).collect()
    }
}

/// Answers kubelet for one resource of a kind.
pub(crate) struct KindAllocator {
    pub(crate) kind: Arc<dyn DeviceKind>,
    pub(crate) resource: String,
    pub(crate) lifecycles: Arc<LifecycleManager>,
}

#[tonic::async_trait]
impl Allocator for KindAllocator {
    async fn allocate(
        &self,
        containers: Vec<DeviceIds>,
    ) -> Result<Vec<ContainerAllocateResponse>, Status> {
        let mut answers = Vec::with_capacity(containers.len());
        for devices in containers {
            let (kind, resource) = (&self.kind, &self.resource);
            answers.push(kind.hand_over(resource, devices, &self.lifecycles).await?);
        }
        Ok(answers)
    }

    async fn preferred(
        &self,
        containers: Vec<ContainerPreferredAllocationRequest>,
    ) -> Result<Vec<DeviceIds>, Status> {
        Ok(self.kind.preferred(&self.resource, containers).await)
    }
}
