//! A trace of jobs through a queue: the time that jobs wait, by size and by tenant.
//!
//! Unlike in [`crate::timed`] a job may need several nodes: a job of more GPUs than any node has is
//! a gang, and all its members start together. Tenants have quotas. A [`Discipline`] decides which
//! job starts when. The engine decides where, the same one for all disciplines, so that they differ
//! in nothing else. Time is virtual, and nothing is random.
//!
//! At each moment, jobs that end go first. Then jobs that arrive come, and then the discipline is
//! asked once. An evicted job loses its work, and waits again.

mod discipline;
mod figures;
mod floor;
mod jobs;

use std::sync::Arc;

use sublet_plan::Policy;
use sublet_queue::Slot;

pub use self::discipline::{DISCIPLINES, Discipline};
pub use self::figures::{ReplayOutcome, WaitGroup};
use self::floor::{Floor, Ground};
pub use self::jobs::SizeClass;
use self::jobs::{Jobs, Kinds};
use crate::TimedError;
use crate::trace::{NodeList, PodList, QuotaRow};

/// Input of a replay.
#[derive(Clone, Copy)]
pub struct Replay<'a> {
    /// The cluster. Nothing else runs on it.
    pub nodes: &'a NodeList,
    /// The jobs.
    pub pods: &'a PodList,
    /// Placement policy.
    pub policy: &'a Policy,
    /// The rule that says which job starts next.
    pub discipline: &'a dyn Discipline,
    /// The quotas of tenants. Without them each has that part of the cluster which it has of all
    /// GPU time that the jobs ask.
    pub quotas: Option<&'a [QuotaRow]>,
    /// As for [`crate::Timed::load`].
    pub load: Option<u64>,
    /// The discipline is asked at most once in so many seconds; at each arrival and end for 0.
    pub interval: u64,
}

/// Reason why jobs cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Times that are missing, or no load can be made of.
    #[error(transparent)]
    Times(#[from] TimedError),
    /// An empty list, or a list without any job that can ever start.
    #[error("there is no job that could start on these nodes")]
    NoJobs,
    /// A tenant without quota.
    #[error("job {job} is of tenant {tenant}, for whom there is no quota")]
    NoQuota {
        /// The tenant.
        tenant: Arc<str>,
        /// The first job of that tenant.
        job: Arc<str>,
    },
}

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

/// Replays the jobs. `watch` is told of each event, in the order of its handling: on a beat, ends
/// come first.
///
/// # Errors
/// Jobs without times, a load that cannot be had, no job at all, or a tenant without quota.
pub fn replay(
    run: Replay<'_>,
    watch: &mut dyn FnMut(ReplayEvent<'_>),
) -> Result<ReplayOutcome, ReplayError> {
    let mut kinds = Kinds::of(run.nodes, run.pods);
    let mut ground = Ground::of(run.nodes, run.pods, run.policy);
    kinds.try_each(|kind| ground.find(kind, 0, 0).is_some());
    let jobs = Jobs::of(run, kinds)?;
    let mut floor = Floor::new(&jobs, ground, watch);
    let mut line = run.discipline.line(&jobs);
    let begin = jobs.window().0;
    // Ends, when several ask at once: the discipline is asked on a beat.
    let beat = |at: u64| match run.interval {
        0 => at,
        every => begin.saturating_add((at - begin).div_ceil(every).saturating_mul(every)),
    };
    let (mut come, mut again) = (0, None);
    loop {
        let arrival = jobs.all().get(come).map(|job| job.at);
        let next = [floor.next_end(), arrival, again]
            .into_iter()
            .flatten()
            .min();
        let Some(now) = next.map(beat) else { break };
        floor.set_time(now);
        while let Some(job) = floor.end_one(now) {
            line.left(job);
        }
        while jobs.all().get(come).is_some_and(|job| job.at <= now) {
            floor.come(come);
            line.join(come);
            come += 1;
        }
        let changed = line.tick(&mut floor, now);
        again = changed.then(|| now.saturating_add(run.interval.max(1)));
    }
    Ok(floor.outcome(line.gangs_waited_for()))
}

#[cfg(test)]
mod tests;
