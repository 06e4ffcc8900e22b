//! A cluster as the engine sees it, and each node's verdict on a pod.
//!
//! `plan` and `explain` both enter nodes and bound pods here and then ask the same engine as
//! the scheduler does. Of the stock scheduler's own rules only taints are looked at, since
//! they so often decide about GPU nodes; the others (CPU, affinity, volumes) are not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use sublet_api::dialect::{ClaimError, claim_of, host_of};
use sublet_api::object::{Node, Pod, Taint};
use sublet_api::{
    AllocationError, NodeDefaults, NodeError, bound_entry, facts_of, facts_without_gpu,
};
use sublet_model::{Claim, GpuIndex, NameError, NodeIdx, NodeName, PodUid, Standing};
use sublet_plan::{Engine, EngineOptions, Reason};

/// Nodes and the pods bound to them.
pub(crate) struct Cluster<'a> {
    pub(crate) engine: Engine,
    nodes: BTreeMap<NodeIdx, &'a Node>,
}

/// Why a node cannot take a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A taint that the pod does not tolerate.
    Taint(Taint),
    /// The engine's reason.
    Reason(Reason),
}

impl Refusal {
    /// Refusals of one kind have one label.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Refusal::Taint(_) => "taint",
            Refusal::Reason(reason) => reason.label(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Taint(Taint { key, value, effect }) => {
                let equals = if value.is_empty() { "" } else { "=" };
                write!(
                    f,
                    "the pod does not tolerate the taint {key}{equals}{value}:{effect}"
                )
            }
            Refusal::Reason(reason) => reason.fmt(f),
        }
    }
}

/// Why a bound pod cannot be entered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodError {
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error("field `metadata.name`, `namespace`, `uid` or `spec.nodeName`: {0}")]
    Name(#[from] NameError),
}

impl<'a> Cluster<'a> {
    pub(crate) fn new(options: EngineOptions) -> Cluster<'a> {
        Cluster {
            engine: Engine::new(options),
            nodes: BTreeMap::new(),
        }
    }

    /// Enters a node. Enter nodes in order of their names: that is how ties are broken. One
    /// without GPUs is entered too, so that it is refused with its reason. `sick`: cards that
    /// an operator listed as unhealthy.
    pub(crate) fn enter_node(
        &mut self,
        node: &'a Node,
        sick: Option<&BTreeSet<GpuIndex>>,
    ) -> Result<(), NodeError> {
        let unit = self.engine.options().unit;
        let mut facts = match facts_of(node, NodeDefaults { unit })? {
            Some(facts) => facts,
            None => facts_without_gpu(node, NodeDefaults { unit })?,
        };
        if let Some(sick) = sick {
            facts.inventory = Arc::new(
                facts
                    .inventory
                    .with_sick(sick, sublet_api::keys::UNHEALTHY_REASON),
            );
        }
        let idx = self.engine.set_node(facts);
        self.nodes.insert(idx, node);
        Ok(())
    }

    /// Enters a bound pod; one of no GPU takes CPU and memory. Annotations that cannot be read
    /// are no error: they come back, and the pod counts as one that does not say where it is.
    pub(crate) fn enter_pod(&mut self, pod: &Pod) -> Result<Option<AllocationError>, PodError> {
        let unit = self.engine.options().unit;
        let claim = match claim_of(pod, unit)? {
            Some(claim) => claim,
            None => Claim::host_only(host_of(pod)?),
        };
        let (entry, problem) = bound_entry(pod, Arc::new(claim))?;
        self.engine.learn(&entry.claim);
        self.engine.observe(entry);
        Ok(problem)
    }

    /// Counts a pod as one that has its devices. On paper there is no race of starting
    /// containers, so a pod that looks the same may follow at once.
    pub(crate) fn start(&mut self, uid: &PodUid) {
        if let Some(mut entry) = self.engine.ledger().entry(uid).cloned() {
            entry.standing = Standing::Bound;
            entry.assigned = true;
            self.engine.observe(entry);
        }
    }

    /// Nodes that taints do not close to the pod, and why the others can never take it now.
    pub(crate) fn open_nodes(&self, pod: &Pod) -> (Vec<NodeIdx>, BTreeMap<String, Refusal>) {
        let mut open = Vec::new();
        let mut closed = BTreeMap::new();
        for (&idx, node) in &self.nodes {
            let taint = node.spec.taints.iter().find(|taint| {
                matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
                    && !tolerates(pod, taint)
            });
            match taint {
                Some(taint) => {
                    let refusal = Refusal::Taint(taint.clone());
                    closed.insert(node.metadata.name.clone(), refusal);
                }
                None => open.push(idx),
            }
        }
        (open, closed)
    }

    /// Every node that cannot take the pod, and why.
    pub(crate) fn refusals(
        &self,
        pod: &Pod,
        uid: &PodUid,
        claim: &Claim,
    ) -> BTreeMap<String, Refusal> {
        let (open, mut refusals) = self.open_nodes(pod);
        for refused in self.engine.refusals(uid, claim, &open) {
            let name = self.name(refused.node).to_string();
            refusals.insert(name, Refusal::Reason(refused.reason));
        }
        refusals
    }

    /// Soft taints of a node that the pod does not tolerate.
    pub(crate) fn soft_taints(&self, pod: &Pod, node: NodeIdx) -> u32 {
        let taints = self.nodes.get(&node).map_or(&[][..], |n| &n.spec.taints);
        let untolerated = taints
            .iter()
            .filter(|taint| taint.effect == "PreferNoSchedule" && !tolerates(pod, taint));
        u32::try_from(untolerated.count()).unwrap_or(u32::MAX)
    }

    pub(crate) fn name(&self, node: NodeIdx) -> &NodeName {
        self.engine.ledger().book(node).name()
    }

    /// The nodes that were entered, in that order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeIdx, &'a Node)> {
        self.nodes.iter().map(|(idx, node)| (*idx, *node))
    }

    /// The names of all nodes that were entered, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.nodes.values().map(|node| node.metadata.name.as_str())
    }
}

fn tolerates(pod: &Pod, taint: &Taint) -> bool {
    pod.spec.tolerations.iter().any(|t| t.tolerates(taint))
}
