//! A running cluster as the place of a simulation: `--snapshot FILE`.
//!
//! Reads what `sublet plan` reads, with its reader and its rules. Nodes and running pods are
//! entered as the scheduler would; which nodes taints and selectors close to a pod is worked
//! out here, once for all pods of the same wishes.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_api::dialect::{claim_of, host_of};
use sublet_api::object::{Node, Pod};
use sublet_api::{bound_entry, keys, pod_key};
use sublet_model::{Bytes, Claim, Host, Identity, MilliCpu, NodeFacts, NodeIdx, PodUid, Unit};
use sublet_plan::EngineOptions;
use sublet_sim::{Nodes, PodRow, Pods, Reach, Running};

use super::what_if::{self, Add};
use crate::plan::{Input, Located, bad_pod, settle};
use crate::verdict::Cluster;

/// What a node is taken to have that does not say how much CPU or memory it has: files
/// written by hand leave it out. As much as a list can give a node.
const ENOUGH: Host = Host {
    cpu: MilliCpu::new(1_000_000_000),
    memory: Bytes::new(1 << 60),
};

/// Objects that cannot be used, a line for each.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub(super) struct BadObjects(pub(super) Vec<String>);

/// A cluster, and the pods that new ones are drawn like.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) nodes: Nodes,
    pub(super) pods: Pods,
    pub(super) notes: Vec<String>,
}

/// Makes a snapshot of what was read, with more nodes.
///
/// # Errors
/// Objects that cannot be used, or nodes that cannot be added.
pub(super) fn of(mut input: Input, unit: Unit, adds: &[Add]) -> anyhow::Result<Snapshot> {
    let mut errors = settle(&mut input);
    let Input {
        nodes: mut objects,
        pods,
        mut notes,
        ..
    } = input;
    if errors.is_empty() {
        what_if::add(
            adds,
            &mut objects,
            |node| &node.object.metadata.name,
            |node, name| Ok(copied(node, name)),
        )?;
    }
    let mut cluster = Cluster::new(EngineOptions {
        unit,
        ..EngineOptions::default()
    });
    for node in &objects {
        let name = &node.object.metadata.name;
        if let Err(error) = cluster.enter_node(&node.object, None) {
            errors.push(format!("{}: node {name}: {error}", node.origin));
        }
    }
    let entered: Vec<(NodeIdx, &Node)> = cluster.nodes().collect();
    let mut reader = Reader {
        cluster: &cluster,
        rows: (0..)
            .zip(&entered)
            .map(|(row, (idx, _))| (*idx, row))
            .collect(),
        nodes: entered.iter().map(|(_, node)| *node).collect(),
        reaches: BTreeMap::new(),
        unit,
    };
    let mut snapshot = Snapshot {
        nodes: Nodes {
            rows: entered
                .iter()
                .map(|(idx, node)| facts(&cluster, *idx, node))
                .collect(),
            by_memory: true,
            running: Vec::new(),
            unit,
        },
        pods: Pods::default(),
        notes: Vec::new(),
    };
    for (number, Located { origin, object }) in pods.iter().enumerate() {
        match reader.enter(object, number, &mut snapshot) {
            Ok(None) => {}
            Ok(Some(note)) => notes.push(format!(
                "note: {origin}: pod {}: {note}",
                object.metadata.name
            )),
            Err(error) => errors.push(bad_pod(origin, object, &error)),
        }
    }
    if !errors.is_empty() {
        return Err(BadObjects(errors).into());
    }
    snapshot.notes = notes;
    Ok(snapshot)
}

/// A copy of a node, which has its own name for a host name too.
fn copied(node: &Located<Node>, name: &str) -> Located<Node> {
    let mut copy = node.clone();
    let meta = &mut copy.object.metadata;
    name.clone_into(&mut meta.name);
    if let Some(host) = meta.labels.get_mut(keys::HOSTNAME_LABEL) {
        name.clone_into(host);
    }
    copy
}

/// What the engine is to know of a node that was entered.
fn facts(cluster: &Cluster<'_>, idx: NodeIdx, node: &Node) -> NodeFacts {
    let book = cluster.engine.ledger().book(idx);
    let plain = || NodeFacts::plain(book.name().clone(), Arc::default());
    let mut facts = book.facts().cloned().unwrap_or_else(plain);
    // On paper no two containers start at once.
    facts.identity = Identity::Nri;
    let says = |resource| node.status.allocatable.contains_key(resource);
    if !says("cpu") {
        facts.host.cpu = ENOUGH.cpu;
    }
    if !says("memory") {
        facts.host.memory = ENOUGH.memory;
    }
    facts
}

/// Reads pods.
struct Reader<'a> {
    cluster: &'a Cluster<'a>,
    /// The row of each node.
    rows: BTreeMap<NodeIdx, u32>,
    /// By row.
    nodes: Vec<&'a Node>,
    /// By a pod's wishes, as they were written.
    reaches: BTreeMap<String, Option<Reach>>,
    unit: Unit,
}

impl Reader<'_> {
    /// Enters a pod: as one that runs if it does, and as one that others are drawn like if it
    /// is not bound to its node. A note, where something of it is not known.
    fn enter(
        &mut self,
        pod: &Pod,
        number: usize,
        into: &mut Snapshot,
    ) -> Result<Option<String>, String> {
        let claim = match claim_of(pod, self.unit).map_err(|error| error.to_string())? {
            Some(claim) => claim,
            None => Claim::host_only(host_of(pod).map_err(|error| error.to_string())?),
        };
        let claim = Arc::new(claim);
        let name = |error| format!("field `metadata`: {error}");
        let key = pod_key(pod).map_err(name)?;
        let reach = self.reach(pod);
        let waits = pod.spec.node_name.is_empty();
        let going = pod.metadata.deletion_timestamp.is_some();
        if belongs_to_node(pod).is_none() && !(waits && going) {
            into.pods.rows.push(PodRow {
                name: Arc::from(key.name()),
                claim: Arc::clone(&claim),
                priority: pod.spec.priority.unwrap_or(0),
                comes: None,
                lasts: None,
                reach: reach.clone(),
            });
        }
        if waits {
            return Ok(None);
        }
        let node = &pod.spec.node_name;
        let Some(idx) = self.cluster.engine.ledger().find(node) else {
            return Ok(Some(format!("left out, its node {node} is not there")));
        };
        let (mut entry, problem) = bound_entry(pod, claim).map_err(name)?;
        entry.assigned = true;
        // Arrivals are called by numbers: no UID of theirs is one of these.
        entry.uid = PodUid::new(&format!("r{number:07}")).map_err(name)?;
        let stays = stays(pod, entry.allocation.is_some());
        into.nodes.running.push(Running {
            entry,
            node: self.rows[&idx],
            reach,
            stays,
        });
        Ok(problem.map(|problem| format!("{problem}; which GPU it has is not known")))
    }

    /// The nodes that are open to a pod; `None` for all.
    fn reach(&mut self, pod: &Pod) -> Option<Reach> {
        let spec = &pod.spec;
        let wishes = format!("{:?} {:?}", spec.node_selector, spec.tolerations);
        if let Some(known) = self.reaches.get(&wishes) {
            return known.clone();
        }
        let (open, _) = self.cluster.open_nodes(pod);
        let mut rows = Vec::new();
        for idx in open {
            let row = self.rows[&idx];
            let labels = &self.nodes[row as usize].metadata.labels;
            let has = |(key, value)| labels.get(key) == Some(value);
            if spec.node_selector.iter().all(has) {
                rows.push((row, self.cluster.soft_taints(pod, idx)));
            }
        }
        let all = rows.len() == self.nodes.len() && rows.iter().all(|(_, soft)| *soft == 0);
        let reach = (!all).then(|| Reach::new(rows));
        self.reaches.insert(wishes, reach.clone());
        reach
    }
}

/// Why a pod goes with its node and with no other.
fn belongs_to_node(pod: &Pod) -> Option<&'static str> {
    let owners = &pod.metadata.owner_references;
    let owned_by = |kind: &str| owners.iter().any(|owner| owner.kind == kind);
    if owned_by("Node") || pod.metadata.annotations.contains_key(keys::MIRROR) {
        Some("static")
    } else if owned_by("DaemonSet") {
        Some("of a DaemonSet")
    } else {
        None
    }
}

/// Why a running pod cannot be moved.
fn stays(pod: &Pod, gpu_is_known: bool) -> Option<&'static str> {
    let meta = &pod.metadata;
    let marked = meta.annotations.get(keys::SAFE_TO_EVICT);
    if let Some(why) = belongs_to_node(pod) {
        Some(why)
    } else if meta.deletion_timestamp.is_some() {
        Some("about to end")
    } else if meta.owner_references.is_empty() {
        Some("without an owner that would start them again")
    } else if marked.is_some_and(|safe| safe == "false") {
        Some("marked as not safe to evict")
    } else if !gpu_is_known {
        Some("on an unknown GPU")
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
