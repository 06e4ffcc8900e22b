//! Jobs that queue, on a real control plane: pods start together or not at all, quotas are lent and
//! taken back, and a job that waits is told why. The events are read from the API server's watch.

mod deleted;
mod flow;
mod native;
pub(crate) mod objects;
mod on_paper;
mod peers;
mod profiles;
mod refusals;
mod resize;
mod shown;
mod trees;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::{Happened, Recorder, Seen, World, eventually};
use sublet_testbed::{APISERVER, Signal, deployed};

use objects::{Gang, card_node, elastic_quota, job, namespace, pod_group};

const QUOTAS: &str = include_str!("../../../../../examples/queue/quotas.yaml");
const GANG: &str = include_str!("../../../../../examples/queue/gang.yaml");

/// Nodes with so many cards, reported as their agents would.
pub(crate) fn nodes(world: &World, cards: &[(&str, u16)]) -> Result<()> {
    for (name, count) in cards {
        let (node, report) = card_node(name, *count)?;
        world.cluster.apply(&node)?;
        world.annotate_node_as_agent(name, "sublet.dev/inventory", &report)?;
    }
    Ok(())
}

fn record(world: &World) -> Result<Recorder> {
    Recorder::start(&world.cluster.kubeconfig("admin")?)
}

/// Number of pods of each gang that have a node and have not ended, by the beginning of their
/// names.
fn running(world: &World) -> Result<BTreeMap<String, usize>> {
    let list = world.get(&["pods", "-A"])?;
    let mut running = BTreeMap::new();
    for pod in list["items"].as_array().context("no list")? {
        let there = pod["spec"]["nodeName"].is_string()
            && pod["metadata"]["deletionTimestamp"].is_null()
            && pod["status"]["phase"] != "Succeeded";
        if there {
            *running
                .entry(gang_of(
                    pod["metadata"]["name"].as_str().unwrap_or_default(),
                ))
                .or_default() += 1;
        }
    }
    Ok(running)
}

/// The gang of a pod, which begins its name.
pub(crate) fn gang_of(pod: &str) -> String {
    let name = pod.rsplit('/').next().unwrap_or(pod);
    name.split('-').next().unwrap_or(name).to_owned()
}

fn until_running(world: &World, wanted: &[(&str, usize)]) -> Result<()> {
    let wanted: BTreeMap<String, usize> = wanted
        .iter()
        .map(|(gang, count)| ((*gang).to_owned(), *count))
        .collect();
    eventually(|| {
        let found = running(world)?;
        let why = || {
            let first = wanted.keys().next();
            first.map(|gang| events(world, "default", gang))
        };
        ensure!(
            found == wanted,
            "running: {found:?}, not {wanted:?}: {:?}",
            why()
        );
        Ok(())
    })
}

/// The events about an object: reason and message.
pub(crate) fn events(world: &World, namespace: &str, name: &str) -> Result<Vec<(String, String)>> {
    let field = format!("involvedObject.name={name}");
    let list = world.get(&["events", "-n", namespace, "--field-selector", &field])?;
    let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
    let events = list["items"].as_array().into_iter().flatten();
    Ok(events
        .map(|event| (text(event, "reason"), text(event, "message")))
        .collect())
}

/// Waits until an event about an object has this word in its message.
fn until_told(world: &World, namespace: &str, name: &str, word: &str) -> Result<()> {
    eventually(|| {
        let events = events(world, namespace, name)?;
        ensure!(
            events.iter().any(|(_, text)| text.contains(word)),
            "{events:?}"
        );
        Ok(())
    })
}

/// No pod of one gang has a place while a pod of the other has one.
fn never_two_at_a_time(seen: &Seen, gangs: [&str; 2]) -> Result<()> {
    let mut there: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (pod, happened) in &seen.log {
        let pods = there.entry(gang_of(pod)).or_default();
        match happened {
            Happened::Bound => drop(pods.insert(pod)),
            Happened::Goes | Happened::Over => drop(pods.remove(&**pod)),
        }
        let both = gangs
            .iter()
            .all(|gang| there.get(*gang).is_some_and(|pods| !pods.is_empty()));
        ensure!(!both, "both have places: {:?}", seen.log);
    }
    Ok(())
}

/// Two gangs of eight on twelve cards: the stock scheduler would give each of them some.
#[test]
fn of_two_gangs_that_do_not_fit_together_one_runs_and_none_in_part() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 8), ("n2", 4)])?;
    let recorder = record(&world)?;
    world
        .cluster
        .apply(&(pod_group("one", 8, "") + &pod_group("two", 8, "")))?;
    let pods: String = (0..8)
        .flat_map(|at| ["one", "two"].map(|gang| Gang::new(gang).pod(&format!("{gang}-{at}"))))
        .collect();
    world.cluster.apply(&pods)?;
    let first = eventually(|| {
        let running = running(&world)?;
        let full = running.iter().find(|(_, count)| **count == 8);
        full.map(|(gang, _)| gang.clone())
            .with_context(|| format!("{running:?}"))
    })?;
    let other = if first == "one" { "two" } else { "one" };
    // Who waits says so on its group and on its pods.
    for name in [other.to_owned(), format!("{other}-0")] {
        eventually(|| {
            let events = events(&world, "default", &name)?;
            ensure!(
                events.iter().any(|(_, text)| text.contains("position 1")),
                "{events:?}"
            );
            Ok(())
        })?;
    }
    let phase = |name: &str| -> Result<String> {
        let group = world.get(&["podgroups.scheduling.x-k8s.io", name])?;
        Ok(group["status"]["phase"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    };
    eventually(|| {
        let phases = (phase(&first)?, phase(other)?);
        ensure!(
            phases == ("Running".to_owned(), "PreScheduling".to_owned()),
            "{phases:?}"
        );
        Ok(())
    })?;
    until_running(&world, &[(&first, 8)])?;

    let label = format!("scheduling.x-k8s.io/pod-group={first}");
    world
        .cluster
        .kubectl(&["delete", "pods", "--selector", &label, "--now"])?;
    until_running(&world, &[(other, 8)])?;
    // No plan is left behind.
    eventually(|| {
        let plans = world.cluster.kubectl(&["get", "gangplans", "-o", "name"])?;
        ensure!(plans.is_empty(), "{plans}");
        Ok(())
    })?;
    let seen = recorder.stop()?;
    assert_eq!(seen.broken, [""; 0]);
    never_two_at_a_time(&seen, ["one", "two"])
}

/// A gang that needs more than any quota grants is told so at once.
#[test]
fn what_can_never_start_says_why_within_a_second() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 8)])?;
    world.cluster.apply(&namespace("small"))?;
    world
        .cluster
        .apply(&elastic_quota("small", "small", 2, 4))?;
    let gang = Gang {
        namespace: "small",
        ..Gang::new("huge")
    };
    let all: String = (0..6).map(|at| gang.pod(&format!("huge-{at}"))).collect();
    world
        .cluster
        .apply(&(pod_group("huge", 6, "small") + &all))?;
    let created = Instant::now();
    let told = loop {
        let events = events(&world, "small", "huge")?;
        let told = events
            .iter()
            .find(|(_, text)| text.contains("sublet.dev/gpu"));
        if let Some((reason, text)) = told {
            break format!("{reason}: {text}");
        }
        ensure!(
            created.elapsed() < Duration::from_secs(1),
            "told in a second: {events:?}"
        );
    };
    println!("after {:?}: {told}", created.elapsed());
    ensure!(
        told.contains('6') && told.contains('4'),
        "no numbers: {told}"
    );
    assert_eq!(running(&world)?, BTreeMap::new());
    Ok(())
}

/// Plays with a controller of these flags, and leaves the cluster to other tests as it was.
fn with_flags(world: &World, flags: &[&str], play: fn(&World) -> Result<()>) -> Result<()> {
    world.restart_queueing_controller(flags)?;
    let played = play(world);
    world.restart_queueing_controller(&[])?;
    played
}

/// One team borrows the part that the other does not use, until its owner asks. Then whole gangs
/// go at once, each once, and their objects say so.
#[test]
fn lent_quota_is_taken_back_in_whole_gangs_and_once() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    with_flags(&world, &["--queue-profile", "koordinator"], lend_and_take)
}

fn lend_and_take(world: &World) -> Result<()> {
    nodes(world, &[("n1", 8), ("n2", 4)])?;
    let quotas = [("lender", 8), ("taker", 4)];
    for (name, min) in quotas {
        world.cluster.apply(&namespace(name))?;
        world.cluster.apply(&elastic_quota(name, name, min, 12))?;
    }
    let recorder = record(world)?;
    for name in ["a", "b", "c"] {
        let gang = Gang {
            namespace: "taker",
            ..Gang::new(name)
        };
        world
            .cluster
            .apply(&(pod_group(name, 4, "taker") + &gang.deployment(4)))?;
    }
    until_running(world, &[("a", 4), ("b", 4), ("c", 4)])?;
    let gang = Gang {
        namespace: "lender",
        ..Gang::new("owner")
    };
    world
        .cluster
        .apply(&(pod_group("owner", 8, "lender") + &gang.deployment(8)))?;
    let left = eventually(|| {
        let running = running(world)?;
        ensure!(
            running.get("owner") == Some(&8) && running.len() == 2,
            "{running:?}"
        );
        Ok(running)
    })?;
    // For half a minute nobody else goes.
    let quiet = Instant::now() + Duration::from_secs(30);
    eventually(|| {
        ensure!(
            running(world)? == left,
            "{:?}, and before {left:?}",
            running(world)?
        );
        ensure!(Instant::now() >= quiet, "not long enough yet");
        Ok(())
    })?;
    let used = world.get(&[
        "elasticquotas.scheduling.sigs.k8s.io",
        "lender",
        "-n",
        "lender",
    ])?;
    assert_eq!(used["status"]["used"]["sublet.dev/gpu"], "8", "{used}");
    let seen = recorder.stop()?;
    assert_eq!(seen.broken, [""; 0]);
    let gone = seen.log.iter().filter(|(_, what)| *what == Happened::Goes);
    let mut gone: Vec<String> = gone.map(|(pod, _)| gang_of(pod)).collect();
    gone.sort();
    let gangs: BTreeSet<&String> = gone.iter().collect();
    ensure!(gone.len() == 8 && gangs.len() == 2, "who went: {gone:?}");
    for name in ["a", "b", "c"] {
        let group = world.get(&["podgroups.scheduling.x-k8s.io", name, "-n", "taker"])?;
        let notes = &group["metadata"]["annotations"];
        let went = gangs.contains(&name.to_owned());
        ensure!(
            (notes["sublet.dev/reclaims"] == "1") == went,
            "{name}: {notes}"
        );
        ensure!(
            notes["sublet.dev/reclaimed-at"].is_string() == went,
            "{name}: {notes}"
        );
    }
    Ok(())
}

/// A gang that runs loses a pod: its Deployment makes another, which joins the others.
#[test]
fn a_running_gang_is_mended_when_it_loses_a_pod() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 4)])?;
    world.cluster.apply(&pod_group("whole", 3, ""))?;
    world.cluster.apply(&Gang::new("whole").deployment(3))?;
    until_running(&world, &[("whole", 3)])?;
    let recorder = record(&world)?;
    let pods = world
        .cluster
        .kubectl(&["get", "pods", "-l", "app=whole", "-o", "name"])?;
    let lost = pods.lines().next().context("no pod")?;
    world.cluster.kubectl(&["delete", lost, "--wait=false"])?;
    eventually(|| {
        let now = world
            .cluster
            .kubectl(&["get", "pods", "-l", "app=whole", "-o", "name"])?;
        ensure!(!now.lines().any(|pod| pod == lost), "{lost} is still there");
        Ok(())
    })?;
    until_running(&world, &[("whole", 3)])?;
    let seen = recorder.stop()?;
    assert_eq!(seen.broken, [""; 0]);
    let gone = seen.log.iter().filter(|(_, what)| *what == Happened::Goes);
    let gone: BTreeSet<&String> = gone.map(|(pod, _)| pod).collect();
    assert_eq!(gone.len(), 1, "only {lost} was to go: {gone:?}");
    Ok(())
}

/// Parameter servers ask for no GPU, and start with their workers or not at all.
#[test]
fn two_roles_with_minima_of_their_own_start_together() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 2)])?;
    let recorder = record(&world)?;
    let together = "[\"default/ps\", \"default/worker\"]";
    let group = |name: &str, min: u32| {
        pod_group(name, min, "").replace(
            "metadata:",
            &format!(
                "metadata:\n  annotations: {{gang.scheduling.koordinator.sh/groups: '{together}'}}"
            ),
        )
    };
    world
        .cluster
        .apply(&(group("ps", 2) + &group("worker", 3)))?;
    let servers = Gang {
        limits: "cpu: 1",
        ..Gang::new("ps")
    };
    let workers = Gang::new("worker");
    let all: String = (0..2).map(|at| servers.pod(&format!("ps-{at}"))).collect();
    let all = (0..4).fold(all, |all, at| all + &workers.pod(&format!("worker-{at}")));
    world.cluster.apply(&all)?;
    eventually(|| {
        let events = events(&world, "default", "worker")?;
        ensure!(
            events.iter().any(|(_, text)| text.contains("position 1")),
            "{events:?}"
        );
        Ok(())
    })?;
    assert_eq!(running(&world)?, BTreeMap::new());
    nodes(&world, &[("n2", 1)])?;
    // Three workers are enough; the fourth waits for a card.
    until_running(&world, &[("ps", 2), ("worker", 3)])?;
    let seen = recorder.stop()?;
    assert_eq!(seen.broken, [""; 0]);
    Ok(())
}

/// The files that users begin with, as they are.
#[test]
fn the_examples_start_a_gang_in_its_teams_quota() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 3)])?;
    let recorder = record(&world)?;
    world.cluster.apply(QUOTAS)?;
    world.cluster.apply(GANG)?;
    eventually(|| {
        let events = events(&world, "research", "train")?;
        ensure!(!events.is_empty(), "nobody says why it waits");
        Ok(())
    })?;
    // Three cards are too few for four workers.
    assert_eq!(running(&world)?, BTreeMap::new());
    nodes(&world, &[("n2", 1)])?;
    // The played kubelet ends pods of Jobs soon.
    eventually(|| {
        let job = world.get(&["job", "train", "-n", "research"])?;
        let told = events(&world, "research", "train");
        ensure!(job["status"]["completionTime"].is_string(), "{told:?}");
        Ok(())
    })?;
    let seen = recorder.stop()?;
    assert_eq!(seen.broken, [""; 0]);
    let bound = seen.log.iter().filter(|(_, what)| *what == Happened::Bound);
    assert_eq!(bound.count(), 4);
    Ok(())
}
