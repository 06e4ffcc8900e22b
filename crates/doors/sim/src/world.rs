//! A cluster in the engine: nodes of a trace entered as the scheduler enters real ones.

mod restart;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::{
    Claim, Entry, Ledger, MiB, NodeFacts, NodeIdx, NodeName, PodKey, PodUid, Standing, Time,
};
use sublet_plan::{
    Engine, EngineOptions, Fragmentation, PodShape, Policy, ShapeCounts, StockRules, Ties,
};

use crate::stock::{self, CpuOnlyPods};
use crate::trace::{NodeList, PodList, PodRow};

/// The place of one pod.
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
    pub(crate) engine: Engine,
    /// By row of the node list.
    nodes: Vec<NodeIdx>,
    /// By slot of the ledger.
    rows: Vec<u32>,
    fragmentation: Fragmentation,
    /// By row of the node list: its fragmentation now.
    fragmented: Vec<i64>,
    fragmented_in_all: i64,
    /// Pods, and thousandths of cards, that ran from the start.
    at_start: (usize, u64),
    allocated_milli: u64,
    capacity_milli: u64,
    gauge: Gauge,
    /// Pods that `fgd` knows of, for an engine that starts anew.
    foretold: ShapeCounts,
    pub(crate) cpu_only: CpuOnlyPods,
}

/// Thousandths of cards that all nodes have together.
pub(crate) fn milli_of(nodes: &NodeList) -> u64 {
    nodes
        .rows
        .iter()
        .map(|row| 1000 * row.inventory.gpus().len() as u64)
        .sum()
}

/// Thousandths of cards that run from the start.
pub(crate) fn running_milli_of(nodes: &NodeList) -> u64 {
    let gauge = Gauge::of(nodes);
    let milli = |running: &crate::Running| gauge.milli(&running.entry.claim);
    nodes.running.iter().map(milli).sum()
}

/// An engine with these nodes, and by row of the list where each stands. `ranks` as for
/// [`World::new`]; `demand`: the pods that `fgd` knows.
pub(crate) fn entered(
    nodes: &NodeList,
    ranks: Option<&[u32]>,
    demand: &ShapeCounts,
    policy: &Policy,
) -> (Engine, Vec<NodeIdx>) {
    let mut options = EngineOptions {
        few: 1,
        stock: StockRules::Here,
        unit: nodes.unit,
        ..EngineOptions::of(policy.clone())
    };
    if ranks.is_some() {
        options.ties = Ties::ByName;
    }
    let mut engine = Engine::new(options);
    engine.foretell(demand);
    let rows = nodes.rows.iter().enumerate();
    let entered = rows
        .map(|(at, row)| engine.set_node(facts(row, ranks.map(|ranks| ranks[at]))))
        .collect();
    (engine, entered)
}

/// Counts requests in thousandths of the card that most nodes have, so that a pod's share is known
/// before the pod has a place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gauge {
    card: MiB,
}

impl Gauge {
    pub(crate) fn of(nodes: &NodeList) -> Gauge {
        let mut counts = BTreeMap::new();
        for gpu in nodes.rows.iter().flat_map(|row| row.inventory.gpus()) {
            *counts.entry(gpu.memory).or_insert(0u64) += 1;
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
    /// These nodes with the pods that run on them from the start. `ranks`: the order of nodes that
    /// are equal; without them, the order of these names in a cluster. `foretold`: the pods with
    /// shapes that measure fragmentation, and that `fgd` knows.
    #[must_use]
    pub fn new(
        nodes: &NodeList,
        ranks: Option<&[u32]>,
        foretold: &PodList,
        policy: &Policy,
    ) -> World {
        let mut demand = ShapeCounts::default();
        for row in &foretold.rows {
            demand.add(PodShape::of(&row.claim));
        }
        let (mut engine, entered) = entered(nodes, ranks, &demand, policy);
        let mut rows = vec![0; entered.len()];
        for (row, node) in (0..).zip(&entered) {
            rows[node.0 as usize] = row;
        }
        // What runs is learnt as by a scheduler that has just started.
        for running in &nodes.running {
            let mut entry = running.entry.clone();
            engine.learn(&entry.claim);
            entry.node = engine
                .ledger()
                .book(entered[running.node as usize])
                .name()
                .clone();
            engine.observe(entry);
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
            at_start: (nodes.running.len(), running_milli_of(nodes)),
            allocated_milli: running_milli_of(nodes),
            capacity_milli: milli_of(nodes),
            gauge: Gauge::of(nodes),
            foretold: demand,
            cpu_only: CpuOnlyPods::default(),
        }
    }

    /// The ledger of the amounts in use.
    pub(crate) fn ledger(&self) -> &Ledger {
        self.engine.ledger()
    }

    /// By slot of the ledger, the row of the node list.
    pub(crate) fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// The measure of fragmentation.
    pub(crate) fn fragmentation(&self) -> &Fragmentation {
        &self.fragmentation
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

    /// True if nothing is entered and taken, apart from the pods that ran from the start.
    pub(crate) fn is_as_at_start(&self) -> bool {
        let entered = self.engine.ledger().entries().count();
        (entered, self.allocated_milli) == self.at_start
    }

    /// True if every account is the sum of its entries.
    #[must_use]
    pub fn is_conserved(&self) -> bool {
        self.engine.ledger().is_conserved()
    }

    /// A pod comes and is placed as in a cluster, or not at all.
    pub(crate) fn arrive(&mut self, number: usize, pod: &PodRow) -> Option<Place> {
        self.come(pod);
        self.place(number, pod, None)
    }

    /// A pod comes: policies that learn see it, but for one that passes the extender by, which
    /// they see when it is placed.
    pub(crate) fn come(&mut self, pod: &PodRow) {
        if !self.passes_by(pod) {
            self.engine.learn(&pod.claim);
        }
    }

    /// Does the stock scheduler place it?
    fn passes_by(&self, pod: &PodRow) -> bool {
        self.cpu_only == CpuOnlyPods::Stock && !pod.claim.has_gpu()
    }

    /// Places a pod that has come, on any node or on one of these; nothing where it fits on
    /// none.
    pub(crate) fn place(
        &mut self,
        number: usize,
        pod: &PodRow,
        among: Option<&[NodeIdx]>,
    ) -> Option<Place> {
        let uid = uid(number);
        let now = Time::from_ms(0);
        let found = self.choose(now, &uid, pod, among);
        let Some(node) = found else {
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
        if self.passes_by(pod) {
            self.engine.learn(&pod.claim);
        }
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

    /// The best place for a pod on those nodes, or on those of these, that are open to it.
    fn choose(
        &mut self,
        now: Time,
        uid: &PodUid,
        pod: &PodRow,
        among: Option<&[NodeIdx]>,
    ) -> Option<NodeIdx> {
        let passes_by = self.passes_by(pod);
        let (claim, engine, rows) = (&pod.claim, &mut self.engine, &self.rows);
        let open = open(among.unwrap_or(&self.nodes), rows, pod);
        if passes_by {
            return stock::choose(engine.ledger(), &open, claim);
        }
        let soft = |node: NodeIdx| match &pod.reach {
            None => 0,
            Some(reach) => reach.untolerated(rows[node.0 as usize]),
        };
        let found = engine.choose(now, uid, claim, &open, false, soft);
        found.first().copied()
    }

    /// The nodes that are open to a pod.
    pub(crate) fn open(&self, pod: &PodRow) -> Cow<'_, [NodeIdx]> {
        open(&self.nodes, &self.rows, pod)
    }

    /// A pod that was placed goes for good; tells from which node.
    pub(crate) fn leave(&mut self, number: usize, pod: &PodRow) -> Option<NodeIdx> {
        let uid = uid(number);
        let entry = self.engine.ledger().entry(&uid)?;
        let node = self.engine.ledger().find(entry.node.as_str())?;
        self.engine.unlearn(&pod.claim);
        self.engine.forget(&uid);
        self.allocated_milli -= self.gauge.milli(&pod.claim);
        self.measure(node);
        Some(node)
    }

    /// Can any node take such a pod now?
    pub(crate) fn has_room(&self, pod: &PodRow) -> bool {
        let uid = uid(usize::MAX);
        let fits = |&node| self.engine.fit(&uid, &pod.claim, node).is_ok();
        self.open(pod).iter().any(fits)
    }

    /// Brings the sum of fragmentation up to date after a node changed.
    fn measure(&mut self, node: NodeIdx) {
        let now = self.fragmentation.of(self.engine.ledger().book(node));
        let at = self.rows[node.0 as usize] as usize;
        let before = std::mem::replace(&mut self.fragmented[at], now);
        self.fragmented_in_all += now - before;
    }
}

/// The nodes of this list that are open to a pod; `rows` by slot.
fn open<'a>(nodes: &'a [NodeIdx], rows: &[u32], pod: &PodRow) -> Cow<'a, [NodeIdx]> {
    match &pod.reach {
        None => Cow::Borrowed(nodes),
        Some(reach) => {
            let is_open = |node: &&NodeIdx| reach.contains(rows[node.0 as usize]);
            nodes.iter().filter(is_open).copied().collect()
        }
    }
}

/// A UID that tells an arrival from all others.
pub(crate) fn uid(number: usize) -> PodUid {
    // The number alone: what is drawn from a uid, and what is found by it, costs by its length.
    PodUid::new(&number.to_string()).expect("a number")
}

/// A node by the name that puts it in its rank: ties break by name. The rank alone tells nodes
/// apart.
fn facts(row: &NodeFacts, rank: Option<u32>) -> NodeFacts {
    let Some(rank) = rank else {
        return row.clone();
    };
    let name: String = row.name.as_str().chars().take(200).collect();
    let name = format!("{rank:010}.{name}");
    NodeFacts {
        name: NodeName::new(&name).expect("names were checked"),
        ..row.clone()
    }
}
