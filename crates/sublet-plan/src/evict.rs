//! Chooses which pods to evict from a node so that a claim fits there.
//!
//! The stock scheduler proposes victims by sums. On a node with two half-full cards it evicts the
//! two least important pods, which may be on different cards. Here the same rule (spare as many
//! pods as possible, the most important first) counts what must really become free: a card. This
//! module evicts nothing: the stock scheduler compares nodes by their victims, and evicts them.

use std::collections::BTreeSet;

use sublet_model::{Ask, Book, Claim, MiB, NodeIdx, PodUid};

use crate::fit::{Rules, fit};
use crate::look_alike::check_look_alikes;
use crate::score::Scores;
use crate::stock::check_machine;
use crate::{Engine, Policy};

/// A pod that may have to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evictable {
    /// The pod's UID.
    pub uid: PodUid,
    /// Would its eviction break a disruption budget, according to [`breaking`]?
    pub breaks: bool,
}

/// For each of these pods, the most important first: would it break a disruption budget if all
/// of them went? `budgets` lists for each pod the budgets that count it. `allowed` is the number
/// of pods that each budget can spare now. The stock scheduler counts the same way
/// (`filterPodsWithPDBViolation`).
#[must_use]
pub fn breaking(budgets: &[Vec<usize>], allowed: &[i32]) -> Vec<bool> {
    let mut left: Vec<i64> = allowed.iter().copied().map(i64::from).collect();
    let mut breaks = |budgets: &Vec<usize>| {
        let mut broken = false;
        for &budget in budgets {
            left[budget] -= 1;
            broken |= left[budget] < 0;
        }
        broken
    };
    budgets.iter().map(&mut breaks).collect()
}

impl Engine {
    /// The pods that must go from this node for the claim to fit, in the order of `row`; `None` if
    /// the claim would not fit even without them all, or fits already.
    ///
    /// `row` lists the pods that may go, the most important first; `theirs` are those of them that
    /// the stock scheduler would evict. Pods whose eviction breaks a budget are spared first, then
    /// the most important ones. A pod of `theirs` goes although our sums do not need it: it must be
    /// in the way of something that we do not see, such as a port.
    #[must_use]
    pub fn victims(
        &self,
        uid: &PodUid,
        claim: &Claim,
        node: NodeIdx,
        row: &[Evictable],
        theirs: &BTreeSet<PodUid>,
    ) -> Option<Vec<Evictable>> {
        let mut gone: BTreeSet<PodUid> = row.iter().map(|pod| pod.uid.clone()).collect();
        let mut book = self.ledger().book_without(node, &gone);
        if !self.has_room(uid, claim, &book) {
            return None;
        }
        // If our count of CPU and memory refuses what the stock scheduler accepted, we cannot tell
        // which pods it needs gone. Then no pod is spared that it would evict.
        let counts = check_machine(&book, claim).is_ok();
        let (guarded, others): (Vec<_>, Vec<_>) = row.iter().partition(|pod| pod.breaks);
        for pod in guarded.into_iter().chain(others) {
            let Some(entry) = self.ledger().entry(&pod.uid) else {
                continue;
            };
            let theirs = theirs.contains(&pod.uid).then_some(theirs);
            if theirs.is_some_and(|all| !counts || self.is_needed(claim, node, &pod.uid, all)) {
                continue;
            }
            let spared = book.with(entry);
            let on_host = !counts || check_machine(&spared, claim).is_ok();
            if on_host && self.has_room(uid, claim, &spared) {
                book = spared;
                gone.remove(&pod.uid);
            }
        }
        let victims = row.iter().filter(|pod| gone.contains(&pod.uid));
        Some(victims.cloned().collect()).filter(|victims: &Vec<_>| !victims.is_empty())
    }

    /// Would the claim fit on this node without these pods? False if there are none. For victims
    /// that the stock scheduler knows and the ledger does not.
    #[must_use]
    pub fn fits_without(
        &self,
        uid: &PodUid,
        claim: &Claim,
        node: NodeIdx,
        victims: &BTreeSet<PodUid>,
    ) -> bool {
        let book = self.ledger().book_without(node, victims);
        !victims.is_empty() && self.has_room(uid, claim, &book)
    }

    pub(crate) fn has_room(&self, uid: &PodUid, claim: &Claim, book: &Book) -> bool {
        // Only the fit counts, not the cost of a place.
        let rules = Rules {
            scores: &Scores::of(&Policy::binpack()),
            ..self.rules()
        };
        fit(&rules, book, uid, claim, &[])
            .is_ok_and(|at| check_look_alikes(self.ledger(), book, uid, claim, at.position).is_ok())
    }

    /// Does the claim need the eviction of this pod of `theirs` for a reason other than our sums?
    /// It does if the sums are enough with the pod in place.
    fn is_needed(
        &self,
        claim: &Claim,
        node: NodeIdx,
        pod: &PodUid,
        theirs: &BTreeSet<PodUid>,
    ) -> bool {
        let mut others = theirs.clone();
        others.remove(pod);
        let book = self.ledger().book_without(node, &others);
        let asks = book.pods().filter_map(|uid| self.ledger().entry(uid));
        let asks = asks.map(|entry| entry.claim.ask()).chain([claim.ask()]);
        let (mut memory, mut cards) = (0, 0);
        let card = book.cards().iter().map(|card| card.capacity.memory).max();
        let card = card.unwrap_or(MiB::ZERO);
        for ask in asks {
            match ask {
                Ask::Nothing => {}
                Ask::Parts(parts) => memory += parts.memory_on(card).get(),
                Ask::WholeCards(count) => cards += u64::from(count.get()),
            }
        }
        let enough = match claim.ask() {
            Ask::Nothing => true,
            Ask::Parts(_) => memory <= book.capacity().get(),
            Ask::WholeCards(_) => cards <= book.cards().len() as u64,
        };
        enough && check_machine(&book, claim).is_ok()
    }
}

#[cfg(test)]
mod tests;
