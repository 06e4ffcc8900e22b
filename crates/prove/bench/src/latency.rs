//! Figure a: how long filter and prioritize take over loopback HTTP, with all names sent.
//!
//! Ours stands beside extenders on the same HTTP stack that decide nothing: the difference
//! between their figures and ours is the cost of our decision. The calls are like a
//! kube-scheduler's: one at a time, a new pod each, names and a whole pod in the body, and the
//! names that filter returned go to prioritize.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Deserialize;
use sublet_client::Client;
use sublet_testbed::deployed::EXTENDER;
use sublet_testbed::{FORMS, PodForm};

use crate::caller::Caller;
use crate::noop::Parse;
use crate::objects::{SIZES_MIB, call_body, call_pod, node_name, part};
use crate::report::{Report, Verdict, short};
use crate::stats::{ms, percentile};
use crate::world::{Load, NOOP, PODS, World};

/// Calls of one extender before the next one's turn: short turns, so that a busy second of the
/// machine slows all extenders alike.
const TURN: usize = 100;

/// Changes of pods per second that run beside the calls. Each sets an annotation of a bound pod.
const EVENTS_PER_SECOND: u64 = 200;

/// More memory than any card has, in MiB.
const TOO_MUCH_MIB: u64 = 90_000;

/// The most that filter and prioritize may take, as a multiple of an extender that decides nothing
/// and gives 16 names back (issue 17). Absolute times differ too much between machines.
const RATIO_TARGET: f64 = 1.5;

/// The percentiles shown, and targets of filter and prioritize together, in milliseconds (issue 4).
const TARGETS: [(&str, f64, f64); 3] = [
    ("p50", 0.5, 1.0),
    ("p99", 0.99, 5.0),
    ("p99.9", 0.999, 15.0),
];

/// An extender.
pub(crate) struct Peer {
    pub(crate) label: &'static str,
    pub(crate) process: String,
    pub(crate) port: u16,
}

/// Calls of an extender.
pub(crate) struct Calls<'a> {
    /// All nodes, a JSON list.
    pub(crate) names: &'a str,
    /// Requests of the pods, in turn.
    pub(crate) asked: &'a [PodForm],
    /// The UIDs of pods that wait in the API server, in the order of the calls. A call beyond their
    /// number gets a new pod that only the call knows, never the watch.
    pub(crate) uids: &'a [String],
    /// Number of calls of each extender.
    pub(crate) count: usize,
    /// The time from one call to the next; zero means as fast as possible.
    pub(crate) pace: Duration,
}

/// Times of one extender's calls, in milliseconds.
#[derive(Default)]
pub(crate) struct Times {
    filter: Vec<f64>,
    prioritize: Vec<f64>,
    both: Vec<f64>,
    /// CPU seconds of the extender's process.
    cpu: f64,
}

/// Measures and prints the figure.
pub(crate) fn measure(
    world: &mut World,
    load: Load,
    calls: usize,
    report: &mut Report,
) -> Result<()> {
    let peers = start(world)?;
    let names: Vec<String> = (0..load.nodes).map(node_name).collect();
    let names = serde_json::to_string(&names)?;
    let pod_bytes = call_pod("u", &part(1).into()).len();
    // Five sizes in six forms, each with each.
    let every_form = (0..FORMS * SIZES_MIB.len())
        .map(|number| PodForm::part(number, SIZES_MIB[number % SIZES_MIB.len()]));
    let every_form: Vec<PodForm> = every_form.collect();
    let every = Calls {
        names: &names,
        asked: &every_form,
        uids: &[],
        count: calls,
        pace: Duration::ZERO,
    };
    report.say("## (a) Filter and prioritize");
    report.say(&format!(
        "{} nodes × 8 cards, {} bound pods. {calls} pairs of calls for each extender, in turns of \
         {TURN}, one at a time over a kept connection; each call has a pod of {} KB that asks for \
         one of {} sizes in the form of one of {FORMS} systems, as the bound pods did, and filter has all names ({} KB). Milliseconds; `both` is filter plus \
         prioritize of the same pod, and its CPU time is the mean of the extender's process, which \
         a busy machine changes least. The no-op extenders use the same HTTP stack: what they \
         take is HTTP, JSON and the client that measures.",
        load.nodes,
        load.pods,
        pod_bytes / 1000,
        SIZES_MIB.len(),
        names.len() / 1000
    ));
    for (title, events) in [
        ("Nothing else runs", false),
        ("Pods change meanwhile", true),
    ] {
        world.progress.say(&format!(
            "(a) {title}: {calls} calls of {} extenders (full size: about 90 s)",
            peers.len()
        ));
        let beat = events.then(|| Beat::start(world, load.pods));
        let times = in_turns(world, &peers, &every)?;
        let rate = beat.map(Beat::stop);
        let title = match rate {
            None => title.to_owned(),
            Some(rate) => format!("{title}: {rate:.0} watch events a second"),
        };
        report.say(&format!("### {title}"));
        report.table(&table(&peers, &times));
        ratios(&times, report);
    }
    let too_much = Calls {
        asked: &[part(TOO_MUCH_MIB).into()],
        count: calls / 5,
        ..every
    };
    refused(world, &peers[..1], &too_much, report)?;
    for peer in &peers {
        world.cluster.stop(&peer.process);
    }
    Ok(())
}

fn start(world: &World) -> Result<Vec<Peer>> {
    let mut peers = vec![Peer {
        label: "**ours**",
        process: EXTENDER.to_owned(),
        port: world.start_ours("admin")?,
    }];
    let noops = [
        ("no-op, 16 back", 16, Parse::Borrowed),
        ("no-op, all back", 0, Parse::Borrowed),
        ("no-op, 16 back, parsed the obvious way", 16, Parse::Tree),
    ];
    for (number, (label, few, parse)) in noops.into_iter().enumerate() {
        let process = format!("{NOOP}-{number}");
        let port = world.start_noop(&process, "admin", few, parse)?;
        peers.push(Peer {
            label,
            process,
            port,
        });
    }
    Ok(peers)
}

/// Gives each extender all the calls, in turns.
pub(crate) fn in_turns(world: &mut World, peers: &[Peer], calls: &Calls<'_>) -> Result<Vec<Times>> {
    let mut times: Vec<Times> = peers.iter().map(|_| Times::default()).collect();
    let mut callers = Vec::new();
    for peer in peers {
        let mut caller = Caller::connect(peer.port)?;
        // A warm-up: the first calls meet cold caches and new threads.
        let warm = calls.count..calls.count + TURN;
        turn(&mut caller, calls, warm, &mut Times::default()).with_context(|| {
            format!("{}\n{}", peer.label, world.cluster.log_tail(&peer.process))
        })?;
        callers.push(caller);
    }
    world.progress.restart();
    let mut done = 0;
    while done < calls.count {
        let end = (done + TURN).min(calls.count);
        for ((peer, caller), times) in peers.iter().zip(&mut callers).zip(&mut times) {
            // The kernel counts in steps of 10 ms: too coarse for one turn, good enough over many.
            let before = world.cluster.cpu_seconds(&peer.process)?;
            turn(caller, calls, done..end, times)?;
            times.cpu += world.cluster.cpu_seconds(&peer.process)? - before;
        }
        done = end;
        world
            .progress
            .tick(|| format!("calling: {done} of {} for each", calls.count));
    }
    Ok(times)
}

fn turn(
    caller: &mut Caller,
    calls: &Calls<'_>,
    numbers: std::ops::Range<usize>,
    times: &mut Times,
) -> Result<()> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Passed<'a> {
        #[serde(borrow)]
        node_names: Vec<&'a str>,
    }
    let mut next = Instant::now();
    for number in numbers {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        next += calls.pace;
        // A new pod each time: for a pod that asks again, filter returns all nodes.
        let fresh = || format!("{number:08x}-0000-4000-8000-{:012x}", fresh());
        let uid = calls.uids.get(number).cloned().unwrap_or_else(fresh);
        let pod = call_pod(&uid, &calls.asked[number % calls.asked.len()]);
        let (filter, answer) = caller.post("/sublet/filter", &call_body(&pod, calls.names))?;
        let passed: Passed<'_> = serde_json::from_slice(answer)?;
        let mut prioritize = Duration::ZERO;
        // A kube-scheduler does not call prioritize where at most one node is left.
        if passed.node_names.len() > 1 {
            let body = call_body(&pod, &serde_json::to_string(&passed.node_names)?);
            prioritize = caller.post("/sublet/prioritize", &body)?.0;
        }
        times.filter.push(ms(filter));
        times.prioritize.push(ms(prioritize));
        times.both.push(ms(filter + prioritize));
    }
    Ok(())
}

/// A number that no call has used before.
fn fresh() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A row of percentiles for each extender; the first is ours.
pub(crate) fn table(peers: &[Peer], times: &[Times]) -> Vec<Vec<String>> {
    let mut head = vec!["extender".to_owned()];
    for verb in ["filter", "prioritize", "both"] {
        head.extend(TARGETS.map(|(name, _, _)| format!("{verb} {name}")));
    }
    head.push("CPU of both".to_owned());
    head.push("ours / this, both p50".to_owned());
    let ours = percentile(&times[0].both, 0.5);
    let mut rows = vec![head];
    for (peer, times) in peers.iter().zip(times) {
        let mut row = vec![peer.label.to_owned()];
        for values in [&times.filter, &times.prioritize, &times.both] {
            row.extend(TARGETS.map(|(_, share, _)| short(percentile(values, share))));
        }
        row.push(short(times.cpu * 1e3 / times.both.len() as f64));
        row.push(format!("{:.2}", ours / percentile(&times.both, 0.5)));
        rows.push(row);
    }
    rows
}

/// Whether ours meets the targets.
pub(crate) fn verdicts(ours: &Times, report: &mut Report) {
    let verdicts = TARGETS.map(|(name, share, target)| {
        let value = percentile(&ours.both, share);
        Verdict::at_most(&format!("both, {name}"), value, target, "ms")
    });
    report.verdicts(&verdicts);
}

/// Whether ours takes little more than the second extender, which decides nothing.
fn ratios(times: &[Times], report: &mut Report) {
    let verdicts = TARGETS[..2].iter().map(|&(name, share, _)| {
        let ours = percentile(&times[0].both, share);
        let ratio = ours / percentile(&times[1].both, share);
        Verdict::at_most_times(&format!("both, {name}, ours / no-op"), ratio, RATIO_TARGET)
    });
    report.verdicts(&verdicts.collect::<Vec<_>>());
}

/// A pod that fits nowhere costs more: a reason for every node goes back.
fn refused(world: &mut World, ours: &[Peer], calls: &Calls<'_>, report: &mut Report) -> Result<()> {
    let times = in_turns(world, ours, calls)?;
    let [p50, p99, worst] = TARGETS.map(|(_, share, _)| short(percentile(&times[0].filter, share)));
    report.say(&format!(
        "A pod that fits on no node, so that a reason for each goes back (no target): \
         p50 {p50}, p99 {p99}, p99.9 {worst} ms, {} calls, nothing else running.",
        calls.count
    ));
    Ok(())
}

/// A task that changes pods at a steady rate.
struct Beat {
    stop: Arc<AtomicBool>,
    started: Instant,
    done: Arc<AtomicUsize>,
}

impl Beat {
    fn start(world: &World, pods: usize) -> Beat {
        let beat = Beat {
            stop: Arc::default(),
            started: Instant::now(),
            done: Arc::default(),
        };
        let (stop, done, client) = (beat.stop.clone(), beat.done.clone(), world.client.clone());
        world.executor.spawn(async move {
            let pause = Duration::from_micros(1_000_000 / EVENTS_PER_SECOND);
            let mut ticks = tokio::time::interval(pause);
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                ticks.tick().await;
                number += 1;
                let (client, done) = (client.clone(), done.clone());
                // A large prime step: pods that change in succession are far apart in the ledger.
                let pod = number * 7919 % pods;
                tokio::spawn(async move {
                    if change(&client, pod, number).await.is_ok() {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        beat
    }

    /// Ends the task; returns how many changes it made per second.
    fn stop(self) -> f64 {
        self.stop.store(true, Ordering::Relaxed);
        self.done.load(Ordering::Relaxed) as f64 / self.started.elapsed().as_secs_f64()
    }
}

async fn change(client: &Client, pod: usize, number: usize) -> Result<()> {
    let patch =
        format!(r#"{{"metadata":{{"annotations":{{"example.internal/beat":"{number}"}}}}}}"#);
    let request = http::Request::patch(format!("{PODS}/pod-{pod:06}"))
        .header("content-type", "application/merge-patch+json")
        .body(patch.into_bytes())?;
    client.request_text(request).await?;
    Ok(())
}
