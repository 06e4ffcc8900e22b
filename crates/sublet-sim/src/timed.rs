//! Pods come and go at the times of the trace; those that find no place wait.
//!
//! Whenever something leaves, all that wait are tried again, by priority and then by arrival.
//! Nobody is evicted and nobody blocks the line: a pod behind may start first, as beside the
//! stock scheduler.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use sublet_plan::Policy;

use crate::trace::{Nodes, Pods};
use crate::world::World;

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct Timed<'a> {
    /// The cluster.
    pub nodes: &'a Nodes,
    /// The pods, which come and go by themselves.
    pub pods: &'a Pods,
    /// By row of the node list: of two nodes that cost the same the lower rank goes first.
    pub ranks: &'a [u32],
    /// How to place.
    pub policy: &'a Policy,
    /// Time is pressed together, or drawn apart, until so many thousandths of the cluster's
    /// GPU time are asked between the first arrival and the last; `None` leaves it as it is.
    pub load: Option<u32>,
}

/// Why pods cannot come and go.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimedError {
    /// A pod without times.
    #[error("pod {0} has no creation_time, or neither deletion_time nor duration")]
    NoTimes(Arc<str>),
    /// The pods ask for no GPU time at all, so that none can be pressed together.
    #[error("--load: the pods ask for no GPU time, or all come at once")]
    NoLoad,
}

/// What came of a run. Times are in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedOutcome {
    /// How long each placed pod waited, shortest first.
    pub waits: Vec<u64>,
    /// Pods that no node can ever take, by row of the pod list.
    pub impossible: Vec<u32>,
    /// From the first arrival to the last departure.
    pub makespan: u64,
    /// GPU share in use: the mean over the makespan, in percent of the cluster.
    pub mean_percent: f64,
    /// The same in each of so many equal parts of the makespan.
    pub parts_percent: [f64; 20],
    /// Was everything given back at the end?
    pub ends_empty: bool,
}

/// GPU share in use, as steps over time.
#[derive(Debug, Default)]
struct Usage {
    /// From when on, and how many thousandths of cards.
    steps: Vec<(u64, u64)>,
}

impl Usage {
    fn note(&mut self, at: u64, milli: u64) {
        match self.steps.last_mut() {
            Some(last) if last.0 == at => last.1 = milli,
            _ => self.steps.push((at, milli)),
        }
    }

    /// The mean from `from` to `to`, in thousandths of cards.
    fn mean(&self, from: u64, to: u64) -> f64 {
        let mut sum = 0.0;
        for (at, step) in self.steps.iter().enumerate() {
            let end = self.steps.get(at + 1).map_or(to, |next| next.0).min(to);
            sum += step.1 as f64 * end.saturating_sub(step.0.max(from)) as f64;
        }
        sum / to.saturating_sub(from).max(1) as f64
    }
}

/// A run in the middle.
struct Play<'a> {
    pods: &'a Pods,
    world: World,
    /// What runs: when it ends, and its number in order of arrival.
    running: BinaryHeap<Reverse<(u64, usize)>>,
    /// What waits, in the order in which it is tried: by priority, then arrival.
    waiting: BTreeMap<(Reverse<i32>, usize), u64>,
    order: Vec<u32>,
    waits: Vec<u64>,
    usage: Usage,
}

/// Runs the protocol. `on` is told how many pods have come or gone.
///
/// # Errors
/// Pods without times, or a load that cannot be had.
pub fn timed(run: Timed<'_>, mut on: impl FnMut(usize)) -> Result<TimedOutcome, TimedError> {
    let world = World::new(run.nodes, run.ranks, run.pods, run.policy);
    let arrivals = arrivals(&run, &world)?;
    let mut play = Play {
        pods: run.pods,
        world,
        running: BinaryHeap::new(),
        waiting: BTreeMap::new(),
        order: arrivals.iter().map(|arrival| arrival.1).collect(),
        waits: Vec::new(),
        usage: Usage::default(),
    };
    let begin = arrivals.first().map_or(0, |arrival| arrival.0);
    let mut end = begin;
    let mut coming = arrivals.iter().enumerate().peekable();
    for event in 0.. {
        let next_end = play.running.peek().map(|Reverse((at, _))| *at);
        let next_come = coming.peek().map(|(_, arrival)| arrival.0);
        let now = match (next_end, next_come) {
            (None, None) => break,
            (Some(at), None) | (None, Some(at)) => at,
            (Some(one), Some(other)) => one.min(other),
        };
        end = now;
        // What ends at a moment makes room for what comes at it.
        if play.leave(now) {
            play.try_waiting(now);
        }
        while let Some((number, arrival)) = coming.next_if(|(_, arrival)| arrival.0 == now) {
            let row = &run.pods.rows[arrival.1 as usize];
            if !play.start(number, now, now) {
                play.waiting.insert((Reverse(row.priority), number), now);
            }
        }
        let in_use = play.world.allocated_milli();
        play.usage.note(now, in_use);
        on(event);
    }
    Ok(play.outcome(begin, end))
}

/// When each pod comes, and its row; by time, then by row.
fn arrivals(run: &Timed<'_>, world: &World) -> Result<Vec<(u64, u32)>, TimedError> {
    let mut arrivals = Vec::with_capacity(run.pods.rows.len());
    let mut asked: u128 = 0;
    for (row, pod) in (0..).zip(&run.pods.rows) {
        let (Some(comes), Some(lasts)) = (pod.comes, pod.lasts) else {
            return Err(TimedError::NoTimes(pod.name.clone()));
        };
        asked += u128::from(world.asked_milli(pod)) * u128::from(lasts);
        arrivals.push((comes, row));
    }
    arrivals.sort_unstable();
    let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else {
        return Ok(arrivals);
    };
    let (begin, span) = (first.0, u128::from(last.0 - first.0));
    let Some(load) = run.load else {
        return Ok(arrivals);
    };
    let offered = u128::from(world.capacity_milli()) * span * u128::from(load);
    if asked == 0 || offered == 0 {
        return Err(TimedError::NoLoad);
    }
    for (comes, _) in &mut arrivals {
        let after = u128::from(*comes - begin) * asked * 1000 / offered;
        *comes = u64::try_from(after).unwrap_or(u64::MAX);
    }
    Ok(arrivals)
}

impl Play<'_> {
    /// Takes away what ends now; true if anything does.
    fn leave(&mut self, now: u64) -> bool {
        let mut left = false;
        while let Some(&Reverse((at, number))) = self.running.peek() {
            if at > now {
                break;
            }
            self.running.pop();
            self.world
                .leave(number, &self.pods.rows[self.order[number] as usize]);
            left = true;
        }
        left
    }

    fn try_waiting(&mut self, now: u64) {
        // Who asks the same as one that found no place finds none either.
        let mut refused = Vec::new();
        let tried: Vec<_> = self
            .waiting
            .iter()
            .map(|(key, since)| (*key, *since))
            .collect();
        for (key, since) in tried {
            let claim = &self.pods.rows[self.order[key.1] as usize].claim;
            if refused.iter().any(|other| Arc::ptr_eq(claim, other)) {
                continue;
            }
            if self.start(key.1, since, now) {
                self.waiting.remove(&key);
            } else {
                refused.push(Arc::clone(claim));
            }
        }
    }

    /// Places a pod that came at `since`, if there is room.
    fn start(&mut self, number: usize, since: u64, now: u64) -> bool {
        let pod = &self.pods.rows[self.order[number] as usize];
        if self.world.arrive(number, pod).is_none() {
            return false;
        }
        self.waits.push(now - since);
        let end = now.saturating_add(pod.lasts.unwrap_or(0));
        self.running.push(Reverse((end, number)));
        true
    }

    fn outcome(mut self, begin: u64, end: u64) -> TimedOutcome {
        self.waits.sort_unstable();
        let capacity = self.world.capacity_milli().max(1) as f64;
        let percent = |milli: f64| 100.0 * milli / capacity;
        let makespan = end - begin;
        let part = |at: u64| begin + (u128::from(makespan) * u128::from(at) / 20) as u64;
        TimedOutcome {
            impossible: self
                .waiting
                .keys()
                .map(|(_, number)| self.order[*number])
                .collect(),
            makespan,
            mean_percent: percent(self.usage.mean(begin, end)),
            parts_percent: std::array::from_fn(|at| {
                percent(self.usage.mean(part(at as u64), part(at as u64 + 1)))
            }),
            ends_empty: self.world.is_empty() && self.world.is_conserved(),
            waits: self.waits,
        }
    }
}

#[cfg(test)]
mod tests;
