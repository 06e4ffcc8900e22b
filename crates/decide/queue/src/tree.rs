//! Quotas as trees, and the entitlement of each (Koordinator's *runtime* quota).
//!
//! A cluster has a tree of its own, and may have more, each with a part of the cluster to divide.
//! Nothing goes from one tree to another.
//!
//! Requests go up: a quota asks for the requests of its pods, and for its children's requests as
//! far as their limits allow. Amounts go down: each quota divides its amount among its children.
//! Every resource is counted for itself. The entitlement depends on requests, never on use, so an
//! eviction changes the entitlement of no quota.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::divide::{Wish, divide};

/// Amounts by the name of the resource: CPU in thousandths of a core, all else in its base unit.
pub type Amounts = BTreeMap<Arc<str>, u64>;

/// Amounts to divide, by the name of the tree. A tree that is not in here has nothing.
pub type TreeTotals = BTreeMap<Arc<str>, Amounts>;

/// A quota, as somebody has set it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quota {
    /// Its name, which no other quota of any tree has.
    pub name: Arc<str>,
    /// The tree that it is in; empty for the cluster's own.
    pub tree: Arc<str>,
    /// The quota above it; none at the top of the tree.
    pub parent: Option<Arc<str>>,
    /// Others may have what it does not ask for.
    pub lends: bool,
    /// The amount that it gets if it asks for it.
    pub min: Amounts,
    /// The most it may have. A resource that is not in here is not limited.
    pub max: Amounts,
    /// Its part of the rest; by its limit if no weight is set.
    pub weight: Option<Amounts>,
    /// The part of its minimum that it keeps if the minima do not fit.
    pub guarantee: Amounts,
    /// Milliseconds within which a group has its place that the minimum has room for; as the site
    /// says if it is none.
    pub min_within_ms: Option<u64>,
}

impl Quota {
    fn is_about(&self, resource: &str) -> bool {
        self.max.contains_key(resource) || self.min.contains_key(resource)
    }
}

/// Treatment of minima that are together more than there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MinScaling {
    /// They shrink in proportion. Only then is no more promised than there is.
    #[default]
    On,
    /// They stay, as in Koordinator without `EnableMinQuotaScale`.
    Off,
}

/// Request and entitlement of a quota for one resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entitlement {
    /// Amount that it asks: for its pods, its children, and for its minimum if it lends nothing.
    pub request: u64,
    /// Amount that it may use now.
    pub amount: u64,
}

/// Reason why quotas are no tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// Two quotas have one name.
    #[error("there are two quotas {0}")]
    TwiceNamed(Arc<str>),
    /// The quota above is not there.
    #[error("quota {quota} has the parent {parent}, which is not there")]
    NoParent {
        /// The child.
        quota: Arc<str>,
        /// The name that nobody has.
        parent: Arc<str>,
    },
    /// The quota above it is of another tree.
    #[error("quota {quota} is not of the tree of its parent {parent}")]
    OtherTree {
        /// The child.
        quota: Arc<str>,
        /// The parent.
        parent: Arc<str>,
    },
    /// A quota is above itself.
    #[error("quota {0} is its own parent, directly or through others")]
    Circle(Arc<str>),
}

/// Promise of a tree that cannot be kept, surely against its operator's will. The tree is computed
/// nevertheless.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuotaProblem {
    /// More is promised than may be had.
    #[error("quota {quota}: min of {resource} is {min}, above its max of {max}")]
    MinAboveMax {
        /// The quota.
        quota: Arc<str>,
        /// The resource.
        resource: Arc<str>,
        /// Amount that is promised.
        min: u64,
        /// The most that the quota may have.
        max: u64,
    },
    /// Children are promised more than their parent is.
    #[error(
        "quota {quota}: min of {resource} is {min}, and its children have {of_children} together"
    )]
    ChildrenAboveMin {
        /// The parent.
        quota: Arc<str>,
        /// The resource.
        resource: Arc<str>,
        /// Amount that the parent is promised.
        min: u64,
        /// Amount that its children are promised.
        of_children: u64,
    },
}

/// Quotas, each below its parent, of one tree or several.
#[derive(Debug, Clone, Default)]
pub struct QuotaTree {
    /// By name.
    quotas: Vec<Quota>,
    /// Quotas without a quota above them, by their tree.
    trees: BTreeMap<Arc<str>, Vec<usize>>,
    parents: Vec<Option<usize>>,
    /// By quota, the quotas below it, by name.
    children: Vec<Vec<usize>>,
    /// Quotas without a quota above them.
    tops: Vec<usize>,
    /// Each parent before its children, siblings by name.
    order: Vec<usize>,
}

impl QuotaTree {
    /// Trees of these quotas.
    ///
    /// # Errors
    /// Names that are there twice or not at all, parents of another tree, and circles.
    pub fn new(mut quotas: Vec<Quota>) -> Result<QuotaTree, TreeError> {
        quotas.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = quotas.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(TreeError::TwiceNamed(pair[0].name.clone()));
        }
        let parents = quotas.iter().map(|quota| {
            let Some(parent) = &quota.parent else {
                return Ok(None);
            };
            let (name, parent) = (quota.name.clone(), parent.clone());
            match quotas.binary_search_by(|other| other.name.cmp(&parent)) {
                Err(_) => Err(TreeError::NoParent {
                    quota: name,
                    parent,
                }),
                Ok(at) if quotas[at].tree != quota.tree => Err(TreeError::OtherTree {
                    quota: name,
                    parent,
                }),
                Ok(at) => Ok(Some(at)),
            }
        });
        let parents = parents.collect::<Result<Vec<_>, _>>()?;
        let mut children = vec![Vec::new(); quotas.len()];
        let mut tops = Vec::new();
        for (at, parent) in parents.iter().enumerate() {
            parent.map_or(&mut tops, |of| &mut children[of]).push(at);
        }
        let order = parents_first(&tops, &children);
        if order.len() < quotas.len() {
            let reached: BTreeSet<usize> = order.into_iter().collect();
            let lost = (0..quotas.len()).find(|at| !reached.contains(at));
            let name = lost.map(|at| quotas[at].name.clone());
            return Err(TreeError::Circle(name.unwrap_or_default()));
        }
        let mut trees: BTreeMap<Arc<str>, Vec<usize>> = BTreeMap::new();
        for &top in &tops {
            trees.entry(quotas[top].tree.clone()).or_default().push(top);
        }
        Ok(QuotaTree {
            quotas,
            trees,
            parents,
            children,
            tops,
            order,
        })
    }

    /// The quotas by name: a quota's position here is its number.
    pub(crate) fn by_number(&self) -> &[Quota] {
        &self.quotas
    }

    /// The number of the quota of that name.
    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        let found = self
            .quotas
            .binary_search_by(|quota| (*quota.name).cmp(name));
        found.ok()
    }

    /// The numbers of a quota and of all above it.
    pub(crate) fn upwards(&self, from: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(from), |&at| self.parents[at])
    }

    /// The numbers of the quotas right below that one; of those at the top for none.
    pub(crate) fn below(&self, parent: Option<usize>) -> &[usize] {
        parent.map_or(&self.tops, |at| &self.children[at])
    }

    /// The quotas, each parent before its children, and how deep each stands.
    pub fn quotas(&self) -> impl Iterator<Item = (&Quota, usize)> {
        let depth = |mut at: usize| {
            let mut depth = 0;
            while let Some(parent) = self.parents[at] {
                (at, depth) = (parent, depth + 1);
            }
            depth
        };
        self.order
            .iter()
            .map(move |&at| (&self.quotas[at], depth(at)))
    }

    /// Every resource that a quota names.
    #[must_use]
    pub fn resources(&self) -> BTreeSet<Arc<str>> {
        let of = |quota: &Quota| -> Vec<Arc<str>> {
            let both = quota.max.keys().chain(quota.min.keys());
            both.cloned().collect()
        };
        self.quotas.iter().flat_map(of).collect()
    }

    /// A quota and all above it.
    pub fn path<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Quota> + use<'a> {
        let from = self.number(name);
        let path = from.into_iter().flat_map(|at| self.upwards(at));
        path.map(|at| &self.quotas[at])
    }

    /// Request and entitlement of each quota that the resource concerns, by name. `asked`: the
    /// requests of a quota's pods together.
    #[must_use]
    pub fn entitlements(
        &self,
        resource: &str,
        totals: &TreeTotals,
        asked: impl Fn(&str) -> u64,
        scaling: MinScaling,
    ) -> BTreeMap<Arc<str>, Entitlement> {
        let asked = self.quotas.iter().map(|quota| asked(&quota.name)).collect();
        let all = self.divide_all(resource, totals, asked, scaling);
        let those = self.quotas.iter().zip(all);
        those
            .filter_map(|(quota, has)| Some((quota.name.clone(), has?)))
            .collect()
    }

    /// The same by number; none for quotas that the resource does not concern.
    pub(crate) fn divide_all(
        &self,
        resource: &str,
        totals: &TreeTotals,
        asked: Vec<u64>,
        scaling: MinScaling,
    ) -> Vec<Option<Entitlement>> {
        let total = |tree: &str| {
            let total = totals.get(tree).and_then(|total| total.get(resource));
            total.copied().unwrap_or(0)
        };
        let counts = self.counting(resource);
        let wishes = self.wishes(resource, total, asked, scaling);
        let mut entitlements = vec![0; self.quotas.len()];
        let share = |entitlements: &mut Vec<u64>, there_is: u64, among: &[usize]| {
            let among: Vec<usize> = among.iter().copied().filter(|&at| counts[at]).collect();
            let those: Vec<Wish> = among.iter().map(|&at| wishes[at].1).collect();
            for (at, entitlement) in among.into_iter().zip(divide(there_is, &those)) {
                entitlements[at] = entitlement;
            }
        };
        for (tree, tops) in &self.trees {
            share(&mut entitlements, total(tree), tops);
        }
        for &parent in &self.order {
            let there_is = entitlements[parent];
            share(&mut entitlements, there_is, &self.children[parent]);
        }
        let entitlement = |at: usize| Entitlement {
            request: wishes[at].0,
            amount: entitlements[at],
        };
        let all = 0..self.quotas.len();
        all.map(|at| counts[at].then(|| entitlement(at))).collect()
    }

    /// Lists promises that cannot be kept.
    #[must_use]
    pub fn problems(&self) -> Vec<QuotaProblem> {
        let mut problems = Vec::new();
        for (at, quota) in self.quotas.iter().enumerate() {
            for (resource, &min) in &quota.min {
                let max = quota.max.get(resource).filter(|&&max| max < min);
                problems.extend(max.map(|&max| QuotaProblem::MinAboveMax {
                    quota: quota.name.clone(),
                    resource: resource.clone(),
                    min,
                    max,
                }));
            }
            let children = &self.children[at];
            let named = children.iter().flat_map(|&at| self.quotas[at].min.keys());
            for resource in named.collect::<BTreeSet<_>>() {
                let min = quota.min.get(resource).copied().unwrap_or(0);
                let of_children = children.iter().fold(0u64, |sum, &at| {
                    sum.saturating_add(self.quotas[at].min.get(resource).copied().unwrap_or(0))
                });
                if of_children > min {
                    problems.push(QuotaProblem::ChildrenAboveMin {
                        quota: quota.name.clone(),
                        resource: resource.clone(),
                        min,
                        of_children,
                    });
                }
            }
        }
        problems
    }

    /// Marks the quotas that the resource concerns: those that name it, and all above them.
    fn counting(&self, resource: &str) -> Vec<bool> {
        let mut counts: Vec<bool> = self.quotas.iter().map(|q| q.is_about(resource)).collect();
        for &at in self.order.iter().rev() {
            if let (true, Some(parent)) = (counts[at], self.parents[at]) {
                counts[parent] = true;
            }
        }
        counts
    }

    /// For each quota, what it asks without regard to its limit, and its wish.
    fn wishes(
        &self,
        resource: &str,
        total: impl Fn(&str) -> u64,
        mut requests: Vec<u64>,
        scaling: MinScaling,
    ) -> Vec<(u64, Wish)> {
        let mut wishes = vec![(0, Wish::default()); self.quotas.len()];
        for &at in self.order.iter().rev() {
            let quota = &self.quotas[at];
            let of = |amounts: &Amounts| amounts.get(resource).copied();
            let max = of(&quota.max);
            let min = of(&quota.min).unwrap_or(0).min(max.unwrap_or(u64::MAX));
            let request = match quota.lends {
                true => requests[at],
                false => requests[at].max(min),
            };
            let limited = max.map_or(request, |max| request.min(max));
            if let Some(parent) = self.parents[at] {
                requests[parent] = requests[parent].saturating_add(limited);
            }
            let by_limit = max.unwrap_or_else(|| total(&quota.tree));
            let stated = quota.weight.as_ref();
            // Weights that are all zero are as good as none (Koordinator's `GetSharedWeight`).
            let stated = stated.filter(|weights| weights.values().any(|&weight| weight > 0));
            let wish = Wish {
                request: limited,
                min,
                guarantee: of(&quota.guarantee).unwrap_or(0),
                weight: stated.map_or(by_limit, |weights| of(weights).unwrap_or(0)),
                lends: quota.lends,
                shrinks: scaling == MinScaling::On,
            };
            wishes[at] = (request, wish);
        }
        wishes
    }
}

/// Each parent before its children, whole branches together. Quotas in a circle, or below one, are
/// left out.
fn parents_first(tops: &[usize], children: &[Vec<usize>]) -> Vec<usize> {
    let mut waiting: Vec<usize> = tops.iter().rev().copied().collect();
    let mut order = Vec::with_capacity(children.len());
    while let Some(at) = waiting.pop() {
        order.push(at);
        waiting.extend(children[at].iter().rev());
    }
    order
}

#[cfg(test)]
mod tests;
