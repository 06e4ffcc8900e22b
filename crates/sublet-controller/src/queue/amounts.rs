//! What there is, what quotas are entitled to, and what their groups ask and have. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_api::group::{Gathered, member_shape};
use sublet_api::object::Pod;
use sublet_api::{
    DEFAULT_QUOTA, NoTotal, QuotaFacts, QuotaIndex, QuotaScope, elastic_quotas, keys, tree_totals,
};
use sublet_model::{MiB, Unit};
use sublet_plan::Engine;
use sublet_queue::{Amounts, Entitlement, MinScaling, Quota, QuotaTree, TreeError, TreeTotals};

use super::seen::{Seen, counts};

/// Quotas, and what there is to divide among them.
#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) index: QuotaIndex,
    pub(crate) tree: QuotaTree,
    pub(crate) totals: TreeTotals,
    /// Quotas that are not as they should be, and what is done about it.
    pub(crate) problems: BTreeMap<Arc<str>, String>,
}

/// What a quota has, asks and is entitled to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) used: Amounts,
    pub(crate) request: Amounts,
    pub(crate) runtime: Amounts,
}

/// The memory of the largest card, which a whole card counts with.
pub(crate) fn largest_card(engine: &Engine) -> MiB {
    let facts = engine.ledger().books().filter_map(|(_, book)| book.facts());
    let cards = facts.flat_map(|facts| facts.inventory.gpus());
    cards.map(|gpu| gpu.memory).max().unwrap_or(MiB::ZERO)
}

impl Books {
    /// Of what is seen.
    pub(crate) fn of(seen: &Seen, engine: &Engine, unit: Unit) -> Books {
        let mut problems = BTreeMap::new();
        let mut facts: Vec<QuotaFacts> = Vec::new();
        let read = elastic_quotas(seen.quotas.values());
        for (quota, read) in seen.quotas.values().zip(read) {
            match read {
                Ok(read) => facts.push(read),
                Err(error) => {
                    let name = Arc::from(quota.metadata.name.as_str());
                    problems.insert(name, format!("{}: {error}", error.field()));
                }
            }
        }
        let index = QuotaIndex::new(&facts);
        let totals = totals(seen, engine, (&facts[..], &index), unit);
        for facts in facts.iter().filter(|facts| facts.scope == QuotaScope::Tree) {
            let Quota {
                name, tree, parent, ..
            } = &facts.quota;
            if parent.is_none() && !totals.contains_key(tree) {
                problems.insert(name.clone(), NoTotal(tree.clone()).to_string());
            }
        }
        let members = facts
            .into_iter()
            .filter(|facts| facts.scope == QuotaScope::Tree);
        // Whoever belongs to no quota is limited by none.
        let nobodys = Quota {
            name: DEFAULT_QUOTA.into(),
            lends: true,
            ..Quota::default()
        };
        let quotas = members.map(|facts| facts.quota).chain([nobodys]).collect();
        let tree = sound_tree(quotas, &mut problems);
        Books {
            index,
            tree,
            totals,
            problems,
        }
    }

    /// What each quota has, asks and is entitled to. A quota has what those below it have.
    pub(crate) fn figures(&self, gathered: &Gathered) -> BTreeMap<Arc<str>, Figures> {
        let mut asked: BTreeMap<Arc<str>, Amounts> = BTreeMap::new();
        let mut figures: BTreeMap<Arc<str>, Figures> = BTreeMap::new();
        for queued in &gathered.groups {
            let group = &queued.group;
            let asked = asked.entry(group.quota.clone()).or_default();
            for role in group.gangs.iter().flat_map(|gang| &gang.roles) {
                let members = role.members.len() as u64;
                let most = u64::from(role.replicas).max(members);
                add(asked, &role.pod.amounts, most);
                for quota in self.tree.path(&group.quota) {
                    let figures = figures.entry(quota.name.clone()).or_default();
                    add(&mut figures.used, &role.pod.amounts, members);
                }
            }
        }
        for (quota, _) in self.tree.quotas() {
            figures.entry(quota.name.clone()).or_default();
        }
        for resource in self.tree.resources() {
            let of = |amounts: &Amounts| amounts.get(&resource).copied().unwrap_or(0);
            let asks = |quota: &str| asked.get(quota).map_or(0, of);
            let entitled = self
                .tree
                .entitlements(&resource, &self.totals, asks, MinScaling::On);
            for (quota, Entitlement { request, runtime }) in entitled {
                let figures = figures.entry(quota).or_default();
                figures.request.insert(resource.clone(), request);
                figures.runtime.insert(resource.clone(), runtime);
            }
        }
        figures
    }
}

/// A tree of these quotas. One whose parent is not there, or that is above itself, stands at the top,
/// so that one bad quota costs only itself.
fn sound_tree(mut quotas: Vec<Quota>, problems: &mut BTreeMap<Arc<str>, String>) -> QuotaTree {
    loop {
        let error = match QuotaTree::new(quotas.clone()) {
            Ok(tree) => return tree,
            Err(error) => error,
        };
        let (TreeError::TwiceNamed(name)
        | TreeError::Circle(name)
        | TreeError::NoParent { quota: name, .. }
        | TreeError::OtherTree { quota: name, .. }) = &error;
        problems.insert(
            name.clone(),
            format!("{error}; it stands at the top meanwhile"),
        );
        match &error {
            TreeError::TwiceNamed(name) => {
                let at = quotas.iter().rposition(|quota| quota.name == *name);
                at.into_iter().for_each(|at| drop(quotas.remove(at)));
            }
            _ => {
                let same = quotas.iter_mut().filter(|quota| quota.name == *name);
                same.for_each(|quota| quota.parent = None);
            }
        }
    }
}

/// What each tree has: what its quotas say, and for the cluster's own what all nodes have, less what
/// others have.
fn totals(
    seen: &Seen,
    engine: &Engine,
    (facts, index): (&[QuotaFacts], &QuotaIndex),
    unit: Unit,
) -> TreeTotals {
    let mut nodes = Amounts::new();
    for amounts in seen.nodes.values() {
        add(&mut nodes, amounts, 1);
    }
    let (mut cards, mut memory) = (0u64, 0u64);
    for (_, book) in engine.ledger().books() {
        let gpus = book.facts().map(|facts| facts.inventory.gpus());
        for gpu in gpus.into_iter().flatten() {
            cards += 1;
            memory += gpu.memory.get() << 20;
        }
    }
    // Whatever a node's status says of them by the same names: devices there are counted in parts.
    nodes.insert(keys::GPU.into(), cards);
    nodes.insert(keys::GPU_MEMORY.into(), memory);
    nodes.insert(keys::GPU_COMPUTE.into(), 100 * cards);
    let card = largest_card(engine);
    let outside = facts
        .iter()
        .filter(|facts| facts.scope == QuotaScope::Outside);
    let outside = outside.map(|facts| &*facts.quota.name);
    let mut used: BTreeMap<&str, Amounts> = outside
        .chain([DEFAULT_QUOTA])
        .map(|name| (name, Amounts::new()))
        .collect();
    for pod in seen.pods.values() {
        if pod.spec.node_name.is_empty() || !counts(pod) {
            continue;
        }
        if let Some(used) = used.get_mut(&*index.of_pod(pod).quota) {
            add(used, &amounts(pod, unit, card), 1);
        }
    }
    tree_totals(facts, Some(&nodes), |quota| {
        used.get(quota).cloned().unwrap_or_default()
    })
}

/// What a pod takes; nothing where that cannot be read.
fn amounts(pod: &Pod, unit: Unit, card: MiB) -> Amounts {
    let shape = member_shape(pod, unit, card);
    shape.map(|shape| shape.amounts).unwrap_or_default()
}

/// Adds so many times as much; nothing is ever too much to count.
fn add(to: &mut Amounts, amounts: &Amounts, times: u64) {
    for (resource, amount) in amounts {
        let sum = to.entry(resource.clone()).or_default();
        *sum = sum.saturating_add(amount.saturating_mul(times));
    }
}
