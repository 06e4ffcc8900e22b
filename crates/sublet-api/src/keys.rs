//! Every annotation, label, resource name and variable that Sublet reads or writes, one
//! constant each.

/// Extended resource: a part of a card's memory (Aliyun GPUShare).
pub const ALIYUN_GPU_MEM: &str = "aliyun.com/gpu-mem";
/// Extended resource in node status: how many cards the node has (Aliyun GPUShare).
pub const ALIYUN_GPU_COUNT: &str = "aliyun.com/gpu-count";
/// Extended resource: whole cards (NVIDIA).
pub const NVIDIA_GPU: &str = "nvidia.com/gpu";
/// Extended resource that carries Allocate on nodes with more memory than a device plugin
/// can count: one per container.
pub const GPU_SLOT: &str = "sublet.dev/gpu-slot";

/// Every resource that cards are asked by. A node has none of them without a device plugin.
pub const DEVICE_RESOURCES: &[&str] = &[ALIYUN_GPU_MEM, ALIYUN_GPU_COUNT, NVIDIA_GPU, GPU_SLOT];

/// Pod annotation: the card's index (Aliyun GPUShare).
pub const ALIYUN_IDX: &str = "ALIYUN_COM_GPU_MEM_IDX";
/// Pod annotation and variable: the pod's total, in units.
pub const ALIYUN_POD: &str = "ALIYUN_COM_GPU_MEM_POD";
/// Pod annotation and variable: the card's total, in units.
pub const ALIYUN_DEV: &str = "ALIYUN_COM_GPU_MEM_DEV";
/// Pod annotation: when the card was chosen, in nanoseconds since the Unix epoch.
pub const ALIYUN_ASSUME_TIME: &str = "ALIYUN_COM_GPU_MEM_ASSUME_TIME";
/// Pod annotation: `true` once the node has handed the card over.
pub const ALIYUN_ASSIGNED: &str = "ALIYUN_COM_GPU_MEM_ASSIGNED";
/// Pod annotation, newer form: `{"<container>":{"<card>":<units>}}`.
pub const ALIYUN_ALLOCATION: &str = "scheduler.framework.gpushare.allocation";
/// Variable: this container's part, in units.
pub const ALIYUN_CONTAINER: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";
/// Variable: switches the isolation of cGPU off.
pub const CGPU_DISABLE: &str = "CGPU_DISABLE";
/// Node label that asks for [`CGPU_DISABLE`].
pub const CGPU_DISABLE_LABEL: &str = "cgpu.disable.isolation";
/// Prefix of a ConfigMap's name in `kube-system` that lists a node's unhealthy cards.
pub const UNHEALTHY_PREFIX: &str = "unhealthy-gpu-";

/// Why a card on that list is sick, in the words of every answer.
pub const UNHEALTHY_REASON: &str = "listed as unhealthy by an operator";

/// Variable: the cards a container may see, as UUIDs or indices.
pub const NVIDIA_VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// Node label: memory of each card in MiB (GPU feature discovery).
pub const NVIDIA_MEMORY_LABEL: &str = "nvidia.com/gpu.memory";

/// Node labels that say which GPU model a node has, and by which pods choose one: the first
/// that a node has counts (GPU feature discovery; Alibaba Cloud).
pub const MODEL_LABELS: &[&str] = &["nvidia.com/gpu.product", "aliyun.accelerator/nvidia_name"];

/// Node annotation: the node's devices, written by the agent.
pub const INVENTORY: &str = "sublet.dev/inventory";
/// Node annotation: cards that the agent has handed to pods which do not say so themselves,
/// written by the agent.
pub const HANDED_OVER: &str = "sublet.dev/handed-over";
/// Node label by which an operator says how cards are handed out: `memory`, `whole`, `both`.
pub const SHARING_LABEL: &str = "sublet.dev/sharing";
/// Pod annotation: what each container got.
pub const ALLOCATION: &str = "sublet.dev/allocation";
/// Pod annotation: the containers whose devices the node has handed over, a JSON list.
pub const ASSIGNED: &str = "sublet.dev/assigned";

/// Pod annotation: kubelet runs it from a file of its own (a static pod).
pub const MIRROR: &str = "kubernetes.io/config.mirror";
/// Pod annotation: `false` asks that nobody ends the pod to tidy up (cluster autoscaler).
pub const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// Node label: the node's own name.
pub const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

/// Every annotation that only Sublet may write on a pod.
pub const RESULT_KEYS: &[&str] = &[
    ALLOCATION,
    ASSIGNED,
    ALIYUN_IDX,
    ALIYUN_POD,
    ALIYUN_DEV,
    ALIYUN_ASSUME_TIME,
    ALIYUN_ASSIGNED,
    ALIYUN_ALLOCATION,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_policy_guards_every_result_key() {
        let policy = include_str!("../../../deploy/kubernetes/30-result-policy.yaml");
        for key in RESULT_KEYS {
            assert!(policy.contains(key), "{key} can be forged");
        }
    }

    #[test]
    fn the_shipped_policy_guards_what_the_agent_says_of_a_node() {
        let policy = include_str!("../../../deploy/kubernetes/31-inventory-policy.yaml");
        for key in [INVENTORY, HANDED_OVER] {
            assert!(policy.contains(&format!("'{key}'")), "{key} can be forged");
        }
    }

    #[test]
    fn the_shipped_scheduler_asks_us_about_every_pod() {
        // An extender that manages resources is asked only about pods that name one, and is
        // asked about all if it manages none.
        let config = include_str!("../../../deploy/kubernetes/40-scheduler-config.yaml");
        assert!(config.contains("bindVerb: bind\n"));
        assert!(!config.contains("managedResources:\n"));
        assert!(!config.contains("ignoredByScheduler:"));
    }
}
