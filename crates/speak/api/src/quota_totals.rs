//! Totals of elastic quotas: their trees, the total of each tree, and the usage, request and
//! entitlement of each quota.
//!
//! A bad quota affects only itself: it is mended, and a message describes the change.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sublet_model::MiB;
use sublet_plan::Engine;
use sublet_queue::{Amounts, MinScaling, Quota, QuotaTree, TreeError, TreeTotals};

use crate::elastic_quota::{ElasticQuotaError, QuotaFacts, QuotaScope};
use crate::group::{QueueSources, QueuedGroup, member_shape};
use crate::keys;
use crate::pod::is_over;
use crate::quota_index::{DEFAULT_QUOTA, QuotaIndex, elastic_quotas};
use crate::tree_totals::{NoTotal, add_amounts, tree_totals};

/// Quotas, and the totals that are divided among them.
#[derive(Debug)]
pub struct QuotaTotals {
    /// Index of the quota of each pod and job.
    pub index: QuotaIndex,
    /// Facts of the quotas, by name.
    pub facts: BTreeMap<Arc<str>, QuotaFacts>,
    /// All trees, and the quota of pods that belong to none.
    pub tree: QuotaTree,
    /// Total of each tree. A tree without a known total is left out.
    pub totals: TreeTotals,
    /// Faults of quotas, by name.
    pub troubles: BTreeMap<Arc<str>, QuotaTrouble>,
}

/// Fault of a quota, and its treatment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaTrouble {
    /// Word of its event.
    pub word: &'static str,
    /// Path of the field.
    pub field: String,
    /// In words.
    pub what: String,
}

/// The quota does not stand where it should in a tree.
const NOT_IN_TREE: &str = "NotInTree";

impl From<&ElasticQuotaError> for QuotaTrouble {
    /// The fault of a quota that cannot be read.
    fn from(error: &ElasticQuotaError) -> QuotaTrouble {
        QuotaTrouble {
            word: NOT_IN_TREE,
            field: error.field().to_owned(),
            what: error.to_string(),
        }
    }
}

impl QuotaFacts {
    /// The fault of a quota that counts but for one field.
    #[must_use]
    pub fn trouble(&self) -> Option<QuotaTrouble> {
        let error = self.odd.as_ref()?;
        Some(QuotaTrouble {
            word: "CannotRead",
            what: format!("{error}; the site's counts"),
            ..error.into()
        })
    }
}

impl fmt::Display for QuotaTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.what)
    }
}

/// Requests and usage of each quota's own pods, by quota name.
#[derive(Debug, Clone, Default)]
pub struct QuotaDemand {
    asked: BTreeMap<Arc<str>, Amounts>,
    used: BTreeMap<Arc<str>, Amounts>,
}

/// Usage, request and entitlement of a quota, by resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotaFigures {
    /// Usage of its pods, and of pods in quotas below it.
    pub used: Amounts,
    /// Its request, for the resources that concern it.
    pub request: Amounts,
    /// Amount that it may use now, for the same resources.
    pub entitlement: Amounts,
}

/// The memory of the largest card, which a whole card counts with.
pub(crate) fn largest_card(engine: &Engine) -> MiB {
    let facts = engine.ledger().books().filter_map(|(_, book)| book.facts());
    let cards = facts.flat_map(|facts| facts.inventory.gpus());
    cards.map(|gpu| gpu.memory).max().unwrap_or(MiB::ZERO)
}

impl QuotaTotals {
    /// Reads the quotas. `engine`: the cards of all nodes.
    pub(crate) fn of(sources: &QueueSources<'_>, engine: &Engine) -> QuotaTotals {
        let quotas = sources.quotas.iter().copied();
        let mut troubles = BTreeMap::new();
        let mut facts: Vec<QuotaFacts> = Vec::new();
        let read = elastic_quotas(quotas.clone());
        for (quota, read) in quotas.zip(read) {
            match read {
                Ok(read) => {
                    let name = read.quota.name.clone();
                    troubles.extend(read.trouble().map(|trouble| (name, trouble)));
                    facts.push(read);
                }
                Err(error) => {
                    let name = Arc::from(quota.metadata.name.as_str());
                    troubles.insert(name, QuotaTrouble::from(&error));
                }
            }
        }
        let index = QuotaIndex::new(&facts);
        let totals = totals(sources, engine, (&facts, &index));
        let members = facts.iter();
        let members = members.filter(|facts| facts.scope == QuotaScope::Tree);
        for quota in members.clone().map(|facts| &facts.quota) {
            if quota.parent.is_none() && !totals.contains_key(&quota.tree) {
                let trouble = no_total(&quota.tree);
                troubles.insert(quota.name.clone(), trouble);
            }
        }
        let members = members.map(|facts| facts.quota.clone());
        // Whoever belongs to no quota is limited by none.
        let nobodys = Quota {
            name: DEFAULT_QUOTA.into(),
            lends: true,
            ..Quota::default()
        };
        let (tree, mended) = sound_tree(members.chain([nobodys]).collect());
        troubles.extend(mended);
        let facts = facts.into_iter();
        QuotaTotals {
            index,
            facts: facts.map(|one| (one.quota.name.clone(), one)).collect(),
            tree,
            totals,
            troubles,
        }
    }
}

/// A tree has no known total.
#[must_use]
pub fn no_total(tree: &Arc<str>) -> QuotaTrouble {
    let key = keys::QUOTA_TOTAL;
    QuotaTrouble {
        word: NOT_IN_TREE,
        field: format!("metadata.annotations[{key}]"),
        what: match &**tree {
            "" => format!(
                "nothing says what there is to divide: add the nodes, or the annotation {key} to the \
                 quota at the top"
            ),
            _ => NoTotal(tree.clone()).to_string(),
        },
    }
}

/// Usage, request and entitlement of each quota of a tree. Usage of a quota includes all quotas below
/// it.
#[must_use]
pub fn quota_figures(
    tree: &QuotaTree,
    totals: &TreeTotals,
    demand: &QuotaDemand,
    scaling: MinScaling,
) -> BTreeMap<Arc<str>, QuotaFigures> {
    let mut figures: BTreeMap<Arc<str>, QuotaFigures> = BTreeMap::new();
    for (quota, _) in tree.quotas() {
        figures.entry(quota.name.clone()).or_default();
        let Some(used) = demand.used.get(&quota.name) else {
            continue;
        };
        for above in tree.path(&quota.name) {
            let figures = figures.entry(above.name.clone()).or_default();
            add_amounts(&mut figures.used, used, 1);
        }
    }
    for resource in tree.resources() {
        let of = |amounts: &Amounts| amounts.get(&resource).copied().unwrap_or(0);
        let asks = |quota: &str| demand.asked.get(quota).map_or(0, of);
        for (quota, has) in tree.entitlements(&resource, totals, asks, scaling) {
            let figures = figures.entry(quota).or_default();
            figures.request.insert(resource.clone(), has.request);
            figures.entitlement.insert(resource.clone(), has.amount);
        }
    }
    figures
}

/// A tree of these quotas, and their faults, by name. A quota whose parent is missing, or that is
/// above itself, stands at the top. If two have one name, the last is left out.
#[must_use]
pub fn sound_tree(mut quotas: Vec<Quota>) -> (QuotaTree, BTreeMap<Arc<str>, QuotaTrouble>) {
    let mut troubles = BTreeMap::new();
    loop {
        let error = match QuotaTree::new(quotas.clone()) {
            Ok(tree) => return (tree, troubles),
            Err(error) => error,
        };
        let (name, field, meanwhile) = match &error {
            TreeError::TwiceNamed(name) => {
                let at = quotas.iter().rposition(|quota| quota.name == *name);
                at.into_iter().for_each(|at| drop(quotas.remove(at)));
                (name, "metadata.name".to_owned(), "one of them counts")
            }
            TreeError::Circle(name)
            | TreeError::NoParent { quota: name, .. }
            | TreeError::OtherTree { quota: name, .. } => {
                let same = quotas.iter_mut().filter(|quota| quota.name == *name);
                same.for_each(|quota| quota.parent = None);
                let field = format!("metadata.labels[{}]", keys::QUOTA_PARENT);
                (name, field, "it stands at the top")
            }
        };
        let what = format!("{error}; {meanwhile} meanwhile");
        let word = NOT_IN_TREE;
        troubles.insert(name.clone(), QuotaTrouble { word, field, what });
    }
}

/// Total of each tree: the totals that its quotas give. The cluster's own tree has the sum of all
/// nodes, less the totals of other trees.
fn totals(
    sources: &QueueSources<'_>,
    engine: &Engine,
    (facts, index): (&[QuotaFacts], &QuotaIndex),
) -> TreeTotals {
    let nodes = sources.nodes.map(|nodes| with_cards(nodes, engine));
    let card = largest_card(engine);
    let outside = facts
        .iter()
        .filter(|facts| facts.scope == QuotaScope::Outside);
    let outside = outside.map(|facts| &*facts.quota.name);
    let mut used: BTreeMap<&str, Amounts> = outside
        .chain([DEFAULT_QUOTA])
        .map(|name| (name, Amounts::new()))
        .collect();
    let pods = sources.pods.iter();
    for pod in pods.filter(|pod| !pod.spec.node_name.is_empty() && !is_over(pod)) {
        if let Some(used) = used.get_mut(&*index.of_pod(pod).quota) {
            // Nothing where what it takes cannot be read.
            let shape = member_shape(pod, sources.scope.unit, card);
            let amounts = shape.map(|shape| shape.amounts).unwrap_or_default();
            add_amounts(used, &amounts, 1);
        }
    }
    tree_totals(facts, nodes.as_ref(), |quota| {
        used.get(quota).cloned().unwrap_or_default()
    })
}

fn with_cards(nodes: &Amounts, engine: &Engine) -> Amounts {
    let (mut cards, mut memory) = (0u64, 0u64);
    for (_, book) in engine.ledger().books() {
        let gpus = book.facts().map(|facts| facts.inventory.gpus());
        for gpu in gpus.into_iter().flatten() {
            cards += 1;
            memory = memory.saturating_add(gpu.memory.get() << 20);
        }
    }
    let mut nodes = nodes.clone();
    // Whatever a node's status says of them by the same names: devices there are counted in parts.
    nodes.insert(keys::GPU.into(), cards);
    nodes.insert(keys::GPU_MEMORY.into(), memory);
    nodes.insert(keys::GPU_COMPUTE.into(), 100 * cards);
    nodes
}

impl QuotaDemand {
    /// Sums up the demand of groups. `counts`: does a group's request beyond its usage count?
    pub(crate) fn of_groups<'a>(
        groups: impl IntoIterator<Item = &'a QueuedGroup>,
        counts: impl Fn(&QueuedGroup) -> bool,
    ) -> QuotaDemand {
        let mut demand = QuotaDemand::default();
        for queued in groups {
            let counts = counts(queued);
            let group = &queued.group;
            for role in group.roles() {
                let has = role.members.len() as u64;
                let asks = match counts {
                    true => u64::from(role.replicas).max(has),
                    false => has,
                };
                demand.ask(&group.quota, &role.pod.amounts, asks);
                demand.have(&group.quota, &role.pod.amounts, has);
            }
        }
        demand
    }

    /// So many pods of a quota ask that.
    pub fn ask(&mut self, quota: &Arc<str>, amounts: &Amounts, times: u64) {
        add_amounts(self.asked.entry(quota.clone()).or_default(), amounts, times);
    }

    /// So many have it.
    pub fn have(&mut self, quota: &Arc<str>, amounts: &Amounts, times: u64) {
        add_amounts(self.used.entry(quota.clone()).or_default(), amounts, times);
    }

    /// Usage of a quota's own pods, without quotas below it.
    #[must_use]
    pub fn used(&self, quota: &str) -> Amounts {
        self.used.get(quota).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `name parent tree`: `-` for none.
    fn mended(lines: &[&str]) -> (Vec<String>, Vec<String>) {
        let quota = |line: &&str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, parent, tree] = words[..] else {
                panic!("three words: {line}")
            };
            let said = |word: &str| if word == "-" { "" } else { word }.to_owned();
            Quota {
                name: name.into(),
                parent: Some(said(parent).into()).filter(|parent: &Arc<str>| !parent.is_empty()),
                tree: said(tree).into(),
                ..Quota::default()
            }
        };
        let (tree, troubles) = sound_tree(lines.iter().map(quota).collect());
        let stands =
            |(quota, depth): (&Quota, usize)| format!("{}{}", "  ".repeat(depth), quota.name);
        let told = troubles.iter().map(|(name, trouble)| {
            let what = trouble.what.strip_suffix(" meanwhile");
            format!("{name} {}: {}", trouble.field, what.unwrap_or("?"))
        });
        (tree.quotas().map(stands).collect(), told.collect())
    }

    #[test]
    fn a_bad_quota_costs_only_itself_and_is_told() {
        let parent = "metadata.labels[quota.scheduling.koordinator.sh/parent]";
        let is = |lines: &[&str], stand: &[&str], told: &[String]| {
            assert_eq!(
                mended(lines),
                (stand.iter().map(|&s| s.to_owned()).collect(), told.to_vec())
            );
        };
        is(&["a - -", "b a -"], &["a", "  b"], &[]);
        is(
            &["a gone -", "b a -", "c - -"],
            &["a", "  b", "c"],
            &[format!(
                "a {parent}: quota a has the parent gone, which is not there; it stands at the top"
            )],
        );
        is(
            &["a b -", "b a -", "c a -"],
            &["a", "  b", "  c"],
            &[format!(
                "a {parent}: quota a is its own parent, directly or through others; it stands at the top"
            )],
        );
        is(
            &["a - t", "b a u"],
            &["a", "b"],
            &[format!(
                "b {parent}: quota b is not of the tree of its parent a; it stands at the top"
            )],
        );
        is(
            &["a - -", "b a -", "b - -"],
            &["a", "  b"],
            &["b metadata.name: there are two quotas b; one of them counts".to_owned()],
        );
    }
}
