//! Tests of the node taken when the extender's steps and the stock scheduler's scores disagree.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::{
    Bytes, Host, Inventory, MiB, MilliCpu, NodeFacts, NodeName, Sharing, StockAllocatable,
};

use super::*;
use crate::stock::{NodeRules, Taint, TaintEffect};
use crate::{EngineOptions, StockRules, script};

/// A node: name, cores, MiB in use on its only card (of 100), and whether it has a soft taint.
type Picture = (&'static str, u64, u32, bool);

/// The node that a pod of so many MiB takes, and the other nodes that are as good.
fn taken(
    policy: &str,
    nodes: &[Picture],
    asked: &str,
    cores: u64,
) -> Option<(String, Vec<String>)> {
    let mut engine = Engine::new(EngineOptions {
        stock: StockRules::Here,
        ..EngineOptions::of(policy.parse().unwrap())
    });
    let mut rules = BTreeMap::new();
    for &(name, cores, used, soft) in nodes {
        let cards = Inventory::equal_cards(1, MiB::from(100)).unwrap();
        let node = engine.set_node(NodeFacts {
            sharing: Sharing::Both,
            host: host(cores),
            stock: Some(Arc::new(StockAllocatable {
                pods: 100,
                ..StockAllocatable::default()
            })),
            ..NodeFacts::plain(NodeName::new(name).unwrap(), Arc::new(cards))
        });
        if used > 0 {
            let claim = script::claim(&used.to_string());
            let mut entry = script::entry(&format!("on-{name}"), name, &claim);
            entry.allocation = Some(script::placed(&claim, "0", MiB::from(100)));
            engine.observe(entry);
        }
        let taint = Taint {
            key: Arc::from("slow"),
            value: Arc::from(""),
            effect: TaintEffect::PreferNoSchedule,
        };
        let of = NodeRules {
            name: Arc::from(name),
            labels: BTreeMap::new(),
            taints: vec![taint; usize::from(soft)],
            unschedulable: false,
        };
        rules.insert(node, of);
    }
    let claim = match asked {
        "" => Claim::host_only(host(cores)),
        asked => Claim::clone(&script::claim(asked)).with_host(host(cores)),
    };
    let open: Vec<NodeIdx> = rules.keys().copied().collect();
    let pod = Waiting {
        uid: &script::uid("p"),
        claim: &claim,
        rules: &PodRules::default(),
        everywhere: false,
        unweighed: false,
    };
    let found = select(&mut engine, Time::from_ms(0), pod, &open, |node| {
        &rules[&node]
    })?;
    let name = |node| engine.ledger().book(node).name().to_string();
    Some((
        name(found.node),
        found.alternatives.into_iter().map(name).collect(),
    ))
}

fn host(cores: u64) -> Host {
    Host {
        cpu: MilliCpu::new(1000 * cores),
        memory: Bytes::new(cores << 30),
    }
}

fn only(name: &str) -> Option<(String, Vec<String>)> {
    Some((name.to_owned(), Vec::new()))
}

#[test]
fn a_step_of_the_extender_outweighs_what_resources_are_worth() {
    // `binpack` takes the fuller card, although its node has hardly a core left.
    let nodes = [("full", 2, 50, false), ("empty", 64, 0, false)];
    assert_eq!(taken("binpack", &nodes, "10", 1), only("full"));
    assert_eq!(taken("spread", &nodes, "10", 1), only("empty"));
    assert_eq!(taken("binpack", &nodes, "60", 1), only("empty"));
    assert_eq!(taken("binpack", &nodes, "200", 1), None);
    assert_eq!(taken("binpack", &nodes, "10", 65), None);
}

#[test]
fn of_nodes_that_the_policy_finds_equal_the_emptiest_is_taken_or_one_is_drawn() {
    let nodes = [("a", 8, 0, false), ("b", 64, 0, false), ("c", 64, 0, false)];
    let drawn = Some(("b".to_owned(), vec!["c".to_owned()]));
    assert_eq!(taken("binpack", &nodes, "10", 4), drawn);
    // A policy with many equal nodes has an order of its own, so nothing is left to draw.
    let (_, alternatives) = taken("best-fit", &nodes, "10", 4).unwrap();
    assert_eq!(alternatives, Vec::<String>::new());
}

#[test]
fn steps_are_coarse_where_many_nodes_fit() {
    // Sixteen nodes with different costs and ten steps: the best two share a step, and the stock
    // scheduler takes the emptier of the two.
    let names: Vec<&'static str> = "a b c d e f g h i j k l m n o p".split(' ').collect();
    let node = |(at, name): (usize, &&'static str)| {
        let cores = if at == 1 { 64 } else { 8 };
        (*name, cores, 80 - 2 * at as u32, false)
    };
    let nodes: Vec<Picture> = names.iter().enumerate().map(node).collect();
    assert_eq!(taken("binpack", &nodes, "10", 4), only("b"));
}

#[test]
fn a_soft_taint_puts_a_node_behind_all_others() {
    let nodes = [("a", 8, 50, true), ("b", 8, 0, false)];
    assert_eq!(taken("binpack", &nodes, "10", 1), only("b"));
}

#[test]
fn a_pod_of_no_gpu_is_the_stock_scheduler_s_where_the_policy_sees_memory_alone() {
    let nodes = [("a", 8, 0, false), ("b", 64, 90, false)];
    assert_eq!(taken("binpack", &nodes, "", 4), only("b"));
    assert_eq!(taken("best-fit", &nodes, "", 4), only("a"));
}
