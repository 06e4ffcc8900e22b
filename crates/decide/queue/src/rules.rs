//! Settings of a site: how many groups start at once, when room is kept for a group, which groups
//! are not tried, and the order of the groups of a quota.
//!
//! Filters and scores have names, by which a site chooses them. To add one, write a function here,
//! and add a line to [`GROUP_FILTERS`] or [`GROUP_SCORES`].

use std::fmt;
use std::str::FromStr;

use crate::need::firm;
use crate::{Group, MinScaling, QueueReason};

/// Every filter.
pub const GROUP_FILTERS: &[GroupFilter] = &[GroupFilter {
    name: "known-end",
    about: "jobs that do not say how long they run",
    rule: known_end,
}];

/// Every score; the first is the default. All begin with the priority: a group that started before
/// one of higher priority in its quota would be evicted for it.
pub const GROUP_SCORES: &[GroupScore] = &[
    GroupScore {
        name: "priority",
        about: "by priority, then by age",
        rule: |group| i64::from(group.priority),
    },
    GroupScore {
        name: "need",
        about: "by priority, then the fewest GPUs first, then by age",
        rule: by_need,
    },
];

/// Rule that keeps groups waiting. The reason is shown to the group's owner.
pub type GroupFilter = SiteRule<fn(&Group) -> Result<(), QueueReason>>;

/// Order of groups within a quota: the higher score goes first; among equal ones the group that
/// waits longest.
pub type GroupScore = SiteRule<fn(&Group) -> i64>;

/// Rule that a site chooses by its name.
#[derive(Debug, Clone, Copy)]
pub struct SiteRule<F> {
    name: &'static str,
    about: &'static str,
    rule: F,
}

/// Reason why a text names no rule, with the names that there are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of {known}", known = .1.join(", "))]
pub struct SiteRuleError(String, Vec<&'static str>);

impl<F: Copy> SiteRule<F> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its meaning in a few words.
    #[must_use]
    pub fn about(&self) -> &'static str {
        self.about
    }

    fn named(all: &[SiteRule<F>], name: &str) -> Result<SiteRule<F>, SiteRuleError> {
        let found = all.iter().find(|rule| rule.name == name);
        let known = || all.iter().map(SiteRule::name).collect();
        found
            .copied()
            .ok_or_else(|| SiteRuleError(name.to_owned(), known()))
    }
}

impl FromStr for GroupFilter {
    type Err = SiteRuleError;

    fn from_str(name: &str) -> Result<GroupFilter, SiteRuleError> {
        SiteRule::named(GROUP_FILTERS, name)
    }
}

impl FromStr for GroupScore {
    type Err = SiteRuleError;

    fn from_str(name: &str) -> Result<GroupScore, SiteRuleError> {
        SiteRule::named(GROUP_SCORES, name)
    }
}

impl Default for GroupScore {
    fn default() -> GroupScore {
        GROUP_SCORES[0]
    }
}

impl<F> fmt::Display for SiteRule<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl GroupFilter {
    /// Refuses a group, or lets it be tried.
    ///
    /// # Errors
    /// The reason why it is not tried.
    pub fn check(&self, group: &Group) -> Result<(), QueueReason> {
        (self.rule)(group)
    }
}

impl GroupScore {
    /// The score of a group.
    #[must_use]
    pub fn of(&self, group: &Group) -> i64 {
        (self.rule)(group)
    }
}

/// Lets groups pass that end by themselves: only those bound the wait of a group for which room is
/// kept.
fn known_end(group: &Group) -> Result<(), QueueReason> {
    match group.ends {
        Some(_) => Ok(()),
        None => Err(QueueReason::Site(
            "here only jobs start that say how long they run; it starts when its job has \
             activeDeadlineSeconds"
                .into(),
        )),
    }
}

/// Counts a part of a card as one.
fn by_need(group: &Group) -> i64 {
    let gpus = firm(group).map(|(role, count)| {
        let each = role.pod.claim.ask().gpus();
        count.saturating_mul(u64::from(each.get()))
    });
    let gpus = gpus.fold(0, u64::saturating_add);
    let few = u32::MAX - u32::try_from(gpus).unwrap_or(u32::MAX);
    (i64::from(group.priority) << 32) + i64::from(few)
}

/// Settings of a site.
#[derive(Debug, Clone)]
pub struct QueueRules {
    /// Most groups that start in one tick; the next tick goes on. A group that needs evictions
    /// counts as 125, because it is as much work.
    pub most_starts: usize,
    /// Waiting time in milliseconds after which room is kept for a group.
    pub reservation_after_ms: u64,
    /// Treatment of minima that are together more than there is.
    pub scaling: MinScaling,
    /// Filters that decide which groups are not tried, besides those whose last try has just failed.
    pub filters: Vec<GroupFilter>,
    /// Order of groups within a quota.
    pub score: GroupScore,
}

impl Default for QueueRules {
    fn default() -> QueueRules {
        QueueRules {
            // A fraction of a second of work, so that who comes meanwhile does not wait long.
            most_starts: 4_000,
            // Long enough that room usually comes by itself; Slurm's and Volcano's users set
            // minutes to hours.
            reservation_after_ms: 10 * 60 * 1000,
            scaling: MinScaling::On,
            filters: Vec::new(),
            score: GroupScore::default(),
        }
    }
}
