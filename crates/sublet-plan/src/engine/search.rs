//! The best places for a pod, among thousands of nodes.
//!
//! Policies of memory look at outlines first and open few pages; all others keep what they
//! found until a page or a learnt table changes. Both give what looking at every node gives
//! (property tests in `screening`).

use std::collections::BinaryHeap;

use sublet_model::{Claim, NodeIdx, PodUid};

use super::{Engine, Ties};
use crate::fit::{check_look_alikes, fit, prepare};
use crate::keep::Stamp;
use crate::policy::MAX_PARTS;
use crate::scatter::scatter;
use crate::score::{Cost, Kind, Pack, Prepared};
use crate::screen::{Hope, hope};

/// A place that fits. Derived order: best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub(super) order: Order,
    pub(super) node: NodeIdx,
    pub(super) position: usize,
}

/// What puts one place before another: what is in the way, taints, cost, name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    pub(super) contended: bool,
    pub(super) untolerated: u32,
    pub(super) cost: Cost,
    pub(super) rank: u32,
}

/// The best few of the places that were offered.
struct Best {
    few: usize,
    found: BinaryHeap<Found>,
}

impl Best {
    fn new(few: usize, nodes: usize) -> Best {
        Best {
            few,
            found: BinaryHeap::with_capacity(few.saturating_add(1).min(nodes)),
        }
    }

    /// Would a place of that order be among them?
    fn wants(&self, order: &Order) -> bool {
        let worst = self.found.peek().filter(|_| self.found.len() >= self.few);
        worst.is_none_or(|worst| worst.order >= *order)
    }

    fn offer(&mut self, found: Found) {
        if !self.wants(&found.order) {
            return;
        }
        self.found.push(found);
        if self.found.len() > self.few {
            self.found.pop();
        }
    }

    fn into_sorted(self) -> Vec<Found> {
        let mut found = self.found.into_vec();
        found.sort_unstable();
        found
    }
}

impl Engine {
    /// The best few places for the pod, or all with `usize::MAX`; best first.
    pub(super) fn find(
        &mut self,
        uid: &PodUid,
        claim: &Claim,
        nodes: &[NodeIdx],
        few: usize,
        untolerated: impl Fn(NodeIdx) -> u32,
    ) -> Vec<Found> {
        self.rank_names();
        let mut best = Best::new(few, nodes.len());
        match self.options.policy.leader().pack() {
            Some(pack) if !self.options.policy.is_relative() => {
                self.find_by_outline(pack, uid, claim, nodes, &untolerated, &mut best);
            }
            _ => self.find_by_score(uid, claim, nodes, &untolerated, &mut best),
        }
        best.into_sorted()
    }

    /// A node's page is opened only where its outline leaves hope for a place among the best.
    fn find_by_outline(
        &self,
        pack: &Pack,
        uid: &PodUid,
        claim: &Claim,
        nodes: &[NodeIdx],
        untolerated: &dyn Fn(NodeIdx) -> u32,
        best: &mut Best,
    ) {
        for &node in nodes {
            let outline = self.ledger.outline(node);
            let Some(Hope { contended, cost }) = hope(outline, claim.ask(), pack) else {
                continue;
            };
            let hope = Order {
                contended,
                untolerated: untolerated(node),
                cost,
                rank: self.rank(node),
            };
            if !best.wants(&hope) {
                continue;
            }
            if let Ok(candidate) = self.fit(uid, claim, node) {
                let order = Order {
                    contended: candidate.contended,
                    cost: candidate.cost(),
                    ..hope
                };
                best.offer(Found {
                    order,
                    node,
                    position: candidate.position,
                });
            }
        }
    }

    /// Costs are worked out where they are not known from an earlier question.
    fn find_by_score(
        &mut self,
        uid: &PodUid,
        claim: &Claim,
        nodes: &[NodeIdx],
        untolerated: &dyn Fn(NodeIdx) -> u32,
        best: &mut Best,
    ) {
        if self.options.policy.learns() {
            self.learnt.catch_up(&self.ledger);
        }
        let mut keep = std::mem::take(&mut self.keep);
        let rules = self.rules();
        let personal = self.options.policy.kinds().any(Kind::is_personal);
        let mut shelf = keep.shelf(claim);
        let mut fitting = Vec::new();
        let mut range = [(Cost::MAX, Cost::MIN); MAX_PARTS];
        for &node in nodes {
            let book = self.ledger.book(node);
            let look = |prepared: &[Prepared]| fit(&rules, book, uid, claim, prepared).ok();
            let candidate = if personal {
                look(&prepare(&rules, book))
            } else {
                let stamp = Stamp {
                    version: self.ledger.version(node),
                    epoch: self.learnt.epoch(),
                };
                shelf.get(node, stamp, || prepare(&rules, book), look)
            };
            let Some(candidate) = candidate else { continue };
            if check_look_alikes(&self.ledger, book, uid, claim).is_err() {
                continue;
            }
            for (range, cost) in range.iter_mut().zip(candidate.costs) {
                *range = (range.0.min(cost), range.1.max(cost));
            }
            fitting.push((node, candidate));
        }
        for (node, candidate) in fitting {
            best.offer(Found {
                order: Order {
                    contended: candidate.contended,
                    untolerated: untolerated(node),
                    cost: self.options.policy.total(&candidate.costs, &range),
                    rank: self.rank(node),
                },
                node,
                position: candidate.position,
            });
        }
        self.keep = keep;
    }

    /// A node that only has pods has no rank, and takes nothing.
    fn rank(&self, node: NodeIdx) -> u32 {
        let rank = self.ranks.get(node.0 as usize);
        rank.copied().unwrap_or(u32::MAX)
    }

    fn rank_names(&mut self) {
        if !std::mem::take(&mut self.ranks_stale) {
            return;
        }
        let mut order: Vec<_> = self.ledger.books().collect();
        if self.options.ties == Ties::Scattered {
            // The sort is stable: should two names draw alike, they still stand by name.
            order.sort_by_key(|(_, book)| scatter(book.name().as_str().bytes(), 0));
        }
        for (rank, (idx, _)) in (0..).zip(order) {
            let slot = idx.0 as usize;
            if self.ranks.len() <= slot {
                self.ranks.resize(slot + 1, 0);
            }
            self.ranks[slot] = rank;
        }
    }
}
