//! Tests of the allocations that answer a claim, and of their costs, as pictures.

use super::*;
use crate::{ContainerClaim, Count, Demand};

/// `i2x m1x` (whole cards), `i8 s2 m3` (MiB) or `m3*2` (MiB of each of two cards) → a claim of containers `c0`, `c1` and so on.
fn claim(picture: &str) -> Claim {
    let containers = picture.split_whitespace().enumerate();
    let container = |(position, word): (usize, &str)| {
        let (role, amount) = word.split_at(1);
        let cards = amount.strip_suffix('x');
        let number = cards.unwrap_or(amount).split('*').next().unwrap();
        let number: u32 = number.parse().unwrap();
        ContainerClaim {
            name: ContainerName::new(&format!("c{position}")).unwrap(),
            position,
            role: match role {
                "i" => Role::Init,
                "s" => Role::Sidecar,
                _ => Role::Main,
            },
            demand: match amount.split_once('*') {
                _ if cards.is_some() => Demand::of_cards(Count::new(number)),
                Some((_, gpus)) => Demand {
                    gpus: Count::new(gpus.parse().unwrap()),
                    ..Demand::of_memory(MiB::from(number))
                },
                None => Demand::of_memory(MiB::from(number)),
            },
        }
    };
    Claim::new(None, containers.map(container).collect(), false).unwrap()
}

/// `c0=0:8 c1=0:3` → so many MiB of that card for that container.
fn allocation(picture: &str) -> Allocation {
    let grant = |word: &str| {
        let (container, card) = word.split_once('=').unwrap();
        let (index, memory) = card.split_once(':').unwrap();
        Grant {
            container: ContainerName::new(container).unwrap(),
            card: CardRef {
                index: GpuIndex(index.parse().unwrap()),
                uuid: None,
            },
            memory: MiB::from(memory.parse::<u32>().unwrap()),
        }
    };
    Allocation {
        grants: picture.split_whitespace().map(grant).collect(),
    }
}

/// The charges as `card:memory`, or `no` where the allocation is no answer to the claim.
fn check(asked: &str, got: &str, expected: &str) {
    let (claim, allocation) = (claim(asked), allocation(got));
    let charge = |charge: Charge| {
        let whole = if charge.whole { "w" } else { "" };
        format!("{}:{}{whole}", charge.card.index, charge.part.memory.get())
    };
    let told = if allocation.answers(&claim) {
        let charges = charges_of(&claim, &allocation).into_iter().map(charge);
        charges.collect::<Vec<_>>().join(" ")
    } else {
        "no".to_owned()
    };
    assert_eq!(told, expected, "{asked} -> {got}");
}

#[test]
fn parts_are_on_one_card_and_cost_the_worst_moment() {
    check("m4", "c0=1:4", "1:4");
    check("m4 m3", "c0=1:4 c1=1:3", "1:7");
    check("i8 s2 m3", "c0=0:8 c1=0:2 c2=0:3", "0:8");
    check("s2 i8 m3", "c0=0:2 c1=0:8 c2=0:3", "0:10");
    check("m4 m3", "c0=1:4 c1=0:3", "no");
    check("m4", "c0=1:3", "no");
    check("m4", "", "no");
    check("m4", "c0=1:4 c1=1:4", "no");
    check("m4 m3", "c0=1:4", "no");
}

#[test]
fn parts_of_several_cards_are_on_the_first_cards_of_the_pod() {
    check("m4*2", "c0=1:4 c0=0:4", "1:4 0:4");
    check("m4*2", "c0=1:4 c0=1:4", "no");
    check("m4*2", "c0=1:4", "no");
    check("m4*2 m3", "c0=1:4 c0=0:4 c1=0:3", "1:4 0:7");
    check("m4*2 m3", "c0=1:4 c0=0:4 c1=2:3", "no");
    check("m4*2 m3*2", "c0=1:4 c0=0:4 c1=0:3 c1=1:3", "1:7 0:7");
    check("m4*2 m3*2", "c0=1:4 c0=0:4 c1=0:3 c1=2:3", "no");
    check("i9 m4*2", "c0=1:9 c1=0:4 c1=1:4", "1:9 0:4");
}

#[test]
fn whole_cards_in_use_at_the_same_time_differ() {
    check("m2x", "c0=0:16 c0=1:24", "0:16w 1:24w");
    check("m2x", "c0=0:16 c0=0:16", "no");
    check("m2x", "c0=0:16", "no");
    check("m1x m1x", "c0=0:16 c1=1:16", "0:16w 1:16w");
    check("m1x m1x", "c0=0:16 c1=0:16", "no");
    check("i1x m1x", "c0=0:16 c1=0:16", "0:16w");
    check("s1x i1x m1x", "c0=0:16 c1=1:16 c2=1:16", "0:16w 1:16w");
    check("s1x i1x m1x", "c0=0:16 c1=0:16 c2=1:16", "no");
}
