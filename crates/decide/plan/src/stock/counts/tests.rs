//! Tests of the short resource, with its numbers, and that no node ever gives more than it has.

use std::sync::Arc;

use proptest::prelude::*;
use sublet_model::{
    Bytes, Host, HostPort, Inventory, MiB, MilliCpu, NodeFacts, NodeIdx, NodeName, Resources,
    Sharing, StockAllocatable, StockAsk, Time,
};

use super::*;
use crate::script;
use crate::{Engine, EngineOptions, Policy, StockRules};

fn resources(text: &str) -> Resources {
    let amount = |word: &str| {
        let (name, amount) = word.split_once('=').unwrap();
        (Arc::from(name), amount.parse().unwrap())
    };
    text.split_whitespace().map(amount).collect()
}

fn host(cores: u64, gib: u64) -> Host {
    Host {
        cpu: MilliCpu::new(1000 * cores),
        memory: Bytes::new(gib << 30),
    }
}

fn ports(numbers: &[u16]) -> Vec<HostPort> {
    let port = |&port: &u16| HostPort {
        port,
        protocol: Arc::from("TCP"),
        address: None,
    };
    numbers.iter().map(port).collect()
}

/// A node of 8 cores, 16 GiB and two cards of 100 MiB that takes four pods.
fn engine(allocatable: &str) -> (Engine, NodeIdx) {
    let mut engine = Engine::new(EngineOptions {
        stock: StockRules::Here,
        ..EngineOptions::of(Policy::binpack())
    });
    let cards = Inventory::equal_cards(2, MiB::from(100)).unwrap();
    let node = engine.set_node(NodeFacts {
        sharing: Sharing::Both,
        host: host(8, 16),
        stock: Some(Arc::new(StockAllocatable {
            resources: resources(allocatable),
            pods: 4,
        })),
        ..NodeFacts::plain(NodeName::new("n").unwrap(), Arc::new(cards))
    });
    (engine, node)
}

/// A pod that asks for so much; `gpu` as in scripts, empty for none.
fn claim(gpu: &str, host: Host, ask: StockAsk) -> Arc<Claim> {
    let claim = match gpu {
        "" => Claim::host_only(host),
        gpu => Claim::clone(&script::claim(gpu)).with_host(host),
    };
    Arc::new(claim.with_stock(Arc::new(ask)))
}

/// Places pods one after another; returns the reason for each, or an empty text.
fn placed(allocatable: &str, pods: &[(&str, Host, StockAsk)]) -> Vec<String> {
    let (mut engine, node) = engine(allocatable);
    let mut said = Vec::new();
    for (number, (gpu, host, ask)) in pods.iter().enumerate() {
        let claim = claim(gpu, *host, ask.clone());
        let name = format!("p{number}");
        let fits = engine.fit(&script::uid(&name), &claim, node);
        said.push(fits.map_or_else(|reason| reason.to_string(), |_| String::new()));
        if said.last().is_some_and(String::is_empty) {
            let entry = script::entry(&name, "n", &claim);
            engine.reserve(Time::from_ms(0), entry).unwrap();
        }
    }
    said
}

fn asks(devices: &str, others: &str, numbers: &[u16]) -> StockAsk {
    StockAsk {
        devices: resources(devices),
        resources: resources(others),
        ports: ports(numbers),
        nonzero: Host::ZERO,
        scored: Host::ZERO,
    }
}

#[test]
fn each_limit_is_named_with_what_is_left() {
    let none = StockAsk::default;
    let zero = Host::ZERO;
    let said = placed(
        "gpu-mem=150 nic=2",
        &[
            ("90", host(3, 1), asks("gpu-mem=90", "nic=1", &[80])),
            ("", host(6, 1), none()),
            ("", host(1, 16), none()),
            ("", zero, asks("", "nic=2", &[])),
            ("", zero, asks("", "disk=5", &[])),
            ("", zero, asks("", "a.b/disk=5", &[])),
            ("", zero, asks("", "", &[81, 80])),
            // A card has room for it, but the device plugin offers less than the cards have.
            ("90", zero, asks("gpu-mem=90", "", &[])),
            // A reason that names a card comes before the reason of the sum.
            ("101", zero, asks("gpu-mem=101", "", &[])),
        ],
    );
    let expected = [
        "",
        "6 CPU asked, and 5 CPU is left on the node",
        "16384 MiB of the machine's memory asked, and 15360 MiB are left",
        "2 nic asked, and 1 of 2 are left on the node",
        "5 disk asked, and 0 of 0 are left on the node",
        "5 a.b/disk asked, and 0 of 0 are left on the node: is its device plugin running?",
        "port 80/TCP of the node is taken",
        "90 gpu-mem asked, and 60 of 150 are left on the node",
        "101 MiB asked of one GPU, but the largest, GPU 0, has 100 MiB in all (1 MiB too few)",
    ];
    assert_eq!(said, expected);
    let few = placed("", &vec![("", zero, none()); 5]);
    assert_eq!(few[4], "the node has as many pods as it takes, 4");
    assert!(few[..4].iter().all(String::is_empty));
}

#[test]
fn a_pod_that_asks_nothing_of_a_limit_does_not_mind_that_it_is_exceeded() {
    let (mut engine, node) = engine("nic=1");
    let much = claim("", host(50, 50), asks("", "nic=9", &[]));
    engine.observe(script::entry("forced", "n", &much));
    let fits = |engine: &Engine, claim: &Claim| engine.fit(&script::uid("p"), claim, node).is_ok();
    assert!(fits(&engine, &claim("", Host::ZERO, StockAsk::default())));
    assert!(!fits(
        &engine,
        &claim("", Host::ZERO, asks("", "nic=1", &[]))
    ));
    assert!(!fits(&engine, &claim("", host(1, 0), StockAsk::default())));
}

proptest! {
    /// Pods come and go. Nothing is given out twice, and all that a pod gives back is free again.
    #[test]
    fn no_limit_is_exceeded(
        steps in proptest::collection::vec((0..6u8, 0..4u64, 0..3u64, 0..3u16, any::<bool>()), 1..40)
    ) {
        let (mut engine, node) = engine("nic=3");
        for (name, cores, nics, port, comes) in steps {
            let name = format!("p{name}");
            let uid = script::uid(&name);
            engine.forget(&uid);
            if comes {
                let ask = asks("", &format!("nic={nics}"), &[port][..usize::from(port > 0)]);
                let entry = script::entry(&name, "n", &claim("", host(cores, 1), ask));
                let fits = engine.fit(&uid, &entry.claim, node).is_ok();
                prop_assert_eq!(engine.reserve(Time::from_ms(0), entry).is_ok(), fits);
            }
            let machine = engine.ledger().book(node).machine();
            prop_assert!(machine.pods <= 4);
            prop_assert!(machine.host.cpu <= MilliCpu::new(8000));
            prop_assert!(machine.resources.get("nic") <= 3);
            let mut once = machine.ports.clone();
            once.dedup();
            prop_assert_eq!(&once, &machine.ports);
            prop_assert!(engine.ledger().is_conserved());
        }
    }
}
