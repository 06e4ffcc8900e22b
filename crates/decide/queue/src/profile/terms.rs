//! The points at which profiles differ.

use crate::site_rule::SiteRule;

/// Profile that a site chooses by its name.
pub type QueueProfile = SiteRule<&'static ProfileTerms>;

/// Points at which profiles differ.
#[derive(Debug, Clone, Copy)]
pub struct ProfileTerms {
    /// A group for which room is kept has the rest of its quota kept, too.
    pub(crate) holds_quota: bool,
    /// Limits of the work that may be lost; without them victims go by rank, at once, and whatever
    /// they lose.
    pub(crate) limits: Option<LossLimits>,
    /// Groups that must be able to go start beyond the entitlement of their quotas where nobody
    /// entitled has a place.
    pub(crate) lends_beyond: bool,
    /// Large groups that have waited long pass others.
    pub(crate) aging: Option<Aging>,
    /// Within a quota, groups that say that they are short pass others: each millisecond that a group
    /// runs counts as if it had come so many later. The others pass it again in the end.
    pub(crate) short_first: Option<u64>,
}

/// Limits of the work that is lost for others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LossLimits {
    /// Work that may be lost for a group, in thousandths of its cards times its wait.
    pub(crate) budget_permille: u64,
    /// The same for a group that needs more cards than a node has.
    pub(crate) wide_permille: u64,
    /// A group that has gone so often starts only within entitlements, and goes last.
    pub(crate) loans: u32,
    /// The same for a group that needs more cards than a node has.
    pub(crate) wide_loans: u32,
    /// A group that needs more cards than a node has takes from smaller ones of its own quota.
    pub(crate) wide_takes: bool,
    /// Such a group goes only for one within its quota's minimum.
    pub(crate) wide_spared: bool,
}

/// Growth of large groups' turn with their wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Aging {
    /// Groups of so many cards and more.
    pub(crate) cards: u64,
    /// Their quota's share counts as half when they have waited so long, as a third after twice the
    /// time, and so on.
    pub(crate) each_ms: u64,
}

impl QueueProfile {
    pub(crate) fn terms(&self) -> &'static ProfileTerms {
        self.rule()
    }
}
