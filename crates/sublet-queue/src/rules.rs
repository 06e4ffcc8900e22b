//! What a site can set: how many start at once, when it keeps room for whom, and two rules of its
//! own, one that keeps a group waiting and one that orders the groups of a quota.

use std::sync::Arc;

use sublet_model::Time;

use crate::{Group, MinScaling, QueueReason};

/// May a group be tried now? Asked for every group that waits.
pub trait GroupFilter: Send + Sync {
    /// Says no by a reason, which is shown to the group's owner.
    ///
    /// # Errors
    /// Why it is not tried.
    fn check(&self, group: &Group, now: Time) -> Result<(), QueueReason>;
}

/// Who goes first within a quota.
pub trait GroupScore: Send + Sync {
    /// The higher goes first; of equal ones who waits longest.
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

/// The queue's own filter: who failed before waits a while.
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

/// What a site can set.
#[derive(Clone)]
pub struct QueueRules {
    /// So many groups start in one tick at most; the next goes on. One for which others have to go
    /// counts as 125, because it is as much work.
    pub most_starts: usize,
    /// When a group has waited so long, in milliseconds, room is kept for it.
    pub reservation_after_ms: u64,
    /// What becomes of minima that are together more than there is.
    pub scaling: MinScaling,
    /// Who is not tried.
    pub filters: Vec<Arc<dyn GroupFilter>>,
    /// Who goes first within a quota.
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
