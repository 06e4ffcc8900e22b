//! Chooses which pods to evict from a node so that a claim fits there.
//!
//! The stock scheduler proposes victims by sums. On a node with two half-full cards it evicts the
//! two least important pods, which may be on different cards. Here a card must really become free.
//! The victims are searched card by card ([`search`]): as few as possible, then the least
//! important. This module evicts nothing: the stock scheduler compares nodes by their victims, and
//! evicts them.

use std::collections::BTreeSet;

use sublet_model::{Ask, Book, Claim, MiB, NodeIdx, PodUid};

use crate::fit::{Rules, fit};
use crate::look_alike::check_look_alikes;
use crate::score::Scores;
use crate::stock::check_machine;
use crate::{Engine, Policy};

mod search;

pub use search::Evictable;
use search::Search;

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
    /// the stock scheduler would evict. As few budgets as possible are broken, then as few pods go
    /// as possible, then the most important ones are spared. A pod of `theirs` goes although our sums do not need it: it must be
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
        let all: BTreeSet<PodUid> = row.iter().map(|pod| pod.uid.clone()).collect();
        let bare = self.ledger().book_without(node, &all);
        if !self.has_room(uid, claim, &bare) {
            return None;
        }
        // If our count of CPU and memory refuses what the stock scheduler accepted, we cannot tell
        // which pods it needs gone. Then no pod is spared that it would evict.
        let counts = check_machine(&bare, claim).is_ok();
        let must_go = |pod: &Evictable| {
            theirs.contains(&pod.uid) && (!counts || self.is_needed(claim, node, &pod.uid, theirs))
        };
        let search = Search {
            row,
            node,
            ledger: self.ledger(),
            fits: &|book| {
                (!counts || check_machine(book, claim).is_ok()) && self.has_room(uid, claim, book)
            },
            may_stay: &|pod| !must_go(pod),
        };
        let victims = search.fewest().into_iter().map(|at| row[at].clone());
        Some(victims.collect()).filter(|victims: &Vec<_>| !victims.is_empty())
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
