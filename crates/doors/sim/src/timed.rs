//! Pods come and go at the times of the trace; those that find no place wait.
//!
//! At each moment, pods that end go first. Then all waiting pods are tried, by priority and then by
//! arrival, including those that come at that moment. Nobody is evicted and nobody blocks the line:
//! a pod behind may start first, as beside the stock scheduler. Pods that no node could ever take,
//! even in an empty cluster, are set aside when they come.

mod usage;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use sublet_model::{Ask, Claim, NodeIdx};
use sublet_plan::Policy;

pub use self::usage::Usage;
use crate::line::Line;
use crate::load::{Press, TimedError};
use crate::obstacle::{Obstacles, Reasons};
use crate::snapshot::Reach;
use crate::stock::CpuOnlyPods;
use crate::trace::{NodeList, PodList, PodRow};
use crate::world::World;

/// Input of a run.
#[derive(Debug, Clone, Copy)]
pub struct Timed<'a> {
    /// The cluster.
    pub nodes: &'a NodeList,
    /// The pods, which come and go by themselves.
    pub pods: &'a PodList,
    /// Placement policy. Nodes that cost the same come in the order that they have in a cluster.
    pub policy: &'a Policy,
    /// The scheduler that places pods that ask for no GPU.
    pub cpu_only: CpuOnlyPods,
    /// Scales the time between arrivals, until pods that some node can take ask for so many
    /// millionths of the cluster's GPU time between the first arrival and the last; `None` leaves
    /// it as it is.
    pub load: Option<u64>,
}

/// The outcome of a run. Times are in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedOutcome {
    /// Waits of the placed pods, shortest first.
    pub waits: Vec<u64>,
    /// Pods that ask more GPUs than any node has. They would need several nodes at once.
    pub too_large: u32,
    /// Other pods that no node can ever take, by reason.
    pub never: Reasons,
    /// From the first arrival to the last departure.
    pub makespan: u64,
    /// GPU share in use over that time.
    pub usage: Usage,
    /// At the end, was everything given back, and were all accounts right?
    pub ends_empty: bool,
}

/// A pod that comes.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    at: u64,
    row: u32,
    /// Its number in [`Kinds`]; `None` if no node can ever take it.
    kind: Option<usize>,
}

/// A run in the middle.
struct Play<'a> {
    pods: &'a PodList,
    world: World,
    arrivals: Vec<Arrival>,
    /// Running pods: when each ends, and its number in order of arrival.
    running: BinaryHeap<Reverse<(u64, usize)>>,
    line: Line,
    waits: Vec<u64>,
    usage: Usage,
}

/// Runs the protocol. `on` is told how many pods have come and gone, of twice as many as are
/// in the list.
///
/// # Errors
/// Pods without times, or a load that cannot be had.
pub fn timed(run: Timed<'_>, mut on: impl FnMut(usize)) -> Result<TimedOutcome, TimedError> {
    let mut world = World::new(run.nodes, None, run.pods, run.policy);
    world.cpu_only = run.cpu_only;
    let mut kinds = Kinds::of(run.nodes);
    let arrivals = arrivals(&run, &world, &mut kinds)?;
    let begin = arrivals.first().map_or(0, |arrival| arrival.at);
    let mut play = Play {
        pods: run.pods,
        usage: Usage::new(begin, world.capacity_milli()),
        world,
        arrivals,
        running: BinaryHeap::new(),
        line: Line::default(),
        waits: Vec::new(),
    };
    let (mut end, mut come, mut gone) = (begin, 0, 0);
    loop {
        let next_end = play.running.peek().map(|Reverse((at, _))| *at);
        let next_come = play.arrivals.get(come).map(|arrival| arrival.at);
        let Some(now) = next_end.into_iter().chain(next_come).min() else {
            break;
        };
        end = now;
        let freed = play.leave(now, &mut gone);
        while play.arrivals.get(come).is_some_and(|next| next.at == now) {
            play.come(come);
            come += 1;
        }
        play.try_line(now, &freed);
        play.usage.note(now, play.world.allocated_milli());
        on(come + gone);
    }
    play.usage.close(end);
    play.waits.sort_unstable();
    Ok(TimedOutcome {
        waits: play.waits,
        too_large: kinds.too_large,
        never: kinds.never,
        makespan: end - begin,
        usage: play.usage,
        ends_empty: play.line.is_empty()
            && play.world.is_as_at_start()
            && play.world.is_conserved(),
    })
}

/// Pods that differ in nothing that a place depends on are of one kind: where one found no
/// place, the next finds none either.
struct Kinds {
    /// By claim, which rows that ask the same share, and by the nodes that are open.
    known: BTreeMap<(*const Claim, Option<Reach>), Result<usize, &'static str>>,
    count: usize,
    obstacles: Obstacles,
    /// GPUs of the largest node.
    largest: usize,
    too_large: u32,
    never: Reasons,
}

impl Kinds {
    fn of(nodes: &NodeList) -> Kinds {
        let cards = nodes.rows.iter().map(|row| row.inventory.gpus().len());
        Kinds {
            known: BTreeMap::new(),
            count: 0,
            obstacles: Obstacles::default(),
            largest: cards.max().unwrap_or(0),
            too_large: 0,
            never: Reasons::new(),
        }
    }

    /// The kind of a pod that some node of the empty cluster can take; others are counted.
    fn find(&mut self, world: &World, pod: &PodRow) -> Option<usize> {
        if matches!(pod.claim.ask(), Ask::WholeCards(count) if count.get() as usize > self.largest)
        {
            self.too_large += 1;
            return None;
        }
        let (count, obstacles) = (&mut self.count, &mut self.obstacles);
        let key = (Arc::as_ptr(&pod.claim), pod.reach.clone());
        let kind = self.known.entry(key).or_insert_with(|| {
            if !world.has_room(pod) {
                return Err(obstacles.of(world, pod));
            }
            *count += 1;
            Ok(*count - 1)
        });
        match *kind {
            Ok(kind) => Some(kind),
            Err(label) => {
                *self.never.entry(label).or_default() += 1;
                None
            }
        }
    }
}

/// When each pod comes, by time, then by row.
fn arrivals(run: &Timed<'_>, world: &World, kinds: &mut Kinds) -> Result<Vec<Arrival>, TimedError> {
    let mut arrivals = Vec::with_capacity(run.pods.rows.len());
    let mut asked: u128 = 0;
    for (row, pod) in (0..).zip(&run.pods.rows) {
        let (Some(at), Some(lasts)) = (pod.comes, pod.lasts) else {
            return Err(TimedError::NoTimes(pod.name.clone()));
        };
        let kind = kinds.find(world, pod);
        if kind.is_some() {
            asked += u128::from(world.asked_milli(pod)) * u128::from(lasts);
        }
        arrivals.push(Arrival { at, row, kind });
    }
    arrivals.sort_unstable_by_key(|arrival| (arrival.at, arrival.row));
    if let (Some(load), Some(first), Some(last)) = (run.load, arrivals.first(), arrivals.last()) {
        let capacity = world.capacity_milli();
        let press = Press::new((first.at, last.at), asked, (capacity, load))?;
        for arrival in &mut arrivals {
            arrival.at = press.at(arrival.at);
        }
    }
    Ok(arrivals)
}

impl Play<'_> {
    /// Takes away the pods that end now; returns the nodes that have room since.
    fn leave(&mut self, now: u64, gone: &mut usize) -> Vec<NodeIdx> {
        let mut freed = Vec::new();
        while let Some(&Reverse((at, number))) = self.running.peek() {
            if at > now {
                break;
            }
            self.running.pop();
            *gone += 1;
            let pod = &self.pods.rows[self.arrivals[number].row as usize];
            freed.extend(self.world.leave(number, pod));
        }
        freed.sort_unstable();
        freed.dedup();
        freed
    }

    /// A pod comes and joins the waiting ones.
    fn come(&mut self, number: usize) {
        let Arrival { row, kind, .. } = self.arrivals[number];
        let pod = &self.pods.rows[row as usize];
        // Policies that learn see every pod, as in a cluster.
        self.world.come(pod);
        if let Some(kind) = kind {
            self.line.join(kind, pod.priority, number);
        }
    }

    /// Places the waiting pods that have room now. `freed`: the nodes that something left at this
    /// moment.
    fn try_line(&mut self, now: u64, freed: &[NodeIdx]) {
        self.line.open(!freed.is_empty());
        while let Some(head) = self.line.first() {
            let arrival = self.arrivals[head.number];
            let pod = &self.pods.rows[arrival.row as usize];
            let among = head.was_refused.then_some(freed);
            let placed = self.world.place(head.number, pod, among).is_some();
            self.line.tried(head, placed);
            if placed {
                self.waits.push(now - arrival.at);
                let end = now.saturating_add(pod.lasts.unwrap_or(0));
                self.running.push(Reverse((end, head.number)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
