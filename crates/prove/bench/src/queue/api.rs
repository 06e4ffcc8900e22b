//! Admissions per second on the real API server, ours beside Kueue's, on the same work.
//!
//! Each has a fresh control plane of its own: etcd and the API server alone, as in Kueue's own test.
//! Kueue admits Workloads, its own kind, which its own generator makes and ends. Ours releases
//! suspended Jobs. Neither makes pods.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sublet_testbed::deployed::{self, CONTROLLER};
use sublet_testbed::{APISERVER, Binaries, CONTROLLERS, Kueue};

use super::account::Account;
use super::shape::WorkShape;
use super::work;
use crate::report::{Report, Verdict, short};
use crate::stats::percentile;
use crate::world::{NODES, World, memory_mib, post};

/// Limits of the clients: requests a second.
const LIMITS: [Option<u32>; 3] = [Some(50), Some(500), None];

/// Targets of ours (issue 19).
const RATE: f64 = 2.0;
const CPU: f64 = 0.5;
const WRITES: f64 = 2.0;
const OF_BOUND: f64 = 0.95;

/// Kueue's processes.
const KUEUE: &str = "kueue";
const GENERATOR: &str = "kueue-generator";

/// Time for which Kueue has been running before work comes, and the longest time of a run.
const SETTLED: Duration = Duration::from_secs(4);
const LONGEST: Duration = Duration::from_secs(2_400);

/// Paths that every run needs.
pub(super) struct Stand<'a> {
    pub(super) binaries: &'a Binaries,
    pub(super) sublet: &'a Path,
    pub(super) repository: &'a Path,
}

/// One run.
#[derive(Debug)]
struct Found {
    seconds: f64,
    cost: Account,
    /// Admissions that were taken back.
    taken_back: u64,
    /// Peak memory of the API server and of the controller, in MiB.
    peaks: [f64; 2],
    /// Milliseconds until half of all were admitted, and until 99 of 100 were; Kueue's generator
    /// says the mean alone.
    waits: String,
}

/// Measures and prints.
pub(super) fn measure(
    stand: &Stand<'_>,
    kueue: &Kueue,
    shape: &WorkShape,
    report: &mut Report,
) -> Result<()> {
    report.say("## On the real API server, beside Kueue");
    report.say(&method(shape));
    let mut head = [
        "client limit",
        "",
        "admissions/s",
        "API server, CPU ms",
        "controller, CPU ms",
    ]
    .map(str::to_owned)
    .to_vec();
    let more = [
        "etcd, CPU ms",
        "writes",
        "events",
        "wait",
        "taken back",
        "peak MiB",
    ];
    head.extend(more.map(str::to_owned));
    let mut rows = vec![head];
    let mut kinds = Vec::new();
    let mut verdicts = Vec::new();
    for limit in LIMITS {
        let limited = limit.map_or("none".to_owned(), |limit| format!("{limit}/s"));
        eprintln!("bench: Kueue, client limit {limited}");
        let theirs = kueues(stand, kueue, shape, limit)?;
        eprintln!("bench: ours, client limit {limited}");
        let ours = ours(stand, shape, limit)?;
        for (who, found) in [
            (format!("Kueue {}", Kueue::VERSION), &theirs),
            ("**ours**".to_owned(), &ours),
        ] {
            rows.push(row(&limited, &who, found, shape));
            let listed = found.cost.listed(shape.workloads() as f64);
            kinds.push(format!("- {limited}, {who}: {listed}"));
        }
        verdicts.extend(judged(&limited, limit, shape, &theirs, &ours));
    }
    report.table(&rows);
    report.verdicts(&verdicts);
    report.say("Writes of each kind for one workload, the generator's own among them:");
    report.say(&kinds.join("\n"));
    Ok(())
}

fn method(shape: &WorkShape) -> String {
    format!(
        "The shape of Kueue's own performance test, or a part of it: {}. They can be done in {} s \
         at best, {} a second: then the last one comes, or all quotas are full all the time. Kueue \
         runs as in that test (`minimalkueue`: its scheduler and core controllers, without webhooks), \
         but with one client limit for all kinds of objects, as the Kueue that is shipped has it, \
         and not one for each kind. Its own generator makes Workloads, ends those that were admitted \
         for as long as they run, and says how long all of it took. Ours is the controller that is \
         shipped, with the queue on and the same limit on its writes; a generator of ours makes \
         suspended Jobs of the same file, one pod each, and ends those that were released. \
         **What is compared:** from the first object until the last has ended, an object of Kueue's \
         own kind whose status says that it is admitted, and a Job whose `suspend` is taken away. \
         Neither has pods, and no other controller runs. Ours also proves a node for each Job (the \
         nodes have twice the CPUs of the quotas); Kueue also evicts admitted Workloads for others, \
         which ours does not where no pod runs. Real Jobs cost Kueue a Workload and a change of the \
         Job each, which its test leaves out. CPU time is for one workload. Writes are all at the API server for one workload, without \
         its creation and its end, which the generator writes, and without events.",
        shape.described(),
        short(shape.least_time().as_secs_f64()),
        short(bound(shape)),
    )
}

/// Workloads in a second that no queue can exceed.
fn bound(shape: &WorkShape) -> f64 {
    shape.workloads() as f64 / shape.least_time().as_secs_f64().max(1e-3)
}

fn of_each(shape: &WorkShape, value: f64) -> f64 {
    value / shape.workloads() as f64
}

/// Writes for one workload that are neither events nor the generator's.
fn writes(found: &Found, shape: &WorkShape) -> f64 {
    let all = found.cost.count(|kind| !is_event(kind)) as f64;
    // Its generator finishes an eviction too.
    of_each(shape, all - found.taken_back as f64) - 2.0
}

fn is_event(kind: &str) -> bool {
    kind.ends_with(" events")
}

fn rate(found: &Found, shape: &WorkShape) -> f64 {
    shape.workloads() as f64 / found.seconds.max(1e-3)
}

fn row(limit: &str, who: &str, found: &Found, shape: &WorkShape) -> Vec<String> {
    let cost = &found.cost;
    let cpu = |seconds: f64| short(of_each(shape, seconds * 1e3));
    let events = of_each(shape, cost.count(is_event) as f64);
    vec![
        limit.to_owned(),
        who.to_owned(),
        short(rate(found, shape)),
        cpu(cost.apiserver),
        cpu(cost.controller),
        cpu(cost.etcd),
        format!("{:.2}", writes(found, shape)),
        format!("{events:.2}"),
        found.waits.clone(),
        found.taken_back.to_string(),
        format!("{:.0} + {:.0}", found.peaks[0], found.peaks[1]),
    ]
}

fn judged(
    limited: &str,
    limit: Option<u32>,
    shape: &WorkShape,
    theirs: &Found,
    ours: &Found,
) -> Vec<Verdict> {
    let name = |what: &str| format!("client limit {limited}: {what}");
    let cpu = ours.cost.apiserver / theirs.cost.apiserver.max(1e-3);
    let times = rate(ours, shape) / rate(theirs, shape);
    // What stands between a Job that waits and one that is released.
    let steps = |kind: &str| kind.ends_with(" gangplans") || kind == "PATCH jobs";
    let steps = of_each(shape, ours.cost.count(steps) as f64);
    let mut all = vec![
        Verdict::at_least_times(&name("admissions/s, ours / Kueue"), times, RATE),
        Verdict::at_most_times(
            &name("CPU of the API server for each, ours / Kueue"),
            cpu,
            CPU,
        ),
        Verdict::at_most(
            &name("writes of plans and releases"),
            steps,
            WRITES,
            "for each",
        ),
    ];
    if let Some(limit) = limit {
        let most = bound(shape).min(f64::from(limit) / writes(ours, shape).max(1e-3));
        let part = rate(ours, shape) / most;
        let what = name("admissions/s / the lower of limit ÷ writes and the quotas' bound");
        all.push(Verdict::at_least_times(&what, part, OF_BOUND));
    }
    all
}

/// A control plane of etcd and the API server.
fn bare(stand: &Stand<'_>) -> Result<World> {
    World::start(stand.binaries, stand.sublet, false)
}

fn peaks(world: &World, controller: &str) -> Result<[f64; 2]> {
    let peak = |name| memory_mib(world.cluster.pid(name)?, "VmHWM");
    Ok([peak(APISERVER)?, peak(controller)?])
}

fn ours(stand: &Stand<'_>, shape: &WorkShape, limit: Option<u32>) -> Result<Found> {
    let mut world = bare(stand)?;
    let nodes = work::nodes(shape)?;
    let count = nodes.len();
    world.create("nodes", NODES, nodes.into_iter().map(Ok))?;
    // Only now: this controller takes the taint from new nodes.
    world.wait_untainted(count)?;
    world.cluster.stop(CONTROLLERS);
    start_ours(&mut world, stand, shape, limit)?;
    let before = Account::now(&world, Some(CONTROLLER))?;
    let World {
        executor,
        client,
        progress,
        ..
    } = &mut world;
    let played = executor.block_on(work::play(client, shape, progress));
    let played = played
        .with_context(|| format!("the controller: {}", world.cluster.log_tail(CONTROLLER)))?;
    let cost = Account::now(&world, Some(CONTROLLER))?.since(&before);
    let wait = |share| short(percentile(&played.waits, share) / 1e3);
    Ok(Found {
        seconds: played.seconds,
        cost,
        taken_back: played.held_back,
        peaks: peaks(&world, CONTROLLER)?,
        waits: format!("p50 {} s, p99 {} s", wait(0.5), wait(0.99)),
    })
}

/// Applies the shipped manifests, and the quotas; then starts the controller, and waits until it
/// keeps the queue.
pub(super) fn start_ours(
    world: &mut World,
    stand: &Stand<'_>,
    shape: &WorkShape,
    limit: Option<u32>,
) -> Result<()> {
    deployed::apply(&world.cluster, stand.repository)?;
    deployed::apply_queue(&world.cluster, stand.repository)?;
    for (path, object) in work::settings(shape) {
        let posted = world.executor.block_on(post(&world.client, &path, &object));
        posted.with_context(|| format!("make {}", object["metadata"]["name"]))?;
    }
    start_queue(world, stand, limit)
}

/// Starts the controller, and waits until it keeps the queue.
pub(super) fn start_queue(world: &World, stand: &Stand<'_>, limit: Option<u32>) -> Result<()> {
    let limit = limit.map(|limit| format!("--writes-per-second={limit}"));
    let mut flags = vec!["--queue"];
    flags.extend(limit.as_deref());
    deployed::start_controller(&world.cluster, stand.sublet, CONTROLLER, &flags)?;
    let began = Instant::now();
    loop {
        let log = std::fs::read_to_string(world.cluster.log(CONTROLLER)).unwrap_or_default();
        if log.contains("the queue is kept") {
            return Ok(());
        }
        ensure!(
            began.elapsed() < Duration::from_secs(60),
            "the controller keeps no queue: {log}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn kueues(
    stand: &Stand<'_>,
    kueue: &Kueue,
    shape: &WorkShape,
    limit: Option<u32>,
) -> Result<Found> {
    let mut world = bare(stand)?;
    world.cluster.stop(CONTROLLERS);
    kueue.define(&world.cluster)?;
    let kubeconfig = world.cluster.kubeconfig("admin")?;
    world
        .cluster
        .spawn(KUEUE, kueue.scheduler(&kubeconfig, limit))?;
    std::thread::sleep(SETTLED);
    let results = tempfile::tempdir()?;
    let file = results.path().join("shape.yaml");
    std::fs::write(&file, shape.file()?)?;
    let before = Account::now(&world, Some(KUEUE))?;
    world.cluster.spawn(
        GENERATOR,
        kueue.generator(&kubeconfig, &file, results.path()),
    )?;
    // This is the last of the files that it writes; then it deletes what it has made.
    let last = results.path().join("wlStates.csv");
    let began = Instant::now();
    world.progress.restart();
    while !last.exists() {
        let is_there = world.cluster.pid(GENERATOR).is_ok() || last.exists();
        let fault = || world.cluster.log_tail(GENERATOR);
        ensure!(is_there, "Kueue's generator has ended: {}", fault());
        ensure!(
            began.elapsed() < LONGEST,
            "Kueue's generator does not end: {}",
            fault()
        );
        world.progress.tick(|| "Kueue's generator runs".to_owned());
        std::thread::sleep(Duration::from_millis(50));
    }
    let cost = Account::now(&world, Some(KUEUE))?.since(&before);
    let peaks = peaks(&world, KUEUE)?;
    world.cluster.stop(GENERATOR);
    let summary = std::fs::read_to_string(results.path().join("summary.yaml"))?;
    let Summary {
        seconds,
        mean_ms,
        taken_back,
    } = summed(&summary, shape.workloads())?;
    Ok(Found {
        seconds,
        cost,
        taken_back,
        peaks,
        waits: format!("mean {} s", short(mean_ms / 1e3)),
    })
}

/// Kueue's generator's report at the end.
#[derive(Debug, PartialEq)]
struct Summary {
    seconds: f64,
    mean_ms: f64,
    taken_back: u64,
}

fn summed(text: &str, workloads: usize) -> Result<Summary> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct All {
        cluster_queue_classes: std::collections::BTreeMap<String, Queues>,
        workload_classes: std::collections::BTreeMap<String, Class>,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Queues {
        first_event_time: String,
        last_event_time: String,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Class {
        count: u64,
        total_evictions: u64,
        average_time_to_admission_ms: f64,
    }
    let all: All = serde_saphyr::from_str(text).context("the summary of Kueue's generator")?;
    let classes = all.workload_classes.values();
    let count: u64 = classes.clone().map(|class| class.count).sum();
    ensure!(
        count == workloads as u64,
        "Kueue's generator saw {count} workloads, not {workloads}"
    );
    let moment = |text: &String| {
        text.parse::<jiff::Timestamp>()
            .with_context(|| format!("{text:?}"))
    };
    let queues = all.cluster_queue_classes.values();
    let first: Result<Vec<_>> = queues
        .clone()
        .map(|one| moment(&one.first_event_time))
        .collect();
    let last: Result<Vec<_>> = queues.map(|one| moment(&one.last_event_time)).collect();
    let first = first?.into_iter().min().context("no queue")?;
    let last = last?.into_iter().max().context("no queue")?;
    let waited = classes
        .clone()
        .map(|one| one.count as f64 * one.average_time_to_admission_ms);
    Ok(Summary {
        seconds: last.duration_since(first).as_secs_f64(),
        mean_ms: waited.sum::<f64>() / count.max(1) as f64,
        taken_back: classes.map(|one| one.total_evictions).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_read_and_one_of_other_work_is_refused() {
        let text = "clusterQueueClasses: {cq: {cpuUsed: 1, cpuAverageUsage: 2, nominalQuota: 3,
            firstEventTime: '2026-01-02T03:04:05.5Z', lastEventTime: '2026-01-02T03:05:06Z'}}
workloadClasses:
  large: {count: 1, totalEvictions: 2, averageTimeToAdmissionMs: 4000, averageTimeToFinishMs: 9}
  small: {count: 3, totalEvictions: 0, averageTimeToAdmissionMs: 0, averageTimeToFinishMs: 9}
";
        let read = summed(text, 4).unwrap();
        assert_eq!(
            (read.seconds, read.mean_ms, read.taken_back),
            (60.5, 1000.0, 2)
        );
        assert!(
            summed(text, 5)
                .unwrap_err()
                .to_string()
                .contains("saw 4 workloads")
        );
        assert!(summed("{}", 0).is_err());
    }
}
