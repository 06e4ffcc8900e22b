//! The published heuristics on nodes small enough to work them by hand.

use crate::script::check;

/// Nodes have cards of 1000 MiB, so that a MiB is a thousandth; nobody asks CPU.
#[test]
fn best_fit_leaves_least() {
    // Left of 8000 afterwards: a 1900, b 900, c does not fit. Halves of that are taken off.
    check(
        "options policy=best-fit
         a: 0/1000 0/1000
         b: 600/1000 300/1000
         c: 950/1000 950/1000
         filter p 100 everywhere
         -> b a
         reserve p b 100
         -> b/0",
    );
}

#[test]
fn dot_product_prefers_what_has_little_left() {
    // 100/8000 times 2000/8000, 1100/8000 and 100/8000: all round to 100, so names decide.
    check(
        "options policy=dot-product
         a: 0/1000 0/1000
         b: 600/1000 300/1000
         filter p 100 everywhere
         -> a b
         filter q 2x
         -> a",
    );
}

#[test]
fn gpu_packing_keeps_idle_cards_and_nodes() {
    check(
        "options policy=gpu-packing
         a: 0/1000 0/1000
         b: 0/1000 300/1000
         c: 500/1000 700/1000
         d: 900/1000 0/1000
         filter p 100 everywhere
         -> d c b a
         filter q 950 everywhere
         -> b d a
         filter r 1x everywhere
         -> b d a",
    );
}

#[test]
fn gpu_clustering_puts_like_to_like() {
    check(
        "options policy=gpu-clustering
         a: 0/1000 0/1000
         b: 1000/1000w 0/1000
         c: 500/1000 0/1000
         d: 1000/1000w 500/1000
         filter p 100 everywhere
         -> c d a b
         filter q 1x everywhere
         -> b a c",
    );
}

#[test]
fn random_is_the_same_for_one_pod_and_differs_between_pods() {
    use sublet_model::{NodeName, PodUid};
    let uid = |pod: &str| PodUid::new(pod).unwrap();
    let draw = |pod: &str, node| super::draw_node(&uid(pod), &NodeName::new(node).unwrap());
    assert_eq!(draw("p", "n"), draw("p", "n"));
    let (mut firsts, mut cards) = ([0; 4], [0; 4]);
    for pod in 0..4000 {
        let pod = format!("p{pod}");
        let costs = ["a", "b", "c", "d"].map(|node| draw(&pod, node));
        firsts[(0..4).min_by_key(|&at| costs[at]).unwrap()] += 1;
        let card = (0..4).min_by_key(|&at| super::draw_card(&uid(&pod), at));
        cards[card.unwrap()] += 1;
    }
    // 1000 each, with a standard deviation of 27.
    for counts in [firsts, cards] {
        let all_near = counts.iter().all(|count| (850..1150).contains(count));
        assert!(all_near, "{counts:?}");
    }
}
