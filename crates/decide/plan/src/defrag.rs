//! Plans which pods to move, so that whole GPUs become free and larger pods find a place.
//!
//! The result is an ordered list of moves; one may carry out any number of them from the start.
//! Each pod fits at its new place, by the scheduler's own fit, while it still has its old one. No
//! move leaves fewer GPUs free, or less room for the largest pod. Nothing is moved here.
//!
//! There are too many pairs of pods and places to look at them all. A move is only useful if it
//! helps to empty a card that is used in parts, or so much of a node that a larger pod fits on it.
//! For each such goal the search counts the pods that would have to go (`offer`). It takes the
//! goal that wins most per move, and looks for places on cards that are used in parts already
//! (`draft`). It ends when nothing wins any more. The search is greedy: the best plan of all is an
//! integer program, and nobody can solve that for thousands of nodes while a user waits.

mod draft;
mod measure;
mod offer;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use sublet_model::NodeIdx;

pub use self::draft::{Defrag, Move, Spot};
use self::draft::{Draft, Off};
pub use self::measure::{ClusterState, Largest};
use self::offer::{Load, Offer, What};

/// A list of moves.
#[derive(Debug, Clone, PartialEq)]
pub struct Defragmented {
    /// The moves, in their order.
    pub moves: Vec<Move>,
    /// The cluster before the first move, and after each.
    pub states: Vec<ClusterState>,
}

/// Finds moves.
#[must_use]
pub fn defragment(asked: Defrag<'_>) -> Defragmented {
    let mut search = Search::new(asked);
    while search.step() {}
    debug_assert!(search.draft.ledger().is_conserved());
    search.found
}

/// A search in progress.
struct Search<'a> {
    asked: Defrag<'a>,
    draft: Draft<'a>,
    /// The load of each node, by slot of the ledger.
    loads: Vec<Option<Load>>,
    nodes: Vec<NodeIdx>,
    found: Defragmented,
    /// Goals that failed because a pod found no place. Their own nodes have not changed since then.
    failed: BTreeSet<(NodeIdx, What)>,
    /// Has any pod moved since the first of those failed?
    moved: bool,
}

impl<'a> Search<'a> {
    fn new(asked: Defrag<'a>) -> Search<'a> {
        let draft = Draft::new(&asked);
        let known = asked
            .ledger
            .books()
            .filter(|(_, book)| book.facts().is_some());
        let nodes: Vec<NodeIdx> = known.map(|(node, _)| node).collect();
        let states = vec![draft.state()];
        let mut search = Search {
            asked,
            draft,
            loads: Vec::new(),
            nodes,
            found: Defragmented {
                moves: Vec::new(),
                states,
            },
            failed: BTreeSet::new(),
            moved: false,
        };
        for node in search.nodes.clone() {
            search.weigh(node);
        }
        search
    }

    /// Computes the load of a node again.
    fn weigh(&mut self, node: NodeIdx) {
        let at = node.0 as usize;
        if self.loads.len() <= at {
            self.loads.resize_with(at + 1, || None);
        }
        let load = Load::of(self.draft.ledger(), node, self.asked.movable);
        self.loads[at] = Some(load);
        let all = (node, What::FIRST)..=(node, What::LAST);
        let old: Vec<_> = self.failed.range(all).copied().collect();
        for failed in old {
            self.failed.remove(&failed);
        }
    }

    /// Carries out the best offer that wins anything; false if there is none.
    fn step(&mut self) -> bool {
        loop {
            if self.take_best() {
                return true;
            }
            // Offers that failed are tried again only now: a move elsewhere may have made room.
            if !std::mem::take(&mut self.moved) || self.failed.is_empty() {
                return false;
            }
            self.failed.clear();
        }
    }

    fn take_best(&mut self) -> bool {
        for offer in self.offers() {
            let Some(load) = self.load(offer.node) else {
                continue;
            };
            let pods = load.pods(offer.what);
            let off = Off {
                node: offer.node,
                card: load.card(offer.what),
                grows: offer.grows,
            };
            let Some(steps) = self.draft.empty(&pods, off) else {
                self.failed.insert((offer.node, offer.what));
                continue;
            };
            let mut touched = BTreeSet::new();
            for (step, state) in steps {
                touched.extend([step.from.node, step.to.node]);
                self.found.moves.push(step);
                self.found.states.push(state);
            }
            for node in touched {
                self.weigh(node);
            }
            self.moved = true;
            return true;
        }
        false
    }

    fn load(&self, node: NodeIdx) -> Option<&Load> {
        self.loads.get(node.0 as usize)?.as_ref()
    }

    /// The offers, best first.
    fn offers(&self) -> Vec<Offer> {
        let largest = self.draft.largest();
        let left = self.asked.most.saturating_sub(self.found.moves.len());
        let mut offers = Vec::new();
        for &node in &self.nodes {
            if let Some(load) = self.load(node) {
                load.offer(&self.draft, node, largest, &mut offers);
            }
        }
        offers.retain(|offer| {
            let known = self.failed.contains(&(offer.node, offer.what));
            offer.moves <= left && offer.win > 0 && !known
        });
        // The sort is stable: among equal offers the node with the first name comes first.
        offers.sort_by(|one, other| {
            let per_move = |a: &Offer, b: &Offer| a.win * b.moves as u64;
            per_move(other, one)
                .cmp(&per_move(one, other))
                .then(one.moves.cmp(&other.moves))
                .then(Reverse(one.fed).cmp(&Reverse(other.fed)))
                .then(Reverse(one.free).cmp(&Reverse(other.free)))
                .then(one.memory.cmp(&other.memory))
        });
        offers
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
