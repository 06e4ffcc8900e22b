//! Tables of policies that learn: after a start they depend on what there is, not on the order in
//! which it was told.

use sublet_model::{NodeIdx, Time};

use crate::script::{claim, node, numbered, policies, uid};
use crate::{Engine, EngineOptions};

const CLAIMS: [&str; 5] = ["4", "8", "1x", "2x", "4@300*2"];
const NODES: [(&str, &str); 4] = [
    ("a", "0/16 0/16"),
    ("b", "4/16 0/16 0/16 0/16"),
    ("c", "0/24"),
    ("d", "8/16 2/16"),
];

/// An engine that was told of the nodes and of so many pods, one list after the other.
fn started(policy: usize, pods: usize, nodes_first: bool) -> Engine {
    let mut engine = Engine::new(EngineOptions::of(numbered(policy)));
    let nodes = |engine: &mut Engine| {
        for (name, cards) in NODES {
            let (facts, entries) = node(name, cards);
            engine.set_node(facts);
            entries.into_iter().for_each(|entry| engine.observe(entry));
        }
    };
    if nodes_first {
        nodes(&mut engine);
    }
    (0..pods).for_each(|at| engine.learn(&claim(CLAIMS[at * at % CLAIMS.len()])));
    if !nodes_first {
        nodes(&mut engine);
    }
    engine
}

/// The cost of each claim on each node, after one question, which takes in what has changed before.
fn costs(engine: &mut Engine) -> Vec<String> {
    let nodes: Vec<NodeIdx> = engine.ledger().books().map(|(idx, _)| idx).collect();
    engine.filter(
        Time::from_ms(0),
        &uid("p"),
        &claim("4"),
        &nodes,
        true,
        |_| 0,
    );
    engine.forget(&uid("p"));
    let fits = CLAIMS.iter().flat_map(|asked| {
        let cost = |node: &NodeIdx| {
            engine
                .fit(&uid("q"), &claim(asked), *node)
                .map(|at| at.cost())
        };
        nodes.iter().map(cost).collect::<Vec<_>>()
    });
    fits.map(|cost| format!("{cost:?}")).collect()
}

#[test]
fn tables_do_not_depend_on_which_list_of_a_start_is_faster() {
    let mut differed = 0;
    for policy in 0..policies() {
        for pods in [1, 15, 16, 17, 31, 40, 61] {
            let (mut one, mut two) = (started(policy, pods, true), started(policy, pods, false));
            differed += usize::from(costs(&mut one.clone()) != costs(&mut two.clone()));
            one.relearn();
            two.relearn();
            assert_eq!(costs(&mut one), costs(&mut two), "{policy}: {pods} pods");
        }
    }
    // Else nothing was tested.
    assert!(differed > 0);
}

#[test]
fn without_pods_the_first_one_makes_the_tables() {
    for policy in 0..policies() {
        let (mut one, mut two) = (started(policy, 0, true), started(policy, 0, true));
        two.relearn();
        for engine in [&mut one, &mut two] {
            (0..20).for_each(|_| engine.learn(&claim("8")));
        }
        assert_eq!(costs(&mut one), costs(&mut two), "{policy}");
    }
}
