//! Tests of the engine's memory between calls: tries and reservations, in `holds` soft holds. Each
//! test is a short script. `load` tests opportunistic pods; random tests are in `properties` and
//! `screening`.

mod grant;
mod holds;
mod learning;
mod load;
mod properties;
mod screening;
mod tags;

use std::sync::Arc;

use sublet_model::{Claim, Time};

use crate::script::{check, claim, entry, node, on_host};
use crate::{Engine, EngineOptions, Policy};

#[test]
fn filter_gives_the_best_few_and_all_to_those_who_need_them() {
    check(
        "options few=2
         a: 0/16
         b: 4/16
         c: 8/16
         d: 12/16
         filter p 4
         -> d c
         filter p 4
         -> d c b a
         filter q 4 everywhere
         -> d c b a
         filter r 4 d
         -> c b
         filter s 16
         -> a",
    );
    check(
        "options few=0
         a: 0/16
         b: 0/16
         c: 0/16
         filter p 4
         -> a b c",
    );
}

#[test]
fn a_pod_that_left_or_arrived_starts_anew() {
    check(
        "options few=1
         a: 0/16
         b: 0/16
         filter p 4
         -> a
         filter p 4
         -> a b
         forget p
         filter p 4
         -> a
         observe p a 4 0
         filter q 4
         -> a",
    );
}

#[test]
fn ties_break_by_name_whatever_the_order_of_arrival() {
    check(
        "options few=2
         c: 0/16
         a: 0/16
         d: 0/16
         filter p 4
         -> a c
         b: 0/16
         filter q 4
         -> a b
         remove a
         filter r 4
         -> b c
         aa: 0/16
         filter s 4
         -> aa b",
    );
}

#[test]
fn scattered_ties_do_not_go_by_name_and_are_always_the_same() {
    // The order depends on the names alone: a node that comes does not move the others.
    check(
        "options few=0 ties=scattered
         a1: 0/16
         a2: 0/16
         b1: 0/16
         b2: 0/16
         filter p 4
         -> b1 b2 a1 a2
         c1: 0/16
         filter q 4
         -> b1 c1 b2 a1 a2
         d: 8/16
         filter r 4
         -> d b1 c1 b2 a1 a2",
    );
}

#[test]
fn prioritize_scores_ten_steps_and_marks_the_best() {
    check(
        "a: 0/16
         b: 8/16
         c: 8/16
         d: 16/16
         prioritize p 4
         -> a=0 b=10 c=10 d=0
         show
         -> a: 0/16
         -> b: 8/16~
         -> c: 8/16
         -> d: 16/16
         prioritize p 4
         -> a=0 b=10 c=10 d=0
         prioritize q 4
         -> a=0 b=10 c=5 d=0
         prioritize r 17
         -> a=0 b=0 c=0 d=0",
    );
}

#[test]
fn where_the_order_among_equals_is_part_of_the_policy_the_best_is_alone() {
    // The same order as in the test of scattered ties.
    check(
        "options ties=scattered
         a1: 0/16
         a2: 0/16
         b1: 0/16
         b2: 0/16
         c1: 0/16
         d: 8/16
         prioritize p 4
         -> a1=7 a2=7 b1=7 b2=7 c1=7 d=10
         prioritize q 12
         -> a1=8 a2=8 b1=10 b2=8 c1=8 d=0",
    );
}

#[test]
fn a_pod_of_no_gpu_looks_like_no_other_and_nobody_waits_for_it() {
    let (mut engine, now) = (
        Engine::new(EngineOptions::of(Policy::binpack())),
        Time::from_ms(0),
    );
    let on = engine.set_node(node("n size slots", "0/16").0);
    let reserve = |engine: &mut Engine, pod: &str, claim: &Arc<Claim>| {
        engine.reserve(now, entry(pod, "n", claim)).map(drop)
    };
    let (plain, slot) = (on_host(500, 0, 0, &[]), claim("8:slot"));
    assert_eq!(reserve(&mut engine, "a", &plain), Ok(()));
    assert_eq!(reserve(&mut engine, "b", &slot), Ok(()));
    assert_eq!(reserve(&mut engine, "c", &plain), Ok(()));
    let refused = reserve(&mut engine, "d", &slot).unwrap_err();
    assert_eq!(refused.label(), "look_alike");
    assert_eq!(engine.ledger().book(on).pods().count(), 3);
}

#[test]
fn a_reservation_is_confirmed_or_released() {
    check(
        "a: 0/16
         reserve p a 12
         -> a/0
         release p
         show
         -> a: 0/16
         reserve p a 12
         -> a/0
         observe p a 12 0
         release p
         show
         -> a: 12/16
         forget p
         forget p
         release p
         show
         -> a: 0/16
         reserve q b 4
         -> no: the node is not known, or its GPU inventory cannot be read",
    );
}

#[test]
fn a_pod_with_a_place_gets_no_second_one() {
    check(
        "a: 0/16
         b: 0/16
         reserve p a 12
         -> a/0
         filter p 12
         -> a
         reserve p b 12
         -> no: the pod already has a place on node a: an earlier bind holds, or is not settled yet
         observe p a 12 0
         reserve p b 12
         -> no: the pod already has a place on node a: an earlier bind holds, or is not settled yet
         release p
         show
         -> a: 12/16
         -> b: 0/16",
    );
}

#[test]
fn what_the_api_server_says_replaces_what_was_reserved() {
    check(
        "a: 0/16 0/16
         b: 0/16
         reserve p a 12
         -> a/0
         observe p a 12 1
         show
         -> a: 0/16 12/16
         -> b: 0/16
         observe p b 4 0
         show
         -> a: 0/16 0/16
         -> b: 4/16",
    );
}

#[test]
fn a_node_with_other_cards_is_charged_by_uuid() {
    check(
        "a: 0/16@A 0/16@B
         observe p a 4 0@A
         observe q a 5 1@B
         observe r a 6 1
         show
         -> a: 4/16 11/16
         a: 0/32@B 0/16@C
         show
         -> a: 5/32 6/16
         a: 0/16@A 0/16@B
         show
         -> a: 4/16 11/16",
    );
}

#[test]
fn a_whole_card_is_charged_whole_whatever_its_size_is_now() {
    check(
        "a: 0/16 0/16
         observe p a 2x 0,1
         a: 0/24
         show
         -> a: 24/24w",
    );
}

#[test]
fn pods_outlive_their_node_and_come_before_it() {
    check(
        "observe p a 4 0
         observe q a 1x ?
         show
         -> a:
         a: 0/16 0/16
         show
         -> a: 4/16 0/16 and 1 somewhere
         remove a
         ask r 4
         -> a: the node is not known, or its GPU inventory cannot be read
         a: 0/16 0/16
         forget q
         show
         -> a: 4/16 0/16
         remove a
         forget p
         show
         b: 0/16
         show
         -> b: 0/16",
    );
}

#[test]
fn others_may_overfill_a_card_which_then_has_nothing_free() {
    check(
        "a: 0/16
         observe p a 12 0
         observe q a 12 0
         observe r a 1x 0
         show
         -> a: 40/16w
         ask s 1
         -> a: GPU 0 lacks 1 MiB: 1 MiB asked, and the largest hole on this node is 0 MiB
         forget r
         forget q
         ask s 4
         -> a/0",
    );
}
