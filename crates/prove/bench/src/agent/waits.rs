//! Times that the runtime waits when it asks the agent about a container: read on the socket
//! between them.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::{Context, Result};
use sublet_e2e::{AGENT, GpuNode};

use super::asked;
use super::pods::{PODS, Way, delete_all, run_alone, started};
use crate::report::{Report, Verdict, short};
use crate::stats::{ms, percentile};

const TARGET_MS: f64 = 2.0;

/// Measures containers that start alone and together, with their parts and without.
///
/// # Errors
/// The agent or a pod does not come up.
pub(super) fn measure(node: &GpuNode, quick: bool, report: &mut Report) -> Result<()> {
    let waits = asked::between(&node.nri_socket())?;
    node.world.cluster.stop(AGENT);
    node.start_agent(&["--identity", "nri", "--isolation", "on"])?;
    node.until_identity("nri")?;
    let executor = tokio::runtime::Runtime::new().context("start threads")?;
    let (count, rounds) = if quick { (10, 1) } else { (100, 5) };
    let together = |way: Way| -> Result<Vec<f64>> {
        for _ in 0..rounds {
            let pods = executor.block_on(started(node, way))?;
            executor.block_on(delete_all(&pods))?;
        }
        Ok(so_far(&waits))
    };
    let _before = so_far(&waits);
    // In turns, so that both meet the same machine.
    let (mut alone, mut alone_without) = (Vec::new(), Vec::new());
    for number in 0..count {
        executor.block_on(run_alone(node, Way::Nri, number))?;
        alone.extend(so_far(&waits));
        executor.block_on(run_alone(node, Way::NoGpu, number))?;
        alone_without.extend(so_far(&waits));
    }
    let (with, without) = (together(Way::Nri)?, together(Way::NoGpu)?);
    report.say("## What the runtime waits for");
    report.say(&format!(
        "Milliseconds from containerd's call to the agent's answer, for each container: read on the \
         socket between them, with a program that passes on what both say. Isolation is on. Containers \
         that ask for no GPU are answered at once: they wait for a thread to wake, and for a core of this \
         machine when {PODS} start together. Alone, both kinds start in turns."
    ));
    let head = ["containers", "number", "p50", "p99", "most"];
    let row = |what: &str, waits: &[f64]| {
        let figures = [0.5, 0.99, 1.0].map(|share| short(percentile(waits, share)));
        let cells = [what.to_owned(), waits.len().to_string()];
        cells.into_iter().chain(figures).collect()
    };
    report.table(&[
        head.map(str::to_owned).to_vec(),
        row("a part of a card, one after the other", &alone),
        row("no GPU, one after the other (bound)", &alone_without),
        row("a part of a card, at once", &with),
        row("no GPU, at once (bound)", &without),
    ]);
    let p99 = |waits: &[f64]| percentile(waits, 0.99);
    let added = p99(&with) - p99(&without);
    let added_alone = p99(&alone) - p99(&alone_without);
    report.verdicts(&[
        Verdict::at_most("one after the other, p99", p99(&alone), TARGET_MS, "ms"),
        Verdict::at_most(
            "one after the other, p99 beyond no GPU's",
            added_alone,
            TARGET_MS,
            "ms",
        ),
        Verdict::at_most("at once, p99 beyond no GPU's", added, TARGET_MS, "ms"),
    ]);
    Ok(())
}

/// Waits that have come since the last call, in milliseconds.
fn so_far(waits: &Receiver<Duration>) -> Vec<f64> {
    waits.try_iter().map(ms).collect()
}
