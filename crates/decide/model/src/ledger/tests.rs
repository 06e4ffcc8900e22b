//! The ledger alone: its accounts after entries came and went, compared with the sum of the
//! entries. Nodes that change, and random events, are tested through the engine (`sublet-plan`).

use proptest::prelude::*;

use super::*;
use crate::{
    CardRef, Class, ContainerClaim, ContainerName, Count, Demand, GpuIndex, Grant, Inventory, MiB,
    Milli, Portion, Role, Sharing,
};

fn node(name: &str, cards: usize) -> NodeFacts {
    NodeFacts {
        sharing: Sharing::Both,
        ..NodeFacts::plain(
            NodeName::new(name).unwrap(),
            Arc::new(Inventory::equal_cards(cards, MiB::from(16)).unwrap()),
        )
    }
}

/// A pod of one container that takes `memory` of card `index`.
fn entry(pod: &str, on: &str, index: u16, memory: u32, assigned: bool) -> Entry {
    let container = ContainerName::new("main").unwrap();
    let memory = MiB::from(memory);
    let claim = ContainerClaim {
        name: container.clone(),
        position: 0,
        role: Role::Main,
        demand: Demand::of_memory(memory),
    };
    let grant = Grant {
        container,
        card: CardRef {
            index: GpuIndex(index),
            uuid: None,
        },
        memory,
    };
    Entry {
        pod: PodKey::new("default", pod).unwrap(),
        uid: PodUid::new(pod).unwrap(),
        node: NodeName::new(on).unwrap(),
        claim: Arc::new(Claim::new(None, vec![claim], false).unwrap()),
        allocation: Some(Allocation {
            grants: vec![grant],
        }),
        standing: Standing::Bound,
        assigned,
        priority: 0,
    }
}

/// `node: used/capacity… free, pods that wait for devices`, a line per node.
fn check(ledger: &Ledger, expected: &[&str]) {
    let line = |(_, book): (NodeIdx, &Book)| {
        let card =
            |card: &Card| format!("{}/{} ", card.used.memory.get(), card.capacity.memory.get());
        let cards: String = book.cards().iter().map(card).collect();
        let waiting: Vec<&str> = book.unassigned().iter().map(PodUid::as_str).collect();
        format!(
            "{}: {cards}free {} {waiting:?}",
            book.name(),
            book.free().get()
        )
    };
    assert!(ledger.is_conserved());
    assert_eq!(ledger.books().map(line).collect::<Vec<_>>(), expected);
}

#[test]
fn entries_come_move_and_go() {
    let mut ledger = Ledger::new();
    ledger.set_node(node("b", 1));
    ledger.set_node(node("a", 2));
    ledger.enter(entry("q", "a", 1, 5, false));
    ledger.enter(entry("p", "a", 1, 4, false));
    check(
        &ledger,
        &[r#"a: 0/16 9/16 free 23 ["p", "q"]"#, "b: 0/16 free 16 []"],
    );
    ledger.enter(entry("p", "b", 0, 4, true));
    check(
        &ledger,
        &[r#"a: 0/16 5/16 free 27 ["q"]"#, "b: 4/16 free 12 []"],
    );
    assert_eq!(
        ledger.remove(&PodUid::new("p").unwrap()),
        Some(entry("p", "b", 0, 4, true))
    );
    assert_eq!(ledger.remove(&PodUid::new("p").unwrap()), None);
    check(
        &ledger,
        &[r#"a: 0/16 5/16 free 27 ["q"]"#, "b: 0/16 free 16 []"],
    );
}

#[test]
fn a_slot_is_used_again_only_when_nobody_is_left_in_it() {
    let mut ledger = Ledger::new();
    let a = ledger.set_node(node("a", 1));
    ledger.enter(entry("p", "a", 0, 4, true));
    ledger.remove_node(&NodeName::new("a").unwrap());
    let b = ledger.set_node(node("b", 1));
    assert_ne!(a, b, "a pod still says it is on node a");
    assert_eq!(ledger.find("a"), Some(a));
    ledger.remove(&PodUid::new("p").unwrap());
    assert_eq!(ledger.find("a"), None);
    assert_eq!(ledger.set_node(node("c", 1)), a);
    check(&ledger, &["b: 0/16 free 16 []", "c: 0/16 free 16 []"]);
}

#[test]
fn a_wrong_account_is_noticed() {
    let mut ledger = Ledger::new();
    let a = ledger.set_node(node("a", 1));
    ledger.enter(entry("p", "a", 0, 4, true));
    let page = a.0 as usize;
    type Spoil = fn(&mut Book);
    let spoils: [Spoil; 5] = [
        |book| book.cards[0].used.memory = MiB::from(3),
        |book| book.cards[0].tenants = 2,
        |book| book.free = MiB::from(16),
        |book| book.unplaced = Count::new(1),
        |book| book.pods.clear(),
    ];
    for spoil in spoils {
        let mut wrong = ledger.clone();
        spoil(&mut wrong.books[page]);
        assert!(!wrong.is_conserved());
    }
    assert!(ledger.is_conserved());
}

/// A pod of that many MiB that does not say which card it has.
fn lost(pod: &str, on: &str, memory: u32) -> Entry {
    Entry {
        allocation: None,
        ..entry(pod, on, 0, memory, true)
    }
}

#[test]
fn what_the_agent_handed_over_is_charged_where_it_is() {
    let card = |index| CardRef {
        index: GpuIndex(index),
        uuid: None,
    };
    let known = |cards: &[CardRef]| {
        let handed = [(PodUid::new("p").unwrap(), cards.to_vec())];
        NodeFacts {
            handed: Arc::new(handed.into()),
            ..node("a", 2)
        }
    };
    let mut ledger = Ledger::new();
    let a = ledger.set_node(node("a", 2));
    ledger.enter(lost("p", "a", 6));
    let cards = |ledger: &Ledger| {
        let cards = ledger.book(a).cards().iter();
        let amounts = cards.map(|card| {
            let amounts = [card.used, card.unsure, card.free()];
            amounts.map(|part| part.memory.get()).into()
        });
        amounts.collect::<Vec<(u64, u64, u64)>>()
    };
    assert_eq!(cards(&ledger), [(0, 6, 10), (0, 6, 10)]);
    ledger.set_node(known(&[card(1)]));
    assert_eq!(cards(&ledger), [(0, 0, 16), (6, 0, 10)]);
    // A card that is not there, or two of which it can only have one, tell nothing.
    for handed in [&[card(7)][..], &[card(0), card(1)]] {
        ledger.set_node(known(handed));
        assert_eq!(cards(&ledger), [(0, 6, 10), (0, 6, 10)]);
    }
    assert!(ledger.is_conserved());
    // A pod that says it itself is charged there, whatever the agent says.
    ledger.set_node(known(&[card(1)]));
    ledger.enter(entry("p", "a", 0, 6, true));
    assert_eq!(cards(&ledger), [(6, 0, 10), (0, 0, 16)]);
}

#[test]
fn a_guaranteed_tenant_of_all_compute_time_is_alone_in_its_class() {
    use Class::{Guaranteed, Opportunistic};
    let part = |compute| Part {
        memory: MiB::from(1),
        compute: Milli::new(compute).unwrap(),
        ..Part::ZERO
    };
    let with = |compute: u16, class| {
        let mut one = entry("p", "a", 0, 1, true);
        let mut container = one.claim.containers()[0].clone();
        container.demand.portion = Portion::Part(part(compute));
        let claim = Claim::new(None, vec![container], false).unwrap();
        one.claim = Arc::new(claim.with_class(class).unwrap());
        let mut ledger = Ledger::new();
        let a = ledger.set_node(node("a", 1));
        ledger.enter(one);
        assert!(ledger.is_conserved());
        ledger.book(a).cards()[0]
    };
    let fits = |card: Card, compute, class| card.left_beside(part(compute), class).is_some();
    let some = with(300, Guaranteed);
    assert_eq!(some.free().compute.get(), 700);
    assert_eq!(some.share_left().get(), 700);
    assert!(fits(some, 700, Guaranteed) && !fits(some, 701, Guaranteed));
    assert!(fits(some, 0, Opportunistic));
    let all = with(1000, Guaranteed);
    assert!(!fits(all, 0, Guaranteed) && fits(all, 0, Opportunistic));
    for (class, fit) in [(Guaranteed, false), (Opportunistic, true)] {
        let none = with(0, class);
        assert!(fits(none, 999, Guaranteed));
        assert_eq!(fits(none, 1000, Guaranteed), fit);
    }
    // Somebody else bound two such pods: nobody is added to that.
    let over = Card {
        used: all.used.plus(all.used),
        guaranteed: 2,
        ..all
    };
    assert!(over.free().is_zero());
    assert!(!fits(over, 0, Guaranteed) && !fits(over, 0, Opportunistic));
}

proptest! {
    /// Some pods do not say which card they have, and others are placed where the ledger has room.
    /// Wherever the former really are, no card has more on it than it can hold.
    #[test]
    fn whichever_card_it_really_has_no_card_is_overfilled(
        cards in 1..4usize,
        lost_ones in prop::collection::vec(1..24u32, 0..4),
        asked in prop::collection::vec((1..17u32, 0..4usize), 0..8),
        late in any::<bool>(),
    ) {
        let mut ledger = Ledger::new();
        let a = ledger.set_node(node("a", cards));
        let enter_lost = |ledger: &mut Ledger| {
            for (number, &memory) in lost_ones.iter().enumerate() {
                ledger.enter(lost(&format!("lost{number}"), "a", memory));
            }
        };
        let mut granted = vec![0; cards];
        let (before, after) = asked.split_at(if late { asked.len() / 2 } else { 0 });
        let grant = |ledger: &mut Ledger, granted: &mut Vec<u32>, wanted: &[(u32, usize)]| {
            for &(memory, card) in wanted {
                let card = card % cards;
                if ledger.book(a).cards()[card].free().memory >= MiB::from(memory) {
                    granted[card] += memory;
                    let pod = format!("p{card}-{}", granted[card]);
                    ledger.enter(entry(&pod, "a", card as u16, memory, true));
                }
            }
        };
        grant(&mut ledger, &mut granted, before);
        let settled = granted.clone();
        enter_lost(&mut ledger);
        grant(&mut ledger, &mut granted, after);
        prop_assert!(ledger.is_conserved());
        for places in 0..cards.pow(lost_ones.len() as u32) {
            let mut really = vec![0; cards];
            for (number, &memory) in lost_ones.iter().enumerate() {
                really[places / cards.pow(number as u32) % cards] += memory;
            }
            for card in 0..cards {
                // What was there when they came is not our doing.
                let ours = granted[card] > settled[card];
                prop_assert!(!ours || really[card] + granted[card] <= 16, "card {}", card);
            }
        }
    }
}
