//! Gangs from end to end with KWOK: pods per second beside the stock scheduler alone.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_api::keys;
use sublet_testbed::deployed::{self, CONTROLLER, EXTENDER, KUBE_SCHEDULER};
use sublet_testbed::{APISERVER, ETCD};

use super::api::{Stand, apply_ours, start_queue};
use crate::objects;
use crate::rate::{SETTLED, configuration, follow};
use crate::report::{Report, short};
use crate::world::{NODES, PODS, World, page};

/// The API path of plans.
const PLANS: &str = "/apis/sublet.dev/v1alpha1/gangplans";

/// Request of each pod, in MiB: two share a card.
const MIB: u64 = 40_000;

/// Longest time until plans are gone once their pods are gone.
const GONE_LIMIT: Duration = Duration::from_secs(60);

/// The processes whose CPU time is read.
const PROCESSES: [(&str, &str); 5] = [
    ("API server", APISERVER),
    ("etcd", ETCD),
    ("kube-scheduler", KUBE_SCHEDULER),
    ("extender", EXTENDER),
    ("controller", CONTROLLER),
];

/// One round: pods per second, and CPU milliseconds a pod of each process that ran.
#[derive(Debug)]
struct Found {
    rate: f64,
    cpu_ms: Vec<Option<f64>>,
}

/// Measures and prints.
pub(super) fn measure(
    stand: &Stand<'_>,
    nodes: &[usize],
    sizes: &[usize],
    pods: usize,
    report: &mut Report,
) -> Result<()> {
    report.say("## Gangs from end to end, with KWOK");
    report.say(&format!(
        "KWOK plays the nodes, of {} cards each. {pods} pods that ask for half a card are made \
         first, with the queue's scheduling gate on them; the controller starts last, plans the \
         gangs, and lets their pods go to the stock scheduler, which asks our extender. \"The stock \
         scheduler alone\": the same pods without gang and scheduling gate are there when it \
         starts, with the shipped configuration but for the `extenders`. Rates are from the first \
         bound pod to the last. CPU time is for one pod in that time. One round each: a rate may be \
         off by a tenth.",
        objects::CARDS
    ));
    let mut head = ["nodes", "", "pods/s", "of the stock scheduler's"]
        .map(str::to_owned)
        .to_vec();
    head.extend(PROCESSES.map(|(what, _)| format!("{what}, CPU ms")));
    let mut rows = vec![head];
    let mut world = World::start(stand.binaries, stand.sublet, true)?;
    apply_ours(&world, stand)?;
    let mut there = 0;
    for &count in nodes {
        world.create(
            "nodes",
            NODES,
            (there..count).map(|number| objects::node(number, true)),
        )?;
        world.wait_untainted(count)?;
        there = count;
        let alone = alone(&mut world, stand, pods, &format!("{count}-alone"))?;
        rows.push(row(count, "the stock scheduler alone", &alone, &alone));
        for &size in sizes {
            let found = ours(&mut world, stand, pods, size, &format!("{count}-{size}"))?;
            rows.push(row(
                count,
                &format!("**ours**, gangs of {size}"),
                &found,
                &alone,
            ));
        }
    }
    report.table(&rows);
    Ok(())
}

fn row(nodes: usize, what: &str, found: &Found, alone: &Found) -> Vec<String> {
    let part = format!("{:.2} ×", found.rate / alone.rate);
    let mut row = vec![nodes.to_string(), what.to_owned(), short(found.rate), part];
    let cpu = found.cpu_ms.iter();
    row.extend(cpu.map(|cpu| cpu.map_or("–".to_owned(), short)));
    row
}

/// A pod, in a gang of so many if there is one.
fn pod(batch: &str, number: usize, size: Option<usize>) -> Value {
    let mut pod = objects::pod(
        &format!("pod-{batch}-{number:06}"),
        &objects::part(MIB).into(),
    );
    if let Some(size) = size {
        pod["spec"]["schedulingGates"] = json!([{ "name": keys::SCHEDULING_GATE }]);
        let notes = &mut pod["metadata"]["annotations"];
        notes[keys::GANG_NAME] = json!(format!("gang-{batch}-{}", number / size));
        notes[keys::GANG_MIN] = json!(size.to_string());
    }
    pod
}

fn make(world: &mut World, batch: &str, pods: usize, size: Option<usize>) -> Result<()> {
    world.create(
        "pods",
        PODS,
        (0..pods).map(|number| Ok(pod(batch, number, size))),
    )
}

fn start_scheduler(world: &World, stand: &Stand<'_>, port: Option<u16>) -> Result<()> {
    let user = deployed::account("sublet-kube-scheduler").name;
    let kubeconfig = world.cluster.kubeconfig(&user)?;
    let config = configuration(stand.repository, &kubeconfig, port)?;
    let flags = deployed::scheduler_flags(stand.repository)?;
    world
        .cluster
        .start_scheduler(KUBE_SCHEDULER, &kubeconfig, &config, &flags)
}

fn alone(world: &mut World, stand: &Stand<'_>, pods: usize, batch: &str) -> Result<Found> {
    make(world, batch, pods, None)?;
    let found = timed(world, pods, || start_scheduler(world, stand, None));
    world.cluster.stop(KUBE_SCHEDULER);
    world.delete_pods()?;
    found
}

fn ours(
    world: &mut World,
    stand: &Stand<'_>,
    pods: usize,
    size: usize,
    batch: &str,
) -> Result<Found> {
    make(world, batch, pods, Some(size))?;
    let user = deployed::account("sublet-scheduler").name;
    let port = world.start_ours_as(EXTENDER, &user, &["--queue"])?;
    // It binds nothing in its first seconds.
    std::thread::sleep(SETTLED);
    start_scheduler(world, stand, Some(port))?;
    let found = timed(world, pods, || start_queue(world, stand, None));
    let found =
        found.with_context(|| format!("the controller: {}", world.cluster.log_tail(CONTROLLER)))?;
    world.delete_pods()?;
    without_plans(world)?;
    for process in [CONTROLLER, KUBE_SCHEDULER, EXTENDER] {
        world.cluster.stop(process);
    }
    Ok(found)
}

/// Waits until the controller has taken its plans away.
fn without_plans(world: &World) -> Result<()> {
    let deadline = Instant::now() + GONE_LIMIT;
    while world
        .executor
        .block_on(page(&world.client, PLANS, 1, ""))?
        .objects
        > 0
    {
        ensure!(Instant::now() < deadline, "plans are left behind");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// From the first bound pod to the last, after `start`.
fn timed(world: &World, pods: usize, start: impl FnOnce() -> Result<()>) -> Result<Found> {
    let cpu = || {
        let seconds = |(_, name): (_, &str)| world.cluster.cpu_seconds(name).ok();
        Ok(PROCESSES.map(seconds))
    };
    let (seconds, before, after) = std::thread::scope(|scope| {
        let (watching, ready) = mpsc::channel();
        let cpu = &cpu;
        let watch =
            scope.spawn(move || world.executor.block_on(follow(world, pods, watching, cpu)));
        // An error means that the watch failed. Its thread reports that below.
        if ready.recv().is_ok() {
            start()?;
        }
        watch
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    let counted = pods.saturating_sub(1) as f64;
    let each = before.into_iter().zip(after);
    let cpu_ms = each.map(|(before, after)| Some((after? - before.unwrap_or(0.0)) * 1e3 / counted));
    Ok(Found {
        rate: counted / seconds.max(1e-3),
        cpu_ms: cpu_ms.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_a_gang_are_held_back_and_others_are_not() {
        let alone = pod("b", 9, None);
        assert_eq!(alone["spec"]["schedulingGates"], Value::Null);
        let member = pod("b", 9, Some(8));
        assert_eq!(
            member["spec"]["schedulingGates"][0]["name"],
            keys::SCHEDULING_GATE
        );
        let read: sublet_api::object::Pod = serde_json::from_value(member).unwrap();
        let gang = sublet_api::group::gang_of(&read).unwrap().unwrap();
        assert_eq!(
            (gang.gang.name.as_str(), gang.terms.unwrap().min),
            ("gang-b-1", 8)
        );
    }
}
