//! Pods and nodes, as much of them as Sublet reads.
//!
//! The same structs read the API server's JSON, an extender call and a file that `kubectl get -o
//! yaml` printed. The parser skips fields that Sublet does not read (managedFields, environments,
//! details of volumes). Fields that only a scheduler reads are in `wishes`.

mod lenient;
mod wishes;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

pub use self::lenient::Anything;
pub(crate) use self::lenient::or_default;
pub use self::wishes::{
    Affinity, LabelSelector, NodeAffinity, NodeSelector, NodeTerm, PodAffinity, PodAffinityTerm,
    PreferredTerm, SelectorRequirement, SpreadConstraint, TaintSpec, TolerationSpec, Volume,
};

/// Metadata of every object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// Name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// Namespace; empty for a node.
    #[serde(deserialize_with = "or_default")]
    pub namespace: String,
    /// UID.
    #[serde(deserialize_with = "or_default")]
    pub uid: String,
    /// The version of this state of the object, for the next watch.
    #[serde(deserialize_with = "or_default")]
    pub resource_version: String,
    /// Labels.
    #[serde(deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
    /// When it was made (RFC 3339).
    pub creation_timestamp: Option<String>,
    /// When its deletion was asked for (RFC 3339).
    pub deletion_timestamp: Option<String>,
    /// Objects that made it, and make it again when it is gone.
    #[serde(deserialize_with = "or_default")]
    pub owner_references: Vec<OwnerReference>,
}

/// Object that made another object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// Group and version, such as `apps/v1`.
    #[serde(deserialize_with = "or_default")]
    pub api_version: String,
    /// Such as `ReplicaSet`.
    #[serde(deserialize_with = "or_default")]
    pub kind: String,
    /// Name of the owner, in the namespace of the object that it made.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// Its UID.
    #[serde(deserialize_with = "or_default")]
    pub uid: String,
    /// Is it the one that looks after the object?
    #[serde(deserialize_with = "or_default")]
    pub controller: bool,
}

impl Meta {
    /// Returns the owner that controls the object.
    #[must_use]
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller)
    }
}

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Its metadata.
    pub metadata: Meta,
    /// Wanted state.
    #[serde(deserialize_with = "or_default")]
    pub spec: PodSpec,
    /// Present state.
    #[serde(deserialize_with = "or_default")]
    pub status: PodStatus,
}

/// Wanted state of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// The node it is bound to.
    #[serde(deserialize_with = "or_default")]
    pub node_name: String,
    /// Name of its scheduler.
    #[serde(deserialize_with = "or_default")]
    pub scheduler_name: String,
    /// Its priority.
    pub priority: Option<i32>,
    /// The name of its priority class. For a pod from the API server, `priority` has the number.
    #[serde(deserialize_with = "or_default")]
    pub priority_class_name: String,
    /// Group of pods that start with it (Kubernetes 1.36).
    #[serde(deserialize_with = "or_default")]
    pub scheduling_group: SchedulingGroup,
    /// `Never` if no pod may be evicted for it.
    #[serde(deserialize_with = "or_default")]
    pub preemption_policy: String,
    /// Labels that its node must have.
    #[serde(deserialize_with = "or_default")]
    pub node_selector: BTreeMap<String, String>,
    /// Resources that its runtime class needs beside its containers.
    #[serde(deserialize_with = "or_default")]
    pub overhead: BTreeMap<String, Quantity>,
    /// Resources of the pod as a whole, in place of the sum of its containers.
    #[serde(deserialize_with = "or_default")]
    pub resources: ResourceRequirements,
    /// Does it use the machine's network as its own?
    #[serde(deserialize_with = "or_default")]
    pub host_network: bool,
    /// Volumes of the pod.
    #[serde(deserialize_with = "or_default")]
    pub volumes: Vec<Volume>,
    /// Its ResourceClaims; only whether there are any.
    #[serde(deserialize_with = "or_default")]
    pub resource_claims: Vec<Anything>,
    /// Containers that run before the main ones.
    #[serde(deserialize_with = "or_default")]
    pub init_containers: Vec<Container>,
    /// Main containers.
    #[serde(deserialize_with = "or_default")]
    pub containers: Vec<Container>,
    /// Taints it does not mind.
    #[serde(deserialize_with = "or_default")]
    pub tolerations: Vec<TolerationSpec>,
    /// Wishes about nodes and other pods.
    #[serde(deserialize_with = "or_default")]
    pub affinity: Affinity,
    /// Wishes about even spreading.
    #[serde(deserialize_with = "or_default")]
    pub topology_spread_constraints: Vec<SpreadConstraint>,
    /// Scheduling gates that must be lifted before it may be scheduled.
    #[serde(deserialize_with = "or_default")]
    pub scheduling_gates: Vec<PodSchedulingGate>,
}

/// Group of pods that start with a pod (`scheduling.k8s.io`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulingGroup {
    /// The PodGroup of its namespace; empty for none.
    #[serde(deserialize_with = "or_default")]
    pub pod_group_name: String,
}

/// One container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Its name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// `Always` makes an init container a sidecar.
    pub restart_policy: Option<String>,
    /// Requested resources.
    #[serde(deserialize_with = "or_default")]
    pub resources: ResourceRequirements,
    /// Ports on which it listens.
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<ContainerPort>,
}

/// A port at which a container listens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// Its number within the pod.
    #[serde(deserialize_with = "or_default")]
    pub container_port: u16,
    /// Its number on the machine; 0 for none.
    #[serde(deserialize_with = "or_default")]
    pub host_port: u16,
    /// On that address of the machine; empty for all.
    #[serde(rename = "hostIP", deserialize_with = "or_default")]
    pub host_ip: String,
    /// Empty means `TCP`.
    #[serde(deserialize_with = "or_default")]
    pub protocol: String,
}

/// Resources that a container asks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ResourceRequirements {
    /// Ceilings; for extended resources the same as requests.
    #[serde(deserialize_with = "or_default")]
    pub limits: BTreeMap<String, Quantity>,
    /// Guarantees.
    #[serde(deserialize_with = "or_default")]
    pub requests: BTreeMap<String, Quantity>,
}

impl ResourceRequirements {
    /// Amount that is asked of an extended resource: the limit, else the request.
    #[must_use]
    pub fn asked(&self, resource: &str) -> Option<&str> {
        let quantity = self
            .limits
            .get(resource)
            .or_else(|| self.requests.get(resource))?;
        Some(&quantity.0)
    }

    /// Amount of a resource that is guaranteed: the request, else the limit, as the API server
    /// fills it in.
    #[must_use]
    pub fn guaranteed(&self, resource: &str) -> Option<&str> {
        let quantity = self
            .requests
            .get(resource)
            .or_else(|| self.limits.get(resource))?;
        Some(&quantity.0)
    }
}

/// A quantity as it was written: text, or a bare number in YAML.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quantity(pub String);

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Quantity, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a quantity such as 8138, \"8k\" or \"16Gi\"")
            }
            fn visit_str<E>(self, text: &str) -> Result<Quantity, E> {
                Ok(Quantity(text.to_owned()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Something that must be lifted before a pod may be scheduled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodSchedulingGate {
    /// Its name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
}

/// Present state of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`.
    #[serde(deserialize_with = "or_default")]
    pub phase: String,
    /// Node where it is to run, if pods were evicted there for it.
    #[serde(deserialize_with = "or_default")]
    pub nominated_node_name: String,
    /// When its kubelet first saw it (RFC 3339).
    pub start_time: Option<String>,
    /// Conditions.
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<PodCondition>,
    /// Main containers.
    #[serde(deserialize_with = "or_default")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Init containers.
    #[serde(deserialize_with = "or_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// One condition of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    /// Such as `PodScheduled`.
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    /// `True`, `False`, `Unknown`.
    #[serde(deserialize_with = "or_default")]
    pub status: String,
    /// A word why.
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    /// A sentence why.
    #[serde(deserialize_with = "or_default")]
    pub message: String,
}

/// One container's state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Name of the container.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// State of the container.
    #[serde(deserialize_with = "or_default")]
    pub state: ContainerState,
    /// Resources that it has now. While it is resized, they differ from its request.
    pub resources: Option<ResourceRequirements>,
    /// Resources that its node has promised it.
    #[serde(deserialize_with = "or_default")]
    pub allocated_resources: BTreeMap<String, Quantity>,
}

/// State of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Present while it runs.
    pub running: Option<Anything>,
    /// Present when it has ended and is not about to be started again.
    pub terminated: Option<Anything>,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its metadata.
    pub metadata: Meta,
    /// Wanted state.
    #[serde(deserialize_with = "or_default")]
    pub spec: NodeSpec,
    /// Present state.
    #[serde(deserialize_with = "or_default")]
    pub status: NodeStatus,
}

/// Wanted state of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Closed to new pods (`kubectl cordon`).
    #[serde(deserialize_with = "or_default")]
    pub unschedulable: bool,
    /// Marks that keep pods away.
    #[serde(deserialize_with = "or_default")]
    pub taints: Vec<TaintSpec>,
}

/// Present state of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Resources of the node.
    #[serde(deserialize_with = "or_default")]
    pub capacity: BTreeMap<String, Quantity>,
    /// Resources of the node that pods can have.
    #[serde(deserialize_with = "or_default")]
    pub allocatable: BTreeMap<String, Quantity>,
    /// Its addresses.
    #[serde(deserialize_with = "or_default")]
    pub addresses: Vec<NodeAddress>,
}

/// An address of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// Such as `InternalIP`.
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    /// The address.
    #[serde(deserialize_with = "or_default")]
    pub address: String,
}

/// A ConfigMap's texts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    /// Its metadata.
    pub metadata: Meta,
    /// Its texts.
    #[serde(deserialize_with = "or_default")]
    pub data: BTreeMap<String, String>,
}

/// A namespace; only its labels count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Its metadata.
    pub metadata: Meta,
}

impl PodSpec {
    /// Has the pod soft wishes, which the scheduler must weigh over all nodes?
    #[must_use]
    pub fn has_soft_wishes(&self) -> bool {
        !self.affinity.node_affinity.preferred.is_empty() || self.has_unweighed_wishes()
    }

    /// Has it soft wishes about other pods or even spreading, which `sublet_plan::stock` does
    /// not weigh?
    #[must_use]
    pub fn has_unweighed_wishes(&self) -> bool {
        let Affinity {
            pod_affinity,
            pod_anti_affinity,
            ..
        } = &self.affinity;
        let soft = |spread: &SpreadConstraint| spread.when_unsatisfiable == "ScheduleAnyway";
        !pod_affinity.preferred.is_empty()
            || !pod_anti_affinity.preferred.is_empty()
            || self.topology_spread_constraints.iter().any(soft)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_absent_are_the_same() {
        let pod: Pod = serde_json::from_str(
            r#"{"metadata":{"name":"a","labels":null,"creationTimestamp":null},
                "spec":{"containers":[{"name":"c","resources":{"limits":{"aliyun.com/gpu-mem":3}}}],
                        "affinity":null},"status":null}"#,
        )
        .unwrap();
        assert_eq!(
            pod.spec.containers[0].resources.asked("aliyun.com/gpu-mem"),
            Some("3")
        );
        assert!(!pod.spec.has_soft_wishes());
    }
}
