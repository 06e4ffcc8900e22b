//! Events of jobs, as a replay tells them.

use sublet_queue::Slot;

/// An event of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayEvent<'a> {
    /// When, in seconds of the trace.
    pub at: u64,
    /// Its row in the list of pods.
    pub row: u32,
    /// Kind of the event.
    pub step: ReplayStep<'a>,
}

/// The kinds of events of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayStep<'a> {
    /// It comes.
    Comes,
    /// All its members start, at these places.
    Starts(&'a [Slot]),
    /// It has run as long as it had to.
    Ends,
    /// It has to go for another one, and waits again.
    Evicted,
}
