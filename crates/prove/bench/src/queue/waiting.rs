//! Thousands of suspended Jobs that wait, with room for few: how soon the first is released, how fast
//! when room comes free, and what it costs when nothing happens.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_testbed::CONTROLLERS;
use sublet_testbed::deployed::CONTROLLER;

use super::account::Account;
use super::api::{Stand, apply_ours, is_event, start_queue};
use super::releases::releases_after;
use super::work;
use crate::objects::ready_node;
use crate::report::{Report, Verdict, short};
use crate::world::{NODES, PODS, World};

/// Jobs that there is room for from the beginning, of one CPU each.
const FEW: usize = 20;

/// Jobs that room comes free for at once, at most, and the CPUs of a node where it does.
const FREED: usize = 500;
const NODE_CPUS: usize = 50;

/// Events are counted for so long from the controller's start.
const COUNTED: Duration = Duration::from_secs(10);

/// Nothing happens once no write is seen for so long.
const QUIET: Duration = Duration::from_secs(6);

/// Longest time until then: all that wait are told why.
const QUIET_LIMIT: Duration = Duration::from_secs(1_200);

/// The idle controller is looked at for so long.
const IDLE: Duration = Duration::from_secs(20);

/// Targets of ours (issue 42).
const FIRST_S: f64 = 1.0;
const RATE: f64 = 50.0;
const IDLE_PERCENT: f64 = 2.0;

/// Figures that were seen.
#[derive(Debug)]
struct Found {
    /// From the start of the controller to the first release.
    first_s: f64,
    /// Events in the first seconds.
    events: u64,
    /// Jobs that room came free for, and the time from then to the last release.
    freed: (usize, f64),
    /// From then until no write was seen any more.
    quiet_s: f64,
    /// The controller's part of a core in the end.
    idle_percent: f64,
}

/// Measures and prints.
pub(super) fn measure(stand: &Stand<'_>, jobs: usize, report: &mut Report) -> Result<()> {
    report.say("## Many waiting");
    eprintln!("bench: {jobs} suspended Jobs wait");
    let found = found(stand, jobs)?;
    let (freed, freed_s) = found.freed;
    report.say(&format!(
        "{jobs} suspended Jobs of one pod with one CPU wait, and there is room for {FEW}. A watch of \
         its own sees the releases. No other controller runs, so a Job that was released keeps its \
         room. Once {FEW} are released, room comes free for {freed} more at once, while {} wait; \
         their rate is from that moment to the last release. Each that waits is told why, by an \
         event; when no write was seen for {} s ({} s after the room came free), the controller's \
         CPU time is read for {} s in which nothing happens.",
        jobs - FEW,
        QUIET.as_secs(),
        short(found.quiet_s),
        IDLE.as_secs(),
    ));
    report.say(&format!(
        "Events in the {} s after the controller's start: {}.",
        COUNTED.as_secs(),
        found.events
    ));
    let rate = freed as f64 / freed_s.max(1e-3);
    let idle = found.idle_percent;
    report.verdicts(&[
        Verdict::at_most(
            "from the controller's start to its first release",
            found.first_s,
            FIRST_S,
            "s",
        ),
        Verdict::at_least("releases while thousands wait", rate, RATE, "a second"),
        Verdict::at_most(
            "CPU of the controller when nothing happens",
            idle,
            IDLE_PERCENT,
            "% of a core",
        ),
    ]);
    Ok(())
}

fn found(stand: &Stand<'_>, jobs: usize) -> Result<Found> {
    let mut world = World::start(stand.binaries, stand.sublet, false)?;
    let full_nodes = FREED.min(jobs / 4).div_ceil(NODE_CPUS);
    let freed = full_nodes * NODE_CPUS;
    make_room(&mut world, full_nodes)?;
    apply_ours(&world, stand)?;
    work::make_alike(&mut world, jobs)?;
    let before = Account::now(&world, None)?;
    let events = || {
        let cost = Account::now(&world, None)?.since(&before);
        anyhow::Ok(cost.count(is_event))
    };
    let log = || format!("the controller: {}", world.cluster.log_tail(CONTROLLER));

    let began = Instant::now();
    let released = releases_after(&world, FEW, || start_queue(&world, stand, None));
    let first = *released.with_context(log)?.first().context("no release")?;
    std::thread::sleep((began + COUNTED).saturating_duration_since(Instant::now()));
    let events = events()?;

    let mut came_free = Instant::now();
    let released = releases_after(&world, freed, || {
        came_free = Instant::now();
        let all = format!("{PODS}?gracePeriodSeconds=0");
        let request = http::Request::delete(all).body(Vec::new())?;
        let deleted = world.client.request_text(request);
        world.executor.block_on(deleted)?;
        Ok(())
    });
    let last = *released.with_context(log)?.last().context("no release")?;
    until_quiet(&mut world)?;
    let quiet_s = came_free.elapsed().as_secs_f64();
    let before = world.cluster.cpu_seconds(CONTROLLER)?;
    std::thread::sleep(IDLE);
    let used = world.cluster.cpu_seconds(CONTROLLER)? - before;
    Ok(Found {
        first_s: first.duration_since(began).as_secs_f64(),
        events,
        freed: (freed, last.duration_since(came_free).as_secs_f64()),
        quiet_s,
        idle_percent: used / IDLE.as_secs_f64() * 100.0,
    })
}

/// A node with room for few, and nodes that are full as long as their pods are there.
fn make_room(world: &mut World, full_nodes: usize) -> Result<()> {
    let node = |name: &str, cpus: usize| {
        let amounts = json!({ "cpu": cpus.to_string(), "memory": "256Gi", "pods": "1000" });
        ready_node(name, &amounts, false)
    };
    let full = |at: usize| format!("full-{at:03}");
    let nodes = (0..full_nodes + 1).map(|at| match at {
        0 => node("few", FEW),
        _ => node(&full(at), NODE_CPUS),
    });
    world.create("nodes", NODES, nodes)?;
    world.wait_untainted(full_nodes + 1)?;
    world.cluster.stop(CONTROLLERS);
    let pods = (0..full_nodes).map(|at| Ok(filler(&full(at + 1))));
    world.create("pods that fill nodes", PODS, pods)
}

/// A pod that has all of a node.
fn filler(node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("on-{node}") },
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": "example.internal/work:1.0",
                "resources": { "requests": { "cpu": NODE_CPUS.to_string() } },
            }],
        },
    })
}

/// Waits until nobody writes.
fn until_quiet(world: &mut World) -> Result<()> {
    let deadline = Instant::now() + QUIET_LIMIT;
    let (mut seen, mut since) = (Account::now(world, None)?.writes, Instant::now());
    world.progress.restart();
    while since.elapsed() < QUIET {
        ensure!(
            Instant::now() < deadline,
            "the controller still writes: {seen:?}"
        );
        std::thread::sleep(Duration::from_secs(1));
        let now = Account::now(world, None)?.writes;
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        world
            .progress
            .tick(|| "those that wait are told why".to_owned());
    }
    Ok(())
}
