//! Suspended Jobs with the stock Job controller: how fast they are released, beside a bare loop of
//! the same writes.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::stream;
use serde_json::json;
use sublet_api::group::{JobFacts, job_kind, read_job};
use sublet_testbed::CONTROLLERS;
use sublet_testbed::deployed::CONTROLLER;

use super::account::Account;
use super::api::{Stand, apply_ours, start_queue};
use super::bare::{self, AT_ONCE, Beside};
use super::releases::releases_after;
use super::work;
use crate::objects::ready_node;
use crate::report::{Report, Verdict, short};
use crate::world::{NODES, World};

/// Targets of ours (issue 19).
const OF_LOOP: f64 = 0.7;
const WRITES: f64 = 2.0;

/// One run.
#[derive(Debug)]
struct Found {
    /// From the first release to the last.
    seconds: f64,
    cost: Account,
}

impl Found {
    fn of(moments: &[Instant], cost: Account) -> Result<Found> {
        let first = moments.first().context("no Job")?;
        let last = moments.last().context("no Job")?;
        Ok(Found {
            seconds: last.duration_since(*first).as_secs_f64(),
            cost,
        })
    }

    fn rate(&self, jobs: usize) -> f64 {
        jobs.saturating_sub(1) as f64 / self.seconds.max(1e-3)
    }
}

/// Measures and prints.
pub(super) fn measure(stand: &Stand<'_>, jobs: usize, report: &mut Report) -> Result<()> {
    report.say("## Suspended Jobs with the stock Job controller");
    report.say(&format!(
        "{jobs} suspended Jobs of one pod wait, and there is room for all of them. The stock \
         controller manager runs, and makes a pod of each that is released; no scheduler does. The \
         rate is from the first release to the last, as a watch sees them. The loop makes as many \
         plans of the same size, as many events, and the same patch of each Job, {AT_ONCE} requests \
         at a time and by the same account, and decides nothing; it also leaves out what ours \
         writes on the pods that come. CPU time is for one Job, until the last is released; ours \
         has the start of the controller in it."
    ));
    eprintln!("bench: {jobs} suspended Jobs, ours");
    let ours = ours(stand, jobs)?;
    eprintln!("bench: {jobs} suspended Jobs, the bare loop");
    let bare = bare(stand, jobs, &ours.cost)?;
    let head = [
        "",
        "releases/s",
        "API server, CPU ms",
        "controller, CPU ms",
        "etcd, CPU ms",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let each = |seconds: f64| short(seconds * 1e3 / jobs as f64);
    for (what, found) in [
        ("a bare loop of the same writes", &bare),
        ("**ours**", &ours),
    ] {
        let Account {
            apiserver,
            controller,
            etcd,
            ..
        } = found.cost;
        let own = if what.starts_with('a') {
            "–".to_owned()
        } else {
            each(controller)
        };
        rows.push(vec![
            what.to_owned(),
            short(found.rate(jobs)),
            each(apiserver),
            own,
            each(etcd),
        ]);
    }
    report.table(&rows);
    let steps = |kind: &str| kind.ends_with(" gangplans") || kind == "PATCH jobs";
    let steps = ours.cost.count(steps) as f64 / jobs as f64;
    report.verdicts(&[
        Verdict::at_least_times(
            "releases/s, ours / the loop",
            ours.rate(jobs) / bare.rate(jobs),
            OF_LOOP,
        ),
        Verdict::at_most("writes before a release", steps, WRITES, "for each Job"),
    ]);
    report.say(&format!(
        "All writes at the API server for one Job in that time, the Job controller's own among them: {}.",
        ours.cost.listed(jobs as f64)
    ));
    Ok(())
}

/// A cluster with these Jobs, and with what ours needs.
fn waiting(stand: &Stand<'_>, jobs: usize) -> Result<World> {
    let mut world = World::start(stand.binaries, stand.sublet, false)?;
    apply_ours(&world, stand)?;
    let nodes = jobs.div_ceil(50);
    let amounts = json!({ "cpu": "64", "memory": "256Gi", "pods": "500" });
    let ready = (0..nodes).map(|at| ready_node(&format!("node-{at:03}"), &amounts, false));
    world.create("nodes", NODES, ready)?;
    world.wait_untainted(nodes)?;
    work::make_alike(&mut world, jobs)?;
    Ok(world)
}

fn ours(stand: &Stand<'_>, jobs: usize) -> Result<Found> {
    let world = waiting(stand, jobs)?;
    let before = Account::now(&world, None)?;
    let released = releases_after(&world, jobs, || start_queue(&world, stand, None));
    let moments = released
        .with_context(|| format!("the controller: {}", world.cluster.log_tail(CONTROLLER)))?;
    let cost = Account::now(&world, Some(CONTROLLER))?.since(&before);
    Found::of(&moments, cost)
}

fn bare(stand: &Stand<'_>, jobs: usize, as_ours: &Account) -> Result<Found> {
    let world = waiting(stand, jobs)?;
    let waiting = world.executor.block_on(listed(&world))?;
    let client = world.executor.block_on(bare::controllers_client(&world))?;
    let beside = Beside::of(as_ours, jobs);
    let before = Account::now(&world, None)?;
    let moments = releases_after(&world, jobs, || {
        let writing = bare::write_all(&client, stream::iter(waiting), beside);
        world.executor.block_on(writing)
    })?;
    let cost = Account::now(&world, None)?.since(&before);
    ensure!(
        world.cluster.pid(CONTROLLERS).is_ok(),
        "the controller manager has ended"
    );
    Found::of(&moments, cost)
}

/// The Jobs that wait.
async fn listed(world: &World) -> Result<Vec<JobFacts>> {
    let path = work::jobs_of(work::NAMESPACE);
    let request = http::Request::get(path).body(Vec::new())?;
    let list = world.client.request_text(request).await?;
    let list: serde_json::Value = serde_json::from_str(&list)?;
    let kind = job_kind("batch/v1", "Job").context("no kind of Job")?;
    let jobs = list["items"].as_array().context("no list")?.iter();
    jobs.map(|job| Ok(read_job(kind, job)?)).collect()
}
