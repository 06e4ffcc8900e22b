//! The protocol of FGD's paper: pods come one by one, are placed or dropped for ever, and
//! never leave, until arrivals exceed the cluster.

use sublet_model::Ask;
use sublet_plan::Policy;

use crate::curve::{Curve, Recorder};
use crate::sequence::Sequence;
use crate::trace::{Nodes, Pods};
use crate::world::World;

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct Inflation<'a> {
    /// The cluster.
    pub nodes: &'a Nodes,
    /// The pods that `sequence` draws from.
    pub pods: &'a Pods,
    /// Order of arrival.
    pub sequence: &'a Sequence,
    /// How to place.
    pub policy: &'a Policy,
}

/// What became of one arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Row of the pod list.
    pub pod: u32,
    /// Row of the node list, and positions of the cards; `None` if it was dropped.
    pub place: Option<(u32, Vec<u16>)>,
}

/// Dropped pods by what they asked, while at most 100 % of the cluster had arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drops {
    /// No GPU.
    pub none: u32,
    /// A part of a card.
    pub share: u32,
    /// Whole cards: 1, 2, 4, and 8 or more.
    pub whole: [u32; 4],
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Every arrival, in order.
    pub placements: Vec<Placement>,
    /// How many were placed.
    pub placed: usize,
    /// What was dropped.
    pub drops: Drops,
    /// Allocated and fragmented share by arrived share.
    pub curve: Curve,
    /// Nodes with a pod at the end.
    pub used_nodes: usize,
}

/// Runs the protocol. `on` is told of every arrival, for a progress bar.
pub fn inflate(run: Inflation<'_>, mut on: impl FnMut(usize)) -> Outcome {
    let Inflation {
        nodes,
        pods,
        sequence,
        policy,
    } = run;
    let mut world = World::new(nodes, &sequence.ranks, pods, policy);
    let mut recorder = Recorder::new(world.capacity_milli());
    let mut placements = Vec::with_capacity(sequence.arrivals.len());
    let (mut placed, mut drops) = (0, Drops::default());
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
        }
        placements.push(Placement {
            pod: row,
            place: place.map(|place| (place.node, place.cards)),
        });
        on(number);
    }
    debug_assert!(world.is_conserved());
    Outcome {
        placements,
        placed,
        drops,
        curve: recorder.curve(),
        used_nodes: world.used_nodes(),
    }
}

impl Drops {
    fn count(&mut self, ask: Ask) {
        match ask {
            Ask::Nothing => self.none += 1,
            Ask::OneCard(_) => self.share += 1,
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
