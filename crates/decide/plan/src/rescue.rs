//! Chooses the pods to evict for a pod that waits although no node lacks a sum.
//!
//! The stock scheduler evicts nobody for such a pod: on two cards with half of each free, the sum
//! says that there is room. Here each card is looked at by itself, on every node that would take
//! the pod. The fewest pods go; of equal numbers those of the lowest priority, then the youngest. A
//! set is proposed only if a trial places the pod where the set was. This module evicts nothing.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use sublet_model::{Book, Claim, Entry, NodeIdx, PodUid, Time};

use crate::stock::check_machine;
use crate::{Candidacy, Engine, Evictable};

/// A pod that may be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removable {
    /// The pod, and whether a disruption budget would break if all of the row went.
    pub pod: Evictable,
    /// Its priority.
    pub priority: i32,
    /// When it started: RFC 3339 in UTC and whole seconds, so that it sorts as text. `None`: not yet.
    pub started: Option<Box<str>>,
}

/// A node that would take the pod by all rules that count nothing.
#[derive(Debug, Clone)]
pub struct Prospect {
    /// The node.
    pub node: NodeIdx,
    /// The pods that may go from there, the most important first.
    pub row: Vec<Removable>,
    /// The pods that go from there anyway, and are not in the row.
    pub going: BTreeSet<PodUid>,
}

/// The pods to evict, and the node where the waiting pod goes then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rescue {
    /// The node.
    pub node: NodeIdx,
    /// The pods to evict, the most important first; at least one.
    pub victims: Vec<PodUid>,
}

/// Reason why nobody is to be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRescue {
    /// There is room, or there will be when the pods that go anyway have gone.
    RoomComes,
    /// No eviction of pods of lower priority helps.
    NobodyHelps,
    /// Evictions would help, but each would break a disruption budget.
    Guarded,
}

/// So many nodes with victims are compared; the stock scheduler also stops at a hundred.
const ENOUGH: usize = 100;

impl Engine {
    /// Chooses the pods to evict so that this pod finds a place. `waiting`: the pod; its node,
    /// allocation and standing do not count. `breaks`: would the eviction of all these pods break a
    /// budget?
    ///
    /// # Errors
    /// The reason why nobody is to be evicted.
    pub fn rescue(
        &mut self,
        now: Time,
        waiting: &Entry,
        prospects: &[Prospect],
        breaks: impl Fn(&[&Entry]) -> bool,
    ) -> Result<Rescue, NoRescue> {
        let (uid, claim) = (&waiting.uid, &*waiting.claim);
        for prospect in prospects {
            let book = self.ledger().book_without(prospect.node, &prospect.going);
            if self.takes(uid, claim, &book) {
                return Err(NoRescue::RoomComes);
            }
        }
        let mut guarded = false;
        let mut found = Vec::new();
        for prospect in prospects {
            let Some(set) = self.set(uid, claim, prospect) else {
                continue;
            };
            let uids: Vec<PodUid> = set.iter().map(|one| one.pod.uid.clone()).collect();
            let entries = uids.iter().filter_map(|uid| self.ledger().entry(uid));
            if breaks(&entries.collect::<Vec<_>>()) {
                guarded = true;
                continue;
            }
            found.push((weight(&set), prospect.node, uids));
            if found.len() == ENOUGH {
                break;
            }
        }
        // Stable: of equal sets the first node's.
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let proven = found
            .into_iter()
            .find(|(_, node, victims)| self.proves(now, waiting, *node, victims));
        match proven {
            Some((_, node, victims)) => Ok(Rescue { node, victims }),
            None if guarded => Err(NoRescue::Guarded),
            None => Err(NoRescue::NobodyHelps),
        }
    }

    /// Would this pod still find a place on the node if that other one took one there, and those
    /// had gone? True too if it finds none either way: then the other is not in its way.
    #[must_use]
    pub fn leaves_room(
        &mut self,
        now: Time,
        waiting: &Entry,
        node: NodeIdx,
        going: &BTreeSet<PodUid>,
        other: &Entry,
    ) -> bool {
        let place = |engine: &mut Engine, first: Option<&Entry>| {
            let mut trial = engine.trial(now);
            let nodes = [node];
            let pod = |entry: &Entry| Candidacy {
                entry: entry.clone(),
                nodes: &nodes,
            };
            // The other one comes before they have gone.
            let first = first.is_none_or(|other| trial.place(&[pod(other)]).is_ok());
            for uid in going {
                let _entry = trial.evict(uid);
            }
            first && trial.place(&[pod(waiting)]).is_ok()
        };
        !place(self, None) || place(self, Some(other))
    }

    fn takes(&self, uid: &PodUid, claim: &Claim, book: &Book) -> bool {
        check_machine(book, claim).is_ok() && self.has_room(uid, claim, book)
    }

    /// The fewest pods of a node that must go for the claim to fit, the most important first.
    fn set(&self, uid: &PodUid, claim: &Claim, prospect: &Prospect) -> Option<Vec<Removable>> {
        let Prospect { node, row, .. } = prospect;
        let pods: Vec<Evictable> = row.iter().map(|one| one.pod.clone()).collect();
        let gone = self.victims(uid, claim, *node, &pods, &BTreeSet::new())?;
        let gone: BTreeSet<PodUid> = gone.into_iter().map(|one| one.uid).collect();
        check_machine(&self.ledger().book_without(*node, &gone), claim).ok()?;
        let set = row.iter().filter(|one| gone.contains(&one.pod.uid));
        Some(set.cloned().collect())
    }

    fn proves(&mut self, now: Time, waiting: &Entry, node: NodeIdx, victims: &[PodUid]) -> bool {
        let mut trial = self.trial(now);
        for victim in victims {
            let _entry = trial.evict(victim);
        }
        let nodes = [node];
        let pod = Candidacy {
            entry: waiting.clone(),
            nodes: &nodes,
        };
        trial.place(&[pod]).is_ok()
    }
}

/// The number of victims, the priority of the most important one, and its age.
type Weight = (usize, Option<i32>, Reverse<(bool, Option<Box<str>>)>);

/// Orders sets: the fewest pods first; of equal numbers the set with the least important first pod.
fn weight(set: &[Removable]) -> Weight {
    let first = set.first();
    let priority = first.map(|one| one.priority);
    let started = first.and_then(|one| one.started.clone());
    (set.len(), priority, Reverse((started.is_none(), started)))
}

#[cfg(test)]
mod tests;
