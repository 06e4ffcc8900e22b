//! Quotas, pods and nodes from files, entered into trees.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_api::object::Pod;
use sublet_api::{
    NoTotal, PodQuota, QuotaFacts, QuotaIndex, QuotaScope, amounts_of, elastic_quotas, keys,
    node_amounts, tree_totals,
};
use sublet_queue::{Amounts, MinScaling, Quota, QuotaProblem, QuotaTree, TreeTotals};

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

impl Row {
    /// The quota's name for a table: moved in below its parent, with its tree where that is not the
    /// cluster's own.
    pub(crate) fn title(&self) -> String {
        let indent = "  ".repeat(self.depth);
        match &*self.tree {
            "" => format!("{indent}{}", self.name),
            tree => format!("{indent}{} ({tree})", self.name),
        }
    }
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

fn by_tree(quotas: &[QuotaFacts]) -> BTreeMap<Arc<str>, Vec<&QuotaFacts>> {
    let mut trees: BTreeMap<Arc<str>, Vec<&QuotaFacts>> = BTreeMap::new();
    for quota in quotas {
        trees
            .entry(quota.quota.tree.clone())
            .or_default()
            .push(quota);
    }
    trees
}

fn no_total(tree: &Arc<str>) -> String {
    let key = keys::QUOTA_TOTAL;
    match &**tree {
        "" => format!(
            "nothing says what there is to divide: add the nodes, or the annotation {key} to the quota \
             at the top"
        ),
        _ => NoTotal(tree.clone()).to_string(),
    }
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

    /// What a quota's pods have.
    pub(crate) fn used(&self, quota: &str) -> Amounts {
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
        let totals = tree_totals(quotas, nodes, |quota| demand.used(quota));
        for (name, members) in by_tree(quotas) {
            match totals.contains_key(&name) {
                true => self.enter_tree(&members, &totals, demand, scaling),
                false => self.errors.push(no_total(&name)),
            }
        }
    }

    fn enter_tree(
        &mut self,
        members: &[&QuotaFacts],
        totals: &TreeTotals,
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
                let asked = |quota: &str| demand.asked(quota, resource);
                (
                    resource,
                    tree.entitlements(resource, totals, asked, scaling),
                )
            })
            .collect();
        for (quota, depth) in tree.quotas() {
            for (&resource, entitled) in &entitled {
                let Some(has) = entitled.get(&quota.name) else {
                    continue;
                };
                let of = |amounts: &Amounts| amounts.get(resource).copied();
                self.rows.push(Row {
                    tree: quota.tree.clone(),
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
