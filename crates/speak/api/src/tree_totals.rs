//! Total that each tree of quotas can divide.
//!
//! A tree has the total that its quotas give (`total-resource`). The cluster's own tree has the
//! rest of the nodes' resources. Koordinator does the same: `handlerQuotaWhenRoot` of
//! `pkg/scheduler/plugins/elasticquota/quota_handler.go` gives a tree its total and takes it from
//! the default tree, unless `ignore-default-tree` forbids it. Resources used by pods of the default
//! and the system quota are not divided (`updateClusterTotalResourceNoLock` of v1.7.0).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_queue::{Amounts, TreeTotals};

use crate::elastic_quota::{QuotaFacts, QuotaScope};
use crate::keys;
use crate::quota_index::DEFAULT_QUOTA;

/// A tree without a known total.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "tree {0}: nothing says what there is to divide: add the annotation {key} to its quota at the top",
    key = keys::QUOTA_TOTAL
)]
pub struct NoTotal(pub Arc<str>);

/// Total of each tree; a tree without a known total is left out. `nodes`: sum of all nodes, if
/// there are any. `used`: usage of a quota's pods.
pub fn tree_totals(
    quotas: &[QuotaFacts],
    nodes: Option<&Amounts>,
    used: impl Fn(&str) -> Amounts,
) -> TreeTotals {
    let mut totals = TreeTotals::new();
    let mut keep_apart: BTreeSet<&Arc<str>> = BTreeSet::new();
    let mut outside: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    // Pods of no quota at all are counted against the cluster's own tree.
    outside.entry("").or_default().insert(DEFAULT_QUOTA);
    for facts in quotas {
        let tree = &facts.quota.tree;
        if let Some(total) = &facts.total {
            add_amounts(totals.entry(tree.clone()).or_default(), total, 1);
        }
        if !facts.takes_from_default {
            keep_apart.insert(tree);
        }
        if facts.scope == QuotaScope::Outside {
            let names = outside.entry(&**tree).or_default();
            names.insert(&*facts.quota.name);
        }
    }
    if let Some(nodes) = nodes.filter(|_| !totals.contains_key("")) {
        let mut own = nodes.clone();
        for (_, total) in totals.iter().filter(|(tree, _)| !keep_apart.contains(tree)) {
            take(&mut own, total);
        }
        totals.insert("".into(), own);
    }
    for (tree, total) in &mut totals {
        for name in outside.get(&**tree).into_iter().flatten() {
            take(total, &used(name));
        }
    }
    totals
}

/// Adds amounts so many times; sums saturate.
pub fn add_amounts(to: &mut Amounts, amounts: &Amounts, times: u64) {
    for (resource, amount) in amounts {
        let sum = to.entry(resource.clone()).or_default();
        *sum = sum.saturating_add(amount.saturating_mul(times));
    }
}

/// Subtracts amounts, down to zero.
fn take(from: &mut Amounts, amounts: &Amounts) {
    for (resource, amount) in amounts {
        if let Some(left) = from.get_mut(resource) {
            *left = left.saturating_sub(*amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elastic_quota::ElasticQuota;

    fn amounts(cpu: u64) -> Amounts {
        [(Arc::from("cpu"), cpu)].into()
    }

    /// `name tree total flags`: `-` for none; flag `apart` for a tree beside the cluster's own.
    fn totals(quotas: &[&str], nodes: Option<u64>) -> Vec<(String, u64)> {
        let quota = |line: &&str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, tree, total, flags] = words[..] else {
                panic!("four words: {line}")
            };
            let mut quota = ElasticQuota::default();
            let meta = &mut quota.metadata;
            meta.name = name.to_owned();
            if tree != "-" {
                meta.labels.insert(keys::QUOTA_TREE.into(), tree.into());
            }
            if total != "-" {
                let text = format!("{{\"cpu\": \"{total}m\"}}");
                meta.annotations.insert(keys::QUOTA_TOTAL.into(), text);
            }
            let apart = (flags == "apart").to_string();
            meta.labels.insert(keys::QUOTA_IGNORE_DEFAULT.into(), apart);
            quota.facts().unwrap()
        };
        let facts: Vec<QuotaFacts> = quotas.iter().map(quota).collect();
        let used = |name: &str| match name {
            DEFAULT_QUOTA => amounts(5),
            "koordinator-system-quota" => amounts(2),
            _ => amounts(1_000),
        };
        let nodes = nodes.map(amounts);
        let all = tree_totals(&facts, nodes.as_ref(), used);
        let all = all.into_iter();
        all.map(|(tree, total)| (tree.to_string(), total["cpu"]))
            .collect()
    }

    #[test]
    fn the_clusters_own_tree_has_what_the_others_leave() {
        let is = |quotas: &[&str], nodes, expected: &[(&str, u64)]| {
            let expected: Vec<(String, u64)> = expected
                .iter()
                .map(|(tree, total)| ((*tree).to_owned(), *total))
                .collect();
            assert_eq!(totals(quotas, nodes), expected, "{quotas:?}");
        };
        is(&[], Some(100), &[("", 95)]);
        is(&[], None, &[]);
        is(&["a - - -"], Some(3), &[("", 0)]);
        is(&["a - 60 -"], Some(100), &[("", 55)]);
        is(&["koordinator-system-quota - - -"], Some(100), &[("", 93)]);
        let of_tree = ["r t 30 -", "c t - -", "d u - -"];
        is(&of_tree, Some(100), &[("", 65), ("t", 30)]);
        is(&of_tree, None, &[("t", 30)]);
        is(
            &["r t 30 apart", "s v 10 -"],
            Some(100),
            &[("", 85), ("t", 30), ("v", 10)],
        );
        // One root for each pool of nodes.
        is(&["r t 30 -", "s t 20 -"], Some(40), &[("", 0), ("t", 50)]);
    }
}
