//! Properties that hold after any sequence of events: nothing leaks, nothing is granted twice, and
//! the same events give the same answers. These tests do not say which choice is good.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sublet_model::{CardRef, Entry, GpuIndex, Grant, Ledger, NodeIdx, NodeName, Standing, Time};

use super::grant::check_grant;
use crate::Candidacy;
use crate::script::{claim, entry, node, numbered, policies, uid};
use crate::{Engine, EngineOptions, Reason, Ties};

const NODES: [&str; 4] = ["a", "b", "c", "d"];
/// Versions of the nodes: UUIDs move between indices, and cards come, go and become sick.
const LOOKS: [(&str, &str); 8] = [
    ("", "0/16@GPU-A@A100@0 0/16@GPU-B@A100@1"),
    ("", "0/16@GPU-B 0/24@GPU-C@A100@1 0/8@GPU-D@A100@1"),
    ("", "0/16!@GPU-A 0/16@GPU-B"),
    ("size", "0/16 0/16 0/16"),
    ("whole", "0/16 0/16"),
    ("slots", "0/16"),
    ("splits=2", "0/16 0/16"),
    ("", ""),
];
const CLAIMS: [&str; 33] = [
    "4",
    "8",
    "16",
    "i8+3+2",
    "1x",
    "2x",
    "i2x+s1x",
    "8:slot",
    "4@400",
    "2@1000",
    "4*2",
    "8@600+2@300*3",
    "5*2+3@500",
    "4:low",
    "3*2:low",
    "50%",
    "i40%+30%@200*2",
    "4+25%:low",
    "30%:on=GPU-B,!v100",
    "2x:on=!GPU-A",
    "4*2:on=numa",
    "own:5+9+i7",
    "own:30%*2+4@400+s2",
    "4:on=aff=a",
    "2:on=aff=a,anti=b",
    "4*2:on=anti=b",
    "4:on=as=a",
    "3:on=as=b,aff=a",
    "3:on=only=x",
    "4:on=only=y,aff=a",
    "1x:on=aff=a,only=x",
    "2:cards",
    "own:1+1*2:cards",
];
const PODS: u8 = 12;

#[derive(Debug, Clone)]
enum Step {
    Node {
        node: usize,
        look: usize,
    },
    Remove {
        node: usize,
    },
    Reserve {
        pod: u8,
        node: usize,
        claim: usize,
    },
    /// The pod was bound by somebody else, with or without a card; or our own bind is confirmed.
    Observe {
        pod: u8,
        node: usize,
        claim: usize,
        card: Option<u16>,
    },
    Confirm {
        pod: u8,
        assigned: bool,
    },
    Release {
        pod: u8,
    },
    Forget {
        pod: u8,
    },
    Filter {
        pod: u8,
        claim: usize,
        everywhere: bool,
    },
    Prioritize {
        pod: u8,
        claim: usize,
    },
    Wait {
        ms: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (pod, node, claim) = (0..PODS, 0..NODES.len(), 0..CLAIMS.len());
    let at = || (pod.clone(), node.clone(), claim.clone());
    let asks = || (pod.clone(), claim.clone());
    prop_oneof![
        2 => (node.clone(), 0..LOOKS.len()).prop_map(|(node, look)| Step::Node { node, look }),
        1 => node.clone().prop_map(|node| Step::Remove { node }),
        6 => at().prop_map(|(pod, node, claim)| Step::Reserve { pod, node, claim }),
        1 => (at(), prop::option::of(0..4u16))
            .prop_map(|((pod, node, claim), card)| Step::Observe { pod, node, claim, card }),
        3 => (pod.clone(), any::<bool>()).prop_map(|(pod, assigned)| Step::Confirm { pod, assigned }),
        2 => pod.clone().prop_map(|pod| Step::Release { pod }),
        2 => pod.clone().prop_map(|pod| Step::Forget { pod }),
        4 => (asks(), any::<bool>())
            .prop_map(|((pod, claim), everywhere)| Step::Filter { pod, claim, everywhere }),
        3 => asks().prop_map(|(pod, claim)| Step::Prioritize { pod, claim }),
        1 => (0..3_000u64).prop_map(|ms| Step::Wait { ms }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 0..60)
}

/// An engine, its clock, and the order in which its caller lists the nodes.
struct World {
    engine: Engine,
    now: Time,
    backwards: bool,
}

impl World {
    fn new(policy: usize, order: &[usize], backwards: bool) -> World {
        let options = EngineOptions {
            few: 2,
            ..EngineOptions::of(numbered(policy))
        };
        let mut engine = Engine::new(options);
        for &at in order {
            engine.set_node(node(NODES[at], LOOKS[0].1).0);
        }
        World {
            engine,
            now: Time::from_ms(0),
            backwards,
        }
    }

    fn nodes(&self) -> Vec<NodeIdx> {
        let mut nodes: Vec<NodeIdx> = self.engine.ledger().books().map(|(idx, _)| idx).collect();
        if self.backwards {
            nodes.reverse();
        }
        nodes
    }

    fn name(&self, idx: NodeIdx) -> String {
        self.engine.ledger().book(idx).name().to_string()
    }

    /// Performs one step, and returns the answer as text with names.
    fn perform(&mut self, step: &Step) -> String {
        let pod = |pod: u8| format!("p{pod}");
        match *step {
            Step::Node { node: at, look } => {
                let (words, cards) = LOOKS[look];
                let facts = node(&format!("{} {words}", NODES[at]), cards).0;
                self.engine.set_node(facts);
            }
            Step::Remove { node } => {
                self.engine
                    .remove_node(&NodeName::new(NODES[node]).unwrap());
            }
            Step::Reserve {
                pod: n,
                node,
                claim: c,
            } => {
                let entry = entry(&pod(n), NODES[node], &claim(CLAIMS[c]));
                return format!("{:?}", self.engine.reserve(self.now, entry));
            }
            Step::Observe {
                pod: n,
                node,
                claim: c,
                card,
            } => {
                self.engine
                    .observe(bound(&pod(n), NODES[node], CLAIMS[c], card));
            }
            Step::Confirm { pod: n, assigned } => {
                if let Some(entry) = self.engine.ledger().entry(&uid(&pod(n))) {
                    let standing = Standing::Bound;
                    let entry = Entry {
                        standing,
                        assigned,
                        ..entry.clone()
                    };
                    self.engine.observe(entry);
                }
            }
            Step::Release { pod: n } => self.engine.release(&uid(&pod(n))),
            Step::Forget { pod: n } => self.engine.forget(&uid(&pod(n))),
            Step::Filter {
                pod: n,
                claim: c,
                everywhere,
            } => return self.filter(&pod(n), CLAIMS[c], everywhere),
            Step::Prioritize { pod: n, claim: c } => {
                let (nodes, claim) = (self.nodes(), claim(CLAIMS[c]));
                let uid = uid(&pod(n));
                let scores = self
                    .engine
                    .prioritize(self.now, &uid, &claim, &nodes, |_| 0);
                assert!(scores.iter().all(|&(_, score)| score <= 10));
                if self.engine.options().ties == Ties::Scattered {
                    let others = scores.iter().filter(|&&(_, score)| score <= 8).count();
                    assert!(scores.len() - others <= 1, "the best is alone: {scores:?}");
                }
                let scores = scores.iter().map(|&(n, score)| (self.name(n), score));
                return format!("{:?}", scores.collect::<BTreeSet<_>>());
            }
            Step::Wait { ms } => self.now = self.now.plus_ms(ms),
        }
        String::new()
    }

    fn filter(&mut self, pod: &str, asked: &str, everywhere: bool) -> String {
        let (nodes, uid, claim) = (self.nodes(), uid(pod), claim(asked));
        let answer = self
            .engine
            .filter(self.now, &uid, &claim, &nodes, everywhere, |_| 0);
        let passed: Vec<String> = answer.passed.iter().map(|&n| self.name(n)).collect();
        let no = |no: &crate::RefusedNode| format!("{} {}", self.name(no.node), no.reason);
        let refused: BTreeSet<String> = answer.refused.iter().map(no).collect();
        assert!(passed.is_empty() || refused.is_empty());
        format!("{passed:?} {refused:?}")
    }
}

/// A pod that somebody else bound; the card that it names may be nonsense.
fn bound(pod: &str, on: &str, asked: &str, card: Option<u16>) -> Entry {
    let mut entry = entry(pod, on, &claim(asked));
    entry.allocation = card.map(|index| {
        let grants = entry.claim.containers().iter().map(|container| Grant {
            container: container.name.clone(),
            card: CardRef {
                index: GpuIndex(index),
                uuid: None,
            },
            memory: sublet_model::MiB::from(1),
        });
        sublet_model::Allocation {
            grants: grants.collect(),
        }
    });
    entry
}

/// The same entries, entered in reverse order into an empty ledger.
fn rebuilt(ledger: &Ledger) -> Ledger {
    let mut again = Ledger::new();
    let entries: Vec<&Entry> = ledger.entries().collect();
    let (late, early) = entries.split_at(entries.len() / 2);
    early
        .iter()
        .rev()
        .for_each(|&entry| again.enter(entry.clone()));
    for (_, book) in ledger.books() {
        if let Some(facts) = book.facts() {
            again.set_node(facts.clone());
        }
    }
    late.iter()
        .rev()
        .for_each(|&entry| again.enter(entry.clone()));
    again
}

/// All accounts, without the soft holds, which cannot be rebuilt from entries.
fn accounts(ledger: &Ledger) -> Vec<String> {
    let book = |(_, book): (NodeIdx, &sublet_model::Book)| {
        let cards: Vec<_> = book
            .cards()
            .iter()
            .map(|card| {
                (
                    card.capacity,
                    card.used,
                    card.tenants,
                    card.whole,
                    card.healthy,
                )
            })
            .collect();
        let pods: Vec<_> = book.pods().collect();
        let (free, capacity, unplaced) = (book.free(), book.capacity(), book.unplaced());
        let waiting = book.unassigned();
        format!(
            "{} {cards:?} {pods:?} {waiting:?} {free} {capacity} {unplaced}",
            book.name()
        )
    };
    ledger.books().map(book).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_leaks_and_nothing_is_granted_twice(policy in 0..policies(), steps in steps()) {
        let mut world = World::new(policy, &[0, 1, 2, 3], false);
        for step in &steps {
            let before = world.engine.ledger().clone();
            let answer = world.perform(step);
            let ledger = world.engine.ledger();
            prop_assert!(ledger.is_conserved());
            prop_assert_eq!(accounts(ledger), accounts(&rebuilt(ledger)));
            if let Step::Reserve { pod, .. } = *step && answer.starts_with("Ok") {
                check_grant(ledger, pod, &before);
            }
        }
        // When every hold has expired, no card has a hold.
        world.now = world.now.plus_ms(10_000);
        world.perform(&Step::Prioritize { pod: PODS, claim: 7 });
        world.engine.forget(&uid(&format!("p{PODS}")));
        let held = |card: &sublet_model::Card| card.holds > 0 || !card.held.is_zero();
        prop_assert!(!world.engine.ledger().books().any(|(_, book)| book.cards().iter().any(held)));
        // Without pods, everything is free.
        for pod in 0..PODS {
            world.engine.forget(&uid(&format!("p{pod}")));
        }
        let used = |card: &sublet_model::Card| card.tenants > 0 || !card.used.is_zero();
        prop_assert!(!world.engine.ledger().books().any(|(_, book)| book.cards().iter().any(used)));
    }

    #[test]
    fn what_filter_passes_can_be_reserved_and_what_it_refuses_cannot(
        steps in steps(),
        asked in 0..CLAIMS.len(),
    ) {
        let mut world = World::new(0, &[0, 1, 2, 3], false);
        for step in &steps {
            world.perform(step);
        }
        let (nodes, claim) = (world.nodes(), claim(CLAIMS[asked]));
        let pod = uid("new");
        let answer = world.engine.filter(world.now, &pod, &claim, &nodes, true, |_| 0);
        for node in nodes {
            let entry = entry("new", &world.name(node), &claim);
            let granted = world.engine.clone().reserve(world.now, entry);
            prop_assert_eq!(granted.is_ok(), answer.passed.contains(&node), "{:?}", granted);
            if let (Err(reason), false) = (&granted, answer.refused.is_empty()) {
                let told = answer.refused.iter().find(|refused| refused.node == node);
                prop_assert_eq!(Some(reason), told.map(|refused| &refused.reason));
            }
        }
    }

    #[test]
    fn a_pod_never_has_two_places(steps in steps(), node in 0..NODES.len()) {
        let mut world = World::new(0, &[0, 1, 2, 3], false);
        for step in &steps {
            world.perform(step);
        }
        let before = accounts(world.engine.ledger());
        let entries: Vec<Entry> = world.engine.ledger().entries().cloned().collect();
        for entry in entries {
            let placed = Reason::Placed { node: entry.node.clone() };
            let again = Entry { node: NodeName::new(NODES[node]).unwrap(), ..entry };
            prop_assert_eq!(world.engine.reserve(world.now, again), Err(placed));
        }
        prop_assert_eq!(before, accounts(world.engine.ledger()));
    }

    #[test]
    fn the_same_events_give_the_same_answers_whatever_the_order_of_nodes(
        policy in 0..policies(),
        order in Just(vec![0, 1, 2, 3]).prop_shuffle(),
        steps in steps(),
    ) {
        let mut one = World::new(policy, &[0, 1, 2, 3], false);
        let mut two = World::new(policy, &order, true);
        for step in &steps {
            prop_assert_eq!(one.perform(step), two.perform(step));
        }
        prop_assert_eq!(accounts(one.engine.ledger()), accounts(two.engine.ledger()));
    }
}

/// The containers chose one card twice; a pod that asks as a whole must not get it twice.
#[test]
fn a_hold_of_containers_that_choose_for_themselves_is_no_hold_of_their_pods() {
    let claim = |text: &str| CLAIMS.iter().position(|one| *one == text).unwrap();
    let mut world = World::new(0, &[0, 1, 2, 3], false);
    for step in [
        Step::Reserve {
            pod: 2,
            node: 3,
            claim: claim("3:on=only=x"),
        },
        Step::Remove { node: 0 },
        Step::Node { node: 1, look: 4 },
        Step::Node { node: 2, look: 1 },
        Step::Filter {
            pod: 1,
            claim: claim("own:1+1*2:cards"),
            everywhere: false,
        },
        Step::Reserve {
            pod: 1,
            node: 2,
            claim: claim("8@600+2@300*3"),
        },
    ] {
        world.perform(&step);
    }
    assert!(world.engine.ledger().is_conserved());
}

/// Everything that an engine's answers depend on.
fn state(engine: &Engine) -> String {
    let books: Vec<_> = engine.ledger.books().collect();
    let entries: Vec<_> = engine.ledger.entries().collect();
    let Engine {
        holds,
        tried,
        ranks,
        learnt,
        scores,
        ..
    } = engine;
    format!("{books:?}\n{entries:?}\n{holds:?}\n{tried:?}\n{ranks:?}\n{learnt:?}\n{scores:?}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// A trial that is kept places the same pods as the dropped trial would have.
    #[test]
    fn an_engine_is_after_a_dropped_trial_what_it_was_before(
        policy in 0..policies(),
        steps in steps(),
        gone in prop::collection::vec(0..PODS, 0..4),
        asked in prop::collection::vec((0..PODS, 0..CLAIMS.len()), 1..8),
    ) {
        let mut world = World::new(policy, &[0, 1, 2, 3], false);
        for step in &steps {
            world.perform(step);
        }
        let (nodes, now) = (world.nodes(), world.now);
        // Some of these pods already have a place, or a soft hold.
        let pod = |&(pod, claim_of): &(u8, usize)| Candidacy {
            entry: entry(&format!("p{pod}"), NODES[0], &claim(CLAIMS[claim_of])),
            nodes: &nodes,
        };
        let pods: Vec<Candidacy<'_>> = asked.iter().map(pod).collect();
        // A trial begins with work that any question would do too. So do it before the comparison.
        drop(world.engine.trial(now));
        world.engine.find(&uid("nobody"), &claim("1"), &nodes, 1, |_| 0);
        let before = state(&world.engine);
        let mut trial = world.engine.trial(now);
        for pod in &gone {
            trial.evict(&uid(&format!("p{pod}")));
        }
        let without = accounts(trial.engine().ledger());
        let placed = trial.place(&pods);
        prop_assert!(trial.engine().ledger().is_conserved());
        if placed.is_err() {
            prop_assert_eq!(accounts(trial.engine().ledger()), without);
        }
        let would = accounts(trial.engine().ledger());
        drop(trial);
        prop_assert_eq!(state(&world.engine), before);
        // The same trial again, and keep it.
        let mut trial = world.engine.trial(now);
        for pod in &gone {
            trial.evict(&uid(&format!("p{pod}")));
        }
        prop_assert_eq!(trial.place(&pods), placed);
        trial.keep();
        prop_assert_eq!(accounts(world.engine.ledger()), would);
        prop_assert!(world.engine.ledger().is_conserved());
    }
}
