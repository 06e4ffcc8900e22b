//! One device plugin towards kubelet: offers the devices of one resource on a socket
//! of its own and hands kubelet's questions to an [`Allocator`]. A process runs as many
//! of these as it has resources. Other modules decide which devices exist and which container gets
//! them; this module never reads the API server and never invents an answer.
//!
//! `socket` makes and recognises socket files, `service` answers kubelet, `keeper`
//! holds the plugin registered through every restart of either side.

use std::sync::Arc;

use sublet_kubelet::deviceplugin::{
    ContainerAllocateResponse, ContainerPreferredAllocationRequest, DeviceList,
};
use tokio::sync::{mpsc, watch};
use tonic::Status;

mod keeper;
mod service;
mod socket;

/// IDs of devices of one resource, as they stand in the [`DeviceList`].
pub type DeviceIds = Vec<String>;

/// Answers what kubelet asks about devices it is about to hand out.
#[tonic::async_trait]
pub trait Allocator: Send + Sync + 'static {
    /// Returns the settings that each container needs to use its devices, in the order asked.
    /// Kubelet picked the IDs and asks about one container of one pod at a time today, but kubelet
    /// tells neither the order of pods nor their names.
    ///
    /// # Errors
    /// The status fails the pod's admission; kubelet shows its message in the pod's
    /// status, so it must give the reason and name the pods concerned.
    async fn allocate(
        &self,
        containers: Vec<DeviceIds>,
    ) -> Result<Vec<ContainerAllocateResponse>, Status>;

    /// The devices that each container would best get, in the order asked. Called only
    /// where [`PluginSpec::prefers`] is set.
    ///
    /// # Errors
    /// The status makes kubelet fail the pod's admission.
    async fn preferred(
        &self,
        _containers: Vec<ContainerPreferredAllocationRequest>,
    ) -> Result<Vec<DeviceIds>, Status> {
        Err(Status::unimplemented(
            "this resource has no preferred devices",
        ))
    }
}

/// A plugin as it presents itself to kubelet.
#[derive(Clone, Debug)]
pub struct PluginSpec {
    /// The extended resource, such as `aliyun.com/gpu-mem`.
    pub resource: String,
    /// The file name of the plugin's own socket in kubelet's folder.
    pub socket_name: String,
    /// Whether kubelet shall ask [`Allocator::preferred`] before it picks devices.
    pub prefers: bool,
}

/// One resource of this node, ready to be offered.
pub struct Plugin {
    /// Name, socket and options.
    pub spec: PluginSpec,
    /// The devices; kubelet is told of every change. The plugin ends its answer to
    /// kubelet, and so withdraws the devices, when the sender is dropped.
    pub devices: watch::Receiver<DeviceList>,
    /// Answers kubelet's questions about them.
    pub allocator: Arc<dyn Allocator>,
    /// Told the resource at every registration: a kubelet that is new to the plugin may
    /// have written the node's status anew.
    pub registered: mpsc::UnboundedSender<String>,
}
