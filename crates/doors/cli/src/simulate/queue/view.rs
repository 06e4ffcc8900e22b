//! Runs through a queue as programs see them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use sublet_sim::{Alone, Discipline, PartitionSize, ReplayOutcome, SizeClass, WaitGroup, mean};

use crate::simulate::print::{Waits, rounded};

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct QueueView {
    discipline: &'static str,
    about: &'static str,
    protocol: &'static str,
    pub(super) policy: String,
    pub(super) interval_seconds: u64,
    pub(super) jobs: usize,
    ended: usize,
    impossible: usize,
    allocated_percent: f64,
    useful_percent: f64,
    lost_percent: f64,
    evictions: u64,
    lost_work_gpu_hours: f64,
    makespan_seconds: u64,
    mean_wait_seconds: f64,
    mean_bounded_slowdown: f64,
    /// Quotas that wait no longer than on a partition of their own, of those that are large enough.
    sharing_incentive: usize,
    sharing_incentive_of: usize,
    /// The same with partitions of their min and nothing above it.
    sharing_incentive_on_min: usize,
    largest_lag_on_min_seconds: Option<u64>,
    largest_lag_seconds: Option<u64>,
    largest_lag_quota: Option<String>,
    /// The longest wait of jobs that the `min` of their quota had room for, by the disciplines that
    /// know a `min`.
    largest_wait_within_min_seconds: Option<u64>,
    /// Jobs that waited so for half an hour longer than they had to at most.
    late_within_min: Option<usize>,
    wait_by_size: Vec<GroupView>,
    wait_by_quota: Vec<GroupView>,
    gangs_waited_seconds: BTreeMap<&'static str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu_seconds: Option<f64>,
}

impl QueueView {
    /// The view of an outcome, without the input of the run.
    pub(super) fn of(discipline: &dyn Discipline, outcome: &ReplayOutcome) -> QueueView {
        let (sharing_incentive, sharing_incentive_of) =
            outcome.sharing_incentive(PartitionSize::WholeNodes);
        let lag = outcome.largest_lag(PartitionSize::WholeNodes);
        let on_min = outcome.largest_lag(PartitionSize::Min);
        QueueView {
            discipline: discipline.name(),
            about: discipline.about(),
            protocol: "queue",
            ended: outcome.ended,
            impossible: outcome.impossible.0 as usize + outcome.too_large,
            allocated_percent: rounded(outcome.useful_percent + outcome.lost_percent),
            useful_percent: rounded(outcome.useful_percent),
            lost_percent: rounded(outcome.lost_percent),
            evictions: outcome.evictions,
            lost_work_gpu_hours: rounded(outcome.lost_hours),
            makespan_seconds: outcome.makespan,
            mean_wait_seconds: rounded(outcome.mean_wait),
            mean_bounded_slowdown: rounded(outcome.bounded_slowdown),
            sharing_incentive,
            sharing_incentive_of,
            largest_lag_seconds: lag.map(|(_, seconds)| seconds),
            largest_lag_quota: lag.map(|(name, _)| name.to_string()),
            sharing_incentive_on_min: outcome.sharing_incentive(PartitionSize::Min).0,
            largest_lag_on_min_seconds: on_min.map(|(_, seconds)| seconds),
            largest_wait_within_min_seconds: outcome.within_min.map(|within| within.longest),
            late_within_min: outcome.within_min.map(|within| within.late),
            wait_by_size: outcome.sizes.iter().map(of_size).collect(),
            wait_by_quota: outcome.tenants.iter().map(of_quota).collect(),
            gangs_waited_seconds: outcome.gangs_waited_for.clone(),
            ..QueueView::default()
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupView {
    #[serde(skip_serializing_if = "Option::is_none")]
    gpus: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_gpus: Option<u64>,
    jobs: usize,
    evictions: u64,
    mean_wait_seconds: Option<f64>,
    wait_seconds: Option<Waits>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<PartitionView>,
}

/// A quota on a partition of its own, and its jobs that fit there by this discipline.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PartitionView {
    gpus: u64,
    jobs: usize,
    mean_wait_seconds: Option<f64>,
    p90_wait_seconds: Option<u64>,
    same_jobs_mean_wait_seconds: Option<f64>,
    same_jobs_p90_wait_seconds: Option<u64>,
    lag_seconds: u64,
}

fn of_partition(alone: &Alone) -> PartitionView {
    PartitionView {
        gpus: alone.gpus,
        jobs: alone.waits.len(),
        mean_wait_seconds: mean(&alone.waits).map(rounded),
        p90_wait_seconds: Waits::of(&alone.waits).map(|waits| waits.p90),
        same_jobs_mean_wait_seconds: mean(&alone.here).map(rounded),
        same_jobs_p90_wait_seconds: Waits::of(&alone.here).map(|waits| waits.p90),
        lag_seconds: alone.lag_seconds,
    }
}

fn of_size(group: &WaitGroup<SizeClass>) -> GroupView {
    GroupView {
        gpus: Some(group.of.words()),
        quota: None,
        min_gpus: None,
        jobs: group.jobs,
        evictions: group.evictions,
        mean_wait_seconds: mean(&group.waits).map(rounded),
        wait_seconds: Waits::of(&group.waits),
        partition: group.alone.as_ref().map(of_partition),
    }
}

fn of_quota(group: &WaitGroup<Arc<str>>) -> GroupView {
    GroupView {
        gpus: None,
        quota: Some(group.of.to_string()),
        min_gpus: Some(group.min_milli / 1000),
        jobs: group.jobs,
        evictions: group.evictions,
        mean_wait_seconds: mean(&group.waits).map(rounded),
        wait_seconds: Waits::of(&group.waits),
        partition: group.alone.as_ref().map(of_partition),
    }
}
