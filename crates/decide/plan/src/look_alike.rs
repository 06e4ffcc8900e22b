//! Keeps pods that a node's agent could not tell apart from waiting there for their devices at the
//! same time. A rule for every caller that looks for a place; it takes nothing.

use sublet_model::{Ask, Book, Claim, Count, Entry, Identity, Ledger, NodeFacts, PodUid, Role};

use crate::Reason;

/// If a node's agent recognises pods by their sizes, two pods that look alike must not wait for
/// their devices at the same time. The agent sees no sizes of pods with slots, so all these look
/// alike.
///
/// Some agents learn afterwards from kubelet's checkpoint which pod they have served. There twins
/// may wait together: whichever twin kubelet means, it gets the same. `position`: the card that the
/// pod would get, or the first of several.
///
/// # Errors
/// The other pod that looks alike.
pub(crate) fn check_look_alikes(
    ledger: &Ledger,
    book: &Book,
    uid: &PodUid,
    claim: &Claim,
    position: usize,
) -> Result<(), Reason> {
    if book.unassigned().is_empty() || !claim.has_gpu() {
        return Ok(());
    }
    let Some(facts) = book.facts() else {
        return Ok(());
    };
    let twins = match facts.identity {
        Identity::SizeAndOrder => false,
        Identity::Checkpoint => true,
        Identity::NoAgent | Identity::Nri => return Ok(()),
    };
    for other in book.unassigned().iter().filter(|other| *other != uid) {
        if let Some(entry) = ledger.entry(other)
            && entry.claim.looks_like(claim, facts.advertise)
            && !(twins && are_twins(facts, entry, claim, position))
        {
            return Err(Reason::LookAlike {
                other: entry.pod.clone(),
            });
        }
    }
    Ok(())
}

/// Would the claim, on that card, get exactly the same as the other pod? Only pods with one
/// container that has a part of one card are compared: for other pods kubelet asks more than once.
fn are_twins(facts: &NodeFacts, other: &Entry, claim: &Claim, position: usize) -> bool {
    let Ask::Parts(parts) = claim.ask() else {
        return false;
    };
    let [container] = claim.containers() else {
        return false;
    };
    let grants = other.allocation.as_ref().map(|one| &one.grants[..]);
    let Some([grant]) = grants else {
        return false;
    };
    parts.count() == Count::new(1)
        && container.role == Role::Main
        && *other.claim == *claim
        && facts.inventory.position(&grant.card) == Some(position)
}
