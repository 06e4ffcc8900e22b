//! The policy on clusters small enough to work out by hand.

use std::sync::Arc;

use sublet_model::{
    Claim, Entry, Host, Inventory, MiB, MilliCpu, NodeFacts, NodeName, PodKey, Sharing, Standing,
    Time,
};

use crate::script::{on_host, uid};
use crate::{Engine, EngineOptions, StockRules};

/// So many cores, and of one card so many thousandths (1000: whole cards), on these models.
fn claim(cores: u64, cards: u32, milli: u32, models: &[&str]) -> Arc<Claim> {
    on_host(1000 * cores, cards, milli, models)
}

struct Cluster {
    engine: Engine,
    n_pods: usize,
}

impl Cluster {
    fn new(policy: &str) -> Cluster {
        let options = EngineOptions {
            policy: policy.parse().unwrap(),
            few: 1,
            stock: StockRules::Here,
            ..EngineOptions::default()
        };
        Cluster {
            engine: Engine::new(options),
            n_pods: 0,
        }
    }

    fn node(&mut self, name: &str, cores: u64, cards: usize, model: &str) {
        let inventory = Inventory::equal_cards(cards, MiB::from(1000)).unwrap();
        self.engine.set_node(NodeFacts {
            sharing: Sharing::Both,
            host: Host {
                cpu: MilliCpu::new(1000 * cores),
                ..Host::ZERO
            },
            model: Arc::from(model),
            ..NodeFacts::plain(NodeName::new(name).unwrap(), Arc::new(inventory))
        });
    }

    /// Places a pod, on that node if one is given, and says where: `node/card`.
    fn place(&mut self, claim: &Arc<Claim>, on: Option<&str>) -> String {
        self.n_pods += 1;
        let pod = format!("p{}", self.n_pods);
        let nodes: Vec<_> = self.engine.ledger().books().map(|(idx, _)| idx).collect();
        let now = Time::from_ms(0);
        let best = self
            .engine
            .choose(now, &uid(&pod), claim, &nodes, false, |_| 0);
        let best = self.engine.ledger().book(best[0]).name().clone();
        let node = on.map_or(best, |name| NodeName::new(name).unwrap());
        let entry = Entry {
            pod: PodKey::new("default", &pod).unwrap(),
            uid: uid(&pod),
            node: node.clone(),
            claim: Arc::clone(claim),
            allocation: None,
            standing: Standing::Reserved,
            assigned: true,
            priority: 0,
        };
        let allocation = self.engine.reserve(now, entry).unwrap();
        let cards = allocation
            .grants
            .iter()
            .map(|grant| grant.card.index.to_string());
        format!("{node}/{}", cards.collect::<Vec<_>>().join(","))
    }
}

#[test]
fn cpu_goes_where_no_card_needs_it() {
    let mut cluster = Cluster::new("tiling-still");
    cluster.node("a", 8, 2, "");
    cluster.node("b", 8, 2, "");
    // Four cores a card. On b one card is taken by a pod that asks no CPU, so that four of its
    // eight cores feed nothing; on a each core feeds a card.
    cluster.place(&claim(0, 1, 1000, &[]), Some("b"));
    assert_eq!(cluster.place(&claim(4, 0, 0, &[]), None), "b/");
    // Now the cores of both are spoken for. A pod of a card and four cores takes what belongs
    // together on either: names decide.
    assert_eq!(cluster.place(&claim(4, 1, 1000, &[]), None), "a/0");
    // With eight cores it would starve the other card of a, and does not fit b.
    let mut cluster = Cluster::new("tiling-still");
    cluster.node("a", 8, 2, "");
    cluster.node("b", 8, 1, "");
    // 16 cores for 3 cards, 5.3 each; a's cards have 4 each.
    assert_eq!(cluster.place(&claim(8, 1, 1000, &[]), None), "b/0");
}

#[test]
fn a_rest_that_nothing_fits_into_is_worth_nothing() {
    let mut cluster = Cluster::new("tiling");
    cluster.node("a", 64, 2, "");
    cluster.node("b", 64, 2, "");
    for _ in 0..40 {
        cluster.engine.learn(&claim(1, 1, 810, &[]));
        cluster.engine.learn(&claim(1, 1, 300, &[]));
    }
    // Card 0 of a has 190 left, card 0 of b 700.
    cluster.place(&claim(1, 1, 810, &[]), Some("a"));
    cluster.place(&claim(1, 1, 300, &[]), Some("b"));
    // Into 190 nothing fits that is asked: what does is welcome. 700 have room for two more
    // of 300, as a pod of 300 should find.
    assert_eq!(cluster.place(&claim(1, 1, 150, &[]), None), "a/0");
    assert_eq!(cluster.place(&claim(1, 1, 300, &[]), None), "b/0");
}

#[test]
fn a_scarce_model_is_left_to_those_who_name_it() {
    let mut cluster = Cluster::new("tiling");
    cluster.node("a", 8, 1, "G3");
    cluster.node("b", 8, 1, "T4");
    let any = claim(1, 1, 1000, &[]);
    assert_eq!(
        cluster.place(&any, None),
        "a/0",
        "nobody has named a model: names decide"
    );
    let mut cluster = Cluster::new("tiling");
    cluster.node("a", 8, 1, "G3");
    cluster.node("b", 8, 1, "T4");
    for _ in 0..20 {
        cluster.engine.learn(&any);
        cluster.engine.learn(&claim(1, 1, 1000, &["G3"]));
    }
    assert_eq!(cluster.place(&any, None), "b/0");
    assert_eq!(cluster.place(&claim(1, 1, 1000, &["G3"]), None), "a/0");
}

#[test]
fn the_only_large_node_is_opened_last() {
    let large_first = |policy: &str| {
        let mut cluster = Cluster::new(policy);
        cluster.node("a-large", 128, 8, "");
        for at in 0..20 {
            cluster.node(&format!("b{at}"), 64, 4, "");
        }
        cluster.place(&claim(8, 1, 1000, &[]), None)
    };
    assert_eq!(large_first("tiling-still"), "b0/0");
    assert_eq!(large_first("best-fit"), "b0/0");
    // Where there are as many of them, they are like any other.
    let mut cluster = Cluster::new("tiling-still");
    for at in 0..5 {
        cluster.node(&format!("a{at}"), 128, 8, "");
        cluster.node(&format!("b{at}"), 64, 4, "");
    }
    assert_eq!(cluster.place(&claim(8, 1, 1000, &[]), None), "a0/0");
}

#[test]
fn nodes_that_do_not_say_what_cpu_they_have_are_tiled_all_the_same() {
    let mut cluster = Cluster::new("tiling");
    cluster.node("a", 0, 2, "");
    cluster.place(&claim(0, 1, 500, &[]), None);
    for _ in 0..20 {
        cluster.engine.learn(&claim(0, 1, 500, &[]));
    }
    assert_eq!(cluster.place(&claim(0, 1, 500, &[]), None), "a/0");
    assert_eq!(cluster.place(&claim(0, 1, 500, &[]), None), "a/1");
}

#[test]
fn what_was_learnt_is_unlearnt_when_pods_go() {
    let mut cluster = Cluster::new("tiling");
    cluster.node("a", 8, 1, "");
    let before = format!("{:?}", cluster.engine.clone());
    for round in 0..3 {
        for _ in 0..100 {
            cluster.engine.learn(&claim(1, 1, 810, &[]));
        }
        for _ in 0..100 {
            cluster.engine.unlearn(&claim(1, 1, 810, &[]));
        }
        let seen = format!("{:?}", cluster.engine);
        assert!(seen.contains("total: 0"), "round {round}");
    }
    assert!(before.contains("total: 0"));
}
