//! Fragmentation and its growth, compared with values computed by hand.

use std::sync::Arc;

use sublet_model::{Claim, Host, Inventory, MilliCpu, NodeFacts, NodeName, Sharing};

use super::*;
use crate::learn::ShapeCounts;
use crate::script::{entry, on_host, placed, uid};
use crate::{Engine, EngineOptions, StockRules};

/// `4000 1x460`: CPU, number of cards, and the thousandths of each (cards have 1000 MiB).
fn claim(text: &str, models: &[&str]) -> Arc<Claim> {
    let (cpu, gpu) = text.split_once(' ').unwrap();
    let (cards, milli) = gpu.split_once('x').unwrap();
    let number = |text: &str| text.parse().unwrap();
    on_host(cpu.parse().unwrap(), number(cards), number(milli), models)
}

fn demand(shapes: &[(&str, &[&str], u64)]) -> ShapeCounts {
    let mut demand = ShapeCounts::default();
    for (shape, models, count) in shapes {
        for _ in 0..*count {
            demand.add(PodShape::of(&claim(shape, models)));
        }
    }
    demand
}

/// A node of 8 cores and two cards of model T4 with these free shares.
fn engine(free: [u32; 2]) -> Engine {
    let mut engine = Engine::new(EngineOptions {
        stock: StockRules::Here,
        ..EngineOptions::of("fgd".parse().unwrap())
    });
    let inventory = Inventory::equal_cards(2, MiB::from(1000)).unwrap();
    let name = NodeName::new("n").unwrap();
    engine.set_node(NodeFacts {
        sharing: Sharing::Both,
        host: Host {
            cpu: MilliCpu::new(8000),
            ..Host::ZERO
        },
        model: Arc::from("T4"),
        ..NodeFacts::plain(name, Arc::new(inventory))
    });
    for (card, free) in free
        .into_iter()
        .enumerate()
        .filter(|(_, free)| *free < 1000)
    {
        let taken = claim(&format!("0 1x{}", 1000 - free), &[]);
        let mut entry = entry(&format!("p{card}"), "n", &taken);
        entry.allocation = Some(placed(&taken, &card.to_string(), MiB::from(1000 - free)));
        engine.observe(entry);
    }
    engine
}

fn fragmentation(engine: &Engine, demand: &ShapeCounts) -> f64 {
    let measure = Fragmentation::by(demand);
    let node = engine.ledger().find("n").unwrap();
    measure.milli(measure.of(engine.ledger().book(node)))
}

#[test]
fn a_fragment_is_what_typical_pods_cannot_use() {
    // Free: 600 and 300 on the two cards, and 8 cores.
    let engine = engine([600, 300]);
    let of = |shapes: &[(&str, &[&str], u64)]| fragmentation(&engine, &demand(shapes));
    assert!(
        (of(&[("1000 1x200", &[], 1)]) - 0.0).abs() < 1e-9,
        "fits both cards"
    );
    assert!(
        (of(&[("1000 1x500", &[], 1)]) - 300.0).abs() < 1e-9,
        "the second card is too small"
    );
    assert!(
        (of(&[("1000 1x700", &[], 1)]) - 900.0).abs() < 1e-9,
        "both cards are too small"
    );
    assert!(
        (of(&[("9000 1x200", &[], 1)]) - 900.0).abs() < 1e-9,
        "too little CPU"
    );
    assert!(
        (of(&[("1000 1x1000", &[], 1)]) - 900.0).abs() < 1e-9,
        "no whole card"
    );
    assert!(
        (of(&[("1000 0x0", &[], 1)]) - 900.0).abs() < 1e-9,
        "a pod of no GPU uses none"
    );
    assert!(
        (of(&[("1000 1x200", &["G2"], 1)]) - 900.0).abs() < 1e-9,
        "another model"
    );
    assert!((of(&[("1000 1x200", &["G2", "T4"], 1)]) - 0.0).abs() < 1e-9);
    // For three of four pods 300 are fragments, for one all 900.
    let mixed = of(&[("1000 1x500", &[], 3), ("1000 1x700", &[], 1)]);
    assert!(
        (mixed - (3.0 * 300.0 + 900.0) / 4.0).abs() < 1e-9,
        "{mixed}"
    );
}

#[test]
fn pods_are_typical_until_95_percent_are_covered() {
    let typical = |counts: [u64; 3]| {
        let shapes: [(&str, &[&str], u64); 3] = [
            ("1000 1x100", &[], counts[0]),
            ("2000 1x200", &[], counts[1]),
            ("3000 1x300", &[], counts[2]),
        ];
        let typical = Typical::of(&demand(&shapes));
        let cpu = |(shape, _): &(PodShape, i64)| shape.cpu.get();
        (
            typical.shapes.iter().map(cpu).collect::<Vec<_>>(),
            typical.total,
        )
    };
    assert_eq!(typical([95, 3, 2]), (vec![1000], 95));
    assert_eq!(typical([94, 4, 2]), (vec![1000, 2000], 98));
    // Of shapes with equal counts the larger one comes first.
    assert_eq!(typical([3, 94, 3]), (vec![2000, 3000], 97));
}

#[test]
fn the_card_whose_fragmentation_grows_least_is_taken() {
    // Typical pods take half a card. A pod of 400 on the card with 900 free leaves 500, which a
    // typical pod can use: the fragmentation does not change. On the card with 700 free it would
    // leave 300, which are fragments.
    let mut on = engine([700, 900]);
    on.foretell(&demand(&[("0 1x500", &[], 1)]));
    let node = on.ledger().find("n").unwrap();
    let place = on.fit(&uid("x"), &claim("0 1x400", &[]), node).unwrap();
    assert_eq!((place.position, place.cost()), (1, -50));
    // Only the first card has room, and 300 more become fragments: 100 / (1 + e^0.3) = 42.56,
    // cut to 42.
    let mut on = engine([700, 300]);
    on.foretell(&demand(&[("0 1x500", &[], 1)]));
    let place = on.fit(&uid("x"), &claim("0 1x400", &[]), node).unwrap();
    assert_eq!((place.position, place.cost()), (0, -42));
}

#[test]
fn steps_of_the_score_are_those_of_the_logistic_function() {
    let steps = thresholds();
    assert!(steps.windows(2).all(|two| two[0] < two[1]));
    assert_eq!(steps[49], 0.0);
    for at in [-2.5_f64, -0.3, -1e-3, 1e-3, 0.3, 1.0, 2.5] {
        let score = 100.0 / (1.0 + (-at).exp());
        assert_eq!(
            steps.partition_point(|step| *step <= at),
            score as usize,
            "{at}"
        );
    }
}
