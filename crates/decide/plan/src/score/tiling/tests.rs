//! The policy on clusters small enough to compute by hand.

use std::sync::Arc;

use sublet_model::{
    Claim, Entry, Host, Inventory, MiB, MilliCpu, NodeFacts, NodeName, PodKey, Sharing, Standing,
    Time,
};

use crate::script::{on_host, uid};
use crate::{Engine, EngineOptions, StockRules, Ties};

/// So many cores, and so many cards with these thousandths of each (1000: whole), on these models.
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
            few: 1,
            stock: StockRules::Here,
            // By name, so that a reader can tell which of two equal nodes comes first.
            ties: Ties::ByName,
            ..EngineOptions::of(policy.parse().unwrap())
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

    /// Places a pod, on a given node or on the best one, and returns `node/card`.
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
    // Pods with cards can count on half of 16 cores for four cards: two cores a card. On b one card
    // is taken by a pod without CPU, so six of b's eight cores feed no card; on a only four do not.
    cluster.place(&claim(0, 1, 1000, &[]), Some("b"));
    assert_eq!(cluster.place(&claim(6, 0, 0, &[]), None), "b/");
    // A pod of a card and two cores takes the CPU of its own card on either node: names decide.
    assert_eq!(cluster.place(&claim(2, 1, 1000, &[]), None), "a/0");
    // With eight cores, the pod would starve the other card of a.
    let mut cluster = Cluster::new("tiling-still");
    cluster.node("a", 8, 2, "");
    cluster.node("b", 8, 1, "");
    assert_eq!(cluster.place(&claim(8, 1, 1000, &[]), None), "b/0");
}

#[test]
fn a_card_can_count_on_less_when_pods_without_one_take_cpu() {
    let mut cluster = Cluster::new("tiling");
    cluster.node("a", 8, 2, "");
    cluster.node("b", 32, 2, "");
    let fed = |cluster: &Cluster, asked| super::fed(cluster.engine.ledger(), asked);
    // 40 free cores for four cards; no pods are known, so pods with cards count on half of the
    // cores.
    assert_eq!(fed(&cluster, None), 5_000);
    // Ten cores go to a pod with a card. Pods with cards have all CPU in use, so all that is free
    // counts.
    cluster.place(&claim(10, 1, 1000, &[]), Some("b"));
    assert_eq!(fed(&cluster, Some(10_000)), 10_000);
    // Ten more go to a pod without a card. So half of the 20 free cores count, for three cards.
    cluster.place(&claim(10, 0, 0, &[]), Some("b"));
    assert_eq!(fed(&cluster, Some(10_000)), 3_300);
    // Waiting pods have asked too, but no more counts than what is free.
    assert_eq!(fed(&cluster, Some(90_000)), 6_700);
    // A node that does not say how much CPU it has does not count.
    cluster.node("c", 0, 2, "");
    assert_eq!(fed(&cluster, Some(90_000)), 6_700);
    // Without free cards there is no bound.
    assert_eq!(fed(&Cluster::new("tiling"), None), i64::MAX);
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
    // On a, card 0 has 190 left; on b, card 0 has 700 left.
    cluster.place(&claim(1, 1, 810, &[]), Some("a"));
    cluster.place(&claim(1, 1, 300, &[]), Some("b"));
    // No known pod fits into 190, so a pod that does fit should go there. 700 have room for two
    // more pods of 300, so a pod of 300 should go there.
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
    let place = |policy: &str, cores, cards| {
        let mut cluster = Cluster::new(policy);
        cluster.node("a-large", 128, 8, "");
        for at in 0..20 {
            cluster.node(&format!("b{at}"), 96, 8, "");
        }
        cluster.place(&claim(cores, cards, 1000, &[]), None)
    };
    assert_eq!(place("tiling-still", 8, 1), "b0/0");
    assert_eq!(place("best-fit", 8, 1), "b0/0");
    // This holds even for a pod that starves cards: it leaves 16 cores for four cards on b0, and
    // each card could count on six.
    assert_eq!(place("tiling-still", 80, 4), "b0/0,1,2,3");
    // A pod that only the large node has room for goes there.
    assert_eq!(place("tiling-still", 120, 8), "a-large/0,1,2,3,4,5,6,7");
    // Where large nodes are as frequent as others, they are treated like others.
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
