//! Keeps the results of runs. Each run is done once, however many figures need it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use sublet_plan::Policy;
use sublet_sim::{CpuOnlyPods, Inflation, Outcome, Variant, inflate};

use super::traces::Traces;
use crate::progress::progress;

/// Number of runs at a time: the targets are for two cores.
pub(super) const CORES: usize = 2;

/// Percent of arrival at which policies are compared.
pub(super) const PERCENTS: [u32; 5] = [95, 100, 110, 120, 130];

/// Difference of a run from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// Not at all.
    Protocol,
    /// The scheduler starts again at 90 % arrived.
    Restart,
    /// The stock scheduler places pods without GPU.
    Stock,
}

impl Way {
    fn variant(self) -> Variant {
        let protocol = Variant::default();
        match self {
            Way::Protocol => protocol,
            Way::Restart => Variant {
                restart_at: Some(90),
                ..protocol
            },
            Way::Stock => Variant {
                cpu_only: CpuOnlyPods::Stock,
                ..protocol
            },
        }
    }
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Case {
    pub(super) list: &'static str,
    pub(super) policy: &'static str,
    pub(super) way: Way,
    pub(super) seed: u64,
}

/// The results of the runs that are done.
pub(super) struct Bank<'a> {
    traces: &'a Traces,
    /// The seeds that are reported.
    pub(super) seeds: &'a [u64],
    done: BTreeMap<Case, Outcome>,
}

impl<'a> Bank<'a> {
    pub(super) fn new(traces: &'a Traces, seeds: &'a [u64]) -> Bank<'a> {
        Bank {
            traces,
            seeds,
            done: BTreeMap::new(),
        }
    }

    /// The lists, in the order of the published tables.
    pub(super) fn lists(&self) -> impl Iterator<Item = &'static str> {
        let known = |list: &&str| self.traces.lists.contains_key(list);
        super::traces::PUBLISHED.into_iter().filter(known)
    }

    /// Does those runs that are not done yet, on two cores. Returns how many they were and how long
    /// they took.
    pub(super) fn fill(
        &mut self,
        what: &str,
        cases: impl IntoIterator<Item = Case>,
    ) -> Result<(usize, Duration)> {
        let new = |case: &Case| !self.done.contains_key(case);
        let cases: Vec<Case> = cases.into_iter().filter(new).collect();
        let began = Instant::now();
        let run = |case: &Case| perform(self.traces, *case).map(|outcome| (*case, outcome));
        let done = side_by_side(what, &cases, run)?;
        self.done.extend(done);
        Ok((cases.len(), began.elapsed()))
    }

    /// Does the runs of all seeds, on all lists, with these policies.
    pub(super) fn fill_all(
        &mut self,
        what: &str,
        policies: &[&'static str],
        way: Way,
    ) -> Result<(usize, Duration)> {
        let mut cases = Vec::new();
        for list in self.lists() {
            for &policy in policies {
                cases.extend(self.seeds.iter().map(|&seed| Case {
                    list,
                    policy,
                    way,
                    seed,
                }));
            }
        }
        self.fill(what, cases)
    }

    /// The result of a run that is done.
    pub(super) fn outcome(&self, case: Case) -> Result<&Outcome> {
        let found = self.done.get(&case);
        found.with_context(|| format!("not run: {case:?}"))
    }

    /// The results for all reported seeds.
    pub(super) fn outcomes(
        &self,
        list: &'static str,
        policy: &'static str,
        way: Way,
    ) -> Result<Vec<&Outcome>> {
        let of = |&seed| {
            self.outcome(Case {
                list,
                policy,
                way,
                seed,
            })
        };
        self.seeds.iter().map(of).collect()
    }
}

fn perform(traces: &Traces, case: Case) -> Result<Outcome> {
    let policy: Policy = case.policy.parse()?;
    let run = Inflation {
        nodes: &traces.nodes,
        pods: traces.lists.get(case.list).context("an unknown list")?,
        sequence: traces.sequence(case.list, case.seed)?,
        policy: &policy,
        variant: case.way.variant(),
    };
    let outcome = inflate(run, |_| {});
    // Thousands of results are kept, and no figure needs the place of each pod.
    Ok(Outcome {
        placements: Vec::new(),
        ..outcome
    })
}

/// Calls `run` for each of these on two cores, and shows the waiting person the progress.
pub(super) fn side_by_side<T: Sync, R: Send>(
    what: &str,
    tasks: &[T],
    run: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..CORES.min(tasks.len()) {
            scope.spawn(|| {
                while let Some((at, task)) = take(&next, tasks) {
                    let result = run(task);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push((at, result));
                    if done.len().is_multiple_of(100) {
                        progress(&format!("{what}: {} of {} runs", done.len(), tasks.len()));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

fn take<'a, T>(next: &AtomicUsize, tasks: &'a [T]) -> Option<(usize, &'a T)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    tasks.get(at).map(|task| (at, task))
}

/// The GPU share that each run leaves unallocated, at this percent of arrival.
pub(super) fn unallocated(outcomes: &[&Outcome], percent: u32) -> Vec<f64> {
    let at = |outcome: &&Outcome| {
        outcome
            .curve
            .at(percent)
            .map(|point| point.allocated_percent)
    };
    let found = outcomes.iter().filter_map(at);
    found.map(|allocated| 100.0 - allocated).collect()
}

/// Difference in the unallocated GPU share between each of these runs and its counterpart in
/// `those`.
pub(super) fn paired(these: &[&Outcome], those: &[&Outcome], percent: u32) -> Vec<f64> {
    let (these, those) = (unallocated(these, percent), unallocated(those, percent));
    these.iter().zip(&those).map(|(a, b)| a - b).collect()
}

#[cfg(test)]
mod tests {
    use sublet_sim::{Curve, CurvePoint};

    use super::*;

    fn outcome(allocated: f64) -> Outcome {
        let point = |arrived_percent, allocated_percent| CurvePoint {
            arrived_percent,
            allocated_percent,
            fragmented_percent: 0.0,
        };
        let points = vec![point(95, 90.0), point(100, allocated)];
        Outcome {
            placements: Vec::new(),
            placed: 0,
            drops: sublet_sim::Drops::default(),
            reasons: sublet_sim::Reasons::new(),
            curve: Curve { points },
            used_nodes: 0,
        }
    }

    #[test]
    fn differences_are_taken_order_by_order() {
        let (a, b, c, d) = (outcome(95.0), outcome(96.0), outcome(94.5), outcome(98.0));
        assert_eq!(unallocated(&[&a, &b], 100), [5.0, 4.0]);
        assert_eq!(unallocated(&[&a], 130), [0.0; 0]);
        assert_eq!(paired(&[&a, &b], &[&c, &d], 100), [-0.5, 2.0]);
        assert_eq!(paired(&[&a], &[&c], 95), [0.0]);
    }

    #[test]
    fn what_runs_side_by_side_comes_back_in_order() {
        let tasks: Vec<u64> = (0..50).collect();
        let twice = side_by_side("test", &tasks, |task| Ok(2 * task)).unwrap();
        assert!(
            twice
                .iter()
                .zip(&tasks)
                .all(|(twice, task)| *twice == 2 * task)
        );
        let odd = side_by_side("test", &tasks, |task| {
            anyhow::ensure!(task % 7 != 3, "{task} fails");
            Ok(*task)
        });
        assert_eq!(odd.unwrap_err().to_string(), "3 fails");
    }
}
