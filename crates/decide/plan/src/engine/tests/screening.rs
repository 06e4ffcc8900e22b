//! A scan skips a node only if the node cannot change its answer. Compares outlines with pages, on
//! nodes of many sizes, with holds, and with pods that took whole cards without saying which.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use sublet_model::{Ask, GpuIndex, MeasuredUse, Milli, NodeFacts, NodeIdx, Part, Time};

use crate::choice::{self, Open};
use crate::score::{Cost, Scores};
use crate::screen::hope;
use crate::script::{claim, entry, node, numbered, policies, uid};
use crate::{Engine, EngineOptions, Reason, Ties};

const WORDS: [&str; 9] = [
    "", "", "", "memory", "whole", "size", "slots", "gib", "splits=1",
];
const SIZES: [u32; 4] = [16, 16_276, 24_564, 81_559];
const CLAIMS: [&str; 28] = [
    "0",
    "4",
    "2048",
    "8138",
    "16384",
    "40000",
    "i8+3+2:slot",
    "1x",
    "2x",
    "3x",
    "2048@400",
    "4096@1000",
    "4096*2",
    "8138@500+4000*3",
    "4:low",
    "2048:low",
    "8138*2:low",
    "50%",
    "30%@400*2",
    "2048+10%:low",
    "own:8138+2048+i4096",
    "own:30%*2+16384@300",
    "2048:on=aff=a",
    "2048:on=as=a",
    "4096*2:on=anti=a",
    "2048:on=only=a",
    "2048:cards",
    "4:low:on=aff=a,only=a",
];

/// A card as scripts write it: `used/capacity`, `!` if sick, `w` if taken whole.
fn card() -> impl Strategy<Value = String> {
    let used = prop_oneof![Just(0), 0..=8u32];
    (0..SIZES.len(), used, 0..8u8).prop_map(|(size, used, mark)| {
        let (used, capacity) = (SIZES[size] / 8 * used, SIZES[size]);
        let mark = match mark {
            0 => "!",
            1 => "w",
            _ => "",
        };
        format!("{used}/{capacity}{mark}")
    })
}

fn looks() -> impl Strategy<Value = Vec<(usize, Vec<String>)>> {
    let look = (0..WORDS.len(), prop::collection::vec(card(), 0..5));
    prop::collection::vec(look, 1..24)
}

/// Claims that were asked for or bound before, on which node, and how.
fn history() -> impl Strategy<Value = Vec<(usize, usize, u8)>> {
    prop::collection::vec((0..CLAIMS.len(), 0..24usize, 0..4u8), 0..16)
}

/// Measurements of a node's agent: on each node some cards have no figure.
fn measured_on(number: usize, cards: usize) -> BTreeMap<GpuIndex, MeasuredUse> {
    let said = (0..cards).filter(|card| !(number + card).is_multiple_of(3));
    let each = said.map(|card| {
        let busy = Milli::new((37 * number + 170 * card) as u16 % 1000).unwrap();
        let pods = (number % 2) as u32;
        (GpuIndex(card as u16), MeasuredUse { busy, pods })
    });
    each.collect()
}

/// An engine with these nodes, after pods have come: some hold a place, some are still starting,
/// and some use whole cards without saying which.
fn engine(
    options: EngineOptions,
    looks: &[(usize, Vec<String>)],
    history: &[(usize, usize, u8)],
) -> (Engine, Vec<NodeIdx>) {
    let mut engine = Engine::new(options);
    let mut nodes = Vec::new();
    for (number, (words, cards)) in looks.iter().enumerate() {
        let head = format!("n{number} {}", WORDS[*words]);
        let (facts, entries) = node(&head, &cards.join(" "));
        let measured = Arc::new(measured_on(number, cards.len()));
        nodes.push(engine.set_node(NodeFacts { measured, ..facts }));
        entries.into_iter().for_each(|entry| engine.observe(entry));
    }
    for (number, &(asked, at, how)) in history.iter().enumerate() {
        let (pod, claim) = (format!("p{number}"), claim(CLAIMS[asked]));
        let at = at % nodes.len();
        let entry = entry(&pod, &format!("n{at}"), &claim);
        match how {
            0 => engine.observe(entry),
            1 => drop(engine.reserve(Time::from_ms(0), entry)),
            _ => {
                // Sometimes only one node is asked for, so that not only the best nodes have holds.
                let among = if how == 2 {
                    &nodes[at..=at]
                } else {
                    &nodes[..]
                };
                engine.prioritize(Time::from_ms(0), &uid(&pod), &claim, among, |_| 0);
            }
        }
    }
    assert!(engine.ledger().is_conserved());
    (engine, nodes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_place_is_better_than_was_hoped_for(
        policy in prop::sample::select(&["binpack", "spread"][..]),
        looks in looks(),
        history in history(),
        asked in 0..CLAIMS.len(),
    ) {
        let options = EngineOptions::of(policy.parse().unwrap());
        let pack = Scores::of(&options.policy).pack().unwrap();
        let (engine, nodes) = engine(options, &looks, &history);
        let (pod, claim) = (uid("new"), claim(CLAIMS[asked]));
        for node in nodes {
            let hope = hope(engine.ledger().outline(node), claim.ask(), pack);
            match engine.fit(&pod, &claim, node) {
                Ok(place) => {
                    prop_assert!(hope.is_some(), "rejected, but it fits: {place:?}");
                    let hope = hope.map(|hope| (hope.contended, hope.cost));
                    prop_assert!(hope <= Some((place.contended, place.cost())), "{hope:?} {place:?}");
                }
                // An outline does not know these reasons. For any other refusal it must have no
                // hope.
                Err(
                    Reason::LookAlike { .. }
                    | Reason::Tags { .. }
                    | Reason::Splits { .. }
                    | Reason::Unit { .. }
                    | Reason::NoSlot
                    | Reason::NoCompute { .. }
                    | Reason::Company { .. }
                    | Reason::Overfull { .. }
                    | Reason::TooFewRooms { .. }
                    | Reason::TooFewForAll { .. },
                ) => {}
                Err(Reason::TooFew { .. }) if matches!(claim.ask(), Ask::Parts(_)) => {}
                // Nor how large a share of a card is.
                Err(Reason::NoRoom { .. })
                    if matches!(claim.ask(), Ask::Parts(parts) if parts.has_shares()) => {}
                Err(reason) => prop_assert_eq!(hope, None, "{}", reason),
            }
        }
    }

    #[test]
    fn one_look_at_cards_is_enough(looks in looks(), history in history(), asked in 0..CLAIMS.len()) {
        let (engine, nodes) = engine(EngineOptions::default(), &looks, &history);
        let claim = claim(CLAIMS[asked]);
        for node in nodes {
            let book = engine.ledger().book(node);
            let open = Open::of(book, &claim);
            let whole: Vec<usize> = choice::whole(open).collect();
            let wanted = whole.iter().filter(|at| book.cards()[**at].holds > 0);
            let idle = choice::idle(open);
            prop_assert_eq!(
                (idle.cards as usize, idle.wanted as usize, idle.first),
                (whole.len(), wanted.count(), whole.first().copied())
            );
            // By accounts alone, as every policy's that is not personal.
            let cost = |_, left: Part| (left.memory.get() % 7) as Cost;
            if let Ask::Parts(parts) = claim.ask() {
                for part in parts.iter() {
                    let each = choice::one(open, part, true, cost);
                    prop_assert_eq!(choice::one(open, part, false, cost), each);
                }
            }
        }
    }

    #[test]
    fn what_a_node_answers_does_not_depend_on_what_is_kept_or_preferred(
        policy in 0..policies(),
        looks in looks(),
        history in history(),
        asked in 0..CLAIMS.len(),
    ) {
        let options = EngineOptions::of(numbered(policy));
        let anew = EngineOptions { cache_costs: false, ..options.clone() };
        let ((mut kept, nodes), (mut anew, _)) =
            (engine(options, &looks, &history), engine(anew, &looks, &history));
        let (pod, claim) = (uid("new"), claim(CLAIMS[asked]));
        for (&node, answer) in nodes.iter().zip(kept.answers(&pod, &claim, &nodes)) {
            match kept.fit(&pod, &claim, node) {
                Err(Reason::LookAlike { .. }) => {}
                fit => prop_assert_eq!(answer, fit.map(|_place| ())),
            }
        }
        let first = kept.answers(&pod, &claim, &nodes).position(|answer| answer.is_ok());
        prop_assert_eq!(kept.first_open(&pod, &claim, &nodes), first);
        let now = Time::from_ms(0);
        let ask = |engine: &mut Engine| engine.filter(now, &pod, &claim, &nodes, true, |_| 0);
        prop_assert_eq!(ask(&mut kept), ask(&mut anew));
    }

    #[test]
    fn the_best_few_are_the_first_of_all(
        policy in 0..policies(),
        few in 1..20usize,
        looks in looks(),
        history in history(),
        asked in 0..CLAIMS.len(),
        order in any::<prop::sample::Index>(),
        tainted in prop::collection::vec(0..3u32, 24),
    ) {
        let options = EngineOptions { few, ..EngineOptions::of(numbered(policy)) };
        let (engine, mut nodes) = engine(options, &looks, &history);
        let start = order.index(nodes.len());
        nodes.rotate_left(start);
        let (pod, claim) = (uid("new"), claim(CLAIMS[asked]));
        let ask = |everywhere| {
            let taints = |node: NodeIdx| tainted[node.0 as usize];
            let now = Time::from_ms(0);
            engine.clone().filter(now, &pod, &claim, &nodes, everywhere, taints)
        };
        let (best, mut all) = (ask(false), ask(true));
        all.passed.truncate(few);
        prop_assert_eq!(best, all);
    }

    #[test]
    fn a_scan_finds_what_looking_at_every_node_finds(
        policy in 0..policies(),
        looks in looks(),
        history in history(),
        asked in 0..CLAIMS.len(),
    ) {
        // The expected list below breaks ties by name.
        let options = EngineOptions { ties: Ties::ByName, ..EngineOptions::of(numbered(policy)) };
        // Costs of a relative policy can only be compared within one question.
        prop_assume!(!options.policy.is_relative());
        let (mut engine, nodes) = engine(options, &looks, &history);
        let (pod, claim) = (uid("new"), claim(CLAIMS[asked]));
        // A policy computes its tables, such as which nodes are rare, when a pod has come.
        engine.learn(&claim);
        let place = |&node: &NodeIdx| {
            let place = engine.fit(&pod, &claim, node).ok()?;
            Some((place.contended, place.preference, place.cost(), engine.ledger().book(node).name(), node))
        };
        let mut places: Vec<_> = nodes.iter().filter_map(place).collect();
        places.sort_unstable();
        let expected: Vec<NodeIdx> = places.iter().map(|place| place.4).collect();
        let answer = engine.filter(Time::from_ms(0), &pod, &claim, &nodes, true, |_| 0);
        prop_assert_eq!(answer.passed, expected);
    }

    #[test]
    fn kept_costs_are_what_would_be_found_anew(
        policy in 0..policies(),
        looks in looks(),
        history in history(),
        later in history(),
        asked in prop::collection::vec(0..CLAIMS.len(), 1..6),
        warmed in 0..40usize,
    ) {
        let options = EngineOptions { few: 0, ..EngineOptions::of(numbered(policy)) };
        let (mut engine, nodes) = engine(options, &looks, &history);
        let now = Time::from_ms(0);
        for (round, (asked, (pod, node, _))) in asked.iter().zip(later).enumerate() {
            let (name, claim) = (uid(&format!("later{round}")), claim(CLAIMS[*asked]));
            let mut fresh = engine.clone();
            fresh.costs = crate::cost_cache::CostCache::default();
            let kept = engine.filter(now, &name, &claim, &nodes, true, |_| 0);
            prop_assert_eq!(kept, fresh.filter(now, &name, &claim, &nodes, true, |_| 0));
            // Enough pods that policies compute their tables again.
            (0..20).for_each(|_| engine.learn(&claim));
            engine.refresh_costs(warmed);
            let node = format!("n{}", node % nodes.len());
            engine.observe(entry(&format!("bound{round}"), &node, &crate::script::claim(CLAIMS[pod])));
        }
    }
}
