//! Settings of a site: how many groups start at once, when room is kept for a group, and two rules
//! of its own, one that keeps a group waiting and one that orders the groups of a quota.

use std::sync::Arc;

use sublet_model::Time;

use crate::{Group, MinScaling, QueueReason};

/// May a group be tried now? Asked for every group that waits.
pub trait GroupFilter: Send + Sync {
    /// Refuses a group with a reason, which is shown to the group's owner.
    ///
    /// # Errors
    /// The reason why it is not tried.
    fn check(&self, group: &Group, now: Time) -> Result<(), QueueReason>;
}

/// Order of groups within a quota.
pub trait GroupScore: Send + Sync {
    /// The higher score goes first; among equal ones the group that waits longest.
    fn score(&self, group: &Group, now: Time) -> i64;
}

/// The queue's own order: by priority.
#[derive(Debug, Clone, Copy, Default)]
pub struct ByPriority;

impl GroupScore for ByPriority {
    fn score(&self, group: &Group, _now: Time) -> i64 {
        i64::from(group.priority)
    }
}

/// The queue's own filter: a group that failed before waits a while.
#[derive(Debug, Clone, Copy, Default)]
pub struct BackOff;

impl GroupFilter for BackOff {
    fn check(&self, group: &Group, now: Time) -> Result<(), QueueReason> {
        match group.not_before {
            Some(until) if now < until => Err(QueueReason::BackOff { until }),
            _ => Ok(()),
        }
    }
}

/// Settings of a site.
#[derive(Clone)]
pub struct QueueRules {
    /// Most groups that start in one tick; the next tick goes on. A group that needs evictions
    /// counts as 125, because it is as much work.
    pub most_starts: usize,
    /// Waiting time in milliseconds after which room is kept for a group.
    pub reservation_after_ms: u64,
    /// Treatment of minima that are together more than there is.
    pub scaling: MinScaling,
    /// Filters that decide which groups are not tried.
    pub filters: Vec<Arc<dyn GroupFilter>>,
    /// Order of groups within a quota.
    pub score: Arc<dyn GroupScore>,
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
            filters: vec![Arc::new(BackOff)],
            score: Arc::new(ByPriority),
        }
    }
}
