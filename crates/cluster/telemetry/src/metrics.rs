//! Every metric of Sublet, in Prometheus' text form.
//!
//! Names are `sublet_<noun>_<unit>[_total]`. Histogram buckets are in seconds and reach
//! from a tenth of a millisecond, because a scheduling cycle waits for each call.

mod labels;

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

pub use self::labels::{
    ContainerLabels, ControllerLabel, IsolationLabel, NodeLabel, OutcomeLabel, ReasonLabel,
    RefusedLabels, ResourceLabel, VerbLabel, WriteLabels,
};

/// A count of time.
pub type Seconds = Counter<f64, AtomicU64>;

/// Number of connections and calls that a process refused, at all of its listeners.
pub type Refused = Family<RefusedLabels, Counter>;

/// Has a registry print it.
fn say_refused(registry: &mut Registry, refused: Refused) {
    registry.register(
        "refused_calls",
        "Connections and calls that a listener cut or refused, by listener and reason",
        refused,
    );
}

/// The scheduler's metrics.
#[derive(Debug, Clone)]
pub struct SchedulerMetrics {
    /// Duration of calls, by verb.
    pub calls: Family<VerbLabel, Histogram, fn() -> Histogram>,
    /// Nodes refused in calls that no node passed, by reason.
    pub refusals: Family<ReasonLabel, Counter>,
    /// Binds, by outcome.
    pub binds: Family<OutcomeLabel, Counter>,
    /// Whether this replica binds.
    pub leading: Gauge,
    /// Binds that were handed over to the leader, by outcome.
    pub forwarded: Family<OutcomeLabel, Counter>,
    /// GPU memory that can be granted, by node.
    pub free: Family<NodeLabel, Gauge<f64, AtomicU64>>,
    /// GPU memory that pods were granted, by node.
    pub used: Family<NodeLabel, Gauge<f64, AtomicU64>>,
    /// The most that one card of a node can still give, by node.
    pub largest: Family<NodeLabel, Gauge<f64, AtomicU64>>,
    /// GPU pods that have no node.
    pub waiting: Gauge,
    /// Calls that were refused before anybody looked at them.
    pub refused: Refused,
}

impl Default for SchedulerMetrics {
    fn default() -> SchedulerMetrics {
        SchedulerMetrics {
            calls: Family::new_with_constructor(seconds),
            refusals: Family::default(),
            binds: Family::default(),
            leading: Gauge::default(),
            forwarded: Family::default(),
            free: Family::default(),
            used: Family::default(),
            largest: Family::default(),
            waiting: Gauge::default(),
            refused: Family::default(),
        }
    }
}

impl SchedulerMetrics {
    /// These metrics, and a registry that prints them.
    #[must_use]
    pub fn registered() -> (SchedulerMetrics, Registry) {
        let metrics = SchedulerMetrics::default();
        let mut registry = Registry::with_prefix("sublet");
        let SchedulerMetrics {
            calls,
            refusals,
            binds,
            leading,
            forwarded,
            free,
            used,
            largest,
            waiting,
            refused,
        } = metrics.clone();
        say_refused(&mut registry, refused);
        say_version(&mut registry);
        registry.register_with_unit(
            "extender_call",
            "Time to answer the scheduler, by verb",
            Unit::Seconds,
            calls,
        );
        registry.register(
            "refusals",
            "Nodes refused in calls that no node passed, by reason",
            refusals,
        );
        registry.register("binds", "Pods to bind, by outcome", binds);
        registry.register(
            "extender_leader",
            "1 on the replica that binds, 0 on the others, and on one that is alone",
            leading,
        );
        registry.register(
            "forwarded_binds",
            "Binds that were handed over to the replica that leads, by outcome",
            forwarded,
        );
        registry.register_with_unit(
            "gpu_memory_free",
            "GPU memory that can be granted, by node",
            Unit::Bytes,
            free,
        );
        registry.register_with_unit(
            "gpu_memory_granted",
            "GPU memory granted to pods, by node",
            Unit::Bytes,
            used,
        );
        registry.register_with_unit(
            "gpu_memory_largest_free",
            "GPU memory that the emptiest GPU can give to one pod, by node",
            Unit::Bytes,
            largest,
        );
        registry.register("gpu_pods_waiting", "GPU pods that no node has", waiting);
        (metrics, registry)
    }
}

/// The metrics of a stand-in for an extender.
#[derive(Debug, Clone, Default)]
pub struct StandInMetrics {
    /// Whether it stands in now.
    pub active: Gauge,
    /// Calls that it forwarded, by outcome.
    pub calls: Family<OutcomeLabel, Counter>,
    /// Calls that were refused before anybody looked at them.
    pub refused: Refused,
}

impl StandInMetrics {
    /// These metrics, and a registry that prints them.
    #[must_use]
    pub fn registered() -> (StandInMetrics, Registry) {
        let metrics = StandInMetrics::default();
        let mut registry = Registry::with_prefix("sublet_stand_in");
        let StandInMetrics {
            active,
            calls,
            refused,
        } = metrics.clone();
        say_refused(&mut registry, refused);
        registry.register(
            "active",
            "1 while calls go to another extender, because the one beside it does not answer",
            active,
        );
        registry.register("calls", "Calls that went elsewhere, by outcome", calls);
        (metrics, registry)
    }
}

/// The node agent's metrics.
#[derive(Debug, Clone, Default)]
pub struct AgentMetrics {
    /// Containers that got their devices, or failed to.
    pub allocations: Family<OutcomeLabel, Counter>,
    /// Registrations with kubelet, by resource.
    pub registrations: Family<ResourceLabel, Counter>,
    /// GPUs that are unhealthy.
    pub unhealthy: Gauge,
    /// Are containers held to their parts?
    pub isolation: Family<IsolationLabel, Gauge>,
    /// Each container's limit on a card.
    pub tenant_limit: Family<ContainerLabels, Gauge>,
    /// Its use.
    pub tenant_used: Family<ContainerLabels, Gauge>,
    /// Number of refusals of more.
    pub tenant_refusals: Family<ContainerLabels, Counter>,
    /// Time that it used the card.
    pub tenant_gpu_time: Family<ContainerLabels, Seconds>,
    /// Time that its launches waited for their turn.
    pub tenant_gate_wait: Family<ContainerLabels, Seconds>,
    /// Part of that time spent waiting at its limit.
    pub tenant_throttled: Family<ContainerLabels, Seconds>,
    /// Calls that were refused before anybody looked at them.
    pub refused: Refused,
}

impl AgentMetrics {
    /// These metrics, and a registry that prints them.
    #[must_use]
    pub fn registered() -> (AgentMetrics, Registry) {
        let metrics = AgentMetrics::default();
        let mut registry = Registry::with_prefix("sublet_agent");
        let AgentMetrics {
            allocations,
            registrations,
            unhealthy,
            isolation,
            tenant_limit,
            tenant_used,
            tenant_refusals,
            tenant_gpu_time,
            tenant_gate_wait,
            tenant_throttled,
            refused,
        } = metrics.clone();
        say_refused(&mut registry, refused);
        say_version(&mut registry);
        registry.register(
            "allocations",
            "Containers that asked kubelet for devices, by outcome",
            allocations,
        );
        registry.register(
            "registrations",
            "Registrations with kubelet, by resource",
            registrations,
        );
        registry.register("unhealthy_gpus", "GPUs that get no new work", unhealthy);
        registry.register(
            "isolation",
            "1 for the state that the limits of containers are in: on, pending (no part of a GPU is \
             handed out), unsupported (nothing limits containers), disabled, no-gpus",
            isolation,
        );
        registry.register_with_unit(
            "container_gpu_memory_limit",
            "GPU memory that a container may use, by GPU",
            Unit::Bytes,
            tenant_limit,
        );
        registry.register_with_unit(
            "container_gpu_memory_used",
            "GPU memory that a container uses, contexts included, by GPU",
            Unit::Bytes,
            tenant_used,
        );
        registry.register(
            "container_refusals",
            "Seconds in which a container was refused GPU memory, by GPU",
            tenant_refusals,
        );
        registry.register_with_unit(
            "container_compute_used",
            "Time of a GPU that a container used, by GPU",
            Unit::Seconds,
            tenant_gpu_time,
        );
        registry.register_with_unit(
            "container_turn_wait",
            "Time in which a container wanted a GPU and had no turn, by GPU",
            Unit::Seconds,
            tenant_gate_wait,
        );
        registry.register_with_unit(
            "container_throttled",
            "Time of that in which a container was at its own limit, by GPU",
            Unit::Seconds,
            tenant_throttled,
        );
        (metrics, registry)
    }
}

/// The controller's metrics.
#[derive(Debug, Clone)]
pub struct ControllerMetrics {
    /// Whether this replica leads.
    pub leading: Gauge,
    /// Decisions, by controller.
    pub decisions: Family<ControllerLabel, Counter>,
    /// Writes, by controller and outcome.
    pub writes: Family<WriteLabels, Counter>,
    /// Duration of the webhooks' work on a pod or a Binding.
    pub admissions: Histogram,
    /// Bindings that the webhook saw, by their outcome.
    pub bindings: Family<OutcomeLabel, Counter>,
    /// Pods that the webhook saw, by their outcome.
    pub admitted: Family<OutcomeLabel, Counter>,
    /// When the certificate that is served ends.
    pub certificate_end: Gauge,
    /// Calls that were refused before anybody looked at them.
    pub refused: Refused,
}

impl ControllerMetrics {
    /// These metrics, and a registry that prints them.
    #[must_use]
    pub fn registered() -> (ControllerMetrics, Registry) {
        let metrics = ControllerMetrics {
            leading: Gauge::default(),
            decisions: Family::default(),
            writes: Family::default(),
            admissions: seconds(),
            bindings: Family::default(),
            admitted: Family::default(),
            certificate_end: Gauge::default(),
            refused: Family::default(),
        };
        let mut registry = Registry::with_prefix("sublet");
        let ControllerMetrics {
            leading,
            decisions,
            writes,
            admissions,
            bindings,
            admitted,
            certificate_end,
            refused,
        } = metrics.clone();
        say_refused(&mut registry, refused);
        say_version(&mut registry);
        registry.register(
            "controller_leader",
            "1 on the replica that writes, 0 on the others",
            leading,
        );
        registry.register(
            "controller_decisions",
            "Decisions about objects, by controller",
            decisions,
        );
        registry.register(
            "controller_writes",
            "Writes to the API server, by controller and outcome",
            writes,
        );
        registry.register_with_unit(
            "webhook_call",
            "Time to answer the API server about a pod or a Binding",
            Unit::Seconds,
            admissions,
        );
        registry.register(
            "webhook_bindings",
            "Bindings that the webhook was asked about, by outcome",
            bindings,
        );
        registry.register(
            "webhook_pods",
            "Pods that the webhook was asked about, by outcome",
            admitted,
        );
        registry.register_with_unit(
            "webhook_certificate_end",
            "When the certificate that is served ends, since the Unix epoch",
            Unit::Seconds,
            certificate_end,
        );
        (metrics, registry)
    }
}

/// The running version: 1, with the version as its label.
fn say_version(registry: &mut Registry) {
    let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "The version that runs", version);
}

/// Prometheus' text form of a registry.
///
/// # Panics
/// Never: writing to a `String` does not fail.
#[must_use]
pub fn print(registry: &Registry) -> String {
    let mut page = String::new();
    text::encode(&mut page, registry).expect("writing to a String does not fail");
    page
}

/// From 0.1 ms to 1.6 s, each bucket twice the one before, and a long tail for binds.
fn seconds() -> Histogram {
    Histogram::new(
        (0..15)
            .map(|step| 0.0001 * f64::from(1 << step))
            .chain([5.0, 15.0]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_metric_with_its_unit() {
        let (metrics, registry) = SchedulerMetrics::registered();
        metrics
            .calls
            .get_or_create(&VerbLabel { verb: "filter" })
            .observe(0.003);
        metrics
            .refusals
            .get_or_create(&ReasonLabel { reason: "no_room" })
            .inc();
        metrics
            .free
            .get_or_create(&NodeLabel {
                node: "n1".to_owned(),
            })
            .set(5.0);
        let page = print(&registry);
        for line in [
            "sublet_extender_call_seconds_bucket{le=\"0.0032\",verb=\"filter\"} 1",
            "sublet_refusals_total{reason=\"no_room\"} 1",
            "sublet_gpu_memory_free_bytes{node=\"n1\"} 5.0",
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
    }
}
