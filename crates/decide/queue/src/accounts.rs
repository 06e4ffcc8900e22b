//! Accounts of every quota's use, limits and promises, while decisions are made.
//!
//! Amounts are kept by quota and dimension in flat rows, because a tick asks for them tens of
//! thousands of times. The amounts of a group are charged to its quota and to every quota above it.
//! Guaranteed and opportunistic work have accounts of their own: only the first counts against a
//! entitlement, both count against a max.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::Class;

use crate::{Amounts, Group, Infeasible, QueueReason, QuotaLimit, QuotaTree, Shortage, TreeTotals};

/// Every resource that a quota names, in order of the name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Dimensions(Vec<Arc<str>>);

impl Dimensions {
    pub(crate) fn of(tree: &QuotaTree) -> Dimensions {
        Dimensions(tree.resources().into_iter().collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn names(&self) -> &[Arc<str>] {
        &self.0
    }

    /// Returns those amounts by dimension.
    pub(crate) fn row(&self, amounts: &Amounts) -> Vec<u64> {
        let of = |name| amounts.get(name).copied().unwrap_or(0);
        self.0.iter().map(of).collect()
    }
}

/// To which accounts something is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) quota: usize,
    pub(crate) class: Class,
    pub(crate) preemptible: bool,
    /// It does not go for another quota while its own has others that may.
    pub(crate) stays: bool,
}

impl Charge {
    /// Accounts of a group. `returned`: it has gone before, and starts only within entitlements.
    pub(crate) fn of(group: &Group, quota: usize, returned: bool) -> Charge {
        Charge {
            quota,
            class: group.class,
            // What is left over is given to who can be asked to leave.
            preemptible: group.preemptible || group.class == Class::Opportunistic,
            stays: group.class == Class::Guaranteed && (returned || !group.preemptible),
        }
    }
}

/// No limit.
const FREE: u64 = u64::MAX;

/// The accounts of all quotas.
#[derive(Debug, Clone)]
pub(crate) struct Accounts<'t> {
    tree: &'t QuotaTree,
    dimensions: &'t Dimensions,
    totals: &'t TreeTotals,
    /// The same by tree and dimension.
    there_is: BTreeMap<&'t str, Vec<u64>>,
    /// By quota and dimension, as all that follow.
    min: Vec<u64>,
    max: Vec<u64>,
    entitlement: Vec<u64>,
    /// By guaranteed work.
    used: Vec<u64>,
    /// By guaranteed work that must not be evicted.
    firm: Vec<u64>,
    /// By guaranteed work that goes last.
    stays: Vec<u64>,
    /// By opportunistic work.
    spare: Vec<u64>,
    /// Kept for the group that has waited long.
    kept: Vec<u64>,
}

impl<'t> Accounts<'t> {
    /// Empty accounts, in which nobody is entitled to anything yet.
    pub(crate) fn new(
        tree: &'t QuotaTree,
        dimensions: &'t Dimensions,
        totals: &'t TreeTotals,
    ) -> Accounts<'t> {
        let cells = || vec![0; tree.by_number().len() * dimensions.len()];
        let mut accounts = Accounts {
            tree,
            dimensions,
            totals,
            there_is: totals
                .iter()
                .map(|(tree, total)| (&**tree, dimensions.row(total)))
                .collect(),
            min: Vec::with_capacity(cells().len()),
            max: Vec::with_capacity(cells().len()),
            entitlement: cells(),
            used: cells(),
            firm: cells(),
            stays: cells(),
            spare: cells(),
            kept: cells(),
        };
        for quota in tree.by_number() {
            for name in dimensions.names() {
                let max = quota.max.get(name).copied();
                // A minimum that is not there is none where the quota has a limit for it.
                let min = quota.min.get(name).copied().or(max.map(|_| 0));
                accounts.min.push(min.unwrap_or(FREE));
                accounts.max.push(max.unwrap_or(FREE));
            }
        }
        accounts
    }

    pub(crate) fn tree(&self) -> &'t QuotaTree {
        self.tree
    }

    fn cells(&self, quota: usize) -> std::ops::Range<usize> {
        let width = self.dimensions.len();
        quota * width..(quota + 1) * width
    }

    /// Entitlement of a quota, by dimension; [`u64::MAX`] if it has no limit.
    pub(crate) fn entitlement(&self, quota: usize) -> &[u64] {
        &self.entitlement[self.cells(quota)]
    }

    /// Use by guaranteed work of a quota.
    pub(crate) fn used(&self, quota: usize) -> &[u64] {
        &self.used[self.cells(quota)]
    }

    /// Use by opportunistic work of a quota.
    pub(crate) fn spare(&self, quota: usize) -> &[u64] {
        &self.spare[self.cells(quota)]
    }

    /// So much of these amounts as the quota's maximum lets it have.
    pub(crate) fn within_max(&self, quota: usize, amounts: &[u64]) -> Vec<u64> {
        let max = &self.max[self.cells(quota)];
        let both = amounts.iter().zip(max);
        both.map(|(amount, max)| *amount.min(max)).collect()
    }

    /// Promise to a quota.
    pub(crate) fn min(&self, quota: usize) -> &[u64] {
        &self.min[self.cells(quota)]
    }

    /// Divides what there is. `requests`: what guaranteed work of each quota asks, by quota and
    /// dimension.
    pub(crate) fn entitle(&mut self, requests: &[u64], scaling: crate::MinScaling) {
        let width = self.dimensions.len();
        for (dimension, name) in self.dimensions.names().iter().enumerate() {
            let asked = requests.iter().skip(dimension).step_by(width).copied();
            let all = self
                .tree
                .divide_all(name, self.totals, asked.collect(), scaling);
            for (quota, entitlement) in all.into_iter().enumerate() {
                let entitlement = entitlement.map_or(FREE, |has| has.amount);
                self.entitlement[quota * width + dimension] = entitlement;
            }
        }
    }

    /// Counts an amount in, at the quota and above it.
    pub(crate) fn charge(&mut self, to: Charge, amounts: &[u64]) {
        self.change(to, amounts, u64::saturating_add);
    }

    /// Takes an amount out again.
    pub(crate) fn discharge(&mut self, to: Charge, amounts: &[u64]) {
        self.change(to, amounts, u64::saturating_sub);
    }

    fn change(&mut self, to: Charge, amounts: &[u64], by: fn(u64, u64) -> u64) {
        for quota in self.tree.upwards(to.quota) {
            let cells = self.cells(quota);
            let add = |account: &mut Vec<u64>| {
                for (cell, amount) in account[cells.clone()].iter_mut().zip(amounts) {
                    *cell = by(*cell, *amount);
                }
            };
            match to.class {
                Class::Guaranteed => add(&mut self.used),
                Class::Opportunistic => add(&mut self.spare),
            }
            if !to.preemptible {
                add(&mut self.firm);
            }
            if to.stays {
                add(&mut self.stays);
            }
        }
    }

    /// Keeps an amount for the group that has waited long: no more at any quota than its leaf has
    /// left, so that quotas beside it get what they are entitled to.
    pub(crate) fn keep(&mut self, quota: usize, amounts: &[u64]) {
        let left = self.entitlement(quota).iter().zip(self.used(quota));
        let left = left.map(|(entitlement, used)| entitlement.saturating_sub(*used));
        let kept: Vec<u64> = left
            .zip(amounts)
            .map(|(left, ask)| left.min(*ask))
            .collect();
        for quota in self.tree.upwards(quota) {
            let cells = self.cells(quota);
            self.kept[cells].copy_from_slice(&kept);
        }
    }

    /// Checks whether there is one of these resources that every quota, from this one up to where
    /// its branch meets that of the other, uses beyond its entitlement.
    pub(crate) fn is_over(&self, quota: usize, other: usize, amounts: &[u64]) -> bool {
        self.is_beyond(&self.used, (quota, other), amounts)
    }

    /// The same, if all went that may go before what stays.
    pub(crate) fn stays_over(&self, quota: usize, other: usize, amounts: &[u64]) -> bool {
        self.is_beyond(&self.stays, (quota, other), amounts)
    }

    fn is_beyond(&self, account: &[u64], (quota, other): (usize, usize), amounts: &[u64]) -> bool {
        let is_shared = |at: usize| self.tree.upwards(other).any(|above| above == at);
        let over = |at: usize| {
            let mut branch = self.tree.upwards(quota).take_while(|at| !is_shared(*at));
            branch.all(|quota| {
                let cell = self.cells(quota).start + at;
                account[cell] > self.entitlement[cell]
            })
        };
        quota != other && (0..amounts.len()).any(|at| amounts[at] > 0 && over(at))
    }

    /// Does the quota's own use leave no room for these amounts in what it is entitled to?
    pub(crate) fn is_full(&self, quota: usize, amounts: &[u64]) -> bool {
        let both = self.used(quota).iter().zip(self.entitlement(quota));
        let mut all = both.zip(amounts).filter(|(_, ask)| **ask > 0);
        all.any(|((used, entitlement), ask)| used.saturating_add(*ask) > *entitlement)
    }

    /// Has the quota's own minimum room for these amounts?
    pub(crate) fn is_within_min(&self, quota: usize, amounts: &[u64]) -> bool {
        let both = self.used(quota).iter().zip(self.min(quota));
        let mut all = both.zip(amounts).filter(|(_, ask)| **ask > 0);
        all.all(|((used, min), ask)| used.saturating_add(*ask) <= *min)
    }

    /// May a group with such amounts start beyond what its quotas are entitled to? Not beyond a
    /// maximum, not on what a quota keeps that does not lend, and not on another tree's part.
    ///
    /// # Errors
    /// The first limit that it would pass.
    pub(crate) fn check_loan(&self, to: Charge, amounts: &[u64]) -> Result<(), QueueReason> {
        let top = self.tree.upwards(to.quota).last().unwrap_or(to.quota);
        let tree = &self.tree.by_number()[to.quota].tree;
        let totals = self.there_is.get(&**tree);
        for (at, &asked) in amounts.iter().enumerate().filter(|(_, ask)| **ask > 0) {
            for quota in self.tree.upwards(to.quota) {
                let cell = self.cells(quota).start + at;
                let all = self.used[cell].saturating_add(self.spare[cell]);
                let max = self.max[cell];
                if all.saturating_add(asked) > max {
                    return Err(self.over(quota, at, asked, (QuotaLimit::Max, all, max)));
                }
            }
            let tops = self.tree.below(None).iter();
            let tops = tops.filter(|top| self.tree.by_number()[**top].tree == *tree);
            let taken = tops.map(|&top| self.taken(top, at, (to.quota, asked)));
            let taken = taken.fold(0, u64::saturating_add);
            let total = totals.map_or(0, |totals| totals[at]);
            if taken > total {
                let used = taken.saturating_sub(asked);
                return Err(self.over(top, at, asked, (QuotaLimit::Entitlement, used, total)));
            }
        }
        Ok(())
    }

    /// Amounts that no guaranteed work uses, by tree and dimension: nothing above them can be lent.
    pub(crate) fn unused(&self) -> BTreeMap<&'t str, Vec<u64>> {
        let mut unused = self.there_is.clone();
        for &top in self.tree.below(None) {
            let tree = &*self.tree.by_number()[top].tree;
            let left = unused.get_mut(tree).into_iter().flatten();
            for (left, used) in left.zip(self.used(top)) {
                *left = left.saturating_sub(*used);
            }
        }
        unused
    }

    /// Amount that nobody else can have of what a quota has: what is used there and below, and what
    /// is kept for those that do not lend. `more`: an amount that comes to a quota.
    fn taken(&self, quota: usize, dimension: usize, more: (usize, u64)) -> u64 {
        let cell = self.cells(quota).start + dimension;
        let below = self.tree.below(Some(quota)).iter();
        let below = below.map(|&child| self.taken(child, dimension, more));
        let below = below.fold(0, u64::saturating_add);
        let of_it = if more.0 == quota { more.1 } else { 0 };
        let has = below.max(self.used[cell].saturating_add(of_it));
        match self.tree.by_number()[quota].lends || self.min[cell] == FREE {
            true => has,
            false => has.max(self.min[cell]),
        }
    }

    /// May a group with such amounts start, as far as its quota and those above say?
    ///
    /// # Errors
    /// The first limit that it would pass. `kept`: must it leave the kept room alone?
    pub(crate) fn check(
        &self,
        to: Charge,
        amounts: &[u64],
        leaves_kept: bool,
    ) -> Result<(), QueueReason> {
        for quota in self.tree.upwards(to.quota) {
            let first = self.cells(quota).start;
            for (at, &asked) in amounts.iter().enumerate().filter(|(_, ask)| **ask > 0) {
                let cell = first + at;
                let kept = if leaves_kept { self.kept[cell] } else { 0 };
                let (used, spare) = (self.used[cell], self.spare[cell]);
                let all = used.saturating_add(spare);
                let over = |limit: QuotaLimit, used: u64, there_is: u64| {
                    let too_much = used.saturating_add(asked).saturating_add(kept) > there_is;
                    too_much.then(|| self.over(quota, at, asked, (limit, used, there_is)))
                };
                let mut reason = over(QuotaLimit::Max, all, self.max[cell]);
                if to.class == Class::Guaranteed {
                    reason = reason.or(over(QuotaLimit::Entitlement, used, self.entitlement[cell]));
                }
                if !to.preemptible && quota == to.quota {
                    reason = reason.or(over(QuotaLimit::Min, self.firm[cell], self.min[cell]));
                }
                if let Some(reason) = reason {
                    return Err(reason);
                }
            }
        }
        Ok(())
    }

    fn over(
        &self,
        quota: usize,
        dimension: usize,
        asked: u64,
        (limit, used, there_is): (QuotaLimit, u64, u64),
    ) -> QueueReason {
        QueueReason::OverQuota {
            short: self.short(Some(quota), dimension, asked, there_is),
            used,
            limit,
        }
    }

    /// Could a group with such amounts start if nothing was used?
    ///
    /// # Errors
    /// The shortage.
    pub(crate) fn check_empty(&self, to: Charge, amounts: &[u64]) -> Result<(), Infeasible> {
        let tree = &self.tree.by_number()[to.quota].tree;
        let totals = self.there_is.get(&**tree);
        for (at, &asked) in amounts.iter().enumerate().filter(|(_, ask)| **ask > 0) {
            for quota in self.tree.upwards(to.quota) {
                let max = self.max[self.cells(quota).start + at];
                if asked > max {
                    let short = self.short(Some(quota), at, asked, max);
                    return Err(Infeasible::Max(short));
                }
            }
            let total = totals.map_or(0, |totals| totals[at]);
            if asked > total {
                let tree = tree.clone();
                let short = self.short(None, at, asked, total);
                return Err(Infeasible::Total { tree, short });
            }
            let min = self.min(to.quota)[at];
            if !to.preemptible && asked > min {
                let short = self.short(Some(to.quota), at, asked, min);
                return Err(Infeasible::Min(short));
            }
        }
        Ok(())
    }

    /// The first quota, from this one upwards, that is entitled to less than so much of something.
    pub(crate) fn exceeds(&self, quota: usize, amounts: &[u64]) -> Option<Shortage> {
        self.tree.upwards(quota).find_map(|quota| {
            let entitlement = self.entitlement(quota);
            let at = (0..amounts.len()).find(|&at| amounts[at] > entitlement[at])?;
            Some(self.short(Some(quota), at, amounts[at], entitlement[at]))
        })
    }

    fn short(&self, quota: Option<usize>, dimension: usize, asked: u64, there_is: u64) -> Shortage {
        let quota = quota.map(|at| self.tree.by_number()[at].name.clone());
        Shortage {
            quota: quota.unwrap_or_default(),
            resource: self.dimensions.names()[dimension].clone(),
            asked,
            there_is,
        }
    }
}
