//! Figure: how long the extender takes with the policy on, while prices change.
//!
//! When a price table changes, every kept cost is stale. All nodes must then be scored again for
//! each shape, either between calls or by the next call. So pods come and go beside the calls,
//! two changes for each call of an extender. A cluster has the same ratio where every pod that
//! comes is placed and another one ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;
use sublet_client::{Client, Pods, list};
use sublet_model::{Bytes, Host, MilliCpu, NodeFacts, NodeName, Sharing};
use sublet_plan::Policy;
use sublet_sim::{Inflation, NodeList, PodList, Sequence, Variant, inflate};
use sublet_testbed::Binaries;

use super::manifest;
use super::setting::Setting;
use super::traces::Traces;
use sublet_testbed::PodForm;

use crate::latency::{Calls, Peer, in_turns, table, verdicts};
use crate::objects::{call_pod, node_name, pod};
use crate::report::Report;
use crate::world::{NODES, PODS, World, post};

/// Our policy, and the default one beside it.
const POLICIES: [(&str, &str); 2] = [("**tiling**", "tiling"), ("binpack", "binpack")];

/// Nodes, and calls for each extender. [`QUICK`] holds the same for a quick run.
const FULL: (usize, usize) = (5_000, 5_000);
const QUICK: (usize, usize) = (200, 300);

/// Cards of each node.
const CARDS: usize = 8;
/// CPU and memory of each node: those of the largest nodes of openb.
const HOST: Host = Host {
    cpu: MilliCpu::new(128_000),
    memory: Bytes::new(1 << 40),
};

/// Part of the cluster's GPUs that is in use, in thousandths.
const LOAD: u32 = 600;

/// The time from one call to the next, and from one change to the next. Two extenders take turns,
/// so on average each gets a call every 10 ms, while pods change every 5 ms.
const PACE: Duration = Duration::from_millis(5);

/// A pod that was taken away comes back after so many changes.
const AWAY: usize = 100;

/// The objects in the cluster.
struct Load {
    nodes: NodeList,
    /// Pods that run, as JSON.
    running: Vec<Value>,
    /// The resources that arriving pods ask for, in turn.
    asked: Vec<PodForm>,
}

/// Measures and prints the figure.
pub(super) fn measure(setting: &Setting, binaries: &Binaries, report: &mut Report) -> Result<()> {
    let (nodes, count) = if setting.quick { QUICK } else { FULL };
    let load = Load::of(setting, nodes)?;
    let mut world = World::start(binaries, &setting.sublet, false)?;
    world.progress.say(&format!(
        "latency: {nodes} nodes, {} bound pods (full size: about 5 min)",
        load.running.len()
    ));
    let rows = load.nodes.rows.iter();
    let objects = rows.map(|row| manifest::node(row.name.as_str(), row, false));
    world.create("nodes", NODES, objects)?;
    world.create("pods", PODS, load.running.iter().cloned().map(Ok))?;
    let uids = waiting(&mut world, &load.asked, count)?;
    let mut peers = Vec::new();
    for (label, policy) in POLICIES {
        let process = format!("extender-{policy}");
        let port = world.start_ours_as(&process, "admin", &["--policy", policy])?;
        peers.push(Peer {
            label,
            process,
            port,
        });
    }
    let names: Vec<&str> = load
        .nodes
        .rows
        .iter()
        .map(|row| row.name.as_str())
        .collect();
    let names = serde_json::to_string(&names)?;
    let calls = Calls {
        names: &names,
        asked: &load.asked,
        uids: &uids,
        count,
        pace: PACE,
    };
    let churn = Churn::start(&world, load.running.clone());
    let times = in_turns(&mut world, &peers, &calls)?;
    let (changes, rate) = churn.stop();
    report.say("## Extender latency with the policy on");
    report.say(&format!(
        "{nodes} nodes × {CARDS} cards, {} bound pods that the simulator placed (`default`, \
         {} % of the GPUs). {count} pairs of calls for each extender, in turns of 100, one every \
         {} ms over a kept connection; each call has a pod that waits in the API server, of {} KB, \
         that asks what one of openb's asks, in the order of its list, and filter has all names \
         ({} KB). Meanwhile pods go and \
         come back, {rate:.0} changes a second, {changes} in all: tables are made anew every 400, \
         and then all nodes are scored anew for each shape. Milliseconds, as in \
         [scheduler.md](scheduler.md).",
        load.running.len(),
        LOAD / 10,
        PACE.as_millis(),
        call_pod("u", &load.asked[0]).len() / 1000,
        names.len() / 1000
    ));
    report.table(&table(&peers, &times));
    verdicts(&times[0], report);
    for peer in &peers {
        world.cluster.stop(&peer.process);
    }
    Ok(())
}

/// Makes so many pods that wait; returns their UIDs in the same order. An extender's watch then
/// knows every pod that the calls ask about, and policies learn from each pod once.
fn waiting(world: &mut World, asked: &[PodForm], count: usize) -> Result<Vec<String>> {
    let name = |number: usize| format!("waiting-{number:06}");
    let pods = (0..count).map(|number| Ok(pod(&name(number), &asked[number % asked.len()])));
    world.create("pods that wait", PODS, pods)?;
    let listed = list::<Pods>(&world.client, Some("spec.nodeName="));
    let listed = world.executor.block_on(listed)?.into_iter();
    let mut uids: BTreeMap<String, String> = listed
        .map(|pod| (pod.metadata.name, pod.metadata.uid))
        .collect();
    let uid = |number| uids.remove(&name(number)).context("a pod is missing");
    (0..count).map(uid).collect()
}

impl Load {
    /// A load of so many nodes, which the simulator fills.
    fn of(setting: &Setting, nodes: usize) -> Result<Load> {
        let mut traces = Traces::read(&setting.repository, &["default"], &[])?;
        let pods: PodList = traces.lists.remove("default").context("no such list")?;
        let inventory = manifest::cards(CARDS)?;
        let node = |number: usize| {
            Ok(NodeFacts {
                sharing: Sharing::Both,
                host: HOST,
                ..NodeFacts::plain(NodeName::new(&node_name(number))?, Arc::clone(&inventory))
            })
        };
        let nodes = NodeList {
            rows: (0..nodes).map(node).collect::<Result<_>>()?,
            ..NodeList::default()
        };
        let sequence = Sequence::draw(1, &nodes, &pods, LOAD);
        let policy: Policy = "tiling".parse()?;
        let outcome = inflate(
            Inflation {
                nodes: &nodes,
                pods: &pods,
                sequence: &sequence,
                policy: &policy,
                variant: Variant::default(),
            },
            |_| {},
        );
        let mut running = Vec::new();
        for (number, arrival) in outcome.placements.iter().enumerate() {
            if let Some((row, cards)) = &arrival.place {
                let claim = &pods.rows[arrival.pod as usize].claim;
                let node = nodes.rows[*row as usize].name.as_str();
                let name = format!("pod-{number:06}");
                running.push(manifest::bound_pod(&name, claim, node, cards)?);
            }
        }
        let asked = pods
            .rows
            .iter()
            .map(|row| PodForm::from(manifest::resources(&row.claim)));
        Ok(Load {
            asked: asked.collect(),
            nodes,
            running,
        })
    }
}

/// A task that takes pods away and brings them back, at a steady rate.
struct Churn {
    stop: Arc<AtomicBool>,
    started: Instant,
    done: Arc<AtomicUsize>,
}

impl Churn {
    fn start(world: &World, pods: Vec<Value>) -> Churn {
        let churn = Churn {
            stop: Arc::default(),
            started: Instant::now(),
            done: Arc::default(),
        };
        let (stop, done, client) = (churn.stop.clone(), churn.done.clone(), world.client.clone());
        let pods = Arc::new(pods);
        world.executor.spawn(async move {
            let mut ticks = tokio::time::interval(PACE);
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                ticks.tick().await;
                let (client, done, pods) = (client.clone(), done.clone(), Arc::clone(&pods));
                tokio::spawn(async move {
                    let change = change(number, pods.len());
                    if make(&client, &pods, change).await.is_ok() {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
                number += 1;
            }
        });
        churn
    }

    /// Ends the task; returns how many changes it made, and how many per second.
    fn stop(self) -> (usize, f64) {
        self.stop.store(true, Ordering::Relaxed);
        let done = self.done.load(Ordering::Relaxed);
        (done, done as f64 / self.started.elapsed().as_secs_f64())
    }
}

/// Action of one change, and its pod.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Goes(usize),
    Comes(usize),
    Nothing,
}

/// Every even change takes a pod away; every odd one brings back a pod that an earlier change
/// took. The pods arrived in random order, so neighbours in this list are far apart in the ledger.
fn change(number: usize, pods: usize) -> Change {
    if number.is_multiple_of(2) {
        return Change::Goes(number / 2 % pods);
    }
    let earlier = (number / 2).checked_sub(AWAY / 2);
    earlier.map_or(Change::Nothing, |earlier| Change::Comes(earlier % pods))
}

async fn make(client: &Client, pods: &[Value], change: Change) -> Result<()> {
    match change {
        Change::Nothing => Ok(()),
        Change::Comes(pod) => post(client, PODS, &pods[pod]).await,
        Change::Goes(pod) => {
            let name = pods[pod]["metadata"]["name"].as_str();
            let name = name.context("a pod without a name")?;
            let uri = format!("{PODS}/{name}?gracePeriodSeconds=0");
            let request = http::Request::delete(uri).body(Vec::new())?;
            client.request_text(request).await?;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn pods_go_and_come_back_and_few_are_away_at_once() {
        let mut away = BTreeSet::new();
        for number in 0..5_000 {
            match change(number, 777) {
                Change::Goes(pod) => assert!(away.insert(pod), "{pod} was away"),
                Change::Comes(pod) => assert!(away.remove(&pod), "{pod} was there"),
                Change::Nothing => assert!(number < AWAY),
            }
            assert!(away.len() <= AWAY / 2 + 1);
        }
    }
}
