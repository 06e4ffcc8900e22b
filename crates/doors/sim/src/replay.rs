//! A trace of jobs through a queue: the time that jobs wait, by size and by tenant.
//!
//! Unlike in [`crate::timed`] a job may need several nodes: a job of more GPUs than any node has is
//! a gang, and all its members start together. Tenants have quotas. A [`Discipline`] decides which
//! job starts when. The engine decides where, the same one for all disciplines, so that they differ
//! in nothing else. Time is virtual, and nothing is random.
//!
//! At each moment, jobs that end go first. Then jobs that arrive come, and then the discipline is
//! asked once. An evicted job loses its work, and waits again.
//!
//! The jobs are played once more with each tenant alone on a partition of its own, to say what it has
//! from the cluster of all.

mod discipline;
mod event;
mod figures;
mod floor;
mod ground;
mod jobs;
mod partition;
mod rule;
mod served;

use sublet_plan::Policy;
use sublet_queue::{QueueProfile, QueueRules};

use self::discipline::ALONE;
pub use self::discipline::DISCIPLINES;
pub use self::event::{ReplayEvent, ReplayStep};
pub use self::figures::{Alone, ReplayOutcome, WaitGroup, WithinMin, mean};
use self::figures::{Comparison, Figures, Told};
use self::floor::Floor;
use self::ground::Ground;
use self::jobs::{Jobs, Kinds};
pub use self::jobs::{ReplayError, RunTimes, SizeClass};
pub use self::partition::PartitionSize;
use self::partition::{gpus, grounds, partitions};
pub use self::rule::Discipline;
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
    /// Profile of Sublet's own queue.
    pub profile: QueueProfile,
    /// Seconds within which a job has its place that its tenant's minimum has room for; as shipped
    /// for none.
    pub min_within: Option<u64>,
    /// Jobs write a checkpoint each time so many seconds of their run have passed, and lose no more
    /// if they go.
    pub saves_every: Option<u64>,
    /// Knowledge of how long jobs run that Sublet's own queue has.
    pub run_times: RunTimes,
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
    let mut ground = whole(run);
    kinds.try_each(|kind| ground.find(kind, 0).is_some());
    let jobs = Jobs::of((run.nodes, run.pods), run.quotas, run.load, kinds)?;
    let jobs = jobs.with_rules(rules(run), run.saves_every, run.run_times);
    let of_size = |size| partitions(run.nodes, &jobs, size);
    let apart = |partitions: &[NodeList]| grounds(partitions, &jobs, run.pods, run.policy);
    let alone = [PartitionSize::WholeNodes, PartitionSize::Min].map(|size| {
        let partitions = of_size(size);
        let (played, _) = play(&jobs, ALONE, apart(&partitions), run.interval, &mut |_| {});
        (played.0, gpus(&partitions))
    });
    let is_apart = run.discipline.is_apart();
    let grounds = match is_apart {
        true => apart(&of_size(PartitionSize::WholeNodes)),
        false => vec![ground],
    };
    let (played, told) = play(&jobs, run.discipline, grounds, run.interval, watch);
    let comparison = Comparison {
        told,
        ends_empty: played.1,
        is_apart,
        alone: &alone,
    };
    Ok(played.0.outcome(&jobs, comparison))
}

/// Settings of Sublet's own queue.
fn rules(run: Replay<'_>) -> QueueRules {
    let shipped = QueueRules::default();
    let within = run.min_within.map(|seconds| seconds.saturating_mul(1000));
    QueueRules {
        profile: run.profile,
        min_within_ms: within.unwrap_or(shipped.min_within_ms),
        ..shipped
    }
}

/// The cluster that all share.
fn whole(run: Replay<'_>) -> Ground {
    let claims = run.pods.rows.iter().map(|row| &row.claim);
    Ground::of(run.nodes, claims, run.policy)
}

/// The figures, whether the nodes are empty at the end, and what the discipline tells.
type Played = ((Figures, bool), Told);

/// Plays the jobs on these nodes.
fn play(
    jobs: &Jobs,
    discipline: &dyn Discipline,
    grounds: Vec<Ground>,
    interval: u64,
    watch: &mut dyn FnMut(ReplayEvent<'_>),
) -> Played {
    let mut floor = Floor::new(jobs, grounds, watch);
    let mut line = discipline.line(jobs);
    let begin = jobs.window().0;
    // Ends, when several ask at once: the discipline is asked on a beat.
    let beat = |at: u64| match interval {
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
        again = changed.then(|| now.saturating_add(interval.max(1)));
    }
    let told = Told {
        gangs_waited_for: line.gangs_waited_for(),
        within_min: line.within_min(),
    };
    (floor.outcome(), told)
}

#[cfg(test)]
mod tests;
