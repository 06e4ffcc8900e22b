//! Settings of a site: how many groups start at once, when room is kept for a group, which groups
//! are not tried, and the order of the groups of a quota.
//!
//! Filters and scores have names, by which a site chooses them. To add one, write a function here,
//! and add a line to [`GROUP_FILTERS`] or [`GROUP_SCORES`].

use std::cmp::Reverse;
use std::str::FromStr;

use sublet_model::Time;

use crate::need::firm;
use crate::site_rule::{SiteRule, SiteRuleError};
use crate::{Group, MinScaling, QueueProfile, QueueReason};

/// Every filter.
pub const GROUP_FILTERS: &[GroupFilter] = &[GroupFilter::new(
    "known-end",
    "jobs that do not say how long they run",
    known_end,
)];

/// Every score; the first is the default. All begin with the priority: a group that started before
/// one of higher priority in its quota would be evicted for it.
pub const GROUP_SCORES: &[GroupScore] = &[
    GroupScore::new("priority", "by priority, then by age", |group| {
        i64::from(group.priority)
    }),
    GroupScore::new(
        "need",
        "by priority, then the fewest GPUs first, then by age",
        by_need,
    ),
];

/// Rule that keeps groups waiting. The reason is shown to the group's owner.
pub type GroupFilter = SiteRule<fn(&Group) -> Result<(), QueueReason>>;

/// Order of groups within a quota: the higher score goes first; among equal ones the group that
/// waits longest.
pub type GroupScore = SiteRule<fn(&Group) -> i64>;

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

impl GroupFilter {
    /// Refuses a group, or lets it be tried.
    ///
    /// # Errors
    /// The reason why it is not tried.
    pub fn check(&self, group: &Group) -> Result<(), QueueReason> {
        (self.rule())(group)
    }
}

impl GroupScore {
    /// The score of a group.
    #[must_use]
    pub fn of(&self, group: &Group) -> i64 {
        (self.rule())(group)
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
    /// Profile: it says who may start, and who goes for whom.
    pub profile: QueueProfile,
    /// Milliseconds within which a group has its place that its quota's minimum has room for, unless
    /// the quota says otherwise.
    pub min_within_ms: u64,
    /// Milliseconds between checkpoints of groups that do not say it; none if they write none.
    pub saves_every_ms: Option<u64>,
}

/// Milliseconds that a group counts as running that does not say it.
const UNKNOWN_MS: u64 = 60 * 60 * 1000;

/// Milliseconds that a group counts as running: a power of two, as such times are rough, and groups
/// fare alike whose times are near each other.
pub(crate) fn runs_ms(group: &Group) -> u64 {
    let runs = group.runs_ms.unwrap_or(UNKNOWN_MS);
    runs.checked_next_power_of_two().unwrap_or(u64::MAX)
}

impl QueueRules {
    /// A group's turn in the order within its quota: the least goes first, and among equals the first
    /// by name. By score, then by age; a profile may count a group that runs for long as younger.
    #[must_use]
    pub fn turn(&self, group: &Group) -> (Reverse<i64>, Time) {
        let later = self.profile.terms().short_first.unwrap_or(0);
        let later = later.saturating_mul(runs_ms(group));
        (Reverse(self.score.of(group)), group.since.plus_ms(later))
    }
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
            profile: QueueProfile::default(),
            // Most of what runs for an hour has a checkpoint; who serves sets less, who can wait a day.
            min_within_ms: 60 * 60 * 1000,
            saves_every_ms: None,
        }
    }
}
