//! Quotas, pods and nodes from files, entered into trees.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_api::object::Pod;
use sublet_api::{
    DEFAULT_QUOTA, PodQuota, QuotaFacts, QuotaIndex, QuotaScope, amounts_of, elastic_quotas, keys,
    node_amounts,
};
use sublet_queue::{Amounts, MinScaling, Quota, QuotaProblem, QuotaTree};

use crate::plan::{Input, Located, Unreadable, settle};

/// What one quota has of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    /// The tree's name; empty for the cluster's own.
    pub(crate) tree: Arc<str>,
    /// How many quotas are above it.
    pub(crate) depth: usize,
    pub(crate) name: Arc<str>,
    pub(crate) parent: Option<Arc<str>>,
    pub(crate) resource: Arc<str>,
    pub(crate) min: u64,
    /// None where nothing limits it.
    pub(crate) max: Option<u64>,
    pub(crate) request: u64,
    pub(crate) runtime: u64,
    pub(crate) used: u64,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) rows: Vec<Row>,
    pub(crate) unreadable: Vec<Unreadable>,
    /// Lines for people.
    pub(crate) notes: Vec<String>,
    /// What keeps a tree from being computed, a line each.
    pub(crate) errors: Vec<String>,
}

/// What pods ask and have, by quota.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    asked: BTreeMap<Arc<str>, Amounts>,
    used: BTreeMap<Arc<str>, Amounts>,
}

/// Computes what each quota is entitled to.
pub(super) fn enter(mut input: Input, keep_minima: bool) -> Report {
    let mut report = Report::default();
    report.notes.append(&mut input.notes);
    report.errors.append(&mut input.errors);
    settle(&mut input);
    report.unreadable.append(&mut input.unreadable);
    let quotas = facts(&input, &mut report);
    if quotas.is_empty() {
        // Where a file is empty or an object is bad, that is the reason.
        if report.errors.is_empty() && report.unreadable.is_empty() {
            let nothing = "there is no ElasticQuota in it";
            report.errors.push(nothing.to_owned());
        }
        return report;
    }
    let demand = match input.pods.is_empty() {
        true => Demand::of_quotas(&quotas),
        false => Demand::of_pods(&input.pods, &quotas, &mut report),
    };
    let nodes = nodes(&input, &mut report);
    let scaling = match keep_minima {
        true => MinScaling::Off,
        false => MinScaling::On,
    };
    report.enter_trees(&quotas, nodes.as_ref(), &demand, scaling);
    report
}

/// The same for what somebody else has counted; what a quota says wrong is told here.
pub(crate) fn of_demand(input: &Input, demand: &Demand, nodes: Option<&Amounts>) -> Report {
    let mut report = Report::default();
    let quotas = facts(input, &mut report);
    report.enter_trees(&quotas, nodes, demand, MinScaling::On);
    report
}

/// What the cluster's own tree has to divide, where something says it.
pub(crate) fn cluster_total(
    quotas: &[QuotaFacts],
    nodes: Option<&Amounts>,
    demand: &Demand,
) -> Option<Amounts> {
    let trees = by_tree(quotas);
    trees.contains_key("").then_some(())?;
    total("", &trees, nodes, demand)
}

fn by_tree(quotas: &[QuotaFacts]) -> BTreeMap<Arc<str>, Vec<&QuotaFacts>> {
    let mut trees: BTreeMap<Arc<str>, Vec<&QuotaFacts>> = BTreeMap::new();
    for quota in quotas {
        trees.entry(quota.tree.clone()).or_default().push(quota);
    }
    trees
}

fn no_total(tree: &str) -> String {
    let which = match tree {
        "" => String::new(),
        tree => format!("tree {tree}: "),
    };
    let key = keys::QUOTA_TOTAL;
    format!(
        "{which}nothing says what there is to divide: add the nodes, or the annotation {key} to the \
         quota at the top"
    )
}

/// What the quotas say.
fn facts(input: &Input, report: &mut Report) -> Vec<QuotaFacts> {
    let read = elastic_quotas(input.quotas.iter().map(|quota| &quota.object));
    let mut all = Vec::new();
    for (Located { origin, object }, facts) in input.quotas.iter().zip(read) {
        let name = &object.metadata.name;
        let odd = |field: &str, problem: String| {
            let what = match name.is_empty() {
                true => "an ElasticQuota".to_owned(),
                false => format!("ElasticQuota {name}"),
            };
            Unreadable::of(origin, what, field, problem)
        };
        match facts {
            _ if name.is_empty() => {
                let problem = "it is missing".to_owned();
                report.unreadable.push(odd("metadata.name", problem));
            }
            Ok(facts) => all.push(facts),
            Err(error) => report
                .unreadable
                .push(odd(error.field(), error.to_string())),
        }
    }
    all
}

/// What all nodes have together; none if there is no node.
fn nodes(input: &Input, report: &mut Report) -> Option<Amounts> {
    let mut sum = None;
    for Located { origin, object } in &input.nodes {
        match node_amounts(object) {
            Ok(amounts) => add(sum.get_or_insert_default(), &amounts),
            Err(error) => {
                let what = format!("node {}", object.metadata.name);
                let odd = Unreadable::of(origin, what, error.field(), error.to_string());
                report.unreadable.push(odd);
            }
        }
    }
    sum
}

fn add(sum: &mut Amounts, amounts: &Amounts) {
    add_times(sum, amounts, 1);
}

fn add_times(sum: &mut Amounts, amounts: &Amounts, times: u64) {
    for (resource, amount) in amounts {
        let sum = sum.entry(resource.clone()).or_default();
        *sum = sum.saturating_add(amount.saturating_mul(times));
    }
}

fn take(from: &mut Amounts, amounts: &Amounts) {
    for (resource, amount) in amounts {
        if let Some(left) = from.get_mut(resource) {
            *left = left.saturating_sub(*amount);
        }
    }
}

/// What a tree has to divide. None where nothing says it.
///
/// The cluster's own tree has what is left of the nodes when other trees have theirs, and when
/// the pods that no tree counts have what they use.
fn total(
    tree: &str,
    trees: &BTreeMap<Arc<str>, Vec<&QuotaFacts>>,
    nodes: Option<&Amounts>,
    demand: &Demand,
) -> Option<Amounts> {
    let stated = |of: &str| {
        let members = trees.get(of)?;
        let mut totals = members.iter().filter_map(|quota| quota.total.as_ref());
        let mut sum = totals.next()?.clone();
        totals.for_each(|total| add(&mut sum, total));
        Some(sum)
    };
    let is_own = tree.is_empty();
    let mut total = match (stated(tree), nodes) {
        (Some(total), _) => total,
        (None, Some(nodes)) if is_own => {
            let mut total = nodes.clone();
            for (other, members) in trees.iter().filter(|(name, _)| !name.is_empty()) {
                if members.iter().all(|quota| quota.takes_from_default) {
                    take(&mut total, &stated(other).unwrap_or_default());
                }
            }
            total
        }
        _ => return None,
    };
    let outside = trees[tree]
        .iter()
        .filter(|quota| quota.scope == QuotaScope::Outside);
    let outside = outside.map(|quota| &*quota.quota.name);
    // Pods of no quota at all are counted against the cluster's own tree.
    let outside: BTreeSet<&str> = outside.chain(is_own.then_some(DEFAULT_QUOTA)).collect();
    for name in outside {
        take(&mut total, &demand.used(name));
    }
    Some(total)
}

impl Demand {
    /// So many members of a quota ask that.
    pub(crate) fn ask(&mut self, quota: &Arc<str>, amounts: &Amounts, times: u64) {
        let sum = self.asked.entry(quota.clone()).or_default();
        add_times(sum, amounts, times);
    }

    /// So many have it.
    pub(crate) fn have(&mut self, quota: &Arc<str>, amounts: &Amounts, times: u64) {
        let sum = self.used.entry(quota.clone()).or_default();
        add_times(sum, amounts, times);
    }

    /// What the quotas' controller last wrote. What stands on a quota with others below it is
    /// their sum, and would count twice.
    fn of_quotas(quotas: &[QuotaFacts]) -> Demand {
        let mut demand = Demand::default();
        let parents: BTreeSet<&Arc<str>> = quotas
            .iter()
            .filter_map(|quota| quota.quota.parent.as_ref())
            .collect();
        for facts in quotas
            .iter()
            .filter(|facts| !parents.contains(&facts.quota.name))
        {
            let name = &facts.quota.name;
            demand.asked.insert(name.clone(), facts.request.clone());
            demand.used.insert(name.clone(), facts.used.clone());
        }
        demand
    }

    fn of_pods(pods: &[Located<Pod>], quotas: &[QuotaFacts], report: &mut Report) -> Demand {
        let mut demand = Demand::default();
        let index = QuotaIndex::new(quotas);
        for Located { origin, object } in pods {
            let meta = &object.metadata;
            let what = || format!("pod {}/{}", meta.namespace, meta.name);
            let PodQuota { quota, unknown } = index.of_pod(object);
            if let Some(unknown) = unknown {
                report.notes.push(format!(
                    "warning: {}: its label names the quota {unknown}, which is not there; it counts \
                     as if it had no label",
                    what()
                ));
            }
            match amounts_of(object) {
                Ok(amounts) => {
                    add(demand.asked.entry(quota.clone()).or_default(), &amounts);
                    if !object.spec.node_name.is_empty() {
                        add(demand.used.entry(quota).or_default(), &amounts);
                    }
                }
                Err(error) => report.unreadable.push(Unreadable::of(
                    origin,
                    what(),
                    "spec.containers",
                    error.to_string(),
                )),
            }
        }
        demand
    }

    fn asked(&self, quota: &str, resource: &str) -> u64 {
        let amounts = self.asked.get(quota);
        amounts
            .and_then(|amounts| amounts.get(resource))
            .copied()
            .unwrap_or(0)
    }

    fn used(&self, quota: &str) -> Amounts {
        self.used.get(quota).cloned().unwrap_or_default()
    }
}

impl Report {
    fn enter_trees(
        &mut self,
        quotas: &[QuotaFacts],
        nodes: Option<&Amounts>,
        demand: &Demand,
        scaling: MinScaling,
    ) {
        let trees = by_tree(quotas);
        for (name, members) in &trees {
            match total(name, &trees, nodes, demand) {
                Some(total) => self.enter_tree(name, members, &total, demand, scaling),
                None => self.errors.push(no_total(name)),
            }
        }
    }

    fn enter_tree(
        &mut self,
        name: &Arc<str>,
        members: &[&QuotaFacts],
        total: &Amounts,
        demand: &Demand,
        scaling: MinScaling,
    ) {
        let inside = members
            .iter()
            .filter(|facts| facts.scope == QuotaScope::Tree);
        let quotas: Vec<Quota> = inside.map(|facts| facts.quota.clone()).collect();
        let tree = match QuotaTree::new(quotas) {
            Ok(tree) => tree,
            Err(error) => return self.errors.push(error.to_string()),
        };
        let facts: BTreeMap<&str, &QuotaFacts> = members
            .iter()
            .map(|&facts| (&*facts.quota.name, facts))
            .collect();
        for problem in tree.problems() {
            // Of a tree's own root Koordinator checks no sum.
            let is_root = |quota: &str| facts.get(quota).is_some_and(|facts| facts.is_root);
            match &problem {
                QuotaProblem::ChildrenAboveMin { quota, .. } if is_root(quota) => {}
                _ => self.notes.push(format!("warning: {problem}")),
            }
        }
        let mut used: BTreeMap<&str, Amounts> = BTreeMap::new();
        for (quota, _) in tree.quotas() {
            for above in tree.path(&quota.name) {
                add(
                    used.entry(&above.name).or_default(),
                    &demand.used(&quota.name),
                );
            }
        }
        let resources = tree.resources();
        let entitled: BTreeMap<&Arc<str>, _> = resources
            .iter()
            .map(|resource| {
                let total = total.get(resource).copied().unwrap_or(0);
                let asked = |quota: &str| demand.asked(quota, resource);
                (resource, tree.entitlements(resource, total, asked, scaling))
            })
            .collect();
        for (quota, depth) in tree.quotas() {
            for (&resource, entitled) in &entitled {
                let Some(has) = entitled.get(&quota.name) else {
                    continue;
                };
                let of = |amounts: &Amounts| amounts.get(resource).copied();
                self.rows.push(Row {
                    tree: name.clone(),
                    depth,
                    name: quota.name.clone(),
                    parent: quota.parent.clone(),
                    resource: resource.clone(),
                    min: of(&quota.min).unwrap_or(0),
                    max: of(&quota.max),
                    request: has.request,
                    runtime: has.runtime,
                    used: used.get(&*quota.name).and_then(of).unwrap_or(0),
                });
            }
        }
    }
}
