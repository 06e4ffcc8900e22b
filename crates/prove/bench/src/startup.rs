//! Figures c and d: restart to ready, and memory.
//!
//! Beside c stands its lower bound, a bare list of the same objects: no process that learns its
//! state from the API server can be faster.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sublet_testbed::deployed::EXTENDER;
use sublet_testbed::{Signal, http_get};

use crate::noop::Parse;
use crate::report::{Report, Verdict, short};
use crate::stats::median;
use crate::world::{Load, NODES, NOOP, PODS, World, memory_mib, page};

/// Number of times that c is measured.
const TRIES: usize = 5;

/// Seconds (issue 4).
const RESTART_TARGET: f64 = 5.0;

/// MiB (issue 4).
const MEMORY_TARGET: f64 = 150.0;

/// Objects in a page of the watch's list; the bare list uses the same page.
const PAGE: usize = 1_000;

/// Figure c.
pub(crate) fn restart(world: &mut World, load: Load, report: &mut Report) -> Result<()> {
    world.progress.say(&format!(
        "(c) killing and starting the extender {TRIES} times (full size: about 1 min)"
    ));
    let port = world.start_ours("admin")?;
    let mut ready = Vec::new();
    let mut bare = Vec::new();
    let mut bytes = 0;
    for _ in 0..TRIES {
        world.cluster.kill(EXTENDER, Signal::KILL)?;
        let started = Instant::now();
        world.cluster.start_again(EXTENDER)?;
        while !http_get(port, "/readyz").is_ok_and(|(status, _)| status == 200) {
            ensure!(
                started.elapsed() < Duration::from_secs(120),
                "not ready: {}",
                world.cluster.log_tail(EXTENDER)
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        ready.push(started.elapsed().as_secs_f64());
        let (seconds, read) = bare_list(world)?;
        bare.push(seconds);
        bytes = read;
    }
    world.cluster.stop(EXTENDER);
    report.say("## (c) Restart to ready");
    report.say(&format!(
        "{} nodes, {} bound pods. From SIGKILL's end to the first 200 of `/readyz`, {TRIES} times, \
         in seconds. The bound is one client that lists the same nodes and pods in pages of \
         {PAGE} and keeps nothing ({:.0} MB of JSON).",
        load.nodes,
        load.pods,
        bytes as f64 / 1e6
    ));
    let row = |label: &str, values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        vec![
            label.to_owned(),
            short(median(values)),
            short(sorted[0]),
            short(sorted[sorted.len() - 1]),
            format!("{:.2}", median(&ready) / median(values)),
        ]
    };
    report.table(&[
        ["", "median", "least", "most", "ours / this"]
            .map(str::to_owned)
            .to_vec(),
        row("**ours**", &ready),
        row("bare list (bound)", &bare),
    ]);
    report.verdicts(&[Verdict::at_most(
        "restart to ready",
        median(&ready),
        RESTART_TARGET,
        "s",
    )]);
    Ok(())
}

/// Lists nodes and pods; returns seconds and bytes.
fn bare_list(world: &World) -> Result<(f64, usize)> {
    let started = Instant::now();
    let mut bytes = 0;
    for path in [NODES, PODS] {
        let mut from = String::new();
        loop {
            let page = world
                .executor
                .block_on(page(&world.client, path, PAGE, &from))?;
            bytes += page.bytes;
            from = page.next;
            if from.is_empty() {
                break;
            }
        }
    }
    Ok((started.elapsed().as_secs_f64(), bytes))
}

/// Figure d.
pub(crate) fn memory(world: &mut World, load: Load, report: &mut Report) -> Result<()> {
    world
        .progress
        .say("(d) starting the extender on the fullest cluster (about 20 s)");
    world.start_ours("admin")?;
    world.start_noop(NOOP, "admin", 0, Parse::Borrowed)?;
    let ours = world.cluster.pid(EXTENDER)?;
    let noop = world.cluster.pid(NOOP)?;
    let at_ready = memory_mib(ours, "VmRSS")?;
    // The process frees the memory of the first lists within seconds, if it frees it at all.
    std::thread::sleep(Duration::from_secs(10));
    let settled = memory_mib(ours, "VmRSS")?;
    let most = memory_mib(ours, "VmHWM")?;
    let bound = memory_mib(noop, "VmRSS")?;
    world.cluster.stop(EXTENDER);
    world.cluster.stop(NOOP);
    report.say("## (d) Memory");
    report.say(&format!(
        "Resident memory after a start with {} nodes and {} GPU pods, in MiB. The no-op extender, \
         which keeps nothing, is the bound.",
        load.nodes, load.most_pods
    ));
    report.table(&[
        ["", "MiB", "ours / this"].map(str::to_owned).to_vec(),
        vec![
            "**ours**, 10 s after ready".to_owned(),
            short(settled),
            "1.00".to_owned(),
        ],
        vec![
            "ours, at ready".to_owned(),
            short(at_ready),
            format!("{:.2}", settled / at_ready),
        ],
        vec![
            "ours, the most it ever was".to_owned(),
            short(most),
            format!("{:.2}", settled / most),
        ],
        vec![
            "no-op extender (bound)".to_owned(),
            short(bound),
            format!("{:.2}", settled / bound),
        ],
    ]);
    report.verdicts(&[Verdict::at_most(
        "resident memory",
        settled,
        MEMORY_TARGET,
        "MiB",
    )]);
    Ok(())
}
