//! Soft holds: they order choices and refuse nothing. A pod gets the place that it was filtered for
//! when it is bound, if the place is still free.

use sublet_model::{NodeIdx, Time};

use crate::script::{check, claim, entry, node, uid};
use crate::{Candidacy, Engine, EngineOptions, Policy};

#[test]
fn holds_order_and_never_refuse() {
    check(
        "a: 8/16
         ask p 8
         -> a/0
         show
         -> a: 8/16~
         b: 0/16
         filter q 8
         -> b a
         reserve q a 8
         -> a/0
         reserve p a 8
         -> no: GPU 0 lacks 8 MiB: 8 MiB asked, and the largest hole on this node is 0 MiB",
    );
}

#[test]
fn a_held_card_is_not_taken_beside_a_look_alike_that_waits_for_another() {
    // All three were filtered before the first was bound. Bound at the same time, they must get the
    // same card: kubelet does not say which of them it means.
    check(
        "a checkpoint: 0/16 0/16
         ask p 8
         -> a/0
         ask q 8
         -> a/0
         ask r 8
         -> a/1
         reserve r a 8
         -> a/1
         reserve p a 8
         -> no: pod default/r asks for the same amount and has not started yet; the node tells pods apart by size
         reserve q a 8
         -> a/1",
    );
}

#[test]
fn holds_expire_are_replaced_and_end_with_the_pod() {
    check(
        "a: 0/16
         filter p 8
         -> a
         at 1999
         filter q 17
         ->
         show
         -> a: 0/16~
         at 2000
         filter q 17
         ->
         show
         -> a: 0/16",
    );
}

#[test]
fn a_second_filter_moves_the_hold() {
    check(
        "a: 0/16
         filter p 8
         -> a
         b: 0/8
         remove a
         filter p 8
         -> b
         a: 0/16
         show
         -> a: 0/16
         -> b: 0/8~
         observe p a 8 0
         show
         -> a: 8/16
         -> b: 0/8",
    );
}

#[test]
fn holds_go_with_their_node_and_stay_when_it_changes() {
    check(
        "a: 0/16
         filter p 8
         -> a
         remove a
         b: 0/16
         filter q 8
         -> b
         forget p
         show
         -> b: 0/16~
         b: 0/16 0/24
         show
         -> b: 0/16~ 0/24
         forget q
         show
         -> b: 0/16 0/24",
    );
}

#[test]
fn whole_card_holds_stand_side_by_side() {
    check(
        "a: 0/16 0/16 0/16 0/16
         filter p 2x
         -> a
         filter q 2x
         -> a
         show
         -> a: 0/16~ 0/16~ 0/16~ 0/16~
         b: 0/16 0/16
         filter r 2x
         -> b a
         reserve q a 2x
         -> a/2,3
         reserve p a 2x
         -> a/0,1",
    );
}

#[test]
fn a_pod_gets_the_whole_cards_that_it_was_filtered_for() {
    // Room that appears between filter and bind changes nothing.
    check(
        "a: 16/16w 0/16 0/16 0/16
         filter p 2x
         -> a
         show
         -> a: 16/16w 0/16~ 0/16~ 0/16
         forget a-0
         reserve p a 2x
         -> a/1,2",
    );
    // One that is taken, or another number of cards: all are chosen again.
    check(
        "a: 16/16w 0/16 0/16 0/16
         filter p 2x
         -> a
         observe q a 4 1
         forget a-0
         reserve p a 2x
         -> a/0,2",
    );
    check(
        "a: 16/16w 0/16 0/16 0/16
         filter p 2x
         -> a
         forget a-0
         reserve p a 3x
         -> a/0,1,2",
    );
}

#[test]
fn held_cards_of_two_numa_nodes_are_not_for_a_pod_that_wants_one() {
    for claim in ["2x", "4*2"] {
        check(&format!(
            "a: 0/16@GPU-a@A@0 0/16@GPU-b@A@1 0/16@GPU-c@A@1
             filter p {claim}
             -> a
             show
             -> a: 0/16~ 0/16~ 0/16
             reserve p a {claim}:on=numa
             -> a/1,2"
        ));
    }
}

#[test]
fn reserve_goes_where_its_own_hold_is() {
    check(
        "a: 8/16 6/16
         filter p 8
         -> a
         show
         -> a: 8/16~ 6/16
         filter q 8
         -> a
         reserve q a 8
         -> a/1
         reserve p a 8
         -> a/0",
    );
    // The pod also keeps its held card when another card has become the better one.
    check(
        "a: 8/16 6/16
         filter q 8
         -> a
         filter p 8
         -> a
         forget q
         reserve p a 8
         -> a/1",
    );
    // If the held card is full by now, the pod gets another one.
    check(
        "a: 8/16 6/16
         filter p 8
         -> a
         observe x a 8 0
         reserve p a 8
         -> a/1",
    );
}

#[test]
fn a_trial_that_is_kept_though_it_placed_nobody_leaves_soft_holds_where_they_were() {
    let now = Time::from_ms(0);
    let mut engine = Engine::new(EngineOptions::of(Policy::binpack()));
    let on = engine.set_node(node("a", "0/16 0/16").0);
    let held = |engine: &Engine| {
        let cards = engine.ledger().book(on).cards().iter();
        let marks: Vec<_> = cards.map(|card| (card.held, card.holds)).collect();
        format!("{:?} {marks:?}", engine.holds)
    };
    for pod in ["p", "q"] {
        let passed = engine.choose(now, &uid(pod), &claim("12"), &[on], false, |_| 0);
        assert_eq!(passed, [on]);
    }
    let before = held(&engine);
    let nodes = [on];
    let pod = |pod: &&str| Candidacy {
        entry: entry(pod, "a", &claim("12")),
        nodes: &nodes,
    };
    let place = |engine: &mut Engine, pods: &[&str]| -> Result<Vec<NodeIdx>, usize> {
        let pods: Vec<Candidacy<'_>> = pods.iter().map(pod).collect();
        let mut trial = engine.trial(now);
        let placed = trial.place(&pods);
        trial.keep();
        placed
    };
    assert_eq!(place(&mut engine, &["p", "q", "r"]), Err(2));
    assert_eq!(held(&engine), before);
    // A trial that placed them has used the holds up.
    assert_eq!(place(&mut engine, &["p", "q"]), Ok(vec![on, on]));
    assert!(engine.holds.is_empty(), "{}", held(&engine));
}
