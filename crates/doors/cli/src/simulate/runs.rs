//! Runs of several policies and seeds, as many at once as there are cores.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sublet_plan::Policy;
use sublet_sim::{CpuOnlyPods, Inflation, Sequence, Variant};

use super::args::{Args, BadRequest, CpuOnlyPodsArg, Protocol};
use super::input::Input;
use super::progress::{Progress, RunProgress};

/// Amount of requests that arrive, in percent of the cluster, as in the experiments of FGD's paper.
const ARRIVE: u32 = 130;

/// One run to do.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub(super) policy: Policy,
    /// `None` if no order of arrival is drawn.
    pub(super) seed: Option<u64>,
}

/// One run that was done.
#[derive(Debug)]
pub(super) struct Run<'p, P, O> {
    pub(super) planned: &'p P,
    pub(super) outcome: O,
    /// CPU time of the run's thread.
    pub(super) cpu: Duration,
}

/// Policies in the order given, each with all seeds.
pub(super) fn plan(args: &Args) -> Result<Vec<Planned>, BadRequest> {
    let mut plan: Vec<Planned> = Vec::new();
    for policy in &args.policy {
        if plan.iter().any(|earlier| earlier.policy == *policy) {
            return Err(BadRequest::Twice(policy.to_string()));
        }
        let seeds = if args.sequence.is_some() || args.protocol != Protocol::Inflation {
            vec![None]
        } else {
            let seeds = args.seed.clone().unwrap_or_default();
            seeds.0.into_iter().map(Some).collect()
        };
        plan.extend(seeds.into_iter().map(|seed| Planned {
            policy: policy.clone(),
            seed,
        }));
    }
    Ok(plan)
}

/// Does all runs, as many at once as there are cores. The answer is in the order of the plan, not
/// in the order of completion.
///
/// # Errors
/// The first run of the plan that makes no sense.
pub(super) fn side_by_side<'p, P: Sync, O: Send>(
    args: &Args,
    plan: &'p [P],
    one: impl Fn(&'p P, &RunProgress<'_>) -> Result<O, BadRequest> + Sync,
) -> Result<Vec<Run<'p, P, O>>, BadRequest> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = args
        .threads
        .map_or(cores, NonZeroUsize::get)
        .min(plan.len());
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<_>> = Mutex::new(plan.iter().map(|_| None).collect());
    let progress = Progress::new(plan.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((at, planned)) = take(&next, plan) {
                    let begin = cpu_time();
                    let progress = progress.of_run(at);
                    let run = one(planned, &progress).map(|outcome| Run {
                        planned,
                        outcome,
                        cpu: cpu_time().saturating_sub(begin),
                    });
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done[at] = Some(run);
                    progress.ended();
                }
            });
        }
    });
    progress.clear();
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.into_iter().flatten().collect()
}

fn take<'a, P>(next: &AtomicUsize, plan: &'a [P]) -> Option<(usize, &'a P)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    plan.get(at).map(|planned| (at, planned))
}

impl Planned {
    /// In which order pods arrive.
    pub(super) fn sequence<'a>(&self, args: &Args, input: &'a Input) -> Cow<'a, Sequence> {
        let (seed, arrive) = match (&input.sequence, self.seed) {
            (Some(given), _) => return Cow::Borrowed(given),
            // A cluster whose pods are to be moved is taken as it runs.
            (None, seed) if args.defrag.is_some() && args.snapshot.is_some() => {
                (seed, args.arrive.unwrap_or(0))
            }
            (None, seed) => (seed, args.arrive.unwrap_or(ARRIVE)),
        };
        let seed = seed.unwrap_or_default();
        Cow::Owned(Sequence::draw(seed, &input.nodes, &input.pods, arrive * 10))
    }

    /// The run, in that order of arrival.
    pub(super) fn inflation<'a>(
        &'a self,
        args: &Args,
        input: &'a Input,
        sequence: &'a Sequence,
    ) -> Inflation<'a> {
        Inflation {
            nodes: &input.nodes,
            pods: &input.pods,
            sequence,
            policy: &self.policy,
            variant: Variant {
                cpu_only: cpu_only(args),
                ..Variant::default()
            },
        }
    }
}

pub(super) fn cpu_only(args: &Args) -> CpuOnlyPods {
    match args.cpu_only_pods {
        CpuOnlyPodsArg::Policy => CpuOnlyPods::Policy,
        CpuOnlyPodsArg::Stock => CpuOnlyPods::Stock,
    }
}

/// CPU time of this thread, user and system.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The most memory this process ever had, in MiB; `None` if the kernel does not say.
pub(super) fn peak_memory_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib.div_ceil(1024))
}
