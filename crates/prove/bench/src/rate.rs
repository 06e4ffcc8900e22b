//! Figure b: pods per second through the stock scheduler, with and without an extender.
//!
//! The ways of scheduling take turns, so that a busy minute of the machine slows them all alike.
//! On a busy machine rates halve, but CPU time changes by a tenth; so CPU time stands beside them.

use std::collections::HashSet;
use std::path::Path;
use std::pin::pin;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{Config, Event, watcher};
use sublet_testbed::deployed::{self, EXTENDER, KUBE_SCHEDULER};
use sublet_testbed::{APISERVER, ETCD};

use crate::noop::Parse;
use crate::objects;
use crate::report::{Report, Verdict, short};
use crate::stats::median;
use crate::world::{NOOP, PODS, World};

/// If no pod is bound for so long, something is wrong.
const STALL: Duration = Duration::from_secs(60);

/// The processes whose CPU time is read; the extender must be the last.
const PROCESSES: [&str; 4] = ["API server", "etcd", "kube-scheduler", "extender"];

/// A way of scheduling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    None,
    NoopAll,
    NoopFew,
    Ours,
}

const WAYS: [Way; 4] = [Way::None, Way::NoopAll, Way::NoopFew, Way::Ours];

impl Way {
    fn label(self) -> &'static str {
        match self {
            Way::None => "no extender",
            Way::NoopAll => "no-op extender, all names back",
            Way::NoopFew => "no-op extender, 16 back",
            Way::Ours => "**ours**",
        }
    }

    /// The extender's process, if there is one.
    fn process(self) -> Option<&'static str> {
        match self {
            Way::None => None,
            Way::NoopAll | Way::NoopFew => Some(NOOP),
            Way::Ours => Some(EXTENDER),
        }
    }

    /// The least that our rate may be, as a multiple of this way's (issue 4).
    fn target(self) -> Option<f64> {
        match self {
            Way::None | Way::NoopFew => Some(0.95),
            Way::NoopAll => Some(1.25),
            Way::Ours => None,
        }
    }
}

/// The result of one round.
#[derive(Debug, Clone, Default)]
struct Found {
    pods_per_second: f64,
    /// CPU milliseconds for each pod, in the order of [`PROCESSES`].
    cpu_ms: [f64; PROCESSES.len()],
}

impl Found {
    /// CPU milliseconds for each pod, all processes together.
    fn cpu_ms(&self) -> f64 {
        self.cpu_ms.iter().sum()
    }

    /// Number of cores that the processes kept busy.
    fn cores(&self) -> f64 {
        self.pods_per_second * self.cpu_ms() / 1000.0
    }
}

/// Applies the shipped accounts, rights and policies.
pub(crate) fn prepare(world: &World, repository: &Path) -> Result<()> {
    deployed::apply(&world.cluster, repository)
}

/// Time for which an extender has been running before the scheduler starts.
pub(crate) const SETTLED: Duration = Duration::from_secs(4);

/// Describes the measurement of the rates, as text for the report.
pub(crate) fn method(rounds: usize) -> String {
    format!(
        "KWOK plays the nodes. Pods are made first, then the extender, and four seconds later the scheduler starts; the rate is from \
         the first bound pod to the last. The kube-scheduler runs the shipped configuration \
         (without its `extenders` for \"no extender\", the rest is the same), but with a client \
         limit of 5,000 requests a second and no leader election. All extenders bind. Medians of \
         {rounds} interleaved round(s), in brackets the least and the most; CPU time in \
         milliseconds a pod between the first bound pod and the last. All processes share this \
         machine: where the last column comes near the number of its cores, a rate is what the \
         CPU time of a pod allows, and two ways differ in their rates as in that."
    )
}

/// Measures and prints the rates on a cluster of one size.
pub(crate) fn measure(
    world: &mut World,
    repository: &Path,
    nodes: usize,
    pods: usize,
    rounds: usize,
    report: &mut Report,
) -> Result<()> {
    world.progress.say(&format!(
        "(b) {nodes} nodes: {rounds} × 4 rounds of {pods} pods (full size: about 30 s each)"
    ));
    let mut found = vec![Vec::new(); WAYS.len()];
    for number in 0..rounds {
        for turn in 0..WAYS.len() {
            // Each round starts with another way, so that no way always comes first after a pause.
            let at = (turn + number) % WAYS.len();
            let batch = format!("{nodes}-{number}-{turn}");
            let result = round(world, repository, WAYS[at], pods, &batch)
                .with_context(|| format!("{}, {nodes} nodes", WAYS[at].label()))?;
            world.progress.say(&format!(
                "round {} of {rounds}, {}: {:.0} pods/s",
                number + 1,
                WAYS[at].label(),
                result.pods_per_second
            ));
            found[at].push(result);
        }
    }
    print(nodes, pods, &found, report);
    Ok(())
}

fn print(nodes: usize, pods: usize, found: &[Vec<Found>], report: &mut Report) {
    report.say(&format!("### {nodes} nodes, {pods} pods a round"));
    let rates: Vec<Vec<f64>> = found
        .iter()
        .map(|rounds| rounds.iter().map(|found| found.pods_per_second).collect())
        .collect();
    let ours = median(&rates[WAYS.len() - 1]);
    let mut head = vec![
        "way".to_owned(),
        "pods/s".to_owned(),
        "ours / this".to_owned(),
    ];
    head.extend(PROCESSES.map(|name| format!("{name}, CPU ms")));
    head.extend(["all, CPU ms", "cores in use"].map(str::to_owned));
    let mut rows = vec![head];
    let mut verdicts = Vec::new();
    for ((way, rates), found) in WAYS.iter().zip(&rates).zip(found) {
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rates.iter().copied().fold(0.0, f64::max);
        let times = ours / median(rates);
        let mut row = vec![
            way.label().to_owned(),
            format!(
                "{} ({}–{})",
                short(median(rates)),
                short(least),
                short(most)
            ),
            format!("{times:.2}"),
        ];
        for at in 0..PROCESSES.len() {
            let values: Vec<f64> = found.iter().map(|found| found.cpu_ms[at]).collect();
            let none = way.process().is_none() && at + 1 == PROCESSES.len();
            row.push(if none {
                "–".to_owned()
            } else {
                short(median(&values))
            });
        }
        let all: Vec<f64> = found.iter().map(Found::cpu_ms).collect();
        let cores: Vec<f64> = found.iter().map(Found::cores).collect();
        row.extend([short(median(&all)), short(median(&cores))]);
        rows.push(row);
        if let Some(target) = way.target() {
            let what = format!("{nodes} nodes, ours / {}", way.label());
            verdicts.push(Verdict::at_least_times(&what, times, target));
        }
    }
    report.table(&rows);
    report.verdicts(&verdicts);
}

fn round(
    world: &mut World,
    repository: &Path,
    way: Way,
    pods: usize,
    batch: &str,
) -> Result<Found> {
    world.create(
        "pods",
        PODS,
        (0..pods).map(|number| Ok(objects::waiting_pod(batch, number))),
    )?;
    let user = deployed::account("sublet-scheduler").name;
    let port = match way {
        Way::None => None,
        Way::NoopAll => Some(world.start_noop(NOOP, &user, 0, Parse::Borrowed)?),
        Way::NoopFew => Some(world.start_noop(NOOP, &user, 16, Parse::Borrowed)?),
        Way::Ours => Some(world.start_ours(&user)?),
    };
    // Ours binds nothing in its first three seconds. It would then bind all the waiting pods at
    // once, at a rate that no cluster has. The other extenders get the same pause.
    std::thread::sleep(SETTLED);
    let kubeconfig = world
        .cluster
        .kubeconfig(&deployed::account("sublet-kube-scheduler").name)?;
    let config = configuration(repository, &kubeconfig, port)?;
    let flags = deployed::scheduler_flags(repository)?;
    let result = std::thread::scope(|scope| {
        let (watching, ready) = mpsc::channel();
        let world = &*world;
        let watch = scope.spawn(move || {
            let cpu = || cpu(world, way.process());
            world.executor.block_on(follow(world, pods, watching, &cpu))
        });
        // An error means that the watch failed. Its thread reports that below.
        if ready.recv().is_ok() {
            world
                .cluster
                .start_scheduler(KUBE_SCHEDULER, &kubeconfig, &config, &flags)?;
        }
        watch
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    world.cluster.stop(KUBE_SCHEDULER);
    if let Some(process) = way.process() {
        world.cluster.stop(process);
    }
    let (seconds, before, after) = result?;
    world.delete_pods()?;
    let counted = pods.saturating_sub(1) as f64;
    let mut found = Found {
        pods_per_second: counted / seconds,
        ..Found::default()
    };
    for (at, cpu_ms) in found.cpu_ms.iter_mut().enumerate() {
        *cpu_ms = (after[at] - before[at]) * 1e3 / counted;
    }
    Ok(found)
}

/// The shipped configuration, without the limits that would hide the difference.
pub(crate) fn configuration(
    repository: &Path,
    kubeconfig: &Path,
    port: Option<u16>,
) -> Result<String> {
    let mut config = deployed::scheduler_config(repository, kubeconfig, port.unwrap_or(1))?;
    for (from, to) in [
        ("qps: 500\n", "qps: 5000\n"),
        ("burst: 1000\n", "burst: 10000\n"),
        ("leaderElect: true\n", "leaderElect: false\n"),
    ] {
        ensure!(
            config.contains(from),
            "the shipped configuration has no `{from}`"
        );
        config = config.replace(from, to);
    }
    if port.is_none() {
        let (before, _) = config
            .split_once("\nextenders:")
            .context("the shipped configuration has no extenders")?;
        config = format!("{before}\n");
    }
    Ok(config)
}

/// Follows pods until all are bound; tells `watching` when the watch has begun. Returns the seconds
/// from the first bound pod to the last, and what `count` said at both.
pub(crate) async fn follow<T>(
    world: &World,
    pods: usize,
    watching: mpsc::Sender<()>,
    count: &impl Fn() -> Result<T>,
) -> Result<(f64, T, T)> {
    let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(world.client.clone(), "default");
    let mut events = pin!(watcher(api, Config::default().fields("spec.nodeName!=")));
    let mut bound = HashSet::new();
    let mut first = None;
    while bound.len() < pods {
        let event = tokio::time::timeout(STALL, events.next()).await;
        let event = event.ok().flatten().with_context(|| {
            let log = world.cluster.log_tail(KUBE_SCHEDULER);
            format!(
                "{} of {pods} pods are bound, and no more come: {log}",
                bound.len()
            )
        })?;
        match event.context("the watch broke")? {
            Event::InitDone => {
                // The receiver waits for the first of these only.
                let _ = watching.send(());
            }
            Event::Apply(pod) | Event::InitApply(pod) => {
                bound.insert(pod.metadata.name.unwrap_or_default());
                if first.is_none() {
                    first = Some((Instant::now(), count()?));
                }
            }
            Event::Init | Event::Delete(_) => {}
        }
    }
    let (started, before) = first.context("no pod was bound")?;
    Ok((started.elapsed().as_secs_f64(), before, count()?))
}

fn cpu(world: &World, extender: Option<&str>) -> Result<[f64; PROCESSES.len()]> {
    let seconds = |name| world.cluster.cpu_seconds(name);
    Ok([
        seconds(APISERVER)?,
        seconds(ETCD)?,
        seconds(KUBE_SCHEDULER)?,
        extender.map_or(Ok(0.0), seconds)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_configuration_is_changed_in_known_places_only() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let with = configuration(&repository, Path::new("/k"), Some(1234)).unwrap();
        assert!(with.contains("urlPrefix: http://127.0.0.1:1234/sublet"));
        assert!(with.contains("qps: 5000\n") && with.contains("leaderElect: false\n"));
        let without = configuration(&repository, Path::new("/k"), None).unwrap();
        assert!(with.starts_with(&without), "{without}");
        assert!(!without.contains("urlPrefix"));
    }
}
