//! The cost of a trial of a gang: the engine places all its pods, and then undoes all of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sublet_model::{
    Claim, ContainerClaim, ContainerName, Count, Demand, Entry, NodeFacts, NodeIdx, NodeName,
    PodKey, PodUid, Role, Standing, Time,
};
use sublet_plan::{Candidacy, Engine, EngineOptions, StockRules};
use sublet_sim::PodRow;

/// Nodes of the cluster.
pub(super) const NODES: usize = 1_000;
/// Pods of the gang, of one GPU each.
pub(super) const GANG: usize = 64;
/// Number of trials; the median counts.
const TRIES: usize = 101;

/// Measures one trial in a cluster of such nodes, half filled with such pods. Returns the
/// median and the longest time, in milliseconds.
///
/// # Errors
/// The gang finds no place in the cluster.
pub(super) fn measure(node: &NodeFacts, pods: &[PodRow]) -> Result<(f64, f64)> {
    let mut engine = Engine::new(EngineOptions {
        stock: StockRules::Here,
        ..EngineOptions::of("tiling".parse()?)
    });
    let nodes: Result<Vec<NodeIdx>> = (0..NODES)
        .map(|number| {
            let name = NodeName::new(&format!("node-{number:04}"))?;
            Ok(engine.set_node(NodeFacts {
                name,
                ..node.clone()
            }))
        })
        .collect();
    let nodes = nodes?;
    let now = Time::from_ms(0);
    let half = (NODES * node.inventory.gpus().len() / 2) as u64 * 1000;
    let mut taken = 0;
    for (number, pod) in pods.iter().cycle().enumerate() {
        if taken >= half {
            break;
        }
        let entry = entry(&format!("pod-{number}"), Arc::clone(&pod.claim))?;
        engine.learn(&entry.claim);
        taken += entry.claim.ask().milli(node.inventory.gpus()[0].memory);
        let one = [Candidacy {
            entry,
            nodes: &nodes,
        }];
        let mut trial = engine.trial(now);
        trial.place(&one).ok().context("no room before half full")?;
        trial.keep();
    }
    let claim = ContainerClaim {
        name: ContainerName::new("main")?,
        position: 0,
        role: Role::Main,
        demand: Demand::of_cards(Count::new(1)),
    };
    let claim = Arc::new(Claim::new(None, vec![claim], true)?);
    let gang: Result<Vec<Candidacy<'_>>> = (0..GANG)
        .map(|number| {
            Ok(Candidacy {
                entry: entry(&format!("gang-{number}"), Arc::clone(&claim))?,
                nodes: &nodes,
            })
        })
        .collect();
    let gang = gang?;
    let mut times = Vec::new();
    for _ in 0..TRIES {
        let begin = Instant::now();
        let mut trial = engine.trial(now);
        let placed = trial.place(&gang).map(|nodes| nodes.len());
        drop(trial);
        times.push(begin.elapsed());
        ensure!(placed == Ok(GANG), "the gang found no place");
    }
    times.sort_unstable();
    let milli = |time: Duration| time.as_secs_f64() * 1000.0;
    Ok((milli(times[TRIES / 2]), milli(times[TRIES - 1])))
}

fn entry(name: &str, claim: Arc<Claim>) -> Result<Entry> {
    Ok(Entry {
        pod: PodKey::new("default", name)?,
        uid: PodUid::new(name)?,
        node: NodeName::new("none-yet")?,
        claim,
        allocation: None,
        standing: Standing::Reserved,
        assigned: false,
        priority: 0,
    })
}
