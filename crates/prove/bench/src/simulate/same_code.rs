//! Figure: the stock kube-scheduler and the extender on a cluster of the trace's nodes, against
//! the simulator, pod for pod.
//!
//! Pods are made one after another: the next one when the last is bound or refused. So their order
//! is the trace's, and no clock influences it. A refused pod is deleted, but a finalizer keeps
//! its object: the scheduler then ignores the pod, and the extender still counts it as a pod that
//! was asked for, as the protocol does.

use std::path::Path;
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{Stream, StreamExt};
use serde_json::json;
use sublet_api::dialect::allocation_of;
use sublet_api::object::Pod;
use sublet_client::{Change, Client, Pods, watch};
use sublet_model::{Claim, Host, MilliCpu, NodeFacts, PodUid, Time};
use sublet_plan::{Engine, EngineOptions, Policy};
use sublet_sim::{Inflation, NodeList, Placement, PodList, Sequence, Variant, inflate};
use sublet_testbed::Binaries;
use sublet_testbed::deployed::{self, EXTENDER, KUBE_SCHEDULER};

use super::manifest;
use super::setting::Setting;
use super::traces::Traces;
use crate::rate;
use crate::report::{Report, short};
use crate::world::{NODES, PODS, World, post};

/// The list that most figures are about, and the lists in which pods name the models they accept.
const LISTS: [&str; 4] = ["default", "gpuspec10", "gpuspec20", "gpuspec33"];
const SEED: u64 = 42;
const POLICY: &str = "tiling";

/// For a quick run: one node in so many, and the number of arrivals.
const QUICK: (usize, usize) = (10, 1_000);

/// If nothing happens to a pod for so long, something is wrong.
const STALL: Duration = Duration::from_secs(60);

/// Keeps the object of a deleted pod.
const FINALIZER: &str = "example.internal/stays";

/// The nodes and pods of one list, for the cluster and for the simulator.
struct Trial {
    nodes: NodeList,
    pods: PodList,
    sequence: Sequence,
    /// The names of the nodes in the cluster, by row of the node list.
    names: Vec<String>,
}

/// Measures and prints the figure.
pub(super) fn measure(setting: &Setting, binaries: &Binaries, report: &mut Report) -> Result<()> {
    report.say("## Same code");
    report.say(&format!(
        "openb's lists, seed {SEED}, `--policy {POLICY}`: pods arrive one by one at a stock \
         kube-scheduler and the extender, both as they are shipped, on nodes that KWOK plays. \
         Pods of no GPU pass the extender too; those of the gpuspec lists name the models they \
         accept by required node affinity. Nodes are named so that the extender's order among \
         equals is that of the seed. Unallocated GPU share in percent of the cluster, at the last \
         arrival before more was asked than there is, and at the end."
    ));
    for list in LISTS {
        measure_list(list, setting, binaries, report)?;
    }
    Ok(())
}

fn measure_list(
    list: &'static str,
    setting: &Setting,
    binaries: &Binaries,
    report: &mut Report,
) -> Result<()> {
    let trial = Trial::read(list, setting)?;
    let policy: Policy = POLICY.parse()?;
    let simulated = inflate(
        Inflation {
            nodes: &trial.nodes,
            pods: &trial.pods,
            sequence: &trial.sequence,
            policy: &policy,
            variant: Variant::default(),
        },
        |_| {},
    );
    let mut world = World::start(binaries, &setting.sublet, true)?;
    world.progress.say(&format!(
        "same code: {list}, {} nodes, {} arrivals one by one (full size: about 3 min)",
        trial.nodes.rows.len(),
        trial.sequence.arrivals.len()
    ));
    start(&mut world, &setting.repository, &trial)?;
    let begun = Instant::now();
    let placed = play(&mut world, &trial)?;
    let seconds = begun.elapsed().as_secs_f64();
    world.cluster.stop(KUBE_SCHEDULER);
    world.cluster.stop(EXTENDER);
    print(
        list,
        &trial,
        &simulated.placements,
        &placed,
        seconds,
        report,
    );
    Ok(())
}

impl Trial {
    fn read(list: &'static str, setting: &Setting) -> Result<Trial> {
        let mut traces = Traces::read(&setting.repository, &[list], &[SEED])?;
        let mut sequence = traces.sequence(list, SEED)?.clone();
        let pods = traces.lists.remove(list).context("the list is not there")?;
        let mut nodes = traces.nodes;
        if setting.quick {
            let (every, arrivals) = QUICK;
            let mut rows: Vec<_> = nodes.rows.into_iter().zip(sequence.ranks).collect();
            rows = rows.into_iter().step_by(every).collect();
            let all: Vec<u32> = rows.iter().map(|(_, rank)| *rank).collect();
            let below = |rank: &u32| all.iter().filter(|other| *other < rank).count() as u32;
            sequence.ranks = all.iter().map(below).collect();
            nodes.rows = rows.into_iter().map(|(row, _)| row).collect();
            sequence.arrivals.truncate(arrivals);
        }
        let order = scattered(&nodes)?;
        let name = |&rank: &u32| order[rank as usize].clone();
        let names = sequence.ranks.iter().map(name).collect();
        Ok(Trial {
            nodes,
            pods,
            sequence,
            names,
        })
    }

    fn claim(&self, arrival: usize) -> &Claim {
        &self.pods.rows[self.sequence.arrivals[arrival] as usize].claim
    }

    /// Percent of the cluster's GPUs that are not allocated: at the last arrival before the pods
    /// have asked for more than the cluster has, and at the end.
    fn unallocated(&self, placed: &[Option<Place>]) -> (f64, f64) {
        let cards = self.nodes.rows.iter().map(|row| row.inventory.gpus().len());
        let capacity = 1000 * cards.sum::<usize>() as u64;
        let (mut arrived, mut allocated, mut when_full) = (0, 0, None);
        for (number, place) in placed.iter().enumerate() {
            // Cards of lists without memory have one MiB for each thousandth of a card.
            let asked = self.claim(number).ask().milli(1000.into());
            arrived += asked;
            if arrived > capacity {
                when_full.get_or_insert(allocated);
            }
            if place.is_some() {
                allocated += asked;
            }
        }
        let percent = |allocated: u64| 100.0 - allocated as f64 * 100.0 / capacity as f64;
        (percent(when_full.unwrap_or(allocated)), percent(allocated))
    }
}

/// The node's row in the node list, and the indices of the cards.
type Place = (u32, Vec<u16>);

/// The names of the list's nodes, in the order in which the extender prefers nodes of equal cost.
/// The simulator orders these by the ranks of the seed. So the caller gives each rank the name at
/// that place, and both have the same order.
fn scattered(nodes: &NodeList) -> Result<Vec<String>> {
    let mut engine = Engine::new(EngineOptions {
        few: 0,
        ..EngineOptions::of("tiling-still".parse()?)
    });
    let alike = |row: &NodeFacts| NodeFacts::plain(row.name.clone(), manifest::no_cards());
    let rows: Vec<_> = nodes
        .rows
        .iter()
        .map(|row| engine.set_node(alike(row)))
        .collect();
    let claim = Claim::host_only(Host {
        cpu: MilliCpu::new(1),
        ..Host::ZERO
    });
    let uid = PodUid::new("order")?;
    let order = engine.choose(Time::from_ms(0), &uid, &claim, &rows, true, |_| 0);
    let name = |node| engine.ledger().book(node).name().to_string();
    Ok(order.into_iter().map(name).collect())
}

/// Makes the nodes, and starts the extender and the stock scheduler.
fn start(world: &mut World, repository: &Path, trial: &Trial) -> Result<()> {
    rate::prepare(world, repository)?;
    let nodes = trial.nodes.rows.iter().zip(&trial.names);
    let nodes = nodes.map(|(row, name)| manifest::node(name, row, true));
    world.create("nodes", NODES, nodes)?;
    world.wait_untainted(trial.names.len())?;
    let user = deployed::account("sublet-scheduler").name;
    let port = world.start_ours_as(EXTENDER, &user, &["--policy", POLICY])?;
    let kubeconfig = world
        .cluster
        .kubeconfig(&deployed::account("sublet-kube-scheduler").name)?;
    let config = rate::configuration(repository, &kubeconfig, Some(port))?;
    let flags = deployed::scheduler_flags(repository)?;
    world
        .cluster
        .start_scheduler(KUBE_SCHEDULER, &kubeconfig, &config, &flags)
}

/// Lets the pods arrive; returns where each went.
fn play(world: &mut World, trial: &Trial) -> Result<Vec<Option<Place>>> {
    let World {
        executor,
        client,
        progress,
        cluster,
        ..
    } = world;
    let all = trial.sequence.arrivals.len();
    progress.restart();
    executor.block_on(async {
        let mut changes = Box::pin(watch::<Pods>(client, Some("default")));
        until_listed(&mut changes).await?;
        let mut placed = Vec::with_capacity(all);
        for number in 0..all {
            let place = arrive(client, &mut changes, trial, number).await;
            placed.push(place.with_context(|| {
                let log = cluster.log_tail(KUBE_SCHEDULER);
                format!("arrival {number} of {all}: {log}")
            })?);
            progress.tick(|| format!("arrived: {} of {all}", number + 1));
        }
        Ok(placed)
    })
}

type Changes<S> = Pin<Box<S>>;

async fn until_listed<S, E>(changes: &mut Changes<S>) -> Result<()>
where
    S: Stream<Item = Result<Change<Pod>, E>>,
    E: std::error::Error + Send + Sync + 'static,
{
    while let Some(change) = changes.next().await {
        if matches!(change?, Change::ListEnds) {
            return Ok(());
        }
    }
    bail!("the watch ended")
}

/// Makes one pod and waits until it is bound or refused; returns its place.
async fn arrive<S, E>(
    client: &Client,
    changes: &mut Changes<S>,
    trial: &Trial,
    number: usize,
) -> Result<Option<Place>>
where
    S: Stream<Item = Result<Change<Pod>, E>>,
    E: std::error::Error + Send + Sync + 'static,
{
    let name = format!("arrival-{number:06}");
    let claim = trial.claim(number);
    let mut pod = manifest::pod(&name, claim);
    pod["metadata"]["finalizers"] = json!([FINALIZER]);
    post(client, PODS, &pod).await?;
    loop {
        let change = tokio::time::timeout(STALL, changes.next()).await;
        let change = change.context("nothing happens to the pod")?;
        let Change::Set(pod) = change.context("the watch ended")?? else {
            continue;
        };
        if pod.metadata.name != name {
            continue;
        }
        if !pod.spec.node_name.is_empty() {
            return place(trial, &pod, claim).map(Some);
        }
        let mut conditions = pod.status.conditions.iter();
        if conditions.any(|c| c.kind == "PodScheduled" && c.reason == "Unschedulable") {
            let uri = format!("{PODS}/{name}?gracePeriodSeconds=0");
            let request = http::Request::delete(uri).body(Vec::new())?;
            client.request_text(request).await?;
            return Ok(None);
        }
    }
}

/// The place of a bound pod, in the simulator's terms.
fn place(trial: &Trial, pod: &Pod, claim: &Claim) -> Result<Place> {
    let mut names = trial.names.iter();
    let row = names.position(|name| *name == pod.spec.node_name);
    let row = row.with_context(|| format!("bound to {}", pod.spec.node_name))?;
    let allocation = allocation_of(pod, claim)?.unwrap_or_default();
    let cards = allocation.grants.iter().map(|grant| grant.card.index.0);
    let mut cards: Vec<u16> = cards.collect();
    cards.sort_unstable();
    Ok((row as u32, cards))
}

fn print(
    list: &str,
    trial: &Trial,
    simulated: &[Placement],
    placed: &[Option<Place>],
    seconds: f64,
    report: &mut Report,
) {
    let simulated: Vec<_> = simulated
        .iter()
        .map(|arrival| arrival.place.clone())
        .collect();
    let compared = Compared::of(&simulated, placed);
    let (nodes, arrivals) = (trial.names.len(), placed.len());
    report.say(&format!(
        "`{list}`: {arrivals} pods on {nodes} nodes ({:.0} pods a second).",
        arrivals as f64 / seconds
    ));
    let row = |label: &str, placed: &[Option<Place>]| {
        let (when_full, at_end) = trial.unallocated(placed);
        let refused = placed.iter().filter(|place| place.is_none()).count();
        vec![
            label.to_owned(),
            (arrivals - refused).to_string(),
            refused.to_string(),
            format!("{when_full:.2}"),
            format!("{at_end:.2}"),
        ]
    };
    let head = ["", "placed", "refused", "at 100 %", "at the end"];
    report.table(&[
        head.map(str::to_owned).to_vec(),
        row("simulator", &simulated),
        row("cluster", placed),
    ]);
    let percent = |count: usize| format!("{} ({} %)", count, short(share(count, arrivals)));
    let first = compared.first_difference.map_or_else(
        || "There is no difference.".to_owned(),
        |number| format!("The first difference is arrival {number}."),
    );
    report.say(&format!(
        "Of {arrivals} pods, {} are on the same node, with the same cards {}; refused by both \
         {}; elsewhere {}; placed by one alone {}. {first}",
        percent(compared.same_node),
        percent(compared.same_cards),
        percent(compared.both_refused),
        percent(compared.elsewhere),
        percent(compared.one_alone),
    ));
}

fn share(count: usize, of: usize) -> f64 {
    count as f64 * 100.0 / of.max(1) as f64
}

/// The results of the same pods in the cluster and in the simulator.
#[derive(Debug, Default, PartialEq, Eq)]
struct Compared {
    same_node: usize,
    same_cards: usize,
    both_refused: usize,
    elsewhere: usize,
    one_alone: usize,
    /// The number of the first arrival with different results, counted from 0.
    first_difference: Option<usize>,
}

impl Compared {
    fn of(one: &[Option<Place>], other: &[Option<Place>]) -> Compared {
        let mut compared = Compared::default();
        for (number, pair) in one.iter().zip(other).enumerate() {
            match pair {
                (None, None) => compared.both_refused += 1,
                (Some(one), Some(other)) if one.0 == other.0 => {
                    compared.same_node += 1;
                    compared.same_cards += usize::from(one.1 == other.1);
                }
                (Some(_), Some(_)) => compared.elsewhere += 1,
                _ => compared.one_alone += 1,
            }
            if pair.0 != pair.1 {
                compared.first_difference.get_or_insert(number);
            }
        }
        compared
    }
}

#[cfg(test)]
mod tests {
    use sublet_model::NodeName;

    use super::*;

    #[test]
    fn every_way_in_which_two_can_differ_is_counted_once() {
        let at = |row, card| Some((row, vec![card]));
        let one = [None, at(1, 0), at(1, 0), at(1, 0), at(1, 0), None];
        let other = [None, at(1, 0), at(1, 1), at(2, 0), None, at(1, 0)];
        let compared = Compared::of(&one, &other);
        let expected = Compared {
            same_node: 2,
            same_cards: 1,
            both_refused: 1,
            elsewhere: 1,
            one_alone: 2,
            first_difference: Some(2),
        };
        assert_eq!(compared, expected);
        assert_eq!(Compared::of(&one, &one).first_difference, None);
    }

    #[test]
    fn a_scattered_order_has_every_node_once_and_is_the_extender_s() {
        let row = |name: &str| {
            let name = NodeName::new(name).unwrap();
            NodeFacts::plain(name, manifest::no_cards())
        };
        let nodes = NodeList {
            rows: ["a1", "a2", "b1", "b2", "c1"].map(row).to_vec(),
            ..NodeList::default()
        };
        // The same order as in the engine's own test of scattered ties.
        assert_eq!(scattered(&nodes).unwrap(), ["b1", "c1", "b2", "a1", "a2"]);
    }
}
