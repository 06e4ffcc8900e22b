//! The real controller does what `sublet plan --queue` says on paper: random quotas and groups on a
//! real API server, by the policy of the site.
//!
//! While no controller runs, objects are made and read as kubectl prints them.
//! `sublet plan --queue` says what a queue would do with them. Then a controller starts, and its
//! first plans and reasons are compared: the groups that start, each member's node and cards, the
//! pods that go for them, and the reason of every other group. In a second look others have places
//! already, and quotas are taken back.

mod draw;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use futures::{Stream, StreamExt};
use kube::runtime::watcher;
use serde_json::{Value, json};
use sublet_api::gang_plan::{GangPlan, GangPlanObject};
use sublet_client::{Change, Client, GangPlans, connect, watch};
use sublet_e2e::{World, eventually};
use sublet_testbed::deployed;

use super::{events, namespace, nodes};
use draw::NAMESPACE;

/// The policies of one run, a cluster for each. `SUBLET_ROUNDS` plays so many in place of them.
const POLICIES: [&str; 4] = ["tiling", "binpack", "spread", "fgd-online=0.6,best-fit=0.4"];

/// Profile of both: by the others it depends on the moment of the look who goes.
const PROFILE: [&str; 2] = ["--queue-profile", "koordinator"];

/// Age at which a group that waits is told why: the controller's `SOON_MS`.
const TOLD_AFTER: Duration = Duration::from_secs(5);

/// Everything that the queue looks at.
const READ: &str = "nodes,pods,namespaces,priorityclasses,jobs.batch,gangplans,\
     podgroups.scheduling.x-k8s.io,elasticquotas.scheduling.sigs.k8s.io";

/// Nothing comes of a plan for so long: something is wrong.
const STALL: Duration = Duration::from_secs(60);

type Changes = Pin<Box<dyn Stream<Item = Result<Change<GangPlanObject>, watcher::Error>>>>;

/// A member's role and number, its node, and its cards.
type Place = (String, u64, String, Vec<u64>);

/// A start: each member's place, and the pods that go for it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Start {
    places: BTreeSet<Place>,
    victims: BTreeSet<String>,
}

/// Number of cases in which both agreed.
#[derive(Debug, Default)]
struct Count {
    started: usize,
    evicting: usize,
    waiting: usize,
    mended: usize,
}

#[test]
fn what_plan_queue_says_the_real_controller_does() -> Result<()> {
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let number = |name: &str| match std::env::var(name) {
        Ok(text) => Ok(Some(
            text.parse::<u64>()
                .with_context(|| format!("{name} is no number"))?,
        )),
        Err(_) => anyhow::Ok(None),
    };
    let seed = number("SUBLET_SEED")?.unwrap_or_else(|| fastrand::u64(..));
    let rounds = number("SUBLET_ROUNDS")?.unwrap_or(POLICIES.len() as u64);
    println!("seed {seed}: SUBLET_SEED={seed} plays it again");
    let mut count = Count::default();
    for (round, policy) in (0..rounds).zip(POLICIES.iter().cycle()) {
        let Some(world) = World::lease_queueing()? else {
            return Ok(());
        };
        let begun = Instant::now();
        let played = play(
            &world,
            round,
            (seed.wrapping_add(round), policy),
            &mut count,
        );
        // Other tests go on with this cluster.
        let names = draw::CLASSES.map(|(name, _)| name);
        let classes = [
            &["delete", "priorityclass", "--ignore-not-found"][..],
            &names,
        ]
        .concat();
        world.cluster.kubectl(&classes)?;
        world.restart_queueing_controller(&[])?;
        played.with_context(|| format!("seed {seed}, round {round}, {policy}"))?;
        println!("{policy}: {count:?} after {:.1?}", begun.elapsed());
    }
    // Else chance has drawn nothing worth a comparison.
    let enough = count.started >= rounds as usize && count.waiting >= rounds as usize;
    ensure!(enough, "seed {seed}: {count:?}");
    Ok(())
}

/// One drawn cluster: first its first objects, and then more of them, beside groups that have
/// places. Names begin with the round: events of others stay.
fn play(world: &World, round: u64, (seed, policy): (u64, &str), count: &mut Count) -> Result<()> {
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut chance = Rng::with_seed(seed);
    world.cluster.stop(deployed::CONTROLLER);
    // Slots that others left would lie on nodes of the same names.
    world.cluster.kubectl(&["delete", "gangplans", "--all"])?;
    let cards = draw::nodes(&mut chance);
    let names: Vec<String> = (0..cards.len()).map(|at| format!("n{at}")).collect();
    let all: Vec<(&str, u16)> = names.iter().map(String::as_str).zip(cards).collect();
    nodes(world, &all)?;
    world.cluster.apply(&namespace(NAMESPACE))?;
    apply(world, &draw::classes())?;
    let n_quotas = chance.usize(2..=5);
    let quotas: Vec<String> = (0..n_quotas).map(|at| format!("r{round}q{at}")).collect();
    apply(world, &draw::quotas(&mut chance, &quotas))?;
    until_ready(world, all.len())?;
    for step in ["a", "b"] {
        let n_groups = chance.usize(4..=7);
        let groups = (0..n_groups).flat_map(|at| {
            let name = format!("r{round}{step}{at}");
            draw::group(&mut chance, &name, &quotas)
        });
        apply(world, &groups.collect::<Vec<_>>())?;
        let folder = tempfile::tempdir()?;
        let (paper, notes) = on_paper(world, folder.path(), policy)?;
        executor
            .block_on(compare(world, policy, &paper, count))
            .inspect_err(|_| println!("on paper: {paper:#}"))?;
        quota_troubles(world, &notes, count)?;
        // Whoever has a place runs before the next look.
        until_placed(world)?;
        world.cluster.stop(deployed::CONTROLLER);
    }
    Ok(())
}

fn apply(world: &World, objects: &[Value]) -> Result<()> {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    world.cluster.apply(&list.to_string()).map(drop)
}

/// Waits until the controllers of Kubernetes have looked at every node.
fn until_ready(world: &World, count: usize) -> Result<()> {
    eventually(|| {
        let list = world.get(&["nodes"])?;
        let nodes = list["items"].as_array().context("no list")?;
        let is_fresh = |node: &Value| {
            let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
            taints.any(|taint| taint["key"] == "node.kubernetes.io/not-ready")
        };
        ensure!(
            nodes.len() == count && !nodes.iter().any(is_fresh),
            "{list}"
        );
        Ok(())
    })
}

/// The plan of `sublet plan --queue` for all objects.
fn on_paper(world: &World, folder: &Path, policy: &str) -> Result<(Value, String)> {
    let file = folder.join("objects.json");
    let text = world.cluster.kubectl(&["get", READ, "-A", "-o", "json"])?;
    std::fs::write(&file, text)?;
    let file = file.display().to_string();
    let arguments = [
        "plan", "--queue", "-f", &file, "-o", "json", "--policy", policy,
    ];
    let arguments = [&arguments[..], &PROFILE].concat();
    let (_code, text, notes) = world.sublet(&arguments)?;
    let paper = serde_json::from_str(&text).with_context(|| format!("no plan: {text}{notes}"))?;
    Ok((paper, notes))
}

/// Starts the controller, and compares what it first decides.
async fn compare(world: &World, policy: &str, paper: &Value, count: &mut Count) -> Result<()> {
    let client: Client = connect(Some(&world.cluster.kubeconfig("admin")?)).await?;
    let mut changes: Changes = Box::pin(watch::<GangPlans>(&client, None));
    let mut known = BTreeSet::new();
    loop {
        match next(&mut changes).await? {
            Change::Set(plan) => drop(known.insert(plan.metadata.name)),
            Change::ListEnds => break,
            _ => {}
        }
    }
    let starting = starts_on_paper(paper)?;
    // Who waits for less is told nothing yet, and later perhaps another reason.
    tokio::time::sleep(TOLD_AFTER).await;
    world.restart_queueing_controller(&[&["--policy", policy][..], &PROFILE].concat())?;
    let mut started: BTreeMap<String, Start> = BTreeMap::new();
    while !starting.keys().all(|group| started.contains_key(group)) {
        let change = next(&mut changes).await;
        let change = change.with_context(|| format!("of {starting:?} only {started:?}"))?;
        // Plans of an earlier look are only taken over.
        let Change::Set(plan) = change else { continue };
        if !known.contains(&plan.metadata.name) {
            started.extend(starts(&plan.read()?));
        }
    }
    for (group, start) in &starting {
        let real = &started[group];
        ensure!(real == start, "{group}: {start:?} on paper, and {real:?}");
        count.started += 1;
        count.evicting += usize::from(!start.victims.is_empty());
    }
    let waiting = paper["groups"].as_array().into_iter().flatten();
    for group in waiting.filter(|group| group["state"] == "waiting") {
        until_told_so(world, group)?;
        count.waiting += 1;
    }
    // Where nobody goes, nothing more can start.
    if starting.values().all(|start| start.victims.is_empty()) {
        let more: Vec<&String> = started
            .keys()
            .filter(|group| !starting.contains_key(*group))
            .collect();
        ensure!(more.is_empty(), "{more:?} start, and on paper they wait");
    }
    Ok(())
}

async fn next(changes: &mut Changes) -> Result<Change<GangPlanObject>> {
    let mut changes = pin!(changes);
    let change = tokio::time::timeout(STALL, changes.next()).await;
    let change = change.context("no plan comes")?;
    Ok(change.context("the watch ended")??)
}

fn starts_on_paper(paper: &Value) -> Result<BTreeMap<String, Start>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let groups = paper["groups"].as_array().context("no groups")?.iter();
    let starting = groups.filter(|group| group["state"] == "starting");
    let start = |group: &Value| {
        let place = |slot: &Value| {
            let cards = list(&slot["gpus"]);
            let cards = cards.iter().filter_map(|card| card["gpu"].as_u64());
            let index = slot["index"].as_u64().unwrap_or(u64::MAX);
            (
                text(&slot["role"]),
                index,
                text(&slot["node"]),
                cards.collect(),
            )
        };
        let start = Start {
            places: list(&group["slots"]).iter().map(place).collect(),
            victims: list(&group["victims"]).iter().map(text).collect(),
        };
        (text(&group["group"]), start)
    };
    Ok(starting.map(start).collect())
}

fn starts(plan: &GangPlan) -> BTreeMap<String, Start> {
    let start = plan.groups.iter().map(|group| {
        let places = group.slots.iter().map(|slot| {
            let cards = slot.allocation.grants.iter();
            let cards = cards.map(|grant| u64::from(grant.card.index.0)).collect();
            let (role, node) = (slot.role.to_string(), slot.node.to_string());
            (role, u64::from(slot.index), node, cards)
        });
        let victims = group.victims.iter().map(|victim| victim.uid.to_string());
        let start = Start {
            places: places.collect(),
            victims: victims.collect(),
        };
        (group.id.to_string(), start)
    });
    start.collect()
}

/// Waits until the controller has said of a group what the paper says.
fn until_told_so(world: &World, group: &Value) -> Result<()> {
    let field = |name: &str| group[name].as_str().unwrap_or_default();
    let (id, reason, message) = (field("group"), field("reasonLabel"), field("reason"));
    let name = id.rsplit('/').next().unwrap_or_default();
    eventually(|| {
        let events = events(world, NAMESPACE, name)?;
        let is_so = |(word, text): &(String, String)| word == reason && text.ends_with(message);
        ensure!(
            events.iter().any(is_so),
            "{id} waits: {reason}, {message}; the controller says {events:?}"
        );
        Ok(())
    })
}

/// Every quota that is mended on paper is mended in the cluster, which says so in the same words.
fn quota_troubles(world: &World, notes: &str, count: &mut Count) -> Result<()> {
    for note in notes.lines().filter(|note| note.contains(" meanwhile")) {
        let quota = note.split("ElasticQuota ").nth(1).context("no quota")?;
        let (name, rest) = quota.split_once(',').context("no field")?;
        let (_, what) = rest.split_once("`: ").context("no reason")?;
        eventually(|| {
            let events = events(world, NAMESPACE, name)?;
            let is_so =
                |(word, text): &(String, String)| word == "NotInTree" && text.ends_with(what);
            ensure!(events.iter().any(is_so), "{note}: {events:?}");
            Ok(())
        })?;
        count.mended += 1;
    }
    Ok(())
}

/// Waits until every pod that has a place runs, and every pod that was asked to go is gone.
fn until_placed(world: &World) -> Result<()> {
    eventually(|| {
        let list = world.get(&["pods", "-n", NAMESPACE])?;
        // A pod with a slot is let go a moment later.
        let plans = world.get(&["gangplans"])?.to_string();
        for pod in list["items"].as_array().context("no list")? {
            let name = &pod["metadata"]["name"];
            let uid = pod["metadata"]["uid"].as_str().context("no UID")?;
            let is_free = pod["spec"]["schedulingGates"]
                .as_array()
                .is_none_or(Vec::is_empty);
            ensure!(
                pod["metadata"]["deletionTimestamp"].is_null(),
                "{name} goes"
            );
            let has_place = is_free || plans.contains(uid);
            ensure!(
                !has_place || pod["status"]["phase"] == "Running",
                "{name} does not run"
            );
        }
        Ok(())
    })
}
