//! Changes how densely pods come: times of arrival are pressed together, or drawn apart, until the
//! pods ask for a share of the cluster.

use std::sync::Arc;

/// Reason why pods cannot come and go.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimedError {
    /// A pod without times.
    #[error("pod {0} has no creation_time (or timestamp), or neither duration nor deletion_time")]
    NoTimes(Arc<str>),
    /// The pods ask for no GPU time at all, so that none can be pressed together.
    #[error("the pods ask for no GPU time, or all come at once: no load can be made of them")]
    NoLoad,
}

/// A new time for each time of arrival.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Press {
    begin: u64,
    asked: u128,
    offered: u128,
}

impl Press {
    /// Pods ask for `asked` (thousandths of cards, times seconds) between the first arrival and the
    /// last. They shall ask for so many millionths of the cluster, which has `capacity`.
    ///
    /// # Errors
    /// No load can be made of pods that ask for nothing, or come all at once.
    pub(crate) fn new(
        (first, last): (u64, u64),
        asked: u128,
        (capacity, load): (u64, u64),
    ) -> Result<Press, TimedError> {
        let span = u128::from(last - first);
        let offered = u128::from(capacity) * span * u128::from(load);
        if asked == 0 || offered == 0 {
            return Err(TimedError::NoLoad);
        }
        Ok(Press {
            begin: first,
            asked: asked.saturating_mul(1_000_000),
            offered,
        })
    }

    /// The new time of an arrival at `then`.
    pub(crate) fn at(&self, then: u64) -> u64 {
        let after = u128::from(then - self.begin).saturating_mul(self.asked) / self.offered;
        self.begin
            .saturating_add(u64::try_from(after).unwrap_or(u64::MAX))
    }
}
