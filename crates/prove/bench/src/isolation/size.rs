//! Sizes of the measurements of `sublet-bench isolation`.

/// Size of each measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// Seconds for each call, both ways together.
    pub(super) call_seconds: f64,
    /// Number of processes that measure the launches, one after another.
    pub(super) launch_runs: usize,
    /// Seconds for each call while several processes make it at once.
    pub(super) race_seconds: f64,
    /// Starts of a single process, as many without us as with us.
    pub(super) starts: usize,
    /// Rounds of many starts at once, as many without us as with us.
    pub(super) start_rounds: usize,
    /// Number of processes that start at once.
    pub(super) at_once: usize,
    /// Number of processes that are killed.
    pub(super) kills: usize,
    /// Number of jobs that hold memory at the same time.
    pub(super) jobs: usize,
    /// Seconds for which the arbiter of these jobs is watched.
    pub(super) idle_seconds: u64,
}

pub(super) const FULL: Size = Size {
    call_seconds: 2.0,
    launch_runs: 5,
    race_seconds: 1.0,
    starts: 100,
    start_rounds: 5,
    at_once: 300,
    kills: 50,
    jobs: 100,
    idle_seconds: 20,
};

pub(super) const QUICK: Size = Size {
    call_seconds: 0.2,
    launch_runs: 1,
    race_seconds: 0.2,
    starts: 10,
    start_rounds: 1,
    at_once: 50,
    kills: 5,
    jobs: 20,
    idle_seconds: 2,
};
