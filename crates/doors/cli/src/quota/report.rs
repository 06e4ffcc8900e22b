//! Quotas, pods and nodes from files, entered into trees.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_api::object::Pod;
use sublet_api::{
    ElasticQuota, PodQuota, QuotaDemand, QuotaFacts, QuotaFigures, QuotaIndex, QuotaScope,
    QuotaTrouble, add_amounts, amounts_of, elastic_quotas, no_total, node_amounts, of_quota,
    quota_figures, sound_tree, tree_totals,
};
use sublet_queue::{Amounts, MinScaling, QuotaProblem, QuotaTree, TreeTotals};

use crate::plan::{Input, Located, Unreadable, settle};

/// Figures of one quota for one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    /// The tree's name; empty for the cluster's own.
    pub(crate) tree: Arc<str>,
    /// Number of quotas above it.
    pub(crate) depth: usize,
    pub(crate) name: Arc<str>,
    pub(crate) parent: Option<Arc<str>>,
    pub(crate) resource: Arc<str>,
    pub(crate) min: u64,
    /// `None` if nothing limits it.
    pub(crate) max: Option<u64>,
    pub(crate) request: u64,
    pub(crate) entitlement: u64,
    pub(crate) used: u64,
}

impl Row {
    /// The quota's name for a table: indented below its parent, with its tree if it is not the
    /// cluster's own.
    pub(crate) fn title(&self) -> String {
        let indent = "  ".repeat(self.depth);
        match &*self.tree {
            "" => format!("{indent}{}", self.name),
            tree => format!("{indent}{} ({tree})", self.name),
        }
    }
}

/// Findings about the quotas.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) rows: Vec<Row>,
    pub(crate) unreadable: Vec<Unreadable>,
    /// Lines for people.
    pub(crate) notes: Vec<String>,
    /// Reasons why a tree cannot be divided, a line each.
    pub(crate) errors: Vec<String>,
}

/// Computes the entitlement of each quota.
pub(super) fn enter(mut input: Input, keep_minima: bool) -> Report {
    let mut report = Report::default();
    input.pass_over_workloads();
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
        true => of_quotas(&quotas),
        false => of_pods(&input.pods, &quotas, &mut report),
    };
    let nodes = nodes(&input, &mut report);
    let scaling = match keep_minima {
        true => MinScaling::Off,
        false => MinScaling::On,
    };
    let totals = tree_totals(&quotas, nodes.as_ref(), |quota| demand.used(quota));
    let inside = quotas.iter();
    let inside = inside.filter(|facts| facts.scope == QuotaScope::Tree);
    let (tree, troubles) = sound_tree(inside.map(|facts| facts.quota.clone()).collect());
    report.tell(&input.quotas, &troubles);
    let trees: BTreeSet<&Arc<str>> = quotas.iter().map(|facts| &facts.quota.tree).collect();
    let lost = trees.into_iter().filter(|tree| !totals.contains_key(*tree));
    let lost = lost.map(|tree| no_total(tree).what);
    report.errors.extend(lost);
    let roots = quotas.iter().filter(|facts| facts.is_root);
    let roots = roots.map(|facts| &facts.quota.name).collect();
    report.warn(&tree, &roots);
    let figures = quota_figures(&tree, &totals, &demand, scaling);
    report.rows = rows(&tree, &totals, &figures);
    report
}

/// Figures of each quota for each resource, tree by tree. A tree that has nothing to divide has no
/// rows.
pub(crate) fn rows(
    tree: &QuotaTree,
    totals: &TreeTotals,
    figures: &BTreeMap<Arc<str>, QuotaFigures>,
) -> Vec<Row> {
    let mut rows = Vec::new();
    let known = tree.quotas();
    let known = known.filter(|(quota, _)| totals.contains_key(&quota.tree));
    for (quota, depth) in known {
        let Some(has) = figures.get(&quota.name) else {
            continue;
        };
        for (resource, &request) in &has.request {
            let of = |amounts: &Amounts| amounts.get(resource).copied();
            rows.push(Row {
                tree: quota.tree.clone(),
                depth,
                name: quota.name.clone(),
                parent: quota.parent.clone(),
                resource: resource.clone(),
                min: of(&quota.min).unwrap_or(0),
                max: of(&quota.max),
                request,
                entitlement: of(&has.entitlement).unwrap_or(0),
                used: of(&has.used).unwrap_or(0),
            });
        }
    }
    // Stable: each parent stays before its children.
    rows.sort_by(|a, b| a.tree.cmp(&b.tree));
    rows
}

impl Report {
    /// Reports the faults of quotas, with their places.
    pub(crate) fn tell(
        &mut self,
        quotas: &[Located<ElasticQuota>],
        troubles: &BTreeMap<Arc<str>, QuotaTrouble>,
    ) {
        for Located { origin, object } in quotas {
            let Some(QuotaTrouble { field, what, .. }) = of_quota(troubles, &object.metadata)
            else {
                continue;
            };
            let of = title(&object.metadata.name);
            let odd = Unreadable::of(origin, of, field, what.clone());
            self.unreadable.push(odd);
        }
    }

    /// Warns of promises that a tree cannot keep. `roots`: quotas at the top of trees of their own.
    pub(crate) fn warn(&mut self, tree: &QuotaTree, roots: &BTreeSet<&Arc<str>>) {
        for problem in tree.problems() {
            match &problem {
                // Of a tree's own root Koordinator checks no sum.
                QuotaProblem::ChildrenAboveMin { quota, .. } if roots.contains(quota) => {}
                _ => self.notes.push(format!("warning: {problem}")),
            }
        }
    }
}

fn title(quota: &str) -> String {
    match quota {
        "" => "an ElasticQuota".to_owned(),
        name => format!("ElasticQuota {name}"),
    }
}

/// Reads the facts of the quotas.
fn facts(input: &Input, report: &mut Report) -> Vec<QuotaFacts> {
    let read = elastic_quotas(input.quotas.iter().map(|quota| &quota.object));
    let mut all = Vec::new();
    for (Located { origin, object }, facts) in input.quotas.iter().zip(read) {
        let name = &object.metadata.name;
        let odd =
            |field: &str, problem: String| Unreadable::of(origin, title(name), field, problem);
        match facts {
            _ if name.is_empty() => {
                let problem = "it is missing".to_owned();
                report.unreadable.push(odd("metadata.name", problem));
            }
            Ok(facts) => {
                let trouble = facts.trouble();
                let trouble = trouble.map(|trouble| odd(&trouble.field, trouble.what));
                report.unreadable.extend(trouble);
                all.push(facts);
            }
            Err(error) => report
                .unreadable
                .push(odd(error.field(), error.to_string())),
        }
    }
    all
}

/// Sum of all nodes' amounts; `None` if there is no node.
fn nodes(input: &Input, report: &mut Report) -> Option<Amounts> {
    let mut sum = None;
    for Located { origin, object } in &input.nodes {
        match node_amounts(object) {
            Ok(amounts) => add_amounts(sum.get_or_insert_default(), &amounts, 1),
            Err(error) => {
                let what = format!("node {}", object.metadata.name);
                let odd = Unreadable::of(origin, what, error.field(), error.to_string());
                report.unreadable.push(odd);
            }
        }
    }
    sum
}

/// Demand that the quotas' controller last wrote. The figure of a quota with others below it is
/// their sum, and would count twice.
fn of_quotas(quotas: &[QuotaFacts]) -> QuotaDemand {
    let mut demand = QuotaDemand::default();
    let parents: BTreeSet<&Arc<str>> = quotas
        .iter()
        .filter_map(|quota| quota.quota.parent.as_ref())
        .collect();
    for facts in quotas
        .iter()
        .filter(|facts| !parents.contains(&facts.quota.name))
    {
        let name = &facts.quota.name;
        demand.ask(name, &facts.request, 1);
        demand.have(name, &facts.used, 1);
    }
    demand
}

fn of_pods(pods: &[Located<Pod>], quotas: &[QuotaFacts], report: &mut Report) -> QuotaDemand {
    let mut demand = QuotaDemand::default();
    let index = QuotaIndex::new(quotas);
    for Located { origin, object } in pods {
        let meta = &object.metadata;
        let what = || format!("pod {}/{}", meta.namespace, meta.name);
        let PodQuota { quota, unknown } = index.of_pod(object);
        if let Some(unknown) = unknown {
            report.notes.push(format!(
                "warning: {}: its label names the quota {unknown}, which is not there; it counts as \
                 if it had no label",
                what()
            ));
        }
        match amounts_of(object) {
            Ok(amounts) => {
                demand.ask(&quota, &amounts, 1);
                if !object.spec.node_name.is_empty() {
                    demand.have(&quota, &amounts, 1);
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
