//! Kubelet's checkpoint of devices, which the agent reads from kubelet's folder.

use sublet_agent::KubeletCheckpoint;

use crate::Target;

pub(super) const TARGET: Target = Target {
    name: "kubelet_checkpoint",
    run,
};

fn run(bytes: &[u8]) {
    if let Ok(checkpoint) = KubeletCheckpoint::from_json(bytes) {
        for (_, device) in checkpoint.holders("aliyun.com/gpu-mem") {
            let _ = device.len();
        }
    }
}
