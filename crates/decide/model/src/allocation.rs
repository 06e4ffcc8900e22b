//! The allocation of one claim: its cards, and the amount of each.
//!
//! An allocation is plain data that travels as an annotation. [`charges_of`] is the only place that
//! says its cost, so that the ledger and the node agent never disagree.

use std::collections::BTreeSet;

use crate::peak::peak_part;
use crate::{
    Ask, Claim, ContainerClaim, ContainerName, GpuIndex, GpuUuid, MiB, Milli, Part, Portion, Role,
};

/// A card as an allocation names it. If a UUID is given, it wins over the index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CardRef {
    /// Number on the node.
    pub index: GpuIndex,
    /// UUID; absent where no agent reports the node, and in older annotations.
    pub uuid: Option<GpuUuid>,
}

/// One card, or a part of it, for one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The container.
    pub container: ContainerName,
    /// Its card.
    pub card: CardRef,
    /// So much of the card's memory.
    pub memory: MiB,
}

/// A pod's allocation: a grant for every container and card.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocation {
    /// In the order of the claim's containers.
    pub grants: Vec<Grant>,
}

impl Allocation {
    /// The grants of one container.
    pub fn of<'a>(&'a self, container: &'a ContainerName) -> impl Iterator<Item = &'a Grant> {
        self.grants
            .iter()
            .filter(move |grant| grant.container == *container)
    }

    /// The amount that the containers on a card take of it at their worst moment; `None` if a
    /// container of the pod is on no card, or they take more than there is.
    fn peak_on(&self, card: &CardRef, claim: &Claim) -> Option<Part> {
        let on = |container: &ContainerClaim| {
            let mut grants = self.of(&container.name).map(|grant| &grant.card).peekable();
            grants.peek()?;
            Some(grants.any(|one| one == card))
        };
        let mut amounts = Vec::new();
        for container in claim.containers() {
            if on(container)?
                && let Portion::Part(part) = container.demand.portion
            {
                amounts.push((container.role, part));
            }
        }
        peak_part(&amounts).ok()
    }

    /// Could this be the answer to that claim? Each container has as many different cards as
    /// it asked, with the amount it asked; parts are on the first cards of the pod, unless containers
    /// choose for themselves; whole cards that are in use at the same time differ.
    #[must_use]
    pub fn answers(&self, claim: &Claim) -> bool {
        let mut wanted = 0;
        let mut held = BTreeSet::new();
        let mut shared: Vec<BTreeSet<&CardRef>> = Vec::new();
        for container in claim.containers() {
            let cards: BTreeSet<_> = self.of(&container.name).map(|g| &g.card).collect();
            let gpus = container.demand.gpus.get() as usize;
            wanted += gpus;
            if cards.len() != gpus || self.of(&container.name).count() != gpus {
                return false;
            }
            match container.demand.portion {
                Portion::Part(part) => {
                    let mut grants = self.of(&container.name);
                    let is_wrong = |grant: &Grant| match part.memory_share {
                        Milli::ZERO => grant.memory != part.memory,
                        _ => grant.memory < part.memory,
                    };
                    if grants.any(is_wrong) {
                        return false;
                    }
                    shared.push(cards);
                }
                // It ends before the next container starts, but sidecars run beside it.
                Portion::Whole if container.role == Role::Init => {
                    if cards.iter().any(|card| held.contains(card)) {
                        return false;
                    }
                }
                Portion::Whole => {
                    if cards.into_iter().any(|card| !held.insert(card)) {
                        return false;
                    }
                }
            }
        }
        // A container with fewer cards has some of those of one with more.
        shared.sort_by_key(BTreeSet::len);
        let nested = shared.windows(2).all(|two| two[0].is_subset(&two[1]));
        let own = matches!(claim.ask(), Ask::Parts(parts) if parts.own().is_some());
        self.grants.len() == wanted && (own || nested)
    }
}

/// The amount that is taken from one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// The card.
    pub card: CardRef,
    /// The amount, shares included; for a whole card all of it, of any size.
    pub part: Part,
    /// The card is shared with nobody.
    pub whole: bool,
}

/// Returns the amount that `allocation`, the answer to `claim`, takes from each card.
///
/// Amounts come from the claim, only the cards from the allocation: a pod cannot be charged
/// less than it asked because an annotation says so.
#[must_use]
pub fn charges_of(claim: &Claim, allocation: &Allocation) -> Vec<Charge> {
    let mut charges: Vec<Charge> = Vec::new();
    for grant in &allocation.grants {
        if charges.iter().any(|charge| charge.card == grant.card) {
            continue;
        }
        let (part, whole) = match claim.ask() {
            // It has no container, so no grant can belong to it.
            Ask::Nothing => continue,
            Ask::Parts(parts) => {
                let part = allocation.peak_on(&grant.card, claim);
                (part.unwrap_or_else(|| parts.largest()), false)
            }
            Ask::WholeCards(_) => (Part::whole(grant.memory), true),
        };
        charges.push(Charge {
            card: grant.card.clone(),
            part,
            whole,
        });
    }
    charges
}

#[cfg(test)]
mod tests;
