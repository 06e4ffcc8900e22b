//! The outcome of a replay: the waits of jobs, the share of the cluster that they used, and the
//! part of it that was lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::jobs::{Jobs, SizeClass};

/// The waits of the jobs of a group, in seconds, shortest first: from the arrival of each to the
/// start of the run in which it ended. Runs that were lost count as waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitGroup<T> {
    /// The group.
    pub of: T,
    /// So many jobs are in it.
    pub jobs: usize,
    /// The waits of the jobs that have ended.
    pub waits: Vec<u64>,
    /// Number of evictions of its jobs.
    pub evictions: u64,
    /// GPUs that are the tenant's own, in thousandths; nothing for sizes.
    pub min_milli: u64,
}

/// The outcome of a replay. Shares of the cluster are those between the first arrival and the last.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayOutcome {
    /// By size, the sizes that have jobs: the same groups for every discipline.
    pub sizes: Vec<WaitGroup<SizeClass>>,
    /// By tenant, the tenants that have jobs.
    pub tenants: Vec<WaitGroup<Arc<str>>>,
    /// So many jobs have ended.
    pub ended: usize,
    /// So many were left waiting when nothing came and nothing ran any more.
    pub left: usize,
    /// So many could not start if nothing ran, and the name of the first; nobody waited for them.
    pub impossible: (u32, Option<Arc<str>>),
    /// The waits of gangs by reason, in seconds of one gang, by the word for the reason; empty if
    /// the discipline does not say. Runs that were lost are not in here.
    pub gangs_waited_for: BTreeMap<&'static str, u64>,
    /// Number of evictions.
    pub evictions: u64,
    /// GPU time that evicted jobs had used, in hours of one GPU.
    pub lost_hours: f64,
    /// Percent of the cluster's GPU time in which jobs ran to their end.
    pub useful_percent: f64,
    /// Percent of it in which jobs ran that were evicted later.
    pub lost_percent: f64,
    /// From the first arrival to the last end, in seconds.
    pub makespan: u64,
    /// At the end, was everything given back, and were all accounts right?
    pub ends_empty: bool,
}

/// The counts of a group.
#[derive(Debug, Clone, Default)]
struct Tally {
    jobs: usize,
    waits: Vec<u64>,
    evictions: u64,
}

/// Counts while jobs come and go.
pub(super) struct Figures {
    by_size: Vec<Tally>,
    by_tenant: Vec<Tally>,
    ended: usize,
    evictions: u64,
    /// When the last one ended.
    end: u64,
    /// Thousandths of cards, times seconds; the first two between the first arrival and the last.
    useful: u128,
    lost_there: u128,
    lost: u128,
}

impl Figures {
    pub(super) fn of(jobs: &Jobs) -> Figures {
        let mut figures = Figures {
            by_size: vec![Tally::default(); SizeClass::ALL.len()],
            by_tenant: vec![Tally::default(); jobs.tenants().len()],
            ended: 0,
            evictions: 0,
            end: jobs.window().0,
            useful: 0,
            lost_there: 0,
            lost: 0,
        };
        for number in 0..jobs.all().len() {
            for tally in figures.groups(jobs, number) {
                tally.jobs += 1;
            }
        }
        figures
    }

    /// The groups of a job.
    fn groups(&mut self, jobs: &Jobs, number: usize) -> [&mut Tally; 2] {
        [
            &mut self.by_size[jobs.kind(number).size as usize],
            &mut self.by_tenant[jobs.all()[number].tenant],
        ]
    }

    /// A job has ended that ran from then to then.
    pub(super) fn ended(&mut self, jobs: &Jobs, number: usize, (from, to): (u64, u64)) {
        let (job, kind) = (jobs.all()[number], jobs.kind(number));
        let wait = from - job.at;
        for tally in self.groups(jobs, number) {
            tally.waits.push(wait);
        }
        self.ended += 1;
        self.end = self.end.max(to);
        self.useful += u128::from(kind.milli()) * overlap(jobs.window(), (from, to));
    }

    /// A job was evicted that ran from then to then.
    pub(super) fn lost(&mut self, jobs: &Jobs, number: usize, (from, to): (u64, u64)) {
        let milli = u128::from(jobs.kind(number).milli());
        self.evictions += 1;
        for tally in self.groups(jobs, number) {
            tally.evictions += 1;
        }
        self.lost_there += milli * overlap(jobs.window(), (from, to));
        self.lost += milli * u128::from(to - from);
    }

    pub(super) fn outcome(
        self,
        jobs: &Jobs,
        gangs_waited_for: BTreeMap<&'static str, u64>,
        ends_empty: bool,
    ) -> ReplayOutcome {
        let (first, last) = jobs.window();
        let offered = u128::from(jobs.capacity()) * u128::from(last - first);
        let percent = |part: u128| match offered {
            0 => 0.0,
            all => 100.0 * part as f64 / all as f64,
        };
        let sizes = SizeClass::ALL.into_iter().map(|size| (size, 0));
        let tenants = jobs.tenants().iter().cloned();
        let tenants = tenants.zip(jobs.minima().iter().copied());
        ReplayOutcome {
            sizes: groups(sizes, self.by_size),
            tenants: groups(tenants, self.by_tenant),
            gangs_waited_for,
            ended: self.ended,
            left: jobs.all().len() - self.ended,
            impossible: jobs.impossible().clone(),
            evictions: self.evictions,
            lost_hours: self.lost as f64 / 3_600_000.0,
            useful_percent: percent(self.useful),
            lost_percent: percent(self.lost_there),
            makespan: self.end - first,
            ends_empty,
        }
    }
}

/// The groups that have jobs.
fn groups<T>(of: impl Iterator<Item = (T, u64)>, tallies: Vec<Tally>) -> Vec<WaitGroup<T>> {
    let all = of.zip(tallies).filter(|(_, tally)| tally.jobs > 0);
    let group = |((of, min_milli), mut tally): ((T, u64), Tally)| {
        tally.waits.sort_unstable();
        WaitGroup {
            of,
            jobs: tally.jobs,
            waits: tally.waits,
            evictions: tally.evictions,
            min_milli,
        }
    };
    all.map(group).collect()
}

/// So many seconds are in both spans.
fn overlap(one: (u64, u64), other: (u64, u64)) -> u128 {
    let to = one.1.min(other.1);
    u128::from(to.saturating_sub(one.0.max(other.0)))
}
