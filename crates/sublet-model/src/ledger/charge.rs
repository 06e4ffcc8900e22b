//! How a page's accounts come about: from nothing, pod by pod, and in no other way.

use super::{Book, Card, Entry};
use crate::{Ask, CardRef, Charge, Count, Inventory, MachineUse, charges_of};

/// Empties a page's accounts, keeping its facts and its list of pods.
pub(super) fn reset(book: &mut Book) {
    let none = Inventory::default();
    let inventory = book.facts.as_ref().map_or(&none, |facts| &facts.inventory);
    book.cards = inventory
        .gpus()
        .iter()
        .map(|gpu| Card {
            capacity: gpu.memory,
            healthy: gpu.health.is_healthy(),
            ..Card::default()
        })
        .collect();
    book.unassigned.clear();
    book.unplaced = Count::ZERO;
    book.machine = MachineUse::default();
    book.free = book.cards.iter().map(Card::free).sum();
    book.capacity = inventory.memory();
}

/// Works out the free share of each card.
pub(super) fn note_shares(book: &mut Book) {
    book.shares.clear();
    book.shares.extend(book.cards.iter().map(Card::share_left));
}

/// Charges one pod to a page.
pub(super) fn charge(book: &mut Book, entry: &Entry) {
    book.machine.charge(&entry.claim);
    if !entry.assigned {
        // Kept in UID order, so that a recount gives the same list.
        let at = book.unassigned.partition_point(|uid| *uid < entry.uid);
        book.unassigned.insert(at, entry.uid.clone());
    }
    let Some(facts) = &book.facts else { return };
    match (&entry.allocation, entry.claim.ask()) {
        (Some(allocation), _) => {
            for charge in charges_of(&entry.claim, allocation) {
                // A card that is no longer on the node cannot be charged.
                if let Some(position) = facts.inventory.position(&charge.card) {
                    book.cards[position].take(&charge);
                }
            }
        }
        (None, Ask::Nothing) => {}
        (None, Ask::WholeCards(count)) => book.unplaced = book.unplaced.plus(count),
        // With one card there is no doubt which it is.
        (None, Ask::OneCard(memory)) => {
            if let [card] = &mut book.cards[..] {
                let index = facts.inventory.gpus()[0].index;
                let uuid = None;
                card.take(&Charge {
                    card: CardRef { index, uuid },
                    memory,
                    whole: false,
                });
            }
        }
    }
    book.free = book.cards.iter().map(Card::free).sum();
}
