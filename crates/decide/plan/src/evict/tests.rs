//! Victims in short scripts, and compared with every possible set of victims.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use sublet_model::{Host, MilliCpu, NodeFacts, PodUid};

use crate::script::{check, claim, entry, node, on_host, placed, uid};
use crate::{Engine, EngineOptions, Evictable, breaking};

#[test]
fn victims_free_one_card_and_are_the_least_important_that_do() {
    // p and r share a card, and so do s and q. The stock scheduler would take the two least
    // important pods, r and s: one from each card, so that no card becomes free.
    check(
        "a: 0/16 0/16
         observe p a 8 0
         observe r a 8 0
         observe q a 8 1
         observe s a 8 1
         evict x 16 a p q r* s*
         -> q s
         evict x 16 a q s* p r*
         -> p r
         evict x 8 a p q r s*
         -> s
         evict x 2x a p q r s
         -> p q r s
         evict x 2x a p q r
         -> no
         evict x 17 a p q r s
         -> no
         show
         -> a: 16/16 16/16",
    );
    // If there is room already, no pod needs to go.
    check(
        "a: 0/16 0/16
         observe p a 8 0
         evict x 8 a p
         -> no
         evict x 8 a
         -> no",
    );
}

#[test]
fn budgets_come_before_importance() {
    check(
        "a: 0/16 0/16
         observe p a 16 0
         observe q a 16 1
         evict x 16 a p q*
         -> q
         evict x 16 a p q!*
         -> p
         evict x 16 a p! q!*
         -> q",
    );
}

#[test]
fn few_go_rather_than_many() {
    // 9,000 on each of two cards: the sum has 14,552 free, and no card has 14,000.
    check(
        "a: 0/16276 0/16276
         observe old a 9000 0
         observe young a 9000 1
         evict x 14000 a old young
         -> young
         evict x 14000 a young old
         -> old",
    );
    // One card has one important pod, the other three less important ones.
    check(
        "a: 0/16 0/16
         observe p a 12 0
         observe q a 4 1
         observe r a 4 1
         observe s a 4 1
         evict x 16 a p q r s
         -> p
         evict x 8 a p q r s
         -> s",
    );
    // On one card too, the large pod goes rather than two small ones, and a budget comes first.
    check(
        "a: 0/16
         observe p a 8 0
         observe q a 4 0
         observe r a 4 0
         evict x 8 a p q r
         -> p
         evict x 8 a p! q r
         -> q r",
    );
    // Of pods that are enough alone, the least important one.
    check(
        "a: 0/16
         observe p a 6 0
         observe q a 5 0
         observe r a 5 0
         evict x 5 a p q r
         -> r
         evict x 6 a r q p
         -> p",
    );
}

#[test]
fn a_look_alike_that_goes_is_no_longer_in_the_way() {
    check(
        "a size: 0/16
         reserve p a 8
         -> a/0
         evict x 8 a
         -> no
         evict x 8 a p*
         -> p",
    );
}

#[test]
fn who_is_in_the_way_of_something_unseen_goes_too() {
    // By the sums only q must go. The stock scheduler wants p gone for a reason of its own.
    check(
        "a: 0/16
         observe p a 4 0
         observe q a 12 0
         evict x 12 a p* q*
         -> p q
         evict x 12 a p q*
         -> q
         evict x 4 a p q*
         -> q",
    );
}

#[test]
fn cpu_that_goes_with_a_card_is_not_given_back() {
    let (facts, _) = node("a", "0/1000 0/1000");
    let host = Host {
        cpu: MilliCpu::new(8_000),
        ..Host::ZERO
    };
    let mut engine = Engine::new(EngineOptions::default());
    let node = engine.set_node(NodeFacts { host, ..facts });
    for (name, cpu, card) in [("p", 4_000, "0"), ("q", 4_000, "1")] {
        let claim = on_host(cpu, 1, 600, &[]);
        let mut pod = entry(name, "a", &claim);
        pod.allocation = Some(placed(&claim, card, 1_000.into()));
        engine.observe(pod);
    }
    let row = ["p", "q"].map(|name| Evictable {
        uid: uid(name),
        breaks: false,
    });
    let victims = |cpu, theirs: &[&str]| {
        let theirs = theirs.iter().map(|name| uid(name)).collect();
        let victims = engine.victims(&uid("x"), &on_host(cpu, 1, 600, &[]), node, &row, &theirs);
        let names = victims.unwrap_or_default().into_iter();
        names.map(|pod| pod.uid.to_string()).collect::<String>()
    };
    assert_eq!(victims(1_000, &["q"]), "q");
    assert_eq!(victims(8_000, &["p", "q"]), "pq");
    // By our count the node has too little CPU: the stock scheduler's victim remains the victim.
    assert_eq!(victims(9_000, &["p"]), "p");
}

#[test]
fn budgets_are_used_up_from_the_most_important_on() {
    let none = Vec::new;
    assert_eq!(
        breaking(&[vec![0], none(), vec![0, 1], vec![1], vec![0]], &[1, 1]),
        [false, false, true, true, true]
    );
    assert_eq!(breaking(&[vec![0], vec![0]], &[i32::MIN]), [true, true]);
    assert_eq!(breaking(&[], &[0]), [false; 0]);
}

/// The pods of a node, the most important first: memory, card, and whether a budget guards it.
type Pods = Vec<(u32, u16, bool)>;

fn pods() -> impl Strategy<Value = Pods> {
    let amount = prop_oneof![Just(4), Just(8), Just(12), Just(16), 1..17u32];
    prop::collection::vec((amount, 0..3u16, prop::bool::weighted(0.3)), 0..7)
}

/// The victims that the stock scheduler would find: it spares pods as long as the sum allows it.
fn by_sums(pods: &Pods, asked: u32, cards: u32) -> Vec<usize> {
    let mut used = 0;
    let (guarded, others): (Vec<_>, Vec<_>) = (0..pods.len()).partition(|&at| pods[at].2);
    let mut gone = Vec::new();
    for at in guarded.into_iter().chain(others) {
        if used + pods[at].0 + asked <= 16 * cards {
            used += pods[at].0;
        } else {
            gone.push(at);
        }
    }
    gone
}

proptest! {
    /// The chosen set of victims breaks the fewest budgets. Among such sets it is the smallest;
    /// among the smallest it spares the most important pods. So no victim can be left out either.
    #[test]
    fn no_other_set_of_victims_is_better(pods in pods(), asked in 1..17u32, cards in 1..4u16) {
        // No card is overfull, as where Sublet grants memory.
        let mut used = [0; 3];
        let pods: Pods = pods
            .into_iter()
            .filter(|&(amount, card, _)| {
                let fits = card < cards && used[usize::from(card)] + amount <= 16;
                used[usize::from(card)] += if fits { amount } else { 0 };
                fits
            })
            .collect();
        let (facts, _) = node("a", &vec!["0/16"; cards.into()].join(" "));
        let mut engine = Engine::new(EngineOptions::default());
        let node = engine.set_node(facts);
        let name = |at: usize| uid(&format!("p{at}"));
        for (at, &(amount, card, _)) in pods.iter().enumerate() {
            let claim = claim(&amount.to_string());
            let mut pod = entry(&format!("p{at}"), "a", &claim);
            pod.allocation = Some(placed(&claim, &card.to_string(), 16.into()));
            engine.observe(pod);
        }
        let row: Vec<_> = pods.iter().enumerate().map(|(at, &(_, _, breaks))| Evictable {
            uid: name(at),
            breaks,
        }).collect();
        let theirs: BTreeSet<PodUid> =
            by_sums(&pods, asked, cards.into()).into_iter().map(name).collect();
        let asked: Arc<_> = claim(&asked.to_string());
        let victims = engine.victims(&uid("x"), &asked, node, &row, &theirs);

        let fits = |gone: &BTreeSet<PodUid>| {
            let book = engine.ledger().book_without(node, gone);
            let asked = match asked.ask() {
                sublet_model::Ask::Parts(parts) => parts.memory(),
                other => panic!("{other:?}"),
            };
            book.cards().iter().any(|card| card.free().memory >= asked)
        };
        // The first pod is the highest bit, so that the smallest number spares most.
        let gone = |bits: u32| {
            let last = pods.len().saturating_sub(1);
            (0..pods.len()).filter(move |at| bits >> (last - at) & 1 == 1)
        };
        let sets = (0..1u32 << pods.len()).filter(|&bits| fits(&gone(bits).map(name).collect()));
        let price = |bits: u32| gone(bits).filter(|&at| pods[at].2).count();
        let best = sets.min_by_key(|&bits| (price(bits), bits.count_ones(), bits));
        let best = best.map(|bits| gone(bits).map(name).collect::<BTreeSet<PodUid>>());
        let best = best.filter(|gone| !gone.is_empty());
        let victims: Option<BTreeSet<PodUid>> =
            victims.map(|victims| victims.into_iter().map(|pod| pod.uid).collect());
        prop_assert_eq!(victims, best);
    }
}
