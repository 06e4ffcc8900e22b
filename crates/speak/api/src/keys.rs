//! Every annotation, label, resource name and variable that Sublet reads or writes on Kubernetes
//! objects, one constant each. The reference of the user guide is made from the same list.

/// Purpose of a name, and the objects that carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyKind {
    /// Amounts that a container asks for, and that a node has.
    Resource,
    /// On pods.
    PodAnnotation,
    /// On pods, by users.
    PodLabel,
    /// On nodes.
    NodeAnnotation,
    /// Keeps a pod from being scheduled while it stands there.
    SchedulingGate,
    /// On nodes, by operators and by other programs.
    NodeLabel,
    /// On namespaces, by operators.
    NamespaceLabel,
    /// On Koordinator's Device objects.
    DeviceLabel,
    /// In ResourceQuotas.
    QuotaKey,
    /// On ElasticQuotas.
    ElasticQuotaLabel,
    /// On ElasticQuotas.
    ElasticQuotaAnnotation,
    /// On Events.
    EventAnnotation,
    /// In a container's environment.
    Variable,
    /// The beginning of a ConfigMap's name.
    ConfigMap,
}

/// A name, as the reference of the user guide shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyEntry {
    /// As it is written.
    pub name: &'static str,
    /// Purpose of the name.
    pub kind: KeyKind,
    /// Meaning of the name.
    pub meaning: &'static str,
}

/// A constant for each name, documented by its meaning, and the list of all.
macro_rules! keys {
    ($($kind:ident { $($(#[doc = $meaning:literal])+ $name:ident = $text:literal,)+ })+) => {
        $($($(#[doc = $meaning])+ pub const $name: &str = $text;)+)+

        /// Every name.
        pub const ALL: &[KeyEntry] = &[$($(KeyEntry {
            name: $text,
            kind: KeyKind::$kind,
            meaning: concat!($($meaning),+),
        },)+)+];
    };
}

keys! {
    Resource {
        /// a part of a card's memory, in MiB or GiB as `--memory-unit` says (Aliyun GPUShare)
        ALIYUN_GPU_MEM = "aliyun.com/gpu-mem",
        /// compute time that is promised, in percent of one card, beside `aliyun.com/gpu-mem`
        /// (Aliyun GPUShare)
        ALIYUN_GPU_CORE = "aliyun.com/gpu-core.percentage",
        /// number of cards of a node; in its status only (Aliyun GPUShare)
        ALIYUN_GPU_COUNT = "aliyun.com/gpu-count",
        /// whole cards (NVIDIA)
        NVIDIA_GPU = "nvidia.com/gpu",
        /// memory of each of the container's cards in MiB, beside `nvidia.com/gpu` (HAMi)
        HAMI_MEMORY = "nvidia.com/gpumem",
        /// memory of each card in percent of it; 0 is all of it (HAMi)
        HAMI_MEMORY_PERCENT = "nvidia.com/gpumem-percentage",
        /// compute time that is promised and that is the limit, in percent of each card (HAMi)
        HAMI_CORES = "nvidia.com/gpucores",
        /// 0 or 1; read, and changes nothing (HAMi)
        HAMI_PRIORITY = "nvidia.com/priority",
        /// number of cards; 1 if only parts of one are asked for; alone: whole cards (Sublet)
        GPU = "sublet.dev/gpu",
        /// memory of each card, in bytes with the suffixes of Kubernetes (`4Gi`) (Sublet)
        GPU_MEMORY = "sublet.dev/gpu-memory",
        /// memory of each card, in percent of it (Sublet)
        GPU_MEMORY_PERCENT = "sublet.dev/gpu-memory-percent",
        /// compute time that is promised, in percent of each card (Sublet)
        GPU_COMPUTE = "sublet.dev/gpu-compute",
        /// percent of cards, of memory and compute time alike; 200 are two cards (Koordinator)
        KOORDINATOR_GPU = "koordinator.sh/gpu",
        /// compute time that is promised, in percent of all the container's cards together
        /// (Koordinator)
        KOORDINATOR_CORE = "koordinator.sh/gpu-core",
        /// memory in bytes, of all the container's cards together (Koordinator)
        KOORDINATOR_MEMORY = "koordinator.sh/gpu-memory",
        /// memory in percent, of all the container's cards together (Koordinator)
        KOORDINATOR_RATIO = "koordinator.sh/gpu-memory-ratio",
        /// number of cards among which the amounts are divided (Koordinator)
        KOORDINATOR_SHARED = "koordinator.sh/gpu.shared",
        /// network cards; refused (Koordinator)
        KOORDINATOR_RDMA = "koordinator.sh/rdma",
        /// FPGAs; refused (Koordinator)
        KOORDINATOR_FPGA = "koordinator.sh/fpga",
        /// carries Allocate: one for each container that asks for GPUs, unless it does so by
        /// `aliyun.com/gpu-mem` on a node whose memory a device plugin can count, or by
        /// `nvidia.com/gpu`
        GPU_SLOT = "sublet.dev/gpu-slot",
    }
    PodAnnotation {
        /// cards of each container; written by the scheduler in the Binding
        ALLOCATION = "sublet.dev/allocation",
        /// the containers whose devices the node has handed over, a JSON list; written by the
        /// agent
        ASSIGNED = "sublet.dev/assigned",
        /// request of the pod when it was bound, if it asks by labels or annotations, which can be
        /// changed at any time; written by the scheduler in the Binding
        ASKED = "sublet.dev/asked",
        /// plugins that the runtime must have before it creates any of the pod's containers (NRI);
        /// written by the scheduler in the Binding, if the runtime asks the node's agent
        REQUIRED_PLUGINS = "required-plugins.noderesource.dev",
        /// GangPlan, slot and node of the pod; written by the controller when it lets the pod start
        SLOT = "sublet.dev/slot",
        /// node and victims by which the controller makes room for the pod, which waits; written
        /// once
        PREEMPTING = "sublet.dev/preempting",
        /// the card's index; also a variable of the container (Aliyun GPUShare)
        ALIYUN_IDX = "ALIYUN_COM_GPU_MEM_IDX",
        /// the pod's total, in units; also a variable (Aliyun GPUShare)
        ALIYUN_POD = "ALIYUN_COM_GPU_MEM_POD",
        /// the card's total, in units; also a variable (Aliyun GPUShare)
        ALIYUN_DEV = "ALIYUN_COM_GPU_MEM_DEV",
        /// when the card was chosen, in nanoseconds since the Unix epoch (Aliyun GPUShare)
        ALIYUN_ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
        /// `true` once the node has handed the card over (Aliyun GPUShare)
        ALIYUN_ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED",
        /// `{"<container>":{"<card>":<units>}}` (Aliyun GPUShare, newer form)
        ALIYUN_ALLOCATION = "scheduler.framework.gpushare.allocation",
        /// parts of model names that the pod accepts, with commas (HAMi)
        HAMI_USE_MODEL = "nvidia.com/use-gputype",
        /// parts of model names that it does not accept (HAMi)
        HAMI_NO_MODEL = "nvidia.com/nouse-gputype",
        /// UUIDs of cards that it accepts (HAMi)
        HAMI_USE_UUID = "nvidia.com/use-gpuuuid",
        /// UUIDs of cards that it does not accept (HAMi)
        HAMI_NO_UUID = "nvidia.com/nouse-gpuuuid",
        /// `true` asks that all cards of the pod are of one NUMA node (HAMi)
        HAMI_NUMA = "nvidia.com/numa-bind",
        /// `hami-core`, alone or among others; a pod of other modes only is refused (HAMi)
        HAMI_MODE = "nvidia.com/vgpu-mode",
        /// a wish about the choice of cards; `mutex` is refused, and for all else the cluster's
        /// policy decides (HAMi)
        HAMI_GPU_POLICY = "hami.io/gpu-scheduler-policy",
        /// the pod's node; written by the scheduler (HAMi)
        HAMI_NODE = "hami.io/vgpu-node",
        /// when the cards were chosen, in seconds since the Unix epoch (HAMi)
        HAMI_TIME = "hami.io/vgpu-time",
        /// when the pod was bound, in seconds since the Unix epoch (HAMi)
        HAMI_BIND_TIME = "hami.io/bind-time",
        /// `allocating`, and `success` once the node has handed all over (HAMi)
        HAMI_PHASE = "hami.io/bind-phase",
        /// as the next one; the agent leaves `;` for each container when all is handed over (HAMi)
        HAMI_TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate",
        /// the cards of each container, init containers first: `UUID,NVIDIA,MiB,percent:` for each
        /// card, and then `;` (HAMi)
        HAMI_ALLOCATED = "hami.io/vgpu-devices-allocated",
        /// the most compute time that each container may use, in percent of each of its cards
        /// (Sublet)
        COMPUTE_LIMIT = "sublet.dev/compute-limit",
        /// length of its containers' turns while others wait, `1ms` to `20ms`, and no shorter than the
        /// node allows (Sublet, beside any way of asking)
        SLICE = "sublet.dev/slice",
        /// the GpuFlavor whose amounts the webhook wrote into the pod; beside it
        /// `sublet.dev/flavor` asks for nothing more
        FLAVOR_APPLIED = "sublet.dev/flavor-applied",
        /// the cards, as JSON; written by the scheduler, and read if Koordinator bound the pod
        /// (Koordinator)
        KOORDINATOR_ALLOCATED = "scheduling.koordinator.sh/device-allocated",
        /// the cards as NVML counts them, for `NVIDIA_VISIBLE_DEVICES`; written by the scheduler
        /// (Koordinator)
        KOORDINATOR_MINORS = "scheduling.koordinator.sh/gpu-minors",
        /// when the pod was bound, in nanoseconds since the Unix epoch; written by the scheduler
        /// (Koordinator)
        KOORDINATOR_BOUND = "scheduling.koordinator.sh/bind-timestamp",
        /// devices that the pod accepts; of its requirements, `requiredTopologyScope` `NUMANode` is
        /// served, and all others are refused (Koordinator)
        KOORDINATOR_HINT = "scheduling.koordinator.sh/device-allocate-hint",
        /// devices that should be near each other; refused if that is required (Koordinator)
        KOORDINATOR_JOINT = "scheduling.koordinator.sh/device-joint-allocate",
        /// wanted wiring of the cards; refused unless it is `BestEffort` (Koordinator)
        KOORDINATOR_PARTITION = "scheduling.koordinator.sh/gpu-partition-spec",
        /// the cards' UUIDs; written by the scheduler, and read if KubeShare bound the pod
        /// (KubeShare 2)
        KUBESHARE_UUID = "sharedgpu/gpu_uuid",
        /// a card's place in KubeShare's own tree; never written, and nobody else may (KubeShare 2)
        KUBESHARE_CELL = "sharedgpu/cell_id",
        /// a port of KubeShare's own isolation; never written, and nobody else may (KubeShare 2)
        KUBESHARE_PORT = "sharedgpu/gpu_manager_port",
        /// memory of each card as a fraction, rounded up to thousandths (KAI)
        KAI_FRACTION = "gpu-fraction",
        /// memory of each card in MiB (KAI)
        KAI_MEMORY = "gpu-memory",
        /// number of cards; 1 unless it is there (KAI)
        KAI_DEVICES = "gpu-fraction-num-devices",
        /// the container that gets the cards; the first main one unless it is there (KAI)
        KAI_CONTAINER = "gpu-fraction-container-name",
        /// compute time that is promised, as a part of a card (KubeShare 1)
        SHAREPOD_REQUEST = "kubeshare/gpu_request",
        /// the most compute time that the pod may use, as a part of a card (KubeShare 1)
        SHAREPOD_LIMIT = "kubeshare/gpu_limit",
        /// memory in bytes (KubeShare 1)
        SHAREPOD_MEMORY = "kubeshare/gpu_mem",
        /// the UUID of the card that it must be, or a name for one: on a node, pods of one name are
        /// on one card, and pods of another name on another (KubeShare 1)
        SHAREPOD_GPU = "kubeshare/GPUID",
        /// the pod goes on a card with a pod of the same affinity, or else on an unused card
        /// (KubeShare 1)
        SHAREPOD_AFFINITY = "kubeshare/sched_affinity",
        /// the pod stays away from cards with a pod of the same anti-affinity (KubeShare 1)
        SHAREPOD_ANTI_AFFINITY = "kubeshare/sched_anti-affinity",
        /// all pods on a card have the same exclusion, or none of them has any (KubeShare 1)
        SHAREPOD_EXCLUSION = "kubeshare/sched_exclusion",
        /// kubelet runs the pod from a file of its own, as a static pod; read only
        MIRROR = "kubernetes.io/config.mirror",
        /// on the cluster's own kube-scheduler, if it asks Sublet: names its configuration; written
        /// by `sublet install --patch-default-scheduler`
        SCHEDULER_MARK = "sublet.dev/scheduler-configuration",
        /// the earlier `--config`, or empty
        REPLACED_CONFIG = "sublet.dev/replaced-configuration",
        /// the gang that the pod starts with, if no label names it (Koordinator)
        GANG_NAME = "gang.scheduling.koordinator.sh/name",
        /// number of the gang's pods that must start together; on a job, or on the template of one
        /// of its roles, the same of that job or role (Koordinator)
        GANG_MIN = "gang.scheduling.koordinator.sh/min-available",
        /// number of the gang's pods; equals `min-available` unless it is there (Koordinator)
        GANG_TOTAL = "gang.scheduling.koordinator.sh/total-number",
        /// longest time that members with a place wait for the others, as Go writes durations
        /// (Koordinator)
        GANG_WAIT = "gang.scheduling.koordinator.sh/waiting-time",
        /// `Strict`, the default: members give their places back if the gang does not start in
        /// time; or `NonStrict` (Koordinator)
        GANG_MODE = "gang.scheduling.koordinator.sh/mode",
        /// gangs that start together, a JSON list of `namespace/name` (Koordinator)
        GANG_GROUPS = "gang.scheduling.koordinator.sh/groups",
        /// members that count for the minimum: `only-waiting`, `waiting-and-running`, or
        /// `once-satisfied`, the default (Koordinator)
        GANG_MATCH = "gang.scheduling.koordinator.sh/match-policy",
        /// the same by another name (Koordinator)
        GANG_MATCH_ALIAS = "pod-group.scheduling.sigs.k8s.io/match-policy",
        /// time between checkpoints of the pod's work, such as `30m`: an eviction costs what was done
        /// since the last one; on a job or a PodGroup, or on pods and their templates
        CHECKPOINT_EVERY = "sublet.dev/checkpoint-every",
        /// time (RFC 3339) of the last checkpoint, which the work itself writes: at the same places;
        /// wins over `checkpoint-every`, and of several the latest counts
        CHECKPOINTED_AT = "sublet.dev/checkpointed-at",
        /// time that the work runs at most, such as `4h`: who runs for less goes first in its quota, and
        /// nobody is ended for running longer; on a job or a PodGroup, or on pods and their templates
        MAX_RUN_TIME = "sublet.dev/max-run-time",
        /// number of times that a job or PodGroup went as a whole for other groups; written by the
        /// controller on that object
        RECLAIMS = "sublet.dev/reclaims",
        /// time (RFC 3339) at which it was last decided so; written by the controller
        RECLAIMED_AT = "sublet.dev/reclaimed-at",
        /// `false` asks that the pod is not evicted to tidy up (cluster autoscaler); read only
        SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict",
    }
    PodLabel {
        /// the PodGroup (`scheduling.x-k8s.io`) that the pod starts with (scheduler-plugins)
        PLUGINS_POD_GROUP = "scheduling.x-k8s.io/pod-group",
        /// the PodGroup (`scheduling.sigs.k8s.io`) that the pod starts with (Koordinator)
        KOORDINATOR_POD_GROUP = "pod-group.scheduling.sigs.k8s.io",
        /// the same, in its older form (Koordinator)
        KOORDINATOR_POD_GROUP_NAME = "pod-group.scheduling.sigs.k8s.io/name",
        /// number of the gang's pods that must start together; wins over the annotation
        /// (Koordinator)
        KOORDINATOR_POD_GROUP_MIN = "pod-group.scheduling.sigs.k8s.io/min-available",
        /// `false`: the pod is never evicted for others, and stays within its quota's minimum
        /// (Koordinator)
        QUOTA_PREEMPTIBLE = "quota.scheduling.koordinator.sh/preemptible",
        /// the ElasticQuota that the pod counts for; its namespace's unless it is there (Koordinator)
        QUOTA_NAME = "quota.scheduling.koordinator.sh/name",
        /// `guaranteed`, the default, or `opportunistic`: promised no compute time, and gets the
        /// time that guaranteed pods leave
        CLASS_LABEL = "sublet.dev/class",
        /// the GpuFlavor that the pod asks for, or `default`: its namespace's. An annotation of
        /// this name has the same meaning
        FLAVOR = "sublet.dev/flavor",
        /// on a pod that the controller made for the SharePod of its name
        SHARE_POD_LABEL = "sublet.dev/sharepod",
        /// `HAMi-core` makes `koordinator.sh/gpu-core` a limit as well as a promise (Koordinator)
        KOORDINATOR_ISOLATION = "koordinator.sh/gpu-isolation-provider",
        /// compute time that is promised, in cards; more than 1 are whole cards (KubeShare 2)
        KUBESHARE_REQUEST = "sharedgpu/gpu_request",
        /// the most compute time that the pod may use, in cards (KubeShare 2)
        KUBESHARE_LIMIT = "sharedgpu/gpu_limit",
        /// memory in bytes; as large a part of the card's as `sharedgpu/gpu_request` unless it is
        /// there (KubeShare 2)
        KUBESHARE_MEMORY = "sharedgpu/gpu_mem",
        /// a part of the card's model name (KubeShare 2)
        KUBESHARE_MODEL = "sharedgpu/gpu_model",
        /// 0 to 100; a pod with 0 and without `sharedgpu/gpu_request` gets the time that others
        /// leave (KubeShare 2)
        KUBESHARE_PRIORITY = "sharedgpu/priority",
        /// pods that start together; refused (KubeShare 2)
        KUBESHARE_GROUP_NAME = "sharedgpu/group_name",
        /// the same, as KubeShare's own page has it; refused (KubeShare 2)
        KUBESHARE_POD_GROUP_NAME = "sharedgpu/pod_group_name",
        /// number of pods in the group; refused (KubeShare 2)
        KUBESHARE_GROUP_HEADCOUNT = "sharedgpu/group_headcount",
        /// part of the group that must start together; refused (KubeShare 2)
        KUBESHARE_GROUP_THRESHOLD = "sharedgpu/group_threshold",
    }
    SchedulingGate {
        /// put on queued pods by the webhook, and taken off by the controller when the pod's whole
        /// group has its places
        SCHEDULING_GATE = "sublet.dev/queue",
    }
    NodeAnnotation {
        /// the node's devices; written by the agent
        INVENTORY = "sublet.dev/inventory",
        /// cards that the agent has handed to pods which do not say so themselves; written by
        /// the agent
        HANDED_OVER = "sublet.dev/handed-over",
        /// cards as HAMi's device plugin reports them; a node that has it is left to HAMi. Written by
        /// the agent with `--hami-register`, with a mark by which it is told apart (HAMi)
        HAMI_REGISTER = "hami.io/node-nvidia-register",
        /// when the register was written; written by the agent with `--hami-register` (HAMi)
        HAMI_HANDSHAKE = "hami.io/node-handshake",
        /// UUIDs of cards that get no new work, with commas (HAMi)
        HAMI_CORDON = "hami.io/device-cordon",
        /// load of each card over a minute, in percent, and number of pods on it; written by the
        /// agent
        MEASURED_USE = "sublet.dev/measured-use",
        /// time since when no agent hands out devices, so that the cards get no new pods: an agent
        /// that ends writes it, and the next one removes it
        AGENT_AWAY = "sublet.dev/agent-away",
        /// reason why containers are not held to their parts: `pending: …`, and no part of a card
        /// is handed out, or `unsupported: …`, and nothing limits them; written by the agent
        NOT_ISOLATED = "sublet.dev/not-isolated",
    }
    NodeLabel {
        /// way in which cards are handed out: `memory`, `whole` or `both`; wins over `--sharing`
        SHARING_LABEL = "sublet.dev/sharing",
        /// `true` turns isolation off for new containers (Aliyun cGPU)
        CGPU_DISABLE_LABEL = "cgpu.disable.isolation",
        /// memory of each card in MiB, for nodes without an agent (GPU feature discovery)
        NVIDIA_MEMORY_LABEL = "nvidia.com/gpu.memory",
        /// the GPU model (GPU feature discovery)
        NVIDIA_MODEL_LABEL = "nvidia.com/gpu.product",
        /// the GPU model (Alibaba Cloud)
        ALIYUN_MODEL_LABEL = "aliyun.accelerator/nvidia_name",
        /// the node's own name (Kubernetes)
        HOSTNAME_LABEL = "kubernetes.io/hostname",
    }
    NamespaceLabel {
        /// `allowed`: pods of SharePods may have host namespaces, host folders, privileges and other
        /// service accounts than `default` there
        PRIVILEGED_SHARE_PODS_LABEL = "sublet.dev/privileged-sharepods",
        /// scheduler of GPU pods that name none; wins over `--assign-scheduler`, and
        /// `default-scheduler` turns that off
        ASSIGN_SCHEDULER_LABEL = "sublet.dev/assign-scheduler",
        /// `true` or `false`: whether containers with parts of cards get `sublet.dev/gpu-slot`;
        /// wins over `--add-slots`
        ADD_SLOTS_LABEL = "sublet.dev/add-slots",
        /// the GpuFlavor of pods that ask for the flavor `default`, or for a slot and no amount
        DEFAULT_FLAVOR_LABEL = "sublet.dev/default-flavor",
        /// `enabled`: the namespace's pods that name Sublet's scheduler are queued
        QUEUE_LABEL = "sublet.dev/queue",
    }
    DeviceLabel {
        /// `nvidia`; written by the agent with `--koordinator-device` (Koordinator)
        KOORDINATOR_VENDOR = "node.koordinator.sh/gpu-vendor",
        /// the model of the node's cards, such as `A100-SXM4-80GB`, if all are the same; written by
        /// the agent with `--koordinator-device` (Koordinator)
        KOORDINATOR_MODEL = "node.koordinator.sh/gpu-model",
    }
    QuotaKey {
        /// the most GPU memory of all the namespace's pods together, in MiB (HAMi)
        QUOTA_MEMORY = "limits.nvidia.com/gpumem",
        /// the most compute time that is promised to all of them, in percent of one card (HAMi)
        QUOTA_CORES = "limits.nvidia.com/gpucores",
    }
    ElasticQuotaLabel {
        /// the quota above it; none, or `koordinator-root-quota`, for one at the top (Koordinator)
        QUOTA_PARENT = "quota.scheduling.koordinator.sh/parent",
        /// `false` keeps its minimum for it even while it asks for less (Koordinator)
        QUOTA_LENDS = "quota.scheduling.koordinator.sh/allow-lent-resource",
        /// the tree that the quota belongs to; the cluster's own unless it is there (Koordinator)
        QUOTA_TREE = "quota.scheduling.koordinator.sh/tree-id",
        /// `true` on a tree's top: the tree's total is taken from the cluster's own tree, and no
        /// sum of minima is checked (Koordinator)
        QUOTA_IS_ROOT = "quota.scheduling.koordinator.sh/is-root",
        /// `true` takes nothing from the cluster's own tree (Koordinator)
        QUOTA_IGNORE_DEFAULT = "quota.scheduling.koordinator.sh/ignore-default-tree",
        /// `true` on a quota that has others below it; pods count for the lower ones alone
        /// (Koordinator)
        QUOTA_IS_PARENT = "quota.scheduling.koordinator.sh/is-parent",
        /// `true` lets the quota be created or changed though sums of minima do not fit
        /// (Koordinator)
        QUOTA_FORCE = "quota.scheduling.koordinator.sh/allow-force-update",
    }
    ElasticQuotaAnnotation {
        /// weight by which the quota shares in the remaining resources, as amounts by resource;
        /// equals its maximum unless it is there (Koordinator)
        QUOTA_WEIGHT = "quota.scheduling.koordinator.sh/shared-weight",
        /// namespaces whose pods count for the quota, a JSON list (Koordinator)
        QUOTA_NAMESPACES = "quota.scheduling.koordinator.sh/namespaces",
        /// total of the quota's tree, as amounts by resource (Koordinator)
        QUOTA_TOTAL = "quota.scheduling.koordinator.sh/total-resource",
        /// part of the total that no pod can have now, as amounts by resource (Koordinator)
        QUOTA_UNSCHEDULABLE = "quota.scheduling.koordinator.sh/unschedulable-resource",
        /// part of its minimum that the quota keeps if the sum of all minima is too large
        /// (Koordinator)
        QUOTA_GUARANTEED = "quota.scheduling.koordinator.sh/guaranteed",
        /// request of its pods, as amounts by resource; read if a file holds no pods (Koordinator)
        QUOTA_REQUEST = "quota.scheduling.koordinator.sh/request",
        /// longest wait of a group that the minimum has room for, such as `0s` or `24h`, by the
        /// profiles `fair` and `strict`; wins over `--queue-min-within`
        QUOTA_MIN_WITHIN = "sublet.dev/min-within",
        /// amount that it may use now, by resource; written by the controller (Koordinator)
        QUOTA_ENTITLEMENT = "quota.scheduling.koordinator.sh/runtime",
    }
    EventAnnotation {
        /// time; pods of the event's object that were created by then without the webhook's changes
        /// were deleted once, so that the object makes new ones
        MADE_ANEW_UNTIL = "sublet.dev/made-anew-until",
    }
    Variable {
        /// cards of each container of the pod, as in the pod's annotation `sublet.dev/allocation`;
        /// put in by the webhook
        ALLOCATION_VARIABLE = "SUBLET_ALLOCATION",
        /// this container's part, in units (Aliyun GPUShare)
        ALIYUN_CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER",
        /// followed by `_0` and so on: memory of each card, as in `3000m`; not read by Sublet
        /// (HAMi)
        HAMI_MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT",
        /// percent of each card's compute time; not read by Sublet (HAMi)
        HAMI_CORE_LIMIT = "CUDA_DEVICE_SM_LIMIT",
        /// `true` if the node's label turns isolation off (Aliyun cGPU)
        CGPU_DISABLE = "CGPU_DISABLE",
        /// the cards that the container may see, as UUIDs (NVIDIA's container runtime)
        NVIDIA_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES",
    }
    ConfigMap {
        /// followed by a node's name, in `kube-system`: its `gpus` lists the indices of cards
        /// that get no new work
        UNHEALTHY_PREFIX = "unhealthy-gpu-",
    }
}

/// Reason why a card on an operator's list is sick, in the words of every answer.
pub const UNHEALTHY_REASON: &str = "listed as unhealthy by an operator";

/// The name of a node's agent among the runtime's plugins.
pub const NRI_PLUGIN: &str = "sublet";

/// Node labels that say which GPU model a node has, and by which pods choose one: the first
/// that a node has counts.
pub const MODEL_LABELS: &[&str] = &[NVIDIA_MODEL_LABEL, ALIYUN_MODEL_LABEL];

#[cfg(test)]
mod tests;
