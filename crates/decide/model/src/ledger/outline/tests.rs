//! An outline agrees with its page, for pages of any kind, also such as no cluster can get into.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{Inventory, MachineUse, NodeFacts, NodeName, Part};

fn card() -> impl Strategy<Value = Card> {
    // Small cards, cards of today, and amounts that nobody has.
    let amount = prop_oneof![0..40u64, 0..90_000u64, 0..=MiB::MAX.get()];
    let unsure = prop_oneof![3 => Just(0), 1 => amount.clone()];
    let amounts = (amount.clone(), amount.clone(), amount, unsure);
    let counts = (0..3u32, 0..3u32, 0..3u32);
    (amounts, counts, any::<bool>()).prop_map(|(amounts, (tenants, whole, holds), healthy)| {
        let memory = |amount| Part::of_memory(MiB::new(amount).unwrap());
        Card {
            capacity: Part::whole(memory(amounts.0).memory),
            used: memory(if tenants == 0 { 0 } else { amounts.1 }),
            unsure: memory(amounts.3),
            held: memory(if holds == 0 { 0 } else { amounts.2 }),
            tenants,
            guaranteed: tenants,
            whole: whole.min(tenants),
            holds,
            healthy,
        }
    })
}

fn book() -> impl Strategy<Value = Book> {
    let sharing = prop_oneof![
        Just(Sharing::Memory),
        Just(Sharing::Whole),
        Just(Sharing::Both)
    ];
    let cards = prop::collection::vec(card(), 0..6);
    (cards, sharing, 0..4u32, prop::bool::weighted(0.9)).prop_map(
        |(cards, sharing, unplaced, known)| {
            let name = NodeName::new("a").unwrap();
            let inventory = Inventory::equal_cards(cards.len(), MiB::ZERO).unwrap();
            let facts = NodeFacts {
                sharing,
                ..NodeFacts::plain(name.clone(), Arc::new(inventory))
            };
            Book {
                name,
                facts: known.then_some(facts),
                pods: BTreeSet::new(),
                unassigned: Vec::new(),
                unplaced: Count::new(unplaced),
                free: cards.iter().map(|card| card.free().memory).sum(),
                capacity: cards.iter().map(|card| card.capacity.memory).sum(),
                cards,
                machine: MachineUse::default(),
                shares: Vec::new(),
                neighbours: BTreeMap::new(),
            }
        },
    )
}

proptest! {
    #[test]
    fn it_says_of_rooms_what_the_cards_say(book in book(), asked in prop_oneof![0..40u64, 0..90_000u64]) {
        let (outline, asked) = (Outline::of(&book), MiB::new(asked).unwrap());
        let served = book.facts.as_ref().is_some_and(|facts| facts.sharing != Sharing::Whole)
            && book.unplaced == Count::ZERO;
        let open = |card: &&Card| served && card.healthy && card.whole == 0;
        let open: Vec<&Card> = book.cards.iter().filter(open).collect();
        prop_assert_eq!(outline.has_room(asked), open.iter().any(|card| card.free().memory >= asked));
        let hole = open.iter().map(|card| card.free().memory).max();
        prop_assert_eq!(outline.hole(), hole.unwrap_or(MiB::ZERO));
        let rooms = open.iter().filter_map(|card| card.free().memory.checked_sub(card.held.memory));
        let least = rooms.filter(|room| *room >= asked).min();
        // `None` only where there is none; else never more than the truth, nor less than asked.
        if let Some(least) = least {
            let said = outline.least_room(asked).unwrap();
            prop_assert!(asked <= said && said <= least, "{} {}", said, least);
        }
    }

    #[test]
    fn it_says_of_whole_cards_what_the_cards_say(book in book(), asked in 1..4u32) {
        let outline = Outline::of(&book);
        let served = book.facts.as_ref().is_some_and(|facts| facts.sharing != Sharing::Memory);
        let idle: Vec<&Card> = book.cards.iter().filter(|card| served && card.is_idle()).collect();
        let unplaced = book.unplaced.get() as usize;
        prop_assert_eq!(outline.idle().get() as usize, idle.len().saturating_sub(unplaced));
        let wanted = idle.iter().filter(|card| card.holds > 0).count();
        prop_assert_eq!(outline.wanted().get() as usize, wanted);
        let (least, most) = outline.idle_memory(Count::new(asked));
        for taken in idle.windows(asked as usize) {
            let memory: MiB = taken.iter().map(|card| card.capacity.memory).sum();
            prop_assert!(least <= memory && memory <= most);
        }
        if book.facts.is_some() {
            let held: MiB = book.cards.iter().map(|card| card.held.memory).sum();
            prop_assert_eq!(outline.left(), book.free.saturating_sub(held));
            prop_assert_eq!(outline.capacity(), book.capacity);
        }
    }

    #[test]
    fn rungs_rise_with_the_amount(amount in prop_oneof![0..600_000u64, 0..=MiB::MAX.get()]) {
        let amount = MiB::new(amount).unwrap();
        let own = rung(amount);
        prop_assert!(own < 64 && foot(own) <= amount);
        prop_assert_eq!(rung(foot(own)), own);
        prop_assert!(own == 63 || amount < foot(own + 1));
    }
}

#[test]
fn it_fits_a_cache_line() {
    assert_eq!(size_of::<Outline>(), 64);
}
