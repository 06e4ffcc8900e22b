//! The work that comes: cohorts of queues of workloads, in the form of Kueue's own performance test
//! (`test/performance/scheduler` of its repository). What it says about eviction is not read: nobody
//! is evicted here.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The most workloads of one file: as many as Kueue's large test has, and some more.
const MOST: usize = 100_000;

/// A whole file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(super) struct WorkShape {
    cohorts: Vec<CohortSet>,
}

/// Equal cohorts: queues that lend to each other.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CohortSet {
    class_name: String,
    count: usize,
    queues_sets: Vec<QueuesSet>,
}

/// Equal queues of a cohort. Amounts are whole CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct QueuesSet {
    class_name: String,
    count: usize,
    nominal_quota: u64,
    borrowing_limit: u64,
    reclaim_within_cohort: String,
    within_cluster_queue: String,
    workloads_sets: Vec<WorkloadsSet>,
}

/// Workloads that come one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct WorkloadsSet {
    /// Number of times that all of them come.
    pub(super) count: usize,
    /// The pause before each.
    pub(super) creation_interval_ms: u64,
    /// The workloads.
    pub(super) workloads: Vec<WorkKind>,
}

/// One workload.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct WorkKind {
    /// A word for its size.
    pub(super) class_name: String,
    /// Time that it runs once it is admitted.
    #[serde(rename = "runtimeMs")]
    pub(super) duration_ms: u64,
    /// The higher ones go first.
    pub(super) priority: i32,
    /// CPUs that it needs.
    pub(super) request: u64,
}

/// A queue by name.
#[derive(Debug)]
pub(super) struct WorkQueue<'a> {
    /// Its name, and that of its namespace.
    pub(super) name: String,
    /// The cohort that it belongs to.
    pub(super) cohort: String,
    /// CPUs that it has whenever it asks.
    pub(super) nominal: u64,
    /// The most CPUs that it may have.
    pub(super) most: u64,
    /// Sets of workloads that come to it.
    pub(super) sets: &'a [WorkloadsSet],
}

impl WorkShape {
    /// Reads a file, and keeps one part in `fraction` of each set.
    ///
    /// # Errors
    /// It cannot be read, or says something else; or there would be no work in it, or too much.
    pub(super) fn read(path: &Path, fraction: usize) -> Result<WorkShape> {
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| format!("read {}", path.display()))?;
        WorkShape::parse(&text, fraction).with_context(|| format!("{}", path.display()))
    }

    pub(super) fn parse(text: &str, fraction: usize) -> Result<WorkShape> {
        let mut shape: WorkShape = serde_saphyr::from_str(text)?;
        let sets = shape
            .cohorts
            .iter_mut()
            .flat_map(|set| &mut set.queues_sets);
        for set in sets.flat_map(|set| &mut set.workloads_sets) {
            set.count = set.count.div_ceil(fraction.max(1));
        }
        let all = shape.sets().try_fold(0_usize, |sum, (times, set)| {
            let own = times
                .checked_mul(set.count)?
                .checked_mul(set.workloads.len())?;
            sum.checked_add(own)
        });
        let all = all.unwrap_or(usize::MAX);
        ensure!(all > 0, "there is no workload in it");
        ensure!(all <= MOST, "{all} workloads are more than {MOST}");
        let queues = shape.cohorts.iter().flat_map(|set| &set.queues_sets);
        let has_none = |set: &&QueuesSet| set.nominal_quota == 0;
        ensure!(
            !queues.into_iter().any(|set| has_none(&set)),
            "a queue has no quota"
        );
        Ok(shape)
    }

    /// Every set of workloads, and in how many queues it comes.
    fn sets(&self) -> impl Iterator<Item = (usize, &WorkloadsSet)> {
        self.cohorts.iter().flat_map(|cohort| {
            let queues = cohort.queues_sets.iter();
            queues.flat_map(|queue| {
                let times = cohort.count.saturating_mul(queue.count);
                queue.workloads_sets.iter().map(move |set| (times, set))
            })
        })
    }

    /// Number of workloads that come.
    pub(super) fn workloads(&self) -> usize {
        let own = |(times, set): (usize, &WorkloadsSet)| times * set.count * set.workloads.len();
        self.sets().map(own).sum()
    }

    /// The names of cohorts, each with its CPUs.
    pub(super) fn cohorts(&self) -> Vec<(String, u64)> {
        let all = self.cohorts.iter().flat_map(|set| {
            let cpus = set.queues_sets.iter();
            let cpus = cpus.map(|queues| queues.count as u64 * queues.nominal_quota);
            let cpus: u64 = cpus.sum();
            (0..set.count).map(move |at| (format!("{}-{at}", set.class_name), cpus))
        });
        all.collect()
    }

    /// All queues by name.
    pub(super) fn queues(&self) -> Vec<WorkQueue<'_>> {
        let mut all = Vec::new();
        for set in &self.cohorts {
            for at in 0..set.count {
                let cohort = format!("{}-{at}", set.class_name);
                for (number, queues) in set.queues_sets.iter().enumerate() {
                    all.extend((0..queues.count).map(|at| WorkQueue {
                        name: format!("{}-{number}-{at}-{cohort}", queues.class_name),
                        cohort: cohort.clone(),
                        nominal: queues.nominal_quota,
                        most: queues.nominal_quota + queues.borrowing_limit,
                        sets: &queues.workloads_sets,
                    }));
                }
            }
        }
        all
    }

    /// The priorities that workloads have.
    pub(super) fn priorities(&self) -> std::collections::BTreeSet<i32> {
        let kinds = self.sets().flat_map(|(_, set)| &set.workloads);
        kinds.map(|kind| kind.priority).collect()
    }

    /// The shortest time that all of it can take: the last workload must come, and no cohort can do
    /// more at a time than it has CPUs.
    pub(super) fn least_time(&self) -> Duration {
        let mut least = 0_u64;
        for set in &self.cohorts {
            let mut cpu_ms = 0;
            for queues in &set.queues_sets {
                for work in &queues.workloads_sets {
                    let count = work.count as u64;
                    let kinds = work.workloads.iter();
                    let once: u64 = kinds.map(|kind| kind.duration_ms * kind.request).sum();
                    cpu_ms += queues.count as u64 * count * once;
                    least =
                        least.max(count * work.workloads.len() as u64 * work.creation_interval_ms);
                }
            }
            let cpus = set.queues_sets.iter();
            let cpus = cpus.map(|queues| queues.count as u64 * queues.nominal_quota);
            let cpus: u64 = cpus.sum();
            least = least.max(cpu_ms / cpus.max(1));
        }
        Duration::from_millis(least)
    }

    /// One line about it.
    pub(super) fn described(&self) -> String {
        format!(
            "{} cohorts, {} queues, {} workloads",
            self.cohorts().len(),
            self.queues().len(),
            self.workloads()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kueue's own file, in our words: no line of it is copied.
    const PUBLISHED: &str = "
- {className: cohort, count: 5, queuesSets: [{className: cq, count: 6, nominalQuota: 20,
    borrowingLimit: 100, reclaimWithinCohort: Any, withinClusterQueue: LowerPriority, workloadsSets: [
    {count: 350, creationIntervalMs: 100, workloads: [{className: small, runtimeMs: 200, priority: 50, request: 1}]},
    {count: 100, creationIntervalMs: 500, workloads: [{className: medium, runtimeMs: 500, priority: 100, request: 5}]},
    {count: 50, creationIntervalMs: 1200, workloads: [{className: large, runtimeMs: 1000, priority: 200, request: 20}]}]}]}
";

    #[test]
    fn the_published_shape_has_the_published_figures() {
        let shape = WorkShape::parse(PUBLISHED, 1).unwrap();
        assert_eq!(shape.described(), "5 cohorts, 30 queues, 15000 workloads");
        // Research has 66 s.
        assert_eq!(shape.least_time(), Duration::from_secs(66));
        let queues = shape.queues();
        assert_eq!(queues[7].name, "cq-0-1-cohort-1");
        assert_eq!((queues[7].nominal, queues[7].most), (20, 120));
        assert_eq!(shape.cohorts()[4], ("cohort-4".to_owned(), 120));
        let fifth = WorkShape::parse(PUBLISHED, 5).unwrap();
        assert_eq!(fifth.workloads(), 3_000);
        assert_eq!(fifth.least_time(), Duration::from_millis(13_200));
        assert_eq!(
            WorkShape::parse(PUBLISHED, usize::MAX).unwrap().workloads(),
            90
        );
    }

    #[test]
    fn a_file_without_work_or_with_too_much_is_refused() {
        let refused = |from: &str, to: &str| {
            let text = PUBLISHED.replace(from, to);
            assert_ne!(text, PUBLISHED);
            format!("{:#}", WorkShape::parse(&text, 1).unwrap_err())
        };
        assert!(refused("count: 5,", "count: 0,").contains("no workload"));
        assert!(refused("count: 5,", "count: 5000,").contains("15000000 workloads are more"));
        assert!(refused("count: 5,", "count: 18446744073709551615,").contains("more than"));
        assert!(refused("nominalQuota: 20,", "nominalQuota: 0,").contains("no quota"));
        assert!(refused("nominalQuota: 20,", "nominalQuota: 500m,").contains("500m"));
        assert!(refused("className: cq", "klassName: cq").contains("klassName"));
        assert!(refused("[{className: cq", "{className: cq").len() > 10);
    }
}
