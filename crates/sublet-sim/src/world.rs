//! A cluster in the engine: nodes of a trace entered as the scheduler enters real ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::{
    Claim, Entry, Identity, Inventory, MiB, NodeFacts, NodeIdx, NodeName, PodKey, PodUid, Sharing,
    Standing, Time,
};
use sublet_plan::{Demand, Engine, EngineOptions, Fragmentation, Policy, Shape, StockRules};

use crate::trace::{NodeRow, Nodes, PodRow, Pods};

/// Where one pod went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Row of the node list.
    pub(crate) node: u32,
    /// Positions of its cards.
    pub(crate) cards: Vec<u16>,
}

/// Nodes in the engine.
#[derive(Debug)]
pub struct World {
    engine: Engine,
    /// By row of the node list.
    nodes: Vec<NodeIdx>,
    /// By slot of the ledger.
    rows: Vec<u32>,
    fragmentation: Fragmentation,
    /// By row of the node list: its fragmentation now.
    fragmented: Vec<i64>,
    fragmented_in_all: i64,
    allocated_milli: u64,
    capacity_milli: u64,
    gauge: Gauge,
}

/// Thousandths of cards that all nodes have together.
pub(crate) fn milli_of(nodes: &Nodes) -> u64 {
    nodes
        .rows
        .iter()
        .map(|row| 1000 * u64::from(row.gpus))
        .sum()
}

/// Counts what is asked in thousandths of the card that most nodes have: by it a pod's share
/// is known before the pod has a place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gauge {
    card: MiB,
}

impl Gauge {
    pub(crate) fn of(nodes: &Nodes) -> Gauge {
        let mut counts = BTreeMap::new();
        for row in nodes.rows.iter().filter(|row| row.gpus > 0) {
            *counts.entry(row.gpu_memory).or_insert(0u64) += u64::from(row.gpus);
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let card = most.map_or(MiB::ZERO, |(memory, _)| memory);
        Gauge { card }
    }

    pub(crate) fn milli(self, claim: &Claim) -> u64 {
        claim.ask().milli(self.card)
    }
}

impl World {
    /// These nodes with no pod on them. `ranks`: which of two equal nodes goes first.
    /// `foretold`: the pods whose shapes measure fragmentation, and which `fgd` knows.
    #[must_use]
    pub fn new(nodes: &Nodes, ranks: &[u32], foretold: &Pods, policy: &Policy) -> World {
        let mut engine = Engine::new(EngineOptions {
            policy: policy.clone(),
            few: 1,
            stock: StockRules::Here,
            ..EngineOptions::default()
        });
        let mut demand = Demand::default();
        for row in &foretold.rows {
            demand.add(Shape::of(&row.claim));
        }
        engine.foretell(&demand);
        let entered: Vec<NodeIdx> = nodes
            .rows
            .iter()
            .zip(ranks)
            .map(|(row, rank)| engine.set_node(facts(row, *rank)))
            .collect();
        let mut rows = vec![0; entered.len()];
        for (row, node) in (0..).zip(&entered) {
            rows[node.0 as usize] = row;
        }
        let fragmentation = Fragmentation::by(&demand);
        let fragmented: Vec<i64> = entered
            .iter()
            .map(|&node| fragmentation.of(engine.ledger().book(node)))
            .collect();
        World {
            fragmented_in_all: fragmented.iter().sum(),
            engine,
            nodes: entered,
            rows,
            fragmentation,
            fragmented,
            allocated_milli: 0,
            capacity_milli: milli_of(nodes),
            gauge: Gauge::of(nodes),
        }
    }

    /// Thousandths of cards in use.
    pub(crate) fn allocated_milli(&self) -> u64 {
        self.allocated_milli
    }

    /// Thousandths of cards there are.
    pub(crate) fn capacity_milli(&self) -> u64 {
        self.capacity_milli
    }

    /// Thousandths of cards that a pod asks.
    pub(crate) fn asked_milli(&self, pod: &PodRow) -> u64 {
        self.gauge.milli(&pod.claim)
    }

    /// Thousandths of cards that typical pods cannot use.
    pub(crate) fn fragmented_milli(&self) -> f64 {
        self.fragmentation.milli(self.fragmented_in_all)
    }

    /// Nodes with a pod on them.
    pub(crate) fn used_nodes(&self) -> usize {
        let ledger = self.engine.ledger();
        let used = |node: &&NodeIdx| ledger.book(**node).pods().next().is_some();
        self.nodes.iter().filter(used).count()
    }

    /// True if no pod is entered and nothing is taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.engine.ledger().entries().next().is_none() && self.allocated_milli == 0
    }

    /// True if every account is the sum of its entries.
    #[must_use]
    pub fn is_conserved(&self) -> bool {
        self.engine.ledger().is_conserved()
    }

    /// A pod comes and is placed as in a cluster, or not at all.
    pub(crate) fn arrive(&mut self, number: usize, pod: &PodRow) -> Option<Place> {
        let uid = uid(number, pod);
        self.engine.learn(&pod.claim);
        let now = Time::from_ms(0);
        let found = self
            .engine
            .choose(now, &uid, &pod.claim, &self.nodes, false, |_| 0);
        let Some(&node) = found.first() else {
            self.engine.forget(&uid);
            return None;
        };
        let entry = Entry {
            pod: PodKey::new("default", &pod.name).expect("names were checked"),
            uid: uid.clone(),
            node: self.engine.ledger().book(node).name().clone(),
            claim: Arc::clone(&pod.claim),
            allocation: None,
            standing: Standing::Reserved,
            assigned: true,
            priority: pod.priority,
        };
        let allocation = self.engine.reserve(now, entry).expect("it was just chosen");
        let row = self.rows[node.0 as usize];
        let book = self.engine.ledger().book(node);
        let inventory = book.facts().map(|facts| &facts.inventory);
        let mut cards: Vec<u16> = allocation
            .grants
            .iter()
            .filter_map(|grant| inventory?.position(&grant.card))
            .map(|position| position as u16)
            .collect();
        cards.sort_unstable();
        self.allocated_milli += self.gauge.milli(&pod.claim);
        self.measure(node);
        Some(Place { node: row, cards })
    }

    /// A pod that was placed goes.
    pub(crate) fn leave(&mut self, number: usize, pod: &PodRow) {
        let uid = uid(number, pod);
        let entry = self.engine.ledger().entry(&uid);
        let node = entry.and_then(|entry| self.engine.ledger().find(entry.node.as_str()));
        self.engine.forget(&uid);
        if let Some(node) = node {
            self.allocated_milli -= self.gauge.milli(&pod.claim);
            self.measure(node);
        }
    }

    /// Brings the sum of fragmentation up to date after a node changed.
    fn measure(&mut self, node: NodeIdx) {
        let now = self.fragmentation.of(self.engine.ledger().book(node));
        let at = self.rows[node.0 as usize] as usize;
        let before = std::mem::replace(&mut self.fragmented[at], now);
        self.fragmented_in_all += now - before;
    }
}

fn uid(number: usize, pod: &PodRow) -> PodUid {
    PodUid::new(&format!("{number}-{}", pod.name)).expect("names were checked")
}

fn facts(row: &NodeRow, rank: u32) -> NodeFacts {
    // Ties break by name.
    let name = format!("{rank:010}.{}", row.name);
    let name = NodeName::new(&name).expect("names were checked");
    let inventory = Inventory::equal_cards(row.gpus as usize, row.gpu_memory)
        .expect("the number of cards was checked");
    NodeFacts {
        sharing: Sharing::Both,
        // In a trace there is no doubt whose container it is.
        identity: Identity::Nri,
        host: row.host,
        model: row.model.clone(),
        ..NodeFacts::plain(name, Arc::new(inventory))
    }
}
