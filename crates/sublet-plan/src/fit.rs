//! May it go here, and on which cards? The one implementation of fit and choice.
//!
//! Called for every node that a scan does not pass over (`screen`), so nothing is allocated
//! on the way to a "yes". A "no" costs one more pass over the node's cards to find its
//! numbers: a scan meets few, for it knows full nodes by their outlines.

use sublet_model::{
    Advertise, Allocation, Ask, Book, Card, CardRef, Claim, Count, Grant, Identity, Ledger, MiB,
    NodeFacts, PodUid, Portion, Role, Sharing, Unit,
};

use crate::policy::After;
use crate::{Policy, Reason};

/// A node that can take the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Position of the chosen card, or of the first of several whole ones.
    pub position: usize,
    /// The place is only free if no soft hold comes true: such nodes come last.
    pub contended: bool,
    /// The policy's cost of the node, lower is better.
    pub cost: u64,
}

/// May the pod `uid` with this claim go on that node?
///
/// # Errors
/// The reason why not.
pub fn fit(
    ledger: &Ledger,
    book: &Book,
    uid: &PodUid,
    claim: &Claim,
    unit: Unit,
    policy: Policy,
) -> Result<Candidate, Reason> {
    let facts = check_node(book, claim, unit)?;
    let candidate = match claim.ask() {
        Ask::OneCard(asked) => fit_part(book, facts, asked, policy)?,
        Ask::WholeCards(asked) => fit_whole(book, facts, asked, policy)?,
    };
    check_look_alikes(ledger, book, facts, uid, claim)?;
    Ok(candidate)
}

/// Writes the allocation for a claim that fits: `candidate` came from [`fit`] on this page.
///
/// Whole cards are taken in order of their index, those that a soft hold wants last. Init
/// containers use the cards of the containers after them, as kubelet does.
#[must_use]
pub fn allocate(book: &Book, claim: &Claim, candidate: &Candidate) -> Allocation {
    let gpus = book.facts().map_or(&[][..], |facts| facts.inventory.gpus());
    let chosen: Vec<usize> = match claim.ask() {
        Ask::OneCard(_) => vec![candidate.position],
        Ask::WholeCards(count) => idle(book).take(count.get() as usize).collect(),
    };
    let mut next = 0;
    let mut grants = Vec::new();
    for container in claim.containers() {
        let count = container.demand.gpus.get() as usize;
        let cards = match container.demand.portion {
            Portion::Memory(_) => &chosen[..],
            Portion::Whole => &chosen[next..next + count],
        };
        if container.demand.portion == Portion::Whole && container.role != Role::Init {
            next += count;
        }
        grants.extend(cards.iter().map(|&position| Grant {
            container: container.name.clone(),
            card: CardRef {
                index: gpus[position].index,
                uuid: gpus[position].uuid.clone(),
            },
            memory: match container.demand.portion {
                Portion::Memory(memory) => memory,
                Portion::Whole => gpus[position].memory,
            },
        }));
    }
    Allocation { grants }
}

fn check_node<'a>(book: &'a Book, claim: &Claim, unit: Unit) -> Result<&'a NodeFacts, Reason> {
    let facts = book.facts().ok_or(Reason::Unknown)?;
    if book.cards().is_empty() {
        return Err(Reason::NoGpu);
    }
    let part = matches!(claim.ask(), Ask::OneCard(_));
    let served = match facts.sharing {
        Sharing::Both => true,
        Sharing::Memory => part,
        Sharing::Whole => !part,
    };
    if !served {
        return Err(Reason::Sharing {
            node: facts.sharing,
        });
    }
    if part && facts.unit != unit {
        return Err(Reason::Unit {
            node: facts.unit,
            scheduler: unit,
        });
    }
    if part && facts.advertise == Advertise::Slots && !claim.has_slot() {
        return Err(Reason::NoSlot);
    }
    Ok(facts)
}

fn fit_part(
    book: &Book,
    facts: &NodeFacts,
    asked: MiB,
    policy: Policy,
) -> Result<Candidate, Reason> {
    // Pods that hold whole cards without saying which may be on any idle one.
    let idle_allowed =
        book.unplaced() == Count::ZERO || idle(book).count() > book.unplaced().get() as usize;
    let mut best: Option<(bool, u64, usize)> = None;
    for (position, card) in book.cards().iter().enumerate() {
        let Some(left) = card.free().checked_sub(asked) else {
            continue;
        };
        if !card.healthy || card.whole > 0 || (card.tenants == 0 && !idle_allowed) {
            continue;
        }
        // With holds counted in, or, if only a hold is in the way, without.
        let uncontended = left.checked_sub(card.held);
        let this = (
            uncontended.is_none(),
            (policy.card)(uncontended.unwrap_or(left)),
            position,
        );
        if best.is_none_or(|best| this < best) {
            best = Some(this);
        }
    }
    let Some((contended, _, position)) = best else {
        return Err(no_room(facts, book.cards(), asked, idle_allowed));
    };
    let held: MiB = book.cards().iter().map(|card| card.held).sum();
    let card = &book.cards()[position];
    let after = After {
        card_left: card.free().saturating_sub(card.held).saturating_sub(asked),
        node_left: book.free().saturating_sub(held).saturating_sub(asked),
        node_capacity: book.capacity(),
    };
    Ok(Candidate {
        position,
        contended,
        cost: (policy.node)(&after),
    })
}

fn fit_whole(
    book: &Book,
    facts: &NodeFacts,
    asked: Count,
    policy: Policy,
) -> Result<Candidate, Reason> {
    let total = Count::new(book.cards().len() as u32);
    if asked > total {
        return Err(Reason::TooFew { asked, total });
    }
    let free = Count::new(idle(book).count() as u32).saturating_sub(book.unplaced());
    if asked > free {
        let sick = book.cards().iter().filter(|card| !card.healthy).count();
        return Err(Reason::NoIdle {
            asked,
            idle: free,
            total,
            sick: Count::new(sick as u32),
        });
    }
    let holds = idle(book).filter(|&at| book.cards()[at].holds > 0).count() as u32;
    let taken: MiB = idle(book)
        .take(asked.get() as usize)
        .map(|at| facts.inventory.gpus()[at].memory)
        .sum();
    let held: MiB = book.cards().iter().map(|card| card.held).sum();
    let after = After {
        card_left: MiB::ZERO,
        node_left: book.free().saturating_sub(held).saturating_sub(taken),
        node_capacity: book.capacity(),
    };
    Ok(Candidate {
        position: idle(book).next().unwrap_or(0),
        contended: asked > free.saturating_sub(Count::new(holds)),
        cost: (policy.node)(&after),
    })
}

/// On a node whose agent knows pods only by their sizes, two that look alike must not wait
/// for their devices at the same time; with slots it sees no size at all.
fn check_look_alikes(
    ledger: &Ledger,
    book: &Book,
    facts: &NodeFacts,
    uid: &PodUid,
    claim: &Claim,
) -> Result<(), Reason> {
    if facts.identity != Identity::SizeAndOrder {
        return Ok(());
    }
    let slots = facts.advertise == Advertise::Slots;
    for other in book.unassigned().iter().filter(|other| *other != uid) {
        if let Some(entry) = ledger.entry(other)
            && (slots || entry.claim.looks_like(claim))
        {
            return Err(Reason::LookAlike {
                other: entry.pod.clone(),
            });
        }
    }
    Ok(())
}

/// The cards that can be handed out whole: first those that no soft hold wants, each group
/// in order of the index.
pub(crate) fn idle(book: &Book) -> impl Iterator<Item = usize> {
    let cards = book.cards().iter().enumerate();
    let idle = cards.filter(|(_, card)| card.is_idle());
    let wanted = idle.clone().filter(|(_, card)| card.holds > 0);
    let rest = idle.filter(|(_, card)| card.holds == 0);
    rest.chain(wanted).map(|(at, _)| at)
}

fn no_room(facts: &NodeFacts, cards: &[Card], asked: MiB, idle_allowed: bool) -> Reason {
    let gpus = facts.inventory.gpus();
    // The first of the largest, so that the answer does not depend on chance.
    let largest = |size: &dyn Fn(&Card) -> MiB| {
        let best = (0..cards.len()).max_by_key(|&at| (size(&cards[at]), usize::MAX - at));
        let at = best.unwrap_or(0);
        (size(&cards[at]), gpus[at].index)
    };
    let (capacity, gpu) = largest(&|card| card.capacity);
    if capacity < asked {
        return Reason::TooSmall {
            asked,
            largest: capacity,
            gpu,
        };
    }
    let sick = cards
        .iter()
        .filter(|card| !card.healthy && card.capacity >= asked)
        .count();
    let (hole, gpu) = largest(&|card| {
        if card.is_idle() && !idle_allowed {
            MiB::ZERO
        } else {
            card.free()
        }
    });
    Reason::NoRoom {
        asked,
        hole,
        gpu,
        sick: Count::new(sick as u32),
    }
}

#[cfg(test)]
mod tests;
