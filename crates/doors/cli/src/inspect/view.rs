//! Users of each card, from nodes and pods: the content of every form of `sublet inspect`.
//!
//! Amounts come from the ledger's own accounting (`charges_of`), so inspect and scheduler cannot
//! disagree. If a pod does not say its card in a way that the ledger accepts, its place is read as
//! the original tool reads it. Nothing is printed here.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_api::dialect::claim_of;
use sublet_api::object::{Node, Pod};
use sublet_api::{
    NodeDefaults, NodeUse, NotIsolated, bound_entry, facts_of, is_over, keys, measured_use,
    whole_number,
};
use sublet_model::{
    Ask, ContainerName, Entry, Identity, Ledger, MiB, NodeFacts, Part, PodKey, PodUid, Portion,
    Sharing, Unit, charges_of,
};

use crate::compute::{self, ComputeTime};

/// Place of a pod's memory on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// On the card with that index, which need not exist.
    Card(i64),
    /// The pod does not say.
    Pending,
}

pub(super) struct PodView {
    pub(super) key: PodKey,
    pub(super) on: BTreeMap<Place, Part>,
    pub(super) containers: Vec<ContainerView>,
    pub(super) asks_compute: bool,
    /// Number of whole cards, if it asks for whole cards.
    pub(super) n_whole: Option<u32>,
}

pub(super) struct ContainerView {
    pub(super) name: ContainerName,
    /// On all its cards together.
    pub(super) memory: MiB,
    /// Compute time on each of its cards.
    pub(super) compute: ComputeTime,
}

pub(super) struct NodeView {
    pub(super) facts: NodeFacts,
    pub(super) address: String,
    /// Mean load of its cards over a minute, as its agent reports it.
    pub(super) measured: NodeUse,
    /// Reason why its containers are not held to their parts.
    pub(super) not_isolated: Option<NotIsolated>,
    /// Total of the node, in its unit: a part of it may be on no card.
    pub(super) total: u64,
    /// By card, amount kept free for pods that do not say which card they have.
    pub(super) kept: Vec<Part>,
    /// By card, then by namespace and name; pods that do not say their card last.
    pub(super) pods: Vec<PodView>,
}

impl NodeView {
    pub(super) fn units(&self, memory: MiB) -> u64 {
        self.facts.unit.whole_in(memory)
    }

    /// Amount granted at one place.
    pub(super) fn granted(&self, place: Place) -> Part {
        let parts = self.pods.iter().filter_map(|pod| pod.on.get(&place));
        parts.copied().fold(Part::ZERO, Part::plus)
    }

    pub(super) fn has_pending(&self) -> bool {
        self.pods
            .iter()
            .any(|pod| pod.on.contains_key(&Place::Pending))
    }

    /// Is the node in the original tool's tables? They have only nodes that share by memory.
    pub(super) fn is_shared(&self) -> bool {
        self.facts.sharing != Sharing::Whole && self.total > 0
    }
}

/// Everything that is printed.
pub(super) struct View {
    /// By name.
    pub(super) nodes: Vec<NodeView>,
    /// A line for each object that cannot be understood.
    pub(super) notes: Vec<String>,
}

impl View {
    /// Does any pod ask for compute time of a part? Else none is shown.
    pub(super) fn has_compute(&self) -> bool {
        let mut pods = self.nodes.iter().flat_map(|node| &node.pods);
        pods.any(|pod| pod.asks_compute)
    }
}

/// Warning or note about a node whose containers are not held to their parts.
fn not_isolated(node: &str, why: &NotIsolated) -> String {
    match why {
        NotIsolated::Pending(why) => {
            format!(
                "warning: node {node} hands out no part of a GPU until its agent can limit it: {why}"
            )
        }
        NotIsolated::Unsupported(why) => {
            format!("warning: containers on node {node} can use more than their part: {why}")
        }
    }
}

/// Builds the view. `unit`: the unit of `aliyun.com/gpu-mem` on nodes that do not name one. Without
/// it, the unit is guessed as the original guesses.
pub(super) fn view(nodes: &[Node], pods: &[Pod], unit: Option<Unit>) -> View {
    let mut notes = Vec::new();
    let mut ledger = Ledger::new();
    let mut by_name: BTreeMap<&str, &Node> = BTreeMap::new();
    for node in nodes {
        let name = &node.metadata.name;
        let unit = unit.unwrap_or_else(|| guess_unit(node));
        match facts_of(node, NodeDefaults { unit }) {
            Ok(None) => {}
            Ok(Some(facts)) => {
                notes.extend(NotIsolated::of(node).map(|why| not_isolated(name, &why)));
                ledger.set_node(facts);
                by_name.insert(name, node);
            }
            Err(error) => notes.push(format!("warning: node {name} is left out: {error}")),
        }
    }
    let mut by_uid: BTreeMap<PodUid, &Pod> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !is_over(pod)) {
        let on_known = ledger.find(&pod.spec.node_name);
        let Some(facts) = on_known.and_then(|idx| ledger.book(idx).facts()) else {
            continue;
        };
        match enter(pod, facts.unit) {
            Ok(None) => {}
            Ok(Some(entry)) => {
                by_uid.insert(entry.uid.clone(), pod);
                ledger.enter(entry);
            }
            Err(error) => {
                let meta = &pod.metadata;
                notes.push(format!(
                    "warning: pod {}/{} is left out: {error}",
                    meta.namespace, meta.name
                ));
            }
        }
    }
    notes.extend(ledger.entries().filter_map(|entry| doubt(&ledger, entry)));
    let nodes = by_name
        .into_iter()
        .filter_map(|(name, node)| {
            let book = ledger.book(ledger.find(name)?);
            let facts = book.facts()?;
            let entries = book.pods().filter_map(|uid| ledger.entry(uid));
            let mut pods: Vec<PodView> = entries
                .map(|entry| pod_view(entry, by_uid[&entry.uid], facts))
                .collect();
            let first = |pod: &PodView| pod.on.keys().next().copied();
            pods.sort_by(|a, b| (first(a), &a.key).cmp(&(first(b), &b.key)));
            Some(NodeView {
                facts: facts.clone(),
                address: address(node),
                measured: measured_use(node).unwrap_or_default(),
                not_isolated: NotIsolated::of(node),
                total: total(node, facts),
                kept: book.cards().iter().map(|card| card.unsure).collect(),
                pods,
            })
        })
        .collect();
    View { nodes, notes }
}

/// A line about a pod that does not say which card it has, if that costs others their place.
fn doubt(ledger: &Ledger, entry: &Entry) -> Option<String> {
    let facts = ledger.book(ledger.find(entry.node.as_str())?).facts()?;
    let kept = match &entry.allocation {
        None => facts.kept_free_for(&entry.uid, entry.claim.ask())?,
        Some(_) => return None,
    };
    let (pod, node) = (&entry.pod, &entry.node);
    Some(format!(
        "warning: pod {pod} does not say which GPU of node {node} it has: {kept} of each is kept \
         free for it (sublet explain pod)"
    ))
}

fn enter(pod: &Pod, unit: Unit) -> Result<Option<Entry>, String> {
    let claim = claim_of(pod, unit).map_err(|error| error.to_string())?;
    let Some(claim) = claim else { return Ok(None) };
    // A problem with the annotations leaves the allocation empty, which is handled below.
    let (entry, _problem) = bound_entry(pod, Arc::new(claim)).map_err(|error| error.to_string())?;
    Ok(Some(entry))
}

pub(super) fn pod_view(entry: &Entry, pod: &Pod, facts: &NodeFacts) -> PodView {
    let claim = &entry.claim;
    let mut on: BTreeMap<Place, Part> = BTreeMap::new();
    let mut put = |place, part: Part| {
        let sum = on.entry(place).or_default();
        *sum = sum.plus(part);
    };
    let known = facts.handed_to(&entry.uid);
    match (&entry.allocation, claim.ask()) {
        // The node's agent knows what it has handed over.
        (None, ask) if !known.is_empty() && facts.kept_free_for(&entry.uid, ask).is_none() => {
            for gpu in known.into_iter().map(|at| &facts.inventory.gpus()[at]) {
                let part = match ask {
                    Ask::Parts(parts) => parts.largest().on(gpu.memory),
                    Ask::WholeCards(_) | Ask::Nothing => Part::whole(gpu.memory),
                };
                put(Place::Card(i64::from(gpu.index.0)), part);
            }
        }
        (Some(allocation), _) => {
            for charge in charges_of(claim, allocation) {
                let gpu = facts.inventory.position(&charge.card);
                let gpu = gpu.map(|at| &facts.inventory.gpus()[at]);
                let index = gpu.map_or(charge.card.index, |gpu| gpu.index);
                let part = match gpu {
                    Some(gpu) if charge.whole => Part::whole(gpu.memory),
                    Some(gpu) => charge.part.on(gpu.memory),
                    None => charge.part,
                };
                put(Place::Card(i64::from(index.0)), part);
            }
        }
        (None, Ask::Parts(parts)) => match amounts_by_card(pod) {
            Some(amounts) => {
                for (card, amount) in amounts {
                    let memory = facts.unit.times(amount).unwrap_or(MiB::MAX);
                    put(card, Part::of_memory(memory));
                }
            }
            None => put(
                place_by_index(pod),
                parts.iter().fold(Part::ZERO, Part::plus),
            ),
        },
        (None, Ask::WholeCards(_)) => put(Place::Pending, Part::ZERO),
        (None, Ask::Nothing) => {}
    }
    let containers = claim.containers().iter().map(|container| {
        let memory = match (&entry.allocation, container.demand.portion) {
            (Some(got), _) => got.of(&container.name).map(|g| g.memory).sum(),
            (None, Portion::Part(part)) => part.memory,
            (None, Portion::Whole) => MiB::ZERO,
        };
        ContainerView {
            name: container.name.clone(),
            memory,
            compute: ComputeTime::of(&container.demand),
        }
    });
    PodView {
        key: entry.pod.clone(),
        containers: containers.collect(),
        asks_compute: compute::is_asked(claim),
        on,
        n_whole: match claim.ask() {
            Ask::WholeCards(count) => Some(count.get()),
            Ask::Parts(_) | Ask::Nothing => None,
        },
    }
}

/// The newer annotation as the original tool reads it: it accepts several cards, which the ledger
/// does not. An unreadable annotation counts as absent.
fn amounts_by_card(pod: &Pod) -> Option<BTreeMap<Place, u64>> {
    let text = pod.metadata.annotations.get(keys::ALIYUN_ALLOCATION)?;
    let map: BTreeMap<String, BTreeMap<String, u64>> = serde_json::from_str(text).ok()?;
    let mut amounts = BTreeMap::new();
    for (card, amount) in map.values().flatten() {
        let sum: &mut u64 = amounts.entry(place(card.parse().ok()?)).or_default();
        *sum = sum.saturating_add(*amount);
    }
    Some(amounts).filter(|amounts| !amounts.is_empty())
}

fn place_by_index(pod: &Pod) -> Place {
    let index = pod.metadata.annotations.get(keys::ALIYUN_IDX);
    index
        .and_then(|text| text.parse().ok())
        .map_or(Place::Pending, place)
}

fn place(index: i64) -> Place {
    if index == -1 {
        Place::Pending
    } else {
        Place::Card(index)
    }
}

fn address(node: &Node) -> String {
    let mut addresses = node.status.addresses.iter();
    let internal = addresses.find(|address| address.kind == "InternalIP");
    internal.map_or_else(|| "unknown".to_owned(), |a| a.address.clone())
}

fn capacity(node: &Node, resource: &str) -> Option<u64> {
    whole_number(&node.status.capacity.get(resource)?.0).ok()
}

/// Without an agent, the node's own sum. Memory that its cards do not divide evenly is on no card.
fn total(node: &Node, facts: &NodeFacts) -> u64 {
    let cards = facts.inventory.gpus().iter();
    let sum = cards.map(|gpu| facts.unit.whole_in(gpu.memory)).sum();
    if node.metadata.annotations.contains_key(keys::INVENTORY) {
        return sum;
    }
    capacity(node, keys::ALIYUN_GPU_MEM)
        .filter(|&amount| amount > 0)
        .unwrap_or(sum)
}

/// More than a hundred units on a card are MiB: the original's own rule, right for every
/// card between 101 MiB and 100 GiB.
fn guess_unit(node: &Node) -> Unit {
    let amount = capacity(node, keys::ALIYUN_GPU_MEM).unwrap_or(0);
    let count = capacity(node, keys::ALIYUN_GPU_COUNT).unwrap_or(0);
    match amount.checked_div(count) {
        Some(per_card) if per_card <= 100 => Unit::GiB,
        _ => Unit::MiB,
    }
}

/// The way a node hands out cards, as its label says it.
pub(super) fn sharing_name(sharing: Sharing) -> &'static str {
    match sharing {
        Sharing::Memory => "memory",
        Sharing::Whole => "whole",
        Sharing::Both => "both",
    }
}

/// Names the way in which a node's agent tells pods apart, as its inventory says it.
pub(super) fn identity_name(identity: Identity) -> &'static str {
    match identity {
        Identity::NoAgent => "none",
        Identity::SizeAndOrder => "size-and-order",
        Identity::Checkpoint => "kubelet-checkpoint",
        Identity::Nri => "nri",
    }
}
