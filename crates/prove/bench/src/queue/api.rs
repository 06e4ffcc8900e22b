//! Releases of suspended Jobs on the real API server: ours, Kueue's, and a bare loop's, on the same work.
//!
//! Each has a fresh control plane of its own: etcd and the API server alone. The same suspended Jobs
//! come to each, and end when they have been released for as long as they run. Nobody makes pods, so
//! nobody is evicted.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sublet_testbed::deployed::{self, CONTROLLER};
use sublet_testbed::{APISERVER, Binaries, CONTROLLERS, Kueue};

use super::account::Account;
use super::bare::{self, AT_ONCE, Beside, Rooms};
use super::shape::WorkShape;
use super::work::{self, Played};
use crate::report::{Report, Verdict, short};
use crate::stats::percentile;
use crate::world::{NODES, World, memory_mib};

/// Limits of the clients: requests a second.
const LIMITS: [Option<u32>; 3] = [Some(50), Some(500), None];

/// The limit that is the bound of ours: one write for each release. So it is judged by that.
const BOUNDING: u32 = 50;

/// The limit at which a bare loop stands beside: there the API server is the bound.
const LOOPED: u32 = 500;

/// Targets of ours (issues 19 and 42).
const RATE: f64 = 2.0;
const CPU: f64 = 0.5;
const WRITES: f64 = 2.0;
const OF_BOUND: f64 = 0.95;
const OF_LOOP: f64 = 0.9;

/// Paths that every run needs.
pub(super) struct Stand<'a> {
    pub(super) binaries: &'a Binaries,
    pub(super) sublet: &'a Path,
    pub(super) repository: &'a Path,
}

/// The side that releases the Jobs.
enum Side<'a> {
    Kueue(&'a Kueue),
    Ours,
    Loop(Beside),
}

/// One run.
#[derive(Debug)]
struct Found {
    played: Played,
    cost: Account,
    /// Peak memory of the API server and of the controller, in MiB.
    peaks: [f64; 2],
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
    let head = [
        "client limit",
        "",
        "releases/s",
        "API server, CPU ms",
        "controller, CPU ms",
        "etcd, CPU ms",
        "writes",
        "events",
        "wait p50, s",
        "wait p99, s",
        "held back again",
        "peak MiB",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut kinds = Vec::new();
    let mut verdicts = Vec::new();
    for limit in LIMITS {
        let limited = limit.map_or("none".to_owned(), |limit| format!("{limit}/s"));
        let mut measured = |side: &Side<'_>| {
            let who = side.name();
            eprintln!("bench: {who}, client limit {limited}");
            let found = side.run(stand, shape, limit)?;
            rows.push(row(&limited, &who, &found, shape));
            let listed = found.cost.listed(shape.workloads() as f64);
            kinds.push(format!("- {limited}, {who}: {listed}"));
            anyhow::Ok(found)
        };
        let theirs = measured(&Side::Kueue(kueue))?;
        let ours = measured(&Side::Ours)?;
        let beside = Beside::of(&ours.cost, shape.workloads());
        let bare = match limit {
            Some(LOOPED) => Some(measured(&Side::Loop(beside))?),
            _ => None,
        };
        verdicts.extend(judged(
            &limited,
            limit,
            shape,
            (&theirs, &ours, bare.as_ref()),
        ));
    }
    report.table(&rows);
    report.verdicts(&verdicts);
    report.say("Writes of each kind for one Job, its creation and its end among them:");
    report.say(&kinds.join("\n"));
    Ok(())
}

fn method(shape: &WorkShape) -> String {
    format!(
        "The shape of Kueue's own performance test, or a part of it: {}, each a suspended Job of one \
         pod. They can be done in {} s at best, {} a second: then the last one comes, or all quotas \
         are full all the time. One generator makes the Jobs, watches who is released, and ends each \
         when it has been released for as long as it runs; it is the same for all sides, and so are \
         nodes, namespaces and queues. No other controller runs, so there are no pods. Kueue is the \
         manager that is shipped, with the shipped configuration but for its client's limit; it runs \
         as the administrator, and its webhooks are not asked, which would cost it more. It evicts \
         nobody (`reclaimWithinCohort` and `withinClusterQueue` are `Never`), and ours has nobody to \
         evict. Ours is the controller that is shipped, with the queue on, the shipped rights and \
         policies, and the same limit on its writes; it also proves a node for each Job (the nodes \
         have twice the CPUs of the quotas). The loop makes the same writes as ours by the same \
         account, {AT_ONCE} at a time, for the Jobs that fit their cohort, and decides nothing else. \
         **The rate** is that of all Jobs from the first that is made until the last has ended. CPU \
         time is for one Job. Writes are all at the API server for one Job but its creation and its \
         end, which the generator writes, and events, which stand beside.",
        shape.described(),
        short(shape.least_time().as_secs_f64()),
        short(bound(shape)),
    )
}

/// Jobs in a second that no queue can exceed.
fn bound(shape: &WorkShape) -> f64 {
    shape.workloads() as f64 / shape.least_time().as_secs_f64().max(1e-3)
}

fn of_each(shape: &WorkShape, value: f64) -> f64 {
    value / shape.workloads() as f64
}

/// Writes for one Job that are neither events nor the generator's.
fn writes(found: &Found, shape: &WorkShape) -> f64 {
    of_each(shape, found.cost.count(|kind| !is_event(kind)) as f64) - 2.0
}

pub(super) fn is_event(kind: &str) -> bool {
    kind.ends_with(" events")
}

fn rate(found: &Found, shape: &WorkShape) -> f64 {
    shape.workloads() as f64 / found.played.seconds.max(1e-3)
}

fn row(limit: &str, who: &str, found: &Found, shape: &WorkShape) -> Vec<String> {
    let Found {
        played,
        cost,
        peaks,
    } = found;
    let cpu = |seconds: f64| short(of_each(shape, seconds * 1e3));
    let wait = |share| short(percentile(&played.waits, share) / 1e3);
    let events = of_each(shape, cost.count(is_event) as f64);
    let [apiserver, controller] = peaks.map(|peak| format!("{peak:.0}"));
    let is_there = cost.controller > 0.0;
    vec![
        limit.to_owned(),
        who.to_owned(),
        short(rate(found, shape)),
        cpu(cost.apiserver),
        if is_there {
            cpu(cost.controller)
        } else {
            "–".to_owned()
        },
        cpu(cost.etcd),
        format!("{:.2}", writes(found, shape)),
        format!("{events:.2}"),
        wait(0.5),
        wait(0.99),
        played.held_back.to_string(),
        if is_there {
            format!("{apiserver} + {controller}")
        } else {
            apiserver
        },
    ]
}

fn judged(
    limited: &str,
    limit: Option<u32>,
    shape: &WorkShape,
    (theirs, ours, bare): (&Found, &Found, Option<&Found>),
) -> Vec<Verdict> {
    let name = |what: &str| format!("client limit {limited}: {what}");
    let cpu = ours.cost.apiserver / theirs.cost.apiserver.max(1e-3);
    let own = rate(ours, shape);
    // What stands between a Job that waits and one that is released.
    let steps = |kind: &str| kind.ends_with(" gangplans") || kind == "PATCH jobs";
    let steps = of_each(shape, ours.cost.count(steps) as f64);
    let mut all = Vec::new();
    match limit {
        Some(BOUNDING) => {
            let most = bound(shape).min(f64::from(BOUNDING));
            let what = name("releases/s / its bound, a write for each");
            all.push(Verdict::at_least_times(&what, own / most, OF_BOUND));
        }
        _ => {
            let times = own / rate(theirs, shape);
            let what = name("releases/s, ours / Kueue");
            all.push(Verdict::at_least_times(&what, times, RATE));
        }
    }
    if let Some(bare) = bare {
        let what = name("releases/s, ours / a bare loop of the same writes");
        let part = own / rate(bare, shape);
        all.push(Verdict::at_least_times(&what, part, OF_LOOP));
    }
    let what = name("CPU of the API server for each, ours / Kueue");
    all.push(Verdict::at_most_times(&what, cpu, CPU));
    let what = name("writes of plans and releases");
    all.push(Verdict::at_most(&what, steps, WRITES, "for each"));
    all
}

impl Side<'_> {
    fn name(&self) -> String {
        match self {
            Side::Kueue(_) => format!("Kueue {}", Kueue::VERSION),
            Side::Ours => "**ours**".to_owned(),
            Side::Loop(_) => "a bare loop of the same writes".to_owned(),
        }
    }

    fn process(&self) -> Option<&'static str> {
        match self {
            Side::Kueue(_) => Some(Kueue::PROCESS),
            Side::Ours => Some(CONTROLLER),
            Side::Loop(_) => None,
        }
    }

    /// Runs all of the work on a control plane of its own.
    fn run(&self, stand: &Stand<'_>, shape: &WorkShape, limit: Option<u32>) -> Result<Found> {
        let mut world = World::start(stand.binaries, stand.sublet, false)?;
        let nodes = work::nodes(shape)?;
        let count = nodes.len();
        world.create("nodes", NODES, nodes.into_iter().map(Ok))?;
        // Only now: this controller takes the taint from new nodes.
        world.wait_untainted(count)?;
        world.cluster.stop(CONTROLLERS);
        work::post_all(&world, &work::settings(shape))?;
        match self {
            Side::Kueue(kueue) => {
                kueue.start(&world.cluster, limit)?;
                work::post_all(&world, &work::kueue_queues(shape))?;
                kueue.until_active(&world.cluster)?;
            }
            Side::Ours | Side::Loop(_) => {
                apply_ours(&world, stand)?;
                work::post_all(&world, &work::quotas(shape))?;
            }
        }
        if matches!(self, Side::Ours) {
            start_queue(&world, stand, limit)?;
        }
        let process = self.process();
        let before = Account::now(&world, process)?;
        let played = self.play(&mut world, shape);
        let log = || process.map_or_else(String::new, |name| world.cluster.log_tail(name));
        let played = played.with_context(log)?;
        let cost = Account::now(&world, process)?.since(&before);
        let peak = |name| memory_mib(world.cluster.pid(name)?, "VmHWM");
        let peaks = [peak(APISERVER)?, process.map_or(Ok(0.0), peak)?];
        Ok(Found {
            played,
            cost,
            peaks,
        })
    }

    fn play(&self, world: &mut World, shape: &WorkShape) -> Result<Played> {
        let own = match self {
            Side::Loop(beside) => {
                let client = world.executor.block_on(bare::controllers_client(world))?;
                Some((client, *beside))
            }
            Side::Kueue(_) | Side::Ours => None,
        };
        let World {
            executor,
            client,
            progress,
            ..
        } = world;
        let playing = work::play(client, shape, progress);
        let Some((own, beside)) = own else {
            return executor.block_on(playing);
        };
        let mut looping = executor.spawn(bare::follow(own, Rooms::new(shape), beside));
        executor.block_on(async {
            tokio::select! {
                played = playing => played,
                ended = &mut looping => {
                    ended??;
                    bail!("the loop has ended")
                }
            }
        })
    }
}

/// Applies the shipped manifests, those of the queue among them.
pub(super) fn apply_ours(world: &World, stand: &Stand<'_>) -> Result<()> {
    deployed::apply(&world.cluster, stand.repository)?;
    deployed::apply_queue(&world.cluster, stand.repository)
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
