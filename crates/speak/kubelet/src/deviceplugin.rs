//! Kubelet's device plugin API, version `v1beta1`: a process on a node reports its devices to
//! kubelet, and kubelet asks it for a container's access to them. Names and values are kubelet's
//! own (k8s.io/kubelet v0.36.3, pkg/apis/deviceplugin/v1beta1/constants.go); nothing here knows a
//! GPU.

pub use crate::v1beta1::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateRequest,
    ContainerAllocateResponse, ContainerPreferredAllocationRequest,
    ContainerPreferredAllocationResponse, Device, DevicePluginOptions, DeviceSpec, Empty, Mount,
    NumaNode, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest, TopologyInfo, device_plugin_client,
    device_plugin_server, registration_client, registration_server,
};
pub use list::{DeviceIter, DeviceList};

mod list;

/// The version of the API that every registration names.
pub const VERSION: &str = "v1beta1";

/// The folder that kubelet watches for device plugins, unless its root folder was moved.
pub const DEFAULT_FOLDER: &str = "/var/lib/kubelet/device-plugins";

/// The file name, in that folder, of the socket on which kubelet takes registrations.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// [`Device::health`] of a device that containers may get.
pub const HEALTHY: &str = "Healthy";

/// [`Device::health`] of a device that counts for capacity but not for new containers.
pub const UNHEALTHY: &str = "Unhealthy";

/// The longest message, in bytes, that kubelet takes from a plugin. Kubelet sets no
/// limit of its own when it dials (plugin/v1beta1/client.go), so grpc-go's default
/// holds. A longer list ends kubelet's `ListAndWatch`, and every device is gone.
pub const MESSAGE_LIMIT: usize = 4 * 1024 * 1024;

impl Device {
    /// A device in kubelet's form: its ID, whether it may be used, and its NUMA node if that is
    /// known.
    #[must_use]
    pub fn new(id: String, healthy: bool, numa: Option<u16>) -> Device {
        Device {
            id,
            health: if healthy { HEALTHY } else { UNHEALTHY }.to_owned(),
            topology: numa.map(|node| TopologyInfo {
                nodes: vec![NumaNode { id: node.into() }],
            }),
        }
    }
}
