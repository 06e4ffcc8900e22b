//! The scheduler's decisions as one object: the ledger, the policy, soft holds and tries.
//!
//! Filter and prioritize change nothing but two soft marks: that a pod was asked about before, and
//! which place it will probably take. Neither mark refuses anything. Correctness rests on
//! [`Engine::reserve`] alone, which checks the fit again before it takes the place.

mod learning;
mod options;
mod search;
mod trial;

use std::collections::{BTreeMap, BTreeSet};

use sublet_model::{
    Allocation, Ask, Claim, Entry, Hold, Ledger, NodeFacts, NodeIdx, NodeName, Part, PodUid,
    Standing, Time,
};

pub use self::options::{EngineOptions, StockRules};
use self::search::{Found, Order};
pub use self::trial::{Candidacy, Trial};
use crate::cost_cache::CostCache;
use crate::fit::{Rules, allocate, cards_at, fit};
use crate::learn::Learnt;
use crate::look_alike::check_look_alikes;
use crate::policy::{Costs, Ties};
use crate::score::Scores;
use crate::{Candidate, Policy, Reason};

/// The best score that an extender can give.
const BEST: u8 = 10;
/// The best score of any other node, for policies where the order among equals matters. With the
/// shipped weight, two steps are 200 points. That is as much as the stock scores of resources
/// (least allocated, balanced) can differ by together, and less than one strong wish of a pod.
const SECOND: u8 = 8;

/// A node that was refused, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedNode {
    /// The node.
    pub node: NodeIdx,
    /// Reason why it cannot take the pod.
    pub reason: Reason,
}

/// The answer to a filter call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FilterAnswer {
    /// Nodes that can take the pod, best first.
    pub passed: Vec<NodeIdx>,
    /// The other nodes, with their reasons; filled only if no node can take the pod.
    pub refused: Vec<RefusedNode>,
}

/// The scheduler's state and decisions.
#[derive(Debug, Clone)]
pub struct Engine {
    options: EngineOptions,
    ledger: Ledger,
    holds: BTreeMap<PodUid, (Time, Hold)>,
    tried: BTreeSet<PodUid>,
    /// By slot, the rank of the node's name among all names. Ties break by name, and so cost only a
    /// comparison of numbers. The ranks are counted again by the first call after a node came.
    ranks: Vec<u32>,
    ranks_stale: bool,
    learnt: Learnt,
    scores: Scores,
    costs: CostCache,
}

impl Engine {
    /// An engine without nodes and pods.
    #[must_use]
    pub fn new(options: EngineOptions) -> Engine {
        Engine {
            scores: Scores::of(&options.policy),
            options,
            ledger: Ledger::new(),
            holds: BTreeMap::new(),
            tried: BTreeSet::new(),
            ranks: Vec::new(),
            ranks_stale: false,
            learnt: Learnt::default(),
            costs: CostCache::default(),
        }
    }

    /// The ledger: it knows what is taken and what is free.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The options that the engine was made with.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Enters a new or changed node. Its measured load changes often and on every node: a new load
    /// makes the node's costs stale, but no policy learns from it again.
    pub fn set_node(&mut self, facts: NodeFacts) -> NodeIdx {
        if let Some(idx) = self.ledger.find(facts.name.as_str())
            && let Some(known) = self.ledger.book(idx).facts()
        {
            if *known == facts {
                return idx;
            }
            if !known.is_like(&facts) {
                self.learnt.node_changed();
            }
            self.drop_holds_beyond(idx, facts.inventory.gpus().len());
        } else {
            self.ranks_stale = true;
            self.learnt.node_changed();
        }
        let idx = self.ledger.set_node(facts);
        debug_assert!(self.ledger.is_conserved_at(idx));
        idx
    }

    /// Removes a node.
    pub fn remove_node(&mut self, name: &NodeName) {
        if let Some(node) = self.ledger.find(name.as_str()) {
            self.drop_holds_beyond(node, 0);
        }
        self.ledger.remove_node(name);
        self.learnt.node_changed();
    }

    /// Enters a pod that was seen bound: the API server's word replaces the reservation.
    pub fn observe(&mut self, entry: Entry) {
        self.end_try(&entry.uid);
        if self.ledger.entry(&entry.uid) != Some(&entry) {
            self.ledger.enter(entry);
        }
    }

    /// Removes a pod that is gone, or that has ended with all its containers.
    pub fn forget(&mut self, uid: &PodUid) {
        self.end_try(uid);
        self.ledger.remove(uid);
    }

    /// Has filter been asked about the pod since it was last bound?
    #[must_use]
    pub fn was_asked(&self, uid: &PodUid) -> bool {
        self.tried.contains(uid)
    }

    /// The nodes among these that can take the pod; if none can, the reason for each.
    ///
    /// Like [`Engine::choose`], with the refusals of all nodes if no node passes.
    pub fn filter(
        &mut self,
        now: Time,
        uid: &PodUid,
        claim: &Claim,
        nodes: &[NodeIdx],
        everywhere: bool,
        untolerated: impl Fn(NodeIdx) -> u32,
    ) -> FilterAnswer {
        let passed = self.choose(now, uid, claim, nodes, everywhere, untolerated);
        let refused = if passed.is_empty() {
            self.refusals(uid, claim, nodes)
        } else {
            Vec::new()
        };
        FilterAnswer { passed, refused }
    }

    /// The nodes among these that can take the pod, best first.
    ///
    /// `untolerated` counts a node's PreferNoSchedule taints that the pod does not tolerate: nodes
    /// with fewer come first. If `everywhere` is set (because the pod has soft wishes of its own),
    /// or if the pod was asked about before, returns all such nodes; otherwise the best few.
    pub fn choose(
        &mut self,
        now: Time,
        uid: &PodUid,
        claim: &Claim,
        nodes: &[NodeIdx],
        everywhere: bool,
        untolerated: impl Fn(NodeIdx) -> u32,
    ) -> Vec<NodeIdx> {
        self.expire(now);
        self.drop_hold(uid);
        // While an earlier bind is unsettled, the pod keeps its place: no other node is offered,
        // and no pod is evicted for a pod that is about to run.
        if let Some(entry) = self.ledger.entry(uid)
            && let Some(node) = self.ledger.find(entry.node.as_str())
            && nodes.contains(&node)
        {
            return vec![node];
        }
        let again = !self.tried.insert(uid.clone());
        let all = self.options.few == 0 || everywhere || again;
        let few = if all { usize::MAX } else { self.options.few };
        let found = self.find(uid, claim, nodes, few, untolerated);
        if let [only] = found[..] {
            // The scheduler does not call prioritize if only one node is left.
            self.hold(now, uid, claim, &only);
        }
        found.iter().map(|found| found.node).collect()
    }

    /// A score from 0 to 10 (best) for each of these nodes, and a soft hold on the best node.
    ///
    /// If ties break by name, nodes of equal cost have the same score, and the stock scheduler's
    /// own scores choose among them. If ties are scattered, that order is part of the policy: only
    /// the best node has 10, and no other node has more than 8.
    pub fn prioritize(
        &mut self,
        now: Time,
        uid: &PodUid,
        claim: &Claim,
        nodes: &[NodeIdx],
        untolerated: impl Fn(NodeIdx) -> u32,
    ) -> Vec<(NodeIdx, u8)> {
        self.expire(now);
        self.drop_hold(uid);
        let found = self.find(uid, claim, nodes, usize::MAX, untolerated);
        if let Some(best) = found.first() {
            self.hold(now, uid, claim, best);
        }
        // Scores go down by rank, not by cost: costs of different policies have no common scale.
        let last = found.len().saturating_sub(1).max(1);
        let cost = |found: &Found| Order {
            rank: 0,
            ..found.order
        };
        let top = match self.options.ties {
            Ties::ByName => BEST,
            Ties::Scattered => SECOND,
        };
        let mut scores: BTreeMap<NodeIdx, u8> = BTreeMap::new();
        let mut step = 0;
        for (order, this) in found.iter().enumerate() {
            if order > 0 && cost(this) != cost(&found[order - 1]) {
                step = order;
            }
            let down = u8::try_from(step * usize::from(top) / last).unwrap_or(top);
            scores.insert(this.node, top - down);
        }
        if let Some(best) = found.first() {
            scores.insert(best.node, BEST);
        }
        nodes
            .iter()
            .map(|&node| (node, scores.get(&node).copied().unwrap_or(0)))
            .collect()
    }

    /// Takes the best place on the entry's node for the pod: checks the fit again, and enters the
    /// allocation as reserved. The caller then asks the API server, and reports the outcome with
    /// [`Engine::observe`] or [`Engine::release`].
    ///
    /// `entry` describes the pod and names the node; allocation and standing are filled in here.
    ///
    /// # Errors
    /// The reason why the node cannot take the pod now; [`Reason::Placed`] for a pod that has an
    /// entry, because its earlier bind may still take effect.
    pub fn reserve(&mut self, now: Time, mut entry: Entry) -> Result<Allocation, Reason> {
        entry.assigned = false;
        self.take(now, entry)
    }

    /// The same for an entry that says itself whether others must wait until it has its devices.
    fn take(&mut self, now: Time, mut entry: Entry) -> Result<Allocation, Reason> {
        self.expire(now);
        if let Some(earlier) = self.ledger.entry(&entry.uid) {
            return Err(Reason::Placed {
                node: earlier.node.clone(),
            });
        }
        // The pod gets the cards of its soft hold, if they are still free.
        let held = self.holds.get(&entry.uid).map(|(_, hold)| hold.clone());
        self.drop_hold(&entry.uid);
        let node = self
            .ledger
            .find(entry.node.as_str())
            .ok_or(Reason::Unknown)?;
        let (uid, claim) = (&entry.uid, &entry.claim);
        let (candidate, book) = (self.best_on(uid, claim, node)?, self.ledger.book(node));
        // Since the hold was made, another pod may have got a card and wait for it.
        let alike = |first| check_look_alikes(&self.ledger, book, uid, claim, first);
        let held = held.filter(|hold| hold.node == node);
        let held = held.and_then(|hold| crate::choice::held_cards(book, claim, &hold));
        let cards = match held.filter(|cards| alike(cards[0]).is_ok()) {
            Some(cards) => cards,
            None => {
                alike(candidate.position)?;
                cards_at(&self.rules(), book, uid, claim, &candidate)
            }
        };
        let allocation = allocate(book, &entry.claim, &cards);
        debug_assert!(allocation.answers(&entry.claim));
        entry.allocation = Some(allocation.clone());
        entry.standing = Standing::Reserved;
        // A pod without GPU gets no devices from the node, so nobody has to wait for them.
        entry.assigned |= !entry.claim.has_gpu();
        self.ledger.enter(entry);
        debug_assert!(self.ledger.is_conserved_at(node));
        Ok(allocation)
    }

    /// Takes exactly the cards of the entry's allocation, which was decided before: checks again that
    /// they are free, and enters it as reserved. False if the node can take the pod, but not on these
    /// cards.
    ///
    /// # Errors
    /// As [`Engine::reserve`].
    pub fn reserve_at(&mut self, now: Time, mut entry: Entry) -> Result<bool, Reason> {
        self.expire(now);
        if let Some(earlier) = self.ledger.entry(&entry.uid) {
            return Err(Reason::Placed {
                node: earlier.node.clone(),
            });
        }
        self.drop_hold(&entry.uid);
        let node = self.ledger.find(entry.node.as_str());
        let node = node.ok_or(Reason::Unknown)?;
        // What is refused whatever the cards, and the reason where no card is free.
        self.fit(&entry.uid, &entry.claim, node)?;
        let nothing = Allocation::default();
        let allocation = entry.allocation.as_ref().unwrap_or(&nothing);
        let book = self.ledger.book(node);
        let Some(first) = crate::choice::are_free(book, &entry.claim, allocation) else {
            return Ok(false);
        };
        check_look_alikes(&self.ledger, book, &entry.uid, &entry.claim, first)?;
        entry.standing = Standing::Reserved;
        entry.assigned = !entry.claim.has_gpu();
        self.ledger.enter(entry);
        debug_assert!(self.ledger.is_conserved_at(node));
        Ok(true)
    }

    /// Frees the place of a reserved pod that the API server certainly did not and will not bind. A
    /// pod that was seen bound in the meantime keeps its place.
    pub fn release(&mut self, uid: &PodUid) {
        if self
            .ledger
            .entry(uid)
            .is_some_and(|entry| entry.standing == Standing::Reserved)
        {
            self.ledger.remove(uid);
        }
    }

    /// Can the pod go on this node?
    ///
    /// # Errors
    /// The reason why not.
    pub fn fit(&self, uid: &PodUid, claim: &Claim, node: NodeIdx) -> Result<Candidate, Reason> {
        let candidate = self.best_on(uid, claim, node)?;
        let book = self.ledger.book(node);
        check_look_alikes(&self.ledger, book, uid, claim, candidate.position)?;
        Ok(candidate)
    }

    /// The best place on the node. Pods that wait there for devices do not count.
    fn best_on(&self, uid: &PodUid, claim: &Claim, node: NodeIdx) -> Result<Candidate, Reason> {
        let book = self.ledger.book(node);
        let prepared = self.scores.prepare(&self.ledger, book);
        fit(&self.rules(), book, uid, claim, &prepared)
    }

    pub(crate) fn rules(&self) -> Rules<'_> {
        Rules {
            ledger: &self.ledger,
            options: &self.options,
            scores: &self.scores,
        }
    }

    /// The reasons why these nodes cannot take the pod; nodes that can are left out.
    #[must_use]
    pub fn refusals(&self, uid: &PodUid, claim: &Claim, nodes: &[NodeIdx]) -> Vec<RefusedNode> {
        // Only the fit counts, not the cost of a place.
        let scores = Scores::of(&Policy::binpack());
        let rules = Rules {
            scores: &scores,
            ..self.rules()
        };
        let refuse = |&node| {
            let book = self.ledger.book(node);
            let fits = fit(&rules, book, uid, claim, &[]);
            let fits =
                fits.and_then(|at| check_look_alikes(&self.ledger, book, uid, claim, at.position));
            let reason = fits.err()?;
            Some(RefusedNode { node, reason })
        };
        nodes.iter().filter_map(refuse).collect()
    }

    fn hold(&mut self, now: Time, uid: &PodUid, claim: &Claim, at: &Found) {
        let book = self.ledger.book(at.node);
        let candidate = Candidate {
            position: at.position,
            contended: at.order.contended,
            preference: at.order.preference,
            costs: Costs::default(),
        };
        let cards = cards_at(&self.rules(), book, uid, claim, &candidate);
        let cards = match claim.ask() {
            Ask::Nothing => Vec::new(),
            Ask::Parts(parts) => {
                let parts = cards.into_iter().zip(parts.iter());
                let amount =
                    |(at, part): (usize, Part)| (at, part.on(book.cards()[at].capacity.memory));
                parts.map(amount).collect()
            }
            Ask::WholeCards(_) => cards
                .into_iter()
                .map(|at| (at, book.cards()[at].capacity))
                .collect(),
        };
        let hold = Hold {
            uid: uid.clone(),
            node: at.node,
            cards,
        };
        self.ledger.hold(&hold);
        self.holds
            .insert(uid.clone(), (now.plus_ms(self.options.hold_ms), hold));
    }

    fn drop_hold(&mut self, uid: &PodUid) {
        if let Some((_, hold)) = self.holds.remove(uid) {
            self.ledger.release(&hold);
        }
    }

    /// Drops soft holds on cards that the node no longer has.
    fn drop_holds_beyond(&mut self, node: NodeIdx, cards: usize) {
        let ledger = &mut self.ledger;
        self.holds.retain(|_, (_, hold)| {
            let gone = cards == 0 || hold.cards.iter().any(|(at, _)| *at >= cards);
            let stays = hold.node != node || !gone;
            if !stays {
                ledger.release(hold);
            }
            stays
        });
    }

    fn end_try(&mut self, uid: &PodUid) {
        self.tried.remove(uid);
        self.drop_hold(uid);
    }

    fn expire(&mut self, now: Time) {
        let ledger = &mut self.ledger;
        self.holds.retain(|_, (until, hold)| {
            let live = now < *until;
            if !live {
                ledger.release(hold);
            }
            live
        });
    }
}

#[cfg(test)]
mod tests;
