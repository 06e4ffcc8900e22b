//! Kubelet's checkpoint of devices, which the agent reads from kubelet's folder.

use sublet_agent::Books;

use crate::Target;

pub(super) const TARGET: Target = Target {
    name: "kubelet_books",
    run,
};

fn run(bytes: &[u8]) {
    if let Ok(books) = Books::from_json(bytes) {
        for (_, device) in books.holders("aliyun.com/gpu-mem") {
            let _ = device.len();
        }
    }
}
