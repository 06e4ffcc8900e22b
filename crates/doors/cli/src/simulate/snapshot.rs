//! A running cluster as the start of a simulation: `--snapshot FILE`.
//!
//! Reads the same files as `sublet plan`, with its reader and its rules. Nodes and running pods are
//! entered as the scheduler would enter them. This module works out which nodes a pod's affinity
//! closes, once for all pods with the same rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_api::object::{Node, Pod};
use sublet_api::stock::pod_rules;
use sublet_api::{bound_entry, keys, pod_key};
use sublet_model::{Identity, NameError, NodeFacts, NodeIdx, PodUid, Unit};
use sublet_plan::EngineOptions;
use sublet_plan::stock::PodRules;
use sublet_sim::{NodeList, PodList, PodRow, Reach, Running};

use super::what_if::{self, Add};
use crate::plan::{Input, Located, Unreadable, name_of, passed_over, queue_only, settle};
use crate::verdict::{Cluster, Odd, asked};

/// Objects that cannot be used, a line for each.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub(super) struct BadObjects(pub(super) Vec<String>);

/// A cluster, and the pods that new ones are drawn like.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) nodes: NodeList,
    pub(super) pods: PodList,
    pub(super) notes: Vec<String>,
}

/// Makes a snapshot of the input, with more nodes. `stop`: is an object that cannot be read an
/// error? Otherwise a note reports it.
///
/// # Errors
/// Objects that cannot be used, or nodes that cannot be added.
pub(super) fn of(
    mut input: Input,
    unit: Unit,
    adds: &[Add],
    stop: bool,
) -> anyhow::Result<Snapshot> {
    settle(&mut input);
    let hopeless = input.is_hopeless();
    input.pass_over_workloads();
    let Input {
        nodes: mut objects,
        pods,
        mut notes,
        unreadable: mut odd,
        errors,
        quotas,
        queued,
        ..
    } = input;
    notes.extend(quotas.iter().map(|quota| passed_over(&quota.origin)));
    notes.extend(queued.iter().map(queue_only));
    if !hopeless && (odd.is_empty() || !stop) {
        what_if::add(
            adds,
            &mut objects,
            |node| &node.object.metadata.name,
            |node, name| Ok(copied(node, name)),
        )?;
    }
    let (mut reader, nodes) = Reader::of_nodes(&objects, unit, &mut odd);
    let mut snapshot = Snapshot {
        nodes,
        pods: PodList::default(),
        notes: Vec::new(),
    };
    odd.extend(reader.keep_away(&pods));
    let mut unmodelled = 0;
    for (number, Located { origin, object }) in pods.iter().enumerate() {
        unmodelled += usize::from(!reader.cluster.unmodelled(object).is_empty());
        match reader.enter(object, number, &mut snapshot) {
            Ok(None) => {}
            Ok(Some(note)) => notes.push(format!(
                "note: {origin}: pod {}: {note}",
                object.metadata.name
            )),
            Err(Odd { field, what }) => {
                odd.push(Unreadable::of(origin, name_of(object), &field, what));
            }
        }
    }
    if hopeless || (stop && !odd.is_empty()) {
        let odd = odd.iter().map(ToString::to_string);
        return Err(BadObjects(odd.chain(errors).collect()).into());
    }
    notes.extend(odd.iter().map(|odd| format!("warning: {odd}")));
    if unmodelled > 0 {
        notes.push(format!(
            "note: {unmodelled} pods have wishes that are not looked at (about other pods, even \
             spreading, volumes or resource claims)"
        ));
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

/// Facts that the engine needs of a node that was entered.
fn facts(cluster: &Cluster, idx: NodeIdx) -> NodeFacts {
    let book = cluster.engine.ledger().book(idx);
    let plain = || NodeFacts::plain(book.name().clone(), Arc::default());
    NodeFacts {
        // On paper no two containers start at once.
        identity: Identity::Nri,
        ..book.facts().cloned().unwrap_or_else(plain)
    }
}

/// Reads pods.
struct Reader {
    cluster: Cluster,
    /// The row of each node.
    rows: BTreeMap<NodeIdx, u32>,
    /// By a pod's wishes.
    reaches: BTreeMap<PodRules, Option<Reach>>,
    unit: Unit,
}

impl Reader {
    /// Enters the nodes.
    fn of_nodes(
        objects: &[Located<Node>],
        unit: Unit,
        odd: &mut Vec<Unreadable>,
    ) -> (Reader, NodeList) {
        let mut cluster = Cluster::new(EngineOptions {
            unit,
            ..EngineOptions::default()
        });
        let mut nodes = NodeList {
            by_memory: true,
            unit,
            ..NodeList::default()
        };
        let mut rows = BTreeMap::new();
        for Located { origin, object } in objects {
            let wrong = match cluster.enter_node(object, None) {
                Ok(idx) => {
                    rows.insert(idx, nodes.rows.len() as u32);
                    nodes.rows.push(facts(&cluster, idx));
                    Odd::of_measured_use(object)
                }
                Err(error) => Some(Odd::of_node(&error)),
            };
            if let Some(Odd { field, what }) = wrong {
                let name = format!("node {}", object.metadata.name);
                odd.push(Unreadable::of(origin, name, &field, what));
            }
        }
        let reader = Reader {
            cluster,
            rows,
            reaches: BTreeMap::new(),
            unit,
        };
        (reader, nodes)
    }

    /// Notes the pods that running pods keep away. Returns their faults.
    fn keep_away(&mut self, pods: &[Located<Pod>]) -> Vec<Unreadable> {
        let running = pods
            .iter()
            .filter(|pod| !pod.object.spec.node_name.is_empty());
        let read = |Located { origin, object }: &Located<Pod>| {
            let odd = Odd::of_rules(&self.cluster.keep_away(object).err()?);
            Some(Unreadable::of(
                origin,
                name_of(object),
                &odd.field,
                odd.what,
            ))
        };
        running.filter_map(read).collect()
    }

    /// Enters a pod: as a running one if it runs, and as a sample for arrivals if it is not tied to
    /// its node. Returns a note if something about it is not known.
    fn enter(
        &mut self,
        pod: &Pod,
        number: usize,
        into: &mut Snapshot,
    ) -> Result<Option<String>, Odd> {
        let name = |error: NameError| Odd {
            field: "metadata".to_owned(),
            what: error.to_string(),
        };
        let claim = asked(pod, self.unit).map_err(|error| Odd::of_claim(pod, &error))?;
        let claim = Arc::new(claim);
        let key = pod_key(pod).map_err(name)?;
        let rules = pod_rules(pod).map_err(|error| Odd::of_rules(&error))?;
        let reach = self.reach(rules);
        let waits = pod.spec.node_name.is_empty();
        let going = pod.metadata.deletion_timestamp.is_some();
        if belongs_to_node(pod).is_none() && !(waits && going) {
            into.pods.rows.push(PodRow {
                name: Arc::from(key.name()),
                claim: Arc::clone(&claim),
                priority: pod.spec.priority.unwrap_or(0),
                comes: None,
                lasts: None,
                tenant: None,
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
        let open = self.cluster.unmodelled(pod).is_empty();
        let stays = stays(pod, entry.allocation.is_some());
        let stays = stays.or((!open).then_some("with wishes that are not looked at"));
        into.nodes.running.push(Running {
            entry,
            node: self.rows[&idx],
            reach,
            stays,
        });
        Ok(problem.map(|problem| format!("{problem}; which GPU it has is not known")))
    }

    /// The nodes that are open to a pod; `None` for all.
    fn reach(&mut self, rules: PodRules) -> Option<Reach> {
        if let Some(known) = self.reaches.get(&rules) {
            return known.clone();
        }
        let class = self.cluster.class(&rules);
        let open = class.open.iter();
        let open = open.map(|&idx| (self.rows[&idx], self.cluster.soft_taints(&rules, idx)));
        let rows: Vec<(u32, u32)> = open.collect();
        let all = rows.len() == self.rows.len() && rows.iter().all(|(_, soft)| *soft == 0);
        let reach = (!all).then(|| Reach::new(rows));
        self.reaches.insert(rules, reach.clone());
        reach
    }
}

/// Reason why a pod goes with its node and with no other.
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

/// Reason why a running pod cannot be moved.
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
pub(crate) mod tests;
