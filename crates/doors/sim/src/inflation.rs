//! The protocol of FGD's paper: pods come one by one, are placed or dropped for ever, and
//! never leave, until arrivals exceed the cluster.

use sublet_model::Ask;
use sublet_plan::Policy;

use crate::curve::{Curve, Recorder};
use crate::obstacle::{Obstacles, Reasons};
use crate::sequence::Sequence;
use crate::stock::CpuOnlyPods;
use crate::trace::{NodeList, PodList};
use crate::world::World;

/// Input of a run.
#[derive(Debug, Clone, Copy)]
pub struct Inflation<'a> {
    /// The cluster.
    pub nodes: &'a NodeList,
    /// The pods that `sequence` draws from.
    pub pods: &'a PodList,
    /// Order of arrival.
    pub sequence: &'a Sequence,
    /// Placement policy.
    pub policy: &'a Policy,
    /// Differences from the protocol.
    pub variant: Variant,
}

/// Differences of a run from the protocol; by default none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Variant {
    /// The scheduler that places pods that ask for no GPU.
    pub cpu_only: CpuOnlyPods,
    /// The scheduler starts again when so many percent have arrived, and learns anew from the
    /// pods that are placed.
    pub restart_at: Option<u32>,
    /// Every cost is worked out for every pod. It changes nothing but the time that is taken.
    pub naive: bool,
}

/// The outcome of one arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Row of the pod list.
    pub pod: u32,
    /// Row of the node list, and positions of the cards; `None` if it was dropped.
    pub place: Option<(u32, Vec<u16>)>,
}

/// Dropped pods by their request, while at most 100 % of the cluster had arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drops {
    /// No GPU.
    pub none: u32,
    /// A part of a card.
    pub share: u32,
    /// Whole cards: 1, 2, 4, and 8 or more.
    pub whole: [u32; 4],
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Every arrival, in order.
    pub placements: Vec<Placement>,
    /// Number of pods that were placed.
    pub placed: usize,
    /// Pods that were dropped.
    pub drops: Drops,
    /// Reasons for the drops, counted as in `drops`.
    pub reasons: Reasons,
    /// Allocated and fragmented share by arrived share.
    pub curve: Curve,
    /// Nodes with a pod at the end.
    pub used_nodes: usize,
}

/// Runs the protocol. `on` is told of every arrival, for a progress bar.
pub fn inflate(run: Inflation<'_>, on: impl FnMut(usize)) -> Outcome {
    play(run, on).0
}

/// Runs the protocol; the cluster as it is at the end comes back too.
pub(crate) fn play(run: Inflation<'_>, mut on: impl FnMut(usize)) -> (Outcome, World) {
    let Inflation {
        nodes,
        pods,
        sequence,
        policy,
        variant,
    } = run;
    let mut world = World::new(nodes, Some(&sequence.ranks), pods, policy);
    world.cpu_only = variant.cpu_only;
    if variant.naive {
        world.keep_nothing();
    }
    let mut restart_at = variant.restart_at;
    let mut recorder = Recorder::new(world.capacity_milli());
    recorder.started(world.allocated_milli(), world.fragmented_milli());
    let mut placements = Vec::with_capacity(sequence.arrivals.len());
    let (mut placed, mut drops) = (0, Drops::default());
    let (mut obstacles, mut reasons) = (Obstacles::default(), Reasons::new());
    for (number, &row) in sequence.arrivals.iter().enumerate() {
        let pod = &pods.rows[row as usize];
        let place = world.arrive(number, pod);
        recorder.arrived(
            world.asked_milli(pod),
            world.allocated_milli(),
            world.fragmented_milli(),
        );
        if place.is_some() {
            placed += 1;
        } else if recorder.arrived_percent() <= 100 {
            drops.count(pod.claim.ask());
            *reasons.entry(obstacles.of(&world, pod)).or_default() += 1;
        }
        if restart_at.is_some_and(|percent| recorder.arrived_percent() >= percent) {
            restart_at = None;
            world.restart();
        }
        placements.push(Placement {
            pod: row,
            place: place.map(|place| (place.node, place.cards)),
        });
        on(number);
    }
    debug_assert!(world.is_conserved());
    let outcome = Outcome {
        placements,
        placed,
        drops,
        reasons,
        curve: recorder.curve(),
        used_nodes: world.used_nodes(),
    };
    (outcome, world)
}

impl Drops {
    fn count(&mut self, ask: &Ask) {
        match ask {
            Ask::Nothing => self.none += 1,
            Ask::Parts(_) => self.share += 1,
            Ask::WholeCards(count) => {
                let class = match count.get() {
                    0 | 1 => 0,
                    2 | 3 => 1,
                    4..=7 => 2,
                    _ => 3,
                };
                self.whole[class] += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
