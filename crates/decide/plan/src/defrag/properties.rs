//! Properties of every list of moves, for random clusters.

use proptest::prelude::*;
use sublet_model::{Ask, CardRef, Entry, GpuIndex, Grant, Ledger, PodUid};

use super::draft::cards_of;
use super::tests::Cluster;
use super::*;
use crate::{Engine, EngineOptions, StockRules};

const CARDS: [&str; 14] = [
    "-", "-", "W", "W*", "P", "P", "2", "3+2", "4*", "6", "5+1*", "1+1+2", "7", "3!",
];

/// A cluster as a picture, so that a failure can be read.
fn picture() -> impl Strategy<Value = String> {
    let sharing = prop::sample::select(vec!["", "", "", "memory", "whole"]);
    let cards = prop::collection::vec(prop::sample::select(&CARDS[..]), 0..6);
    let node = (0..60u32, sharing, cards);
    prop::collection::vec(node, 0..6).prop_map(|nodes| {
        let line = |(name, (cpu, sharing, cards)): (char, (u32, &str, Vec<&str>))| {
            format!("{name} {cpu} {sharing}: {}\n", cards.join(" "))
        };
        ('a'..).zip(nodes).map(line).collect()
    })
}

/// The cluster in a separate engine, which knows nothing of the search.
fn engine(ledger: &Ledger) -> Engine {
    let mut engine = Engine::new(EngineOptions {
        stock: StockRules::Here,
        ..EngineOptions::default()
    });
    for facts in ledger.books().filter_map(|(_, book)| book.facts()) {
        engine.set_node(facts.clone());
    }
    for entry in ledger.entries() {
        engine.observe(entry.clone());
    }
    engine
}

/// The pod's entry after a move, on the cards that the move names.
fn moved(engine: &Engine, step: &Move) -> Entry {
    let mut entry = engine.ledger().entry(&step.uid).unwrap().clone();
    let book = engine.ledger().book(step.to.node);
    let gpus = book.facts().unwrap().inventory.gpus();
    let container = entry.claim.containers()[0].name.clone();
    let grant = |card: &GpuIndex| Grant {
        container: container.clone(),
        card: CardRef {
            index: *card,
            uuid: None,
        },
        memory: match entry.claim.ask() {
            Ask::Parts(parts) => parts.memory(),
            _ => gpus[usize::from(card.0)].memory,
        },
    };
    let grants = step.to.cards.iter().map(grant).collect();
    entry.allocation = Some(sublet_model::Allocation { grants });
    entry.node = book.name().clone();
    entry
}

/// Is there room for the pod on exactly those cards, beside all that is there?
fn has_room(engine: &Engine, step: &Move) -> bool {
    let cards = engine.ledger().book(step.to.node).cards();
    let cards: Vec<_> = step
        .to
        .cards
        .iter()
        .map(|at| cards[usize::from(at.0)])
        .collect();
    let room = match step.claim.ask() {
        Ask::Nothing => false,
        Ask::Parts(parts) => cards.len() == 1 && cards[0].free().memory >= parts.memory(),
        Ask::WholeCards(count) => {
            cards.len() == count.get() as usize && cards.iter().all(sublet_model::Card::is_idle)
        }
    };
    let newcomer = PodUid::new("newcomer").unwrap();
    room && engine.fit(&newcomer, &step.claim, step.to.node).is_ok()
}

proptest! {
    #[test]
    fn every_beginning_is_legal_and_makes_nothing_worse(picture in picture(), most in 0..12usize) {
        let cluster = Cluster::of(&picture);
        let found = cluster.defragment(most);
        prop_assert!(found.moves.len() <= most);
        prop_assert_eq!(found.states.len(), found.moves.len() + 1);
        let mut engine = engine(&cluster.ledger);
        let n_pods = engine.ledger().entries().count();
        for (at, step) in found.moves.iter().enumerate() {
            prop_assert!(!cluster.staying.contains(&step.uid));
            prop_assert!(has_room(&engine, step), "{:?}", step);
            let entry = moved(&engine, step);
            prop_assert!(entry.allocation.as_ref().unwrap().answers(&entry.claim));
            prop_assert_eq!(cards_of(engine.ledger().entry(&step.uid).unwrap()), step.from.cards.clone());
            engine.observe(entry);
            prop_assert!(engine.ledger().is_conserved());
            prop_assert_eq!(engine.ledger().entries().count(), n_pods);
            let (before, after) = (found.states[at], found.states[at + 1]);
            prop_assert!(after.free >= before.free && after.largest >= before.largest);
            // The state that the plan reports is the state that a new search finds.
            let again = Cluster { ledger: engine.ledger().clone(), ..Cluster::default() };
            let seen = again.defragment(0).states[0];
            prop_assert_eq!((seen.free, seen.largest, seen.nodes), (after.free, after.largest, after.nodes));
        }
        if let (Some(first), Some(last)) = (found.states.first(), found.states.last()) {
            let better = last.free > first.free || last.largest > first.largest;
            prop_assert_eq!(better, !found.moves.is_empty());
        }
        prop_assert_eq!(found, cluster.defragment(most));
    }

    /// At the end, no single move of a pod that shares a card wins anything.
    #[test]
    fn it_ends_when_no_move_of_a_part_wins_anything(picture in picture()) {
        let cluster = Cluster::of(&picture);
        let found = cluster.defragment(usize::MAX);
        let mut engine = engine(&cluster.ledger);
        for step in &found.moves {
            engine.observe(moved(&engine, step));
        }
        let last = found.states[found.states.len() - 1];
        for entry in engine.ledger().entries() {
            if cluster.staying.contains(&entry.uid) || !matches!(entry.claim.ask(), Ask::Parts(_)) {
                continue;
            }
            let from = engine.ledger().find(entry.node.as_str()).unwrap();
            for (node, book) in engine.ledger().books() {
                for card in (0..).map(GpuIndex).take(book.cards().len()) {
                    let step = Move {
                        pod: entry.pod.clone(),
                        uid: entry.uid.clone(),
                        claim: entry.claim.clone(),
                        from: Spot { node: from, cards: cards_of(entry) },
                        to: Spot { node, cards: vec![card] },
                    };
                    if step.to == step.from || !has_room(&engine, &step) {
                        continue;
                    }
                    let mut other = engine.clone();
                    other.observe(moved(&engine, &step));
                    let other = Cluster { ledger: other.ledger().clone(), ..Cluster::default() };
                    let state = other.defragment(0).states[0];
                    let better = state.free > last.free || state.largest > last.largest;
                    let worse = state.free < last.free || state.largest < last.largest;
                    prop_assert!(!better || worse, "{:?} would win", step);
                }
            }
        }
    }
}
