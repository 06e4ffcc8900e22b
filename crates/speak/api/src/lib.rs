//! Kubernetes as Sublet reads and writes it.
//!
//! Everything that comes from outside (pods, nodes, annotations, extender calls) is parsed
//! here once, into the types of `sublet-model`; bad input is an error that names the field.
//! This crate opens no connection: it turns text into values and values into text.
//!
//! # Modules
//! `object` (pods and nodes, as much of them as we read), `machine` (what pods ask of a machine,
//! summed as Kubernetes sums it), `stock` (what the stock scheduler looks at), `dialect` (claims
//! and allocations as `aliyun`, `nvidia`, `sublet`, `hami`, `koordinator`, `kubeshare`, `kai` and
//! `sharepod` write them), `node` (facts of a node), `inventory`, `handed`, `measured` and
//! `allocation` (our annotations), `budget` (disruption budgets), `quota` (resource quotas),
//! `elastic_quota` (quotas in a tree), `quota_index` (which one a pod counts for), `tree_totals`
//! (what each tree has), `quota_totals` (sound trees, and what each quota has, asks and may use),
//! `group` (what starts together: gangs and jobs of all kinds, made into the queue's groups; whom
//! the queue looks after), `queue_state` (the quotas and groups of a cluster), `workload` (the pods that Deployments and the like will have),
//! `flavor` (flavors, and that no claim has one), `gang_plan` (where members of groups go, and
//! the slot that a pod has), `share_pod` (SharePods), `extender` (messages), `keys` (every name,
//! once), `flags` (names of the engine's policies, rules and units on command lines, and the
//! settings of the queue there), `duration` (durations as people write them).

mod allocation;
mod budget;
pub mod dialect;
mod duration;
mod elastic_quota;
pub mod extender;
pub mod flags;
mod flavor;
pub mod gang_plan;
mod go_json;
pub mod group;
mod handed;
mod inventory;
pub mod inventory_file;
pub mod keys;
mod machine;
mod measured;
mod models;
mod node;
mod not_isolated;
pub mod object;
mod pod;
mod preempting;
mod quantity;
mod queue_state;
mod quota;
mod quota_index;
mod quota_totals;
mod share_pod;
pub mod stock;
mod tree_totals;
mod workload;

pub use allocation::{AllocationError, allocation_from_json, allocation_to_json};
pub use budget::{
    BudgetSpec, BudgetStatus, BudgetedPod, DisruptionBudget, SYSTEM_NAMESPACES, breaks_budgets,
    is_guarded,
};
pub use elastic_quota::{
    ElasticQuota, ElasticQuotaError, ElasticQuotaSpec, ElasticQuotaStatus, QuotaFacts, QuotaScope,
    node_amounts,
};
pub use flavor::{FlavorSpec, GpuFlavor, flavor_of};
pub use handed::{Handed, HandedTextError, handed_from_json, handed_to_json};
pub use inventory::{InventoryTextError, NodeReport, report_from_json, report_to_json};
pub use machine::{amounts_of, gpu_amounts, host_of, stock_ask};
pub use measured::{NodeUse, UseTextError, measured_use, use_from_json, use_to_json};
pub use node::{
    NodeDefaults, NodeError, facts_of, facts_with_stock, facts_without_gpu, unhealthy_gpus,
};
pub use not_isolated::NotIsolated;
pub use pod::{
    bound_entry, has_scheduling_gate, is_over, is_unschedulable, pod_key, pod_uid, scheduler_for,
    scheduler_of, unsaid,
};
pub use preempting::{Preempting, PreemptingTextError, preempting_from_json, preempting_to_json};
pub use quantity::{QuantityError, whole_number};
pub use queue_state::QueueState;
pub use quota::{QuotaSpec, ResourceQuota};
pub use quota_index::{DEFAULT_QUOTA, PodQuota, QuotaIndex, elastic_quotas, of_quota, tree_of};
pub use quota_totals::{
    QuotaDemand, QuotaFigures, QuotaTotals, QuotaTrouble, no_total, quota_figures, sound_tree,
};
pub use share_pod::SharePod;
pub use tree_totals::{NoTotal, add_amounts, tree_totals};
pub use workload::{Workload, WorkloadRole, is_workload, read_workload};
