//! Moves pods and measures the gain: the engine's list of moves for a cluster as it stands, or as a
//! run of the protocol leaves it.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::{Claim, GpuIndex, NodeIdx, PodKey, PodUid};
use sublet_plan::{ClusterState, Defrag, Move, Spot, defragment};

use crate::inflation::{Inflation, play};
use crate::snapshot::Reach;
use crate::world::uid;

/// A pod's cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Row of the node list.
    pub node: u32,
    /// Numbers of its cards there.
    pub cards: Vec<GpuIndex>,
}

/// One pod that goes elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relocation {
    /// The pod.
    pub pod: PodKey,
    /// The pod's claim.
    pub claim: Arc<Claim>,
    /// The pod's place now.
    pub from: Location,
    /// The pod's new place.
    pub to: Location,
}

/// A list of moves, and their gain.
#[derive(Debug, Clone, PartialEq)]
pub struct Relocations {
    /// In their order.
    pub moves: Vec<Relocation>,
    /// The cluster before the first move, and after each.
    pub states: Vec<ClusterState>,
    /// Pods with GPUs that may be moved.
    pub movable: usize,
    /// Pods with GPUs that stay, by why.
    pub staying: BTreeMap<&'static str, usize>,
}

/// Plays the protocol, then finds at most so many moves of the pods that run at its end.
#[must_use]
pub fn relocate(run: Inflation<'_>, most: usize) -> Relocations {
    let (outcome, world) = play(run, |_| {});
    // Who may go where, of those that run.
    let mut wishes: BTreeMap<PodUid, (Option<&'static str>, Option<&Reach>)> = BTreeMap::new();
    for running in &run.nodes.running {
        let uid = running.entry.uid.clone();
        wishes.insert(uid, (running.stays, running.reach.as_ref()));
    }
    for (number, placement) in outcome.placements.iter().enumerate() {
        let pod = &run.pods.rows[placement.pod as usize];
        if placement.place.is_some() {
            wishes.insert(uid(number), (None, pod.reach.as_ref()));
        }
    }
    let rows = world.rows();
    let row = |node: NodeIdx| rows[node.0 as usize];
    let open = |uid: &PodUid, node: NodeIdx| {
        let reach = wishes.get(uid).and_then(|(_, reach)| *reach);
        reach.is_none_or(|reach| reach.contains(row(node)))
    };
    let found = defragment(Defrag {
        ledger: world.ledger(),
        unit: run.nodes.unit,
        fragmentation: world.fragmentation(),
        movable: &|uid| wishes.get(uid).is_some_and(|(stays, _)| stays.is_none()),
        open: &open,
        most,
    });
    let mut answer = Relocations {
        moves: Vec::new(),
        states: found.states,
        movable: 0,
        staying: BTreeMap::new(),
    };
    for entry in world.ledger().entries().filter(|e| e.claim.has_gpu()) {
        match wishes.get(&entry.uid).and_then(|(stays, _)| *stays) {
            None => answer.movable += 1,
            Some(why) => *answer.staying.entry(why).or_default() += 1,
        }
    }
    let location = |spot: Spot| Location {
        node: row(spot.node),
        cards: spot.cards,
    };
    let relocation = |step: Move| Relocation {
        pod: step.pod,
        claim: step.claim,
        from: location(step.from),
        to: location(step.to),
    };
    answer.moves = found.moves.into_iter().map(relocation).collect();
    answer
}

#[cfg(test)]
mod tests;
