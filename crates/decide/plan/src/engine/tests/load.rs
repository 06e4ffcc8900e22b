//! Opportunistic pods go to the card with the least use, measured or guessed. Guaranteed pods go to
//! the same card with or without these figures.

use sublet_model::{NodeFacts, Time};

use crate::script::{check, claim, measured, node, numbered, policies, uid};
use crate::{Engine, EngineOptions};

#[test]
fn opportunistic_pods_go_to_the_least_measured_use() {
    // By memory, `b` is the fullest node, and its first card the fullest card.
    check(
        "a: 4/16 0/16
         b: 8/16 4/16
         measured a 70/1 60/0
         measured b 90/1 20/1
         ask p 4:low
         -> b/1
         ask q 4
         -> b/0
         measured a 70/1 10/0
         ask r 4:low
         -> a/1
         ask s 4
         -> b/0
         ask t 1x:low
         -> a/1",
    );
}

#[test]
fn a_burst_spreads_before_anybody_has_measured_it() {
    check(
        "options policy=binpack few=1
         a: 0/16 0/16
         b: 0/16 0/16
         measured a 0/0 30/0
         measured b 0/0 90/0
         filter p1 4:low
         -> a
         filter p2 4:low
         -> b
         show
         -> a: 0/16~ 0/16
         -> b: 0/16~ 0/16
         reserve p1 a 4:low
         -> a/0
         reserve p2 b 4:low
         -> b/0
         filter p3 4:low
         -> a
         reserve p3 a 4:low
         -> a/0
         filter p4 4:low
         -> b
         reserve p4 b 4:low
         -> b/0
         ask p5 4:low
         -> a/1
         measured a 10/2 30/0
         ask p5 4:low
         -> a/0",
    );
}

#[test]
fn where_nothing_is_measured_promises_and_pods_count() {
    check(
        "a: 0/16 0/16 0/16
         observe g a 4@800 0
         observe h a 4@100 1
         observe i a 4@100 1
         ask p 4:low
         -> a/2
         observe j a 4 2
         observe k a 4 2
         observe l a 4 2
         ask p 4:low
         -> a/1
         forget p
         measured a - 60/2 -
         ask p 4:low
         -> a/1
         forget p
         measured a - 76/2 -
         ask p 4:low
         -> a/2",
    );
}

#[test]
fn a_pod_with_several_cards_avoids_the_busiest() {
    check(
        "a: 0/16 0/16 0/16
         b: 0/16 0/16
         measured a 0/0 80/0 10/0
         measured b 30/0 30/0
         reserve p a 4*2:low
         -> a/0,2
         filter q 4*2:low
         -> b a
         filter r 4*2
         -> a b",
    );
}

#[test]
fn what_was_measured_makes_no_policy_learn_anew() {
    for policy in 0..policies() {
        let mut engine = Engine::new(EngineOptions::of(numbered(policy)));
        let facts = node("a", "0/16 0/16").0;
        let idx = engine.set_node(facts.clone());
        (0..40).for_each(|_| engine.learn(&claim("4")));
        // The first question takes in what has changed before.
        let ask = |engine: &mut Engine, class: &str| {
            let now = Time::from_ms(0);
            let claim = claim(&format!("4{class}"));
            engine.filter(now, &uid("p"), &claim, &[idx], true, |_| 0);
            engine.forget(&uid("p"));
        };
        ask(&mut engine, "");
        let epoch = engine.scores.epoch();
        for busy in ["10/0", "20/0", "-"] {
            engine.set_node(NodeFacts {
                measured: measured(&[busy]).into(),
                ..facts.clone()
            });
            ask(&mut engine, "");
            ask(&mut engine, ":low");
        }
        assert_eq!(engine.scores.epoch(), epoch, "{policy}");
    }
}
