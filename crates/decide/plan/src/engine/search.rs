//! Finds the best places for a pod among thousands of nodes.
//!
//! Policies of memory read the nodes' outlines first and open few pages. All others keep their
//! results until a page or a learnt table changes. Both find the same places as a search through
//! every node (property tests in `screening`).

use std::collections::BinaryHeap;

use sublet_model::{Claim, Class, NodeIdx, PodUid};

use super::Engine;
use crate::cost_cache::Source;
use crate::fit::{Rules, fit, place};
use crate::look_alike::check_look_alikes;
use crate::policy::{MAX_PARTS, Ties};
use crate::scatter::scatter;
use crate::score::{Cost, Pack, Prepared, PreparedParts, Scores};
use crate::screen::{Hope, hope, may_fit};
use crate::{Candidate, Policy, Preference, Reason};

/// A place that fits. The derived order puts the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub(super) order: Order,
    pub(super) node: NodeIdx,
    pub(super) position: usize,
}

/// The order of places: contention first, then taints, preference, cost and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    pub(super) contended: bool,
    pub(super) untolerated: u32,
    pub(super) preference: Preference,
    pub(super) cost: Cost,
    pub(super) rank: u32,
}

impl Source for Rules<'_> {
    fn version(&self, node: NodeIdx) -> u64 {
        self.ledger.version(node)
    }

    fn may_fit(&self, claim: &Claim, node: NodeIdx) -> bool {
        may_fit(self.ledger.outline(node), claim.ask())
    }

    fn prepare(&self, node: NodeIdx) -> PreparedParts {
        self.scores.prepare(self.ledger, self.ledger.book(node))
    }

    fn look(
        &self,
        uid: &PodUid,
        claim: &Claim,
        node: NodeIdx,
        prepared: &[Prepared],
    ) -> Option<Candidate> {
        place(self, self.ledger.book(node), uid, claim, prepared)
    }
}

/// The best few of the places offered so far.
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

    /// Would a place of this order be among them?
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
    /// The best few places for the pod, the best first; all of them if `few` is `usize::MAX`.
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
        match self.scores.pack() {
            // An outline tells neither the load nor who is on a card.
            Some(pack)
                if claim.class() == Class::Guaranteed
                    && !claim.tags().seek_friends()
                    && !self.options.policy.is_relative() =>
            {
                self.find_by_outline(pack, uid, claim, nodes, &untolerated, &mut best);
            }
            _ => self.find_by_score(uid, claim, nodes, &untolerated, &mut best),
        }
        best.into_sorted()
    }

    /// Opens a node's page only if the node's outline promises a place among the best.
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
                preference: Preference::default(),
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

    /// Computes costs only where no earlier question has computed them.
    fn find_by_score(
        &mut self,
        uid: &PodUid,
        claim: &Claim,
        nodes: &[NodeIdx],
        untolerated: &dyn Fn(NodeIdx) -> u32,
        best: &mut Best,
    ) {
        if self.options.policy.learns() {
            self.catch_up();
        }
        let mut costs = std::mem::take(&mut self.costs);
        let rules = self.rules();
        let policy = &self.options.policy;
        let order = |node, candidate: &Candidate, cost, untolerated| Order {
            contended: candidate.contended,
            untolerated,
            preference: candidate.preference,
            cost,
            rank: self.rank(node),
        };
        let has_look_alike = |node, at: &Candidate| {
            let book = self.ledger.book(node);
            check_look_alikes(&self.ledger, book, uid, claim, at.position).is_err()
        };
        let found = |order, node, candidate: &Candidate| Found {
            order,
            node,
            position: candidate.position,
        };
        // A mix can only weigh a place when the costs of all places are known.
        let mut all = Vec::new();
        let mut range = [(Cost::MAX, Cost::MIN); MAX_PARTS];
        let mut offer = |node, candidate: Candidate| {
            if !policy.is_relative() {
                // Taints cost more to count than the rest, and most places are not wanted anyway.
                let at_best = order(node, &candidate, candidate.cost(), 0);
                if !best.wants(&at_best) {
                    return;
                }
                let order = Order {
                    untolerated: untolerated(node),
                    ..at_best
                };
                if best.wants(&order) && !has_look_alike(node, &candidate) {
                    best.offer(found(order, node, &candidate));
                }
            } else if !has_look_alike(node, &candidate) {
                for (range, cost) in range.iter_mut().zip(candidate.costs) {
                    *range = (range.0.min(cost), range.1.max(cost));
                }
                all.push((node, candidate));
            }
        };
        if self.scores.is_personal() || !self.options.cache_costs {
            for &node in nodes.iter().filter(|node| rules.may_fit(claim, **node)) {
                let found = rules.look(uid, claim, node, &rules.prepare(node));
                found.into_iter().for_each(|found| offer(node, found));
            }
        } else {
            let question = (uid, claim, self.options.stock);
            costs.look_up(question, nodes, self.scores.epoch(), &rules, &mut offer);
        }
        for (node, candidate) in all {
            let cost = policy.total(&candidate.costs, &range);
            let order = order(node, &candidate, cost, untolerated(node));
            best.offer(found(order, node, &candidate));
        }
        self.costs = costs;
    }

    /// Computes costs that a learnt table has made stale, before a pod asks for them. Looks at up
    /// to so many nodes, and returns true if more are left. This changes no answer, but the next
    /// pod of each shape need not wait for all nodes.
    pub fn refresh_costs(&mut self, nodes: usize) -> bool {
        let mut costs = std::mem::take(&mut self.costs);
        let more = costs.refresh(self.scores.epoch(), nodes, &self.rules());
        self.costs = costs;
        more
    }

    /// The answer of each of these nodes to such a claim, without costs and look-alikes. It serves
    /// to ask thousands of nodes for the reason of their refusal.
    pub fn answers(
        &self,
        uid: &PodUid,
        claim: &Claim,
        nodes: &[NodeIdx],
    ) -> impl Iterator<Item = Result<(), Reason>> {
        let scores = Scores::of(&Policy::binpack());
        nodes.iter().map(move |&node| {
            let rules = Rules {
                scores: &scores,
                ..self.rules()
            };
            fit(&rules, self.ledger.book(node), uid, claim, &[]).map(|_place| ())
        })
    }

    /// The first of these nodes that could take such a claim, by its place among them; without costs
    /// and look-alikes. For asking thousands of nodes whether any can.
    pub fn first_open(&self, uid: &PodUid, claim: &Claim, nodes: &[NodeIdx]) -> Option<usize> {
        let scores = Scores::of(&Policy::binpack());
        let rules = Rules {
            scores: &scores,
            ..self.rules()
        };
        let is_open = |&node: &NodeIdx| {
            rules.may_fit(claim, node) && rules.look(uid, claim, node, &[]).is_some()
        };
        nodes.iter().position(is_open)
    }

    /// The rank of a node's name. A node without facts, which only has pods, has none and takes
    /// none.
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
            // The sort is stable: if two names draw the same number, they stay in order of the
            // name.
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
