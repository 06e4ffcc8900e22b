//! Tries moves on a copy of the ledger, and undoes them if they win nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use sublet_model::{
    Ask, Book, Claim, Count, Entry, GpuIndex, Ledger, MiB, NodeIdx, PodKey, PodUid, Standing, Unit,
};

use super::measure::{Appetite, ClusterState, Largest, Mark};
use crate::choice::accepts;
use crate::fit::{Rules, allocate, cards_at, fit};
use crate::look_alike::check_look_alikes;
use crate::score::Scores;
use crate::{EngineOptions, Fragmentation, Policy, StockRules};

/// The cluster in which to make room, and the allowed moves.
#[derive(Clone, Copy)]
pub struct Defrag<'a> {
    /// The cluster.
    pub ledger: &'a Ledger,
    /// Memory that one unit of `aliyun.com/gpu-mem` stands for.
    pub unit: Unit,
    /// The measure of fragmentation, for [`ClusterState::fragmented_milli`].
    pub fragmentation: &'a Fragmentation,
    /// May this pod be ended where it is and started elsewhere?
    pub movable: &'a dyn Fn(&PodUid) -> bool,
    /// May the pod go to this node, by the rules that the engine does not know (taints, selectors)?
    pub open: &'a dyn Fn(&PodUid, NodeIdx) -> bool,
    /// The most moves that the list may have.
    pub most: usize,
}

/// A pod's cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    /// The node.
    pub node: NodeIdx,
    /// The indices of its cards there.
    pub cards: Vec<GpuIndex>,
}

/// One pod that moves to another place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The pod.
    pub pod: PodKey,
    /// Its UID.
    pub uid: PodUid,
    /// The pod's claim.
    pub claim: Arc<Claim>,
    /// The pod's place now.
    pub from: Spot,
    /// The pod's new place. It fits there while it is still at its old place.
    pub to: Spot,
}

/// The cluster after the moves so far.
pub(super) struct Draft<'a> {
    asked: Defrag<'a>,
    ledger: Ledger,
    options: EngineOptions,
    scores: Scores,
    appetite: Appetite,
    /// The measures of each node, by slot of the ledger.
    marks: Vec<Mark>,
    /// The free memory on each card that is used in parts, with its node and its position.
    holes: BTreeSet<(MiB, NodeIdx, usize)>,
}

/// The place that pods must leave.
#[derive(Debug, Clone, Copy)]
pub(super) struct Off {
    pub(super) node: NodeIdx,
    /// The card to leave; another card of the same node is good enough. `None`: leave the node.
    pub(super) card: Option<usize>,
    /// Would the largest pod grow? Then a part may take a free card in exchange for its own.
    pub(super) grows: bool,
}

impl<'a> Draft<'a> {
    pub(super) fn new(asked: &Defrag<'a>) -> Draft<'a> {
        let ledger = asked.ledger.clone();
        let nodes: Vec<NodeIdx> = ledger.books().map(|(node, _)| node).collect();
        let slots = nodes.iter().map(|node| node.0 as usize + 1).max();
        let mut draft = Draft {
            asked: *asked,
            options: EngineOptions {
                unit: asked.unit,
                stock: StockRules::Here,
                ..EngineOptions::of(Policy::binpack())
            },
            scores: Scores::of(&Policy::binpack()),
            appetite: Appetite::of(&ledger),
            marks: vec![Mark::default(); slots.unwrap_or(0)],
            holes: BTreeSet::new(),
            ledger,
        };
        for node in nodes {
            draft.mark(node);
            draft.holes.extend(holes(&draft.ledger, node));
        }
        draft
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(super) fn state(&self) -> ClusterState {
        ClusterState::of(&self.marks, self.asked.fragmentation)
    }

    pub(super) fn largest(&self) -> Largest {
        let all = self.marks.iter().map(|mark| mark.largest);
        all.fold(Largest::default(), Largest::or)
    }

    /// Number of GPUs of a node that would be free if so many more cards and so much more CPU were
    /// free, and the number of GPUs that would have CPU in addition.
    pub(super) fn with(&self, node: NodeIdx, cards: u32, cpu: u64) -> (u32, u32) {
        let mark = self.marks[node.0 as usize];
        let free = mark.free + cards;
        let left = self.ledger.book(node).host_left().cpu.get();
        let fed = self.appetite.fed(free, left.saturating_add(cpu));
        (free, fed.saturating_sub(mark.fed))
    }

    /// Moves these pods away, one after another. Changes nothing if one of them finds no place, if
    /// a measure becomes worse at any step, or if nothing is won.
    pub(super) fn empty(&mut self, pods: &[PodUid], off: Off) -> Option<Vec<(Move, ClusterState)>> {
        let before = self.state();
        let mut last = before;
        let mut done = Vec::new();
        let then = self.ledger.checkpoint();
        for uid in pods {
            let Some(step) = self.step(uid, off) else {
                break;
            };
            let state = self.state();
            if !state.keeps(&last) {
                break;
            }
            last = state;
            done.push((step, state));
        }
        if done.len() == pods.len() && last.wins_over(&before) {
            self.ledger.keep(then);
            return Some(done);
        }
        let nodes = self.ledger.changed_since(&then);
        self.update(&nodes, |ledger| ledger.roll_back(then));
        None
    }

    /// Moves one pod to the best place outside of the one it must leave.
    fn step(&mut self, uid: &PodUid, off: Off) -> Option<Move> {
        let old = self.ledger.entry(uid)?.clone();
        let new = match old.claim.ask() {
            Ask::Nothing => None,
            Ask::Parts(parts) => match self.hole_for(&old, parts.memory(), off) {
                None if off.grows => self.free_for(&old, Count::new(1), off.node),
                hole => hole,
            },
            Ask::WholeCards(count) => self.free_for(&old, *count, off.node),
        }?;
        let to = self.ledger.find(new.node.as_str())?;
        let step = Move {
            pod: old.pod.clone(),
            uid: uid.clone(),
            claim: old.claim.clone(),
            from: Spot {
                node: off.node,
                cards: cards_of(&old),
            },
            to: Spot {
                node: to,
                cards: cards_of(&new),
            },
        };
        self.enter(new);
        Some(step)
    }

    /// The hole for a part of a card: if possible one that takes no CPU from a free GPU, and among
    /// those the smallest. Free cards stay free.
    fn hole_for(&self, old: &Entry, memory: MiB, off: Off) -> Option<Entry> {
        let mut best: Option<(u32, Entry)> = None;
        for &(_, at, position) in self.holes.range((memory, NodeIdx(0), 0)..) {
            if at == off.node && off.card.is_none_or(|card| card == position) {
                continue;
            }
            let starved = self.starved(at, old);
            if best.as_ref().is_some_and(|(least, _)| *least <= starved) {
                continue;
            }
            if let Some(new) = self.placed(old, at, Some(position)) {
                if starved == 0 {
                    return Some(new);
                }
                best = Some((starved, new));
            }
        }
        best.map(|(_, new)| new)
    }

    /// A place on free cards for a pod: on the node with the fewest free cards that it fits on.
    fn free_for(&self, old: &Entry, count: Count, off: NodeIdx) -> Option<Entry> {
        let mut open: Vec<(u32, u32, NodeIdx)> = Vec::new();
        for (at, _) in self.ledger.books() {
            let free = self.marks[at.0 as usize].free;
            if at != off && free >= count.get() {
                open.push((free, self.starved(at, old), at));
            }
        }
        // Among equals the first name wins: books come in that order, and the sort is stable.
        open.sort_by_key(|(free, starved, _)| (*free, *starved));
        open.into_iter()
            .find_map(|(_, _, at)| self.placed(old, at, None))
    }

    /// Number of free GPUs of a node that would lack CPU because of the pod.
    fn starved(&self, node: NodeIdx, old: &Entry) -> u32 {
        let mark = self.marks[node.0 as usize];
        let free = match old.claim.ask() {
            Ask::WholeCards(count) => mark.free.saturating_sub(count.get()),
            _ => mark.free,
        };
        let cpu = self.ledger.book(node).host_left().cpu;
        let left = cpu.saturating_sub(old.claim.host().cpu);
        mark.fed
            .min(free)
            .saturating_sub(self.appetite.fed(free, left.get()))
    }

    /// The pod at this place, if it fits there beside all that is there now.
    fn placed(&self, old: &Entry, node: NodeIdx, position: Option<usize>) -> Option<Entry> {
        if !(self.asked.open)(&old.uid, node) {
            return None;
        }
        let rules = Rules {
            ledger: &self.ledger,
            options: &self.options,
            scores: &self.scores,
        };
        let book = self.ledger.book(node);
        // Only the fit counts, so no policy needs to prepare anything: `binpack` works without.
        let candidate = fit(&rules, book, &old.uid, &old.claim, &[]).ok()?;
        let at = position.unwrap_or(candidate.position);
        check_look_alikes(&self.ledger, book, &old.uid, &old.claim, at).ok()?;
        let cards = match (position, old.claim.ask()) {
            (Some(position), Ask::Parts(parts)) => {
                let card = &book.cards()[position];
                if !accepts(book, &old.claim, position) {
                    return None;
                }
                card.left_beside(parts.first(), old.claim.class())?;
                vec![position]
            }
            _ => cards_at(&rules, book, &old.uid, &old.claim, &candidate),
        };
        Some(Entry {
            node: book.name().clone(),
            allocation: Some(allocate(book, &old.claim, &cards)),
            standing: Standing::Bound,
            ..old.clone()
        })
    }

    /// Replaces a pod's entry.
    fn enter(&mut self, new: Entry) {
        let names = [
            self.ledger.entry(&new.uid).map(|old| old.node.clone()),
            Some(new.node.clone()),
        ];
        let nodes: BTreeSet<NodeIdx> = names
            .iter()
            .flatten()
            .filter_map(|name| self.ledger.find(name.as_str()))
            .collect();
        self.update(&nodes, |ledger| ledger.enter(new));
    }

    /// Changes entries on these nodes, and updates the nodes' holes and measures.
    fn update(&mut self, nodes: &BTreeSet<NodeIdx>, change: impl FnOnce(&mut Ledger)) {
        for &node in nodes {
            for hole in holes(&self.ledger, node) {
                self.holes.remove(&hole);
            }
        }
        change(&mut self.ledger);
        for &node in nodes {
            self.holes.extend(holes(&self.ledger, node));
            self.mark(node);
        }
    }

    fn mark(&mut self, node: NodeIdx) {
        let fragmentation = self.asked.fragmentation;
        let mark = Mark::of(&self.ledger, node, self.appetite, fragmentation);
        self.marks[node.0 as usize] = mark;
    }
}

/// The free memory on the cards of a node that are used in parts.
fn holes(ledger: &Ledger, node: NodeIdx) -> Vec<(MiB, NodeIdx, usize)> {
    let book: &Book = ledger.book(node);
    let cards = book.cards().iter().enumerate();
    cards
        .filter(|(_, card)| card.tenants > 0 && !card.free().memory.is_zero())
        .map(|(position, card)| (card.free().memory, node, position))
        .collect()
}

/// The indices of the cards that an entry has.
pub(super) fn cards_of(entry: &Entry) -> Vec<GpuIndex> {
    let grants = entry.allocation.iter().flat_map(|given| &given.grants);
    let cards: BTreeSet<GpuIndex> = grants.map(|grant| grant.card.index).collect();
    cards.into_iter().collect()
}
