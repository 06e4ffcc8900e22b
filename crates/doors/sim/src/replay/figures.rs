//! The outcome of a replay: the waits of jobs, the share of the cluster that they used, the part of
//! it that was lost, and what each tenant has beside a partition of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::jobs::{Jobs, SizeClass};
use super::partition::PartitionSize;
use super::served::Served;

/// Run times below this many seconds count as this many in a slowdown (Feitelson and others,
/// *Theory and Practice in Parallel Job Scheduling*, 1997: else the shortest jobs decide it).
const SHORTEST_RUN: u64 = 10;

/// A tenant shares to its advantage, or not, if so many thousandths of cards are its own. Of less the
/// rounding to whole nodes makes a multiple.
const SHARERS: u64 = 4000;

/// The waits of the jobs of a group, in seconds, shortest first: from the arrival of each to the
/// start of the run in which it ended. Runs that were lost count as waiting, and saved work
/// does not.
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
    /// The tenant on a partition of its own, of whole nodes; nothing for sizes, and for tenants without
    /// `min`.
    pub alone: Option<Alone>,
    /// The same on a partition of its `min` and nothing above it.
    pub on_min: Option<Alone>,
}

impl<T> WaitGroup<T> {
    /// The tenant on a partition of that size.
    #[must_use]
    pub fn alone(&self, size: PartitionSize) -> Option<&Alone> {
        match size {
            PartitionSize::WholeNodes => self.alone.as_ref(),
            PartitionSize::Min => self.on_min.as_ref(),
        }
    }
}

/// Waits of jobs that the `min` of their tenant has room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WithinMin {
    /// The longest that one waited so without a break, in seconds.
    pub longest: u64,
    /// So many jobs waited so for half an hour longer than they had to at most.
    pub late: usize,
}

/// A tenant on a partition of its own: nodes for its `min`, on which its jobs start by backfill.
/// Jobs that are larger than the partition are in none of its figures but
/// `lag_seconds`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alone {
    /// GPUs of the partition.
    pub gpus: u64,
    /// The waits there, shortest first.
    pub waits: Vec<u64>,
    /// The waits of the same jobs in this replay, shortest first.
    pub here: Vec<u64>,
    /// The most that the tenant was behind in this replay: GPU time that its jobs had got on the
    /// partition and had not got here, in seconds of its `min`. A run that is lost later takes its
    /// time back.
    pub lag_seconds: u64,
}

/// The mean of waits, in seconds.
#[must_use]
pub fn mean(waits: &[u64]) -> Option<f64> {
    let sum: u128 = waits.iter().map(|wait| u128::from(*wait)).sum();
    (!waits.is_empty()).then(|| sum as f64 / waits.len() as f64)
}

impl Alone {
    /// Does the tenant wait no longer in this replay than on its partition, on average?
    #[must_use]
    pub fn is_no_worse_here(&self) -> bool {
        let sum = |waits: &[u64]| waits.iter().map(|wait| u128::from(*wait)).sum::<u128>();
        sum(&self.here) <= sum(&self.waits)
    }
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
    /// So many could never start because their tenant has no partition, or one that is too small;
    /// none where all share the cluster.
    pub too_large: usize,
    /// The waits of gangs by reason, in seconds of one gang, by the word for the reason; empty if
    /// the discipline does not say. Runs that were lost are not in here.
    pub gangs_waited_for: BTreeMap<&'static str, u64>,
    /// Waits of jobs that the `min` of their tenant has room for; none if the discipline does not say.
    pub within_min: Option<WithinMin>,
    /// Number of evictions.
    pub evictions: u64,
    /// GPU time that evicted jobs had used, in hours of one GPU.
    pub lost_hours: f64,
    /// Percent of the cluster's GPU time in which jobs ran to their end.
    pub useful_percent: f64,
    /// Percent of it in which jobs ran that were evicted later.
    pub lost_percent: f64,
    /// The mean wait of all jobs that have ended, in seconds.
    pub mean_wait: f64,
    /// The mean of their bounded slowdowns: (wait + run time) / run time, at least 1, with a run
    /// time of at least 10 s.
    pub bounded_slowdown: f64,
    /// From the first arrival to the last end, in seconds.
    pub makespan: u64,
    /// At the end, was everything given back, and were all accounts right?
    pub ends_empty: bool,
}

impl ReplayOutcome {
    /// Number of tenants with a `min` of 4 GPUs and more that wait no longer than on a partition of
    /// their own, and number of all of these.
    #[must_use]
    pub fn sharing_incentive(&self, size: PartitionSize) -> (usize, usize) {
        let large = self.tenants.iter().filter(|of| of.min_milli >= SHARERS);
        let alone: Vec<&Alone> = large.filter_map(|of| of.alone(size)).collect();
        let no_worse = alone.iter().filter(|alone| alone.is_no_worse_here());
        (no_worse.count(), alone.len())
    }

    /// The tenant that was most behind its partition, and by how many seconds of its `min`.
    #[must_use]
    pub fn largest_lag(&self, size: PartitionSize) -> Option<(&Arc<str>, u64)> {
        let lags = self.tenants.iter();
        let lags = lags.filter_map(|of| Some((&of.of, of.alone(size)?.lag_seconds)));
        lags.max_by_key(|(_, lag)| *lag)
    }
}

/// The counts of a group.
#[derive(Debug, Clone, Default)]
struct Tally {
    jobs: usize,
    waits: Vec<u64>,
    evictions: u64,
}

/// Report of a discipline at the end.
pub(super) struct Told {
    pub(super) gangs_waited_for: BTreeMap<&'static str, u64>,
    pub(super) within_min: Option<WithinMin>,
}

/// Remarks about a replay beside its figures.
pub(super) struct Comparison<'a> {
    pub(super) told: Told,
    pub(super) ends_empty: bool,
    /// Had each tenant its own nodes?
    pub(super) is_apart: bool,
    /// By the size of partitions, the figures of the jobs with each tenant on its own nodes, and the
    /// GPUs of these by tenant.
    pub(super) alone: &'a [(Figures, Vec<u64>); 2],
}

/// Counts while jobs come and go.
pub(super) struct Figures {
    by_size: Vec<Tally>,
    by_tenant: Vec<Tally>,
    /// By job, its wait once it has ended.
    waits: Vec<Option<u64>>,
    served: Vec<Served>,
    /// Sum of the slowdowns.
    slowdown: f64,
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
            waits: vec![None; jobs.all().len()],
            served: vec![Served::default(); jobs.tenants().len()],
            slowdown: 0.0,
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

    /// A job starts.
    pub(super) fn started(&mut self, jobs: &Jobs, number: usize, at: u64) {
        let tenant = jobs.all()[number].tenant;
        self.served[tenant].start(at, jobs.kind(number).milli());
    }

    /// A job was evicted, and keeps what it did from then to then.
    pub(super) fn saved(&mut self, jobs: &Jobs, number: usize, span: (u64, u64)) {
        let milli = u128::from(jobs.kind(number).milli());
        self.useful += milli * overlap(jobs.window(), span);
    }

    /// A job has ended that ran from then to then, after it had saved so many seconds of work.
    pub(super) fn ended(&mut self, jobs: &Jobs, number: usize, (from, to): (u64, u64), saved: u64) {
        let (job, kind) = (jobs.all()[number], jobs.kind(number));
        let wait = from - job.at - saved;
        self.waits[number] = Some(wait);
        self.slowdown += slowdown(wait, to - from + saved);
        self.served[job.tenant].stop(to, kind.milli());
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
        let served = &mut self.served[jobs.all()[number].tenant];
        served.stop(to, jobs.kind(number).milli());
        served.take_back(milli * u128::from(to - from));
        self.evictions += 1;
        for tally in self.groups(jobs, number) {
            tally.evictions += 1;
        }
        self.lost_there += milli * overlap(jobs.window(), (from, to));
        self.lost += milli * u128::from(to - from);
    }

    pub(super) fn outcome(mut self, jobs: &Jobs, comparison: Comparison<'_>) -> ReplayOutcome {
        let (first, last) = jobs.window();
        let offered = u128::from(jobs.capacity()) * u128::from(last - first);
        let percent = |part: u128| match offered {
            0 => 0.0,
            all => 100.0 * part as f64 / all as f64,
        };
        let [alone, on_min] = comparison.alone;
        let alone = self.alone(jobs, alone).into_iter();
        let alone = alone.zip(self.alone(jobs, on_min)).map(<[_; 2]>::from);
        let sizes = SizeClass::ALL.map(|size| (size, 0, [None, None]));
        let minima = jobs.minima().iter().copied();
        let tenants = jobs.tenants().iter().cloned().zip(minima).zip(alone);
        let tenants = tenants.map(|((name, min), alone)| (name, min, alone));
        let ended: Vec<u64> = self.waits.iter().copied().flatten().collect();
        let left = jobs.all().len() - self.ended;
        // On nodes of their own, only those never start that are too large: backfill tries all.
        let (left, too_large) = if comparison.is_apart {
            (0, left)
        } else {
            (left, 0)
        };
        ReplayOutcome {
            sizes: groups(sizes.into_iter(), std::mem::take(&mut self.by_size)),
            tenants: groups(tenants, std::mem::take(&mut self.by_tenant)),
            gangs_waited_for: comparison.told.gangs_waited_for,
            within_min: comparison.told.within_min,
            ended: self.ended,
            left,
            impossible: jobs.impossible().clone(),
            too_large,
            evictions: self.evictions,
            lost_hours: self.lost as f64 / 3_600_000.0,
            useful_percent: percent(self.useful),
            lost_percent: percent(self.lost_there),
            mean_wait: mean(&ended).unwrap_or(0.0),
            bounded_slowdown: self.slowdown / ended.len().max(1) as f64,
            makespan: self.end - first,
            ends_empty: comparison.ends_empty,
        }
    }

    /// By tenant, what it has beside a partition of its own.
    fn alone(&self, jobs: &Jobs, (figures, gpus): &(Figures, Vec<u64>)) -> Vec<Option<Alone>> {
        let mut all: Vec<Option<Alone>> = Vec::new();
        for (tenant, min) in jobs.minima().iter().enumerate() {
            let lag = self.served[tenant].lag(&figures.served[tenant]);
            // Without `min` there is no partition.
            let lag = lag.checked_div(u128::from(*min));
            all.push(lag.map(|lag| Alone {
                gpus: gpus[tenant],
                waits: Vec::new(),
                here: Vec::new(),
                lag_seconds: u64::try_from(lag).unwrap_or(u64::MAX),
            }));
        }
        let waits = figures.waits.iter().zip(&self.waits);
        for (job, waits) in jobs.all().iter().zip(waits) {
            if let (Some(alone), (Some(there), Some(here))) = (&mut all[job.tenant], waits) {
                alone.waits.push(*there);
                alone.here.push(*here);
            }
        }
        for alone in all.iter_mut().flatten() {
            alone.waits.sort_unstable();
            alone.here.sort_unstable();
        }
        all
    }
}

/// The bounded slowdown of a job.
fn slowdown(wait: u64, run: u64) -> f64 {
    let of = wait.saturating_add(run) as f64 / run.max(SHORTEST_RUN) as f64;
    of.max(1.0)
}

/// The groups that have jobs.
fn groups<T>(
    of: impl Iterator<Item = (T, u64, [Option<Alone>; 2])>,
    tallies: Vec<Tally>,
) -> Vec<WaitGroup<T>> {
    let all = of.zip(tallies).filter(|(_, tally)| tally.jobs > 0);
    let group = |((of, min_milli, alone), mut tally): ((T, u64, [Option<Alone>; 2]), Tally)| {
        let [alone, on_min] = alone;
        tally.waits.sort_unstable();
        WaitGroup {
            of,
            jobs: tally.jobs,
            waits: tally.waits,
            evictions: tally.evictions,
            min_milli,
            alone,
            on_min,
        }
    };
    all.map(group).collect()
}

/// So many seconds are in both spans.
fn overlap(one: (u64, u64), other: (u64, u64)) -> u128 {
    let to = one.1.min(other.1);
    u128::from(to.saturating_sub(one.0.max(other.0)))
}
