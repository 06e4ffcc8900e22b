//! Jobs that queue, on a real control plane. What happened is read from the API server's watch.

mod objects;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use sublet_e2e::{Happened, Recorder, World, eventually};
use sublet_testbed::{Signal, deployed};

use objects::{card_node, elastic_quota, job, namespace};

/// Nodes with so many cards, reported as their agents would.
fn nodes(world: &World, cards: &[(&str, u16)]) -> Result<()> {
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

/// The gang of a pod, which begins its name.
fn gang_of(pod: &str) -> String {
    let name = pod.rsplit('/').next().unwrap_or(pod);
    name.split('-').next().unwrap_or(name).to_owned()
}

/// Jobs that are held back, and jobs that are not, are let go by plans; and whoever keeps the queue
/// may die at any moment.
#[test]
fn jobs_flow_while_the_controller_is_killed() -> Result<()> {
    const JOBS: usize = 48;
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 8), ("n2", 8)])?;
    world.cluster.apply(&namespace("flow"))?;
    world
        .cluster
        .apply(&elastic_quota("flow", "flow", 16, 16))?;
    let recorder = record(&world)?;
    let jobs: String = (0..JOBS)
        .map(|at| job(&format!("j{at}"), "flow", 1 + at % 4, at % 2 == 0))
        .collect();
    let ended = || -> Result<usize> {
        let list = world.get(&["jobs", "-n", "flow"])?;
        let jobs = list["items"].as_array().context("no list")?;
        Ok(jobs
            .iter()
            .filter(|job| job["status"]["completionTime"].is_string())
            .count())
    };
    world.cluster.apply(&jobs)?;
    for least in [JOBS / 4, JOBS / 2] {
        eventually(|| {
            let ended = ended()?;
            ensure!(ended >= least, "{ended} of {JOBS} jobs have ended");
            Ok(())
        })?;
        world.cluster.kill(deployed::CONTROLLER, Signal::KILL)?;
        world.cluster.start_again(deployed::CONTROLLER)?;
    }
    eventually(|| {
        let ended = ended()?;
        ensure!(ended == JOBS, "{ended} of {JOBS} jobs have ended");
        let plans = world.cluster.kubectl(&["get", "gangplans", "-o", "name"])?;
        ensure!(plans.is_empty(), "{plans}");
        Ok(())
    })?;
    let seen = recorder.stop()?;
    assert_eq!(seen.broken, [""; 0]);
    // No pod was made for nothing, and none went before its time.
    let mut bound: BTreeMap<String, usize> = BTreeMap::new();
    for (pod, what) in &seen.log {
        ensure!(
            *what != Happened::Goes || seen.log.contains(&(pod.clone(), Happened::Over)),
            "{pod} was evicted"
        );
        if *what == Happened::Bound {
            *bound.entry(gang_of(pod)).or_default() += 1;
        }
    }
    let wanted: BTreeMap<String, usize> =
        (0..JOBS).map(|at| (format!("j{at}"), 1 + at % 4)).collect();
    assert_eq!(bound, wanted);
    Ok(())
}
