//! Takeover: how long nobody binds when the extender that binds is killed, or is ended.

use std::time::Duration;

use anyhow::{Context, Result};
use sublet_api::keys;
use sublet_e2e::{Blow, PodStream, World, yaml};

use crate::report::{Report, Verdict, short};
use crate::stats::{median, percentile};

/// Times that the leader is killed, and that it is ended.
const KILLS: usize = 20;
/// Nodes on paper, with cards for all pods that come meanwhile.
const NODES: u32 = 10;
/// Pods come at this pace, so that one waits whenever another leads.
const EVERY: Duration = Duration::from_millis(50);
/// The successor binds for a while.
const BETWEEN: Duration = Duration::from_secs(1);

const TARGET_KILLED: f64 = 6.0;
const TARGET_ENDED: f64 = 1.0;

/// Strikes the leader of three again and again.
///
/// # Errors
/// A component does not come up, or nobody binds any more.
pub(super) fn measure(quick: bool, report: &mut Report) -> Result<()> {
    let (world, pods) = World::start_replicated(3)?.context("there is no control plane")?;
    for number in 0..NODES {
        let name = format!("n{number}");
        let (yaml, inventory) = yaml::agent_node(&name, 4, 16_276)?;
        world.cluster.apply(&yaml)?;
        world.annotate_node_as_agent(&name, keys::INVENTORY, &inventory)?;
    }
    let kubeconfig = world.cluster.kubeconfig("admin")?;
    let waiting = PodStream::start(&kubeconfig, EVERY, yaml::small_pod_spec())?;
    let times = if quick { 2 } else { KILLS };
    let strike = |blow: Blow| -> Result<Vec<f64>> {
        let mut took = Vec::new();
        for number in 0..times {
            let struck = blow.strike(&world, &pods)?;
            let seconds = struck.until_another_binds(&world)?.as_secs_f64();
            eprintln!("bench: {blow:?} {}: {seconds:.2} s", number + 1);
            took.push(seconds);
            struck.mend(&world)?;
            std::thread::sleep(BETWEEN);
        }
        Ok(took)
    };
    let [killed, ended, with_pod] = [Blow::KillExtender, Blow::EndExtender, Blow::EndPod];
    let (killed, ended, with_pod) = (strike(killed)?, strike(ended)?, strike(with_pod)?);
    let made = waiting.stop()?;
    report.say("## Takeover");
    report.say(&format!(
        "Three pods of schedulers, and {} pods per second that ask for a part of a card. The extender \
         that binds is killed or ended, {times} times each; seconds until another one has bound a pod. \
         With its pod, the kube-scheduler that it answered ends too, if that one led. All {made} pods \
         were bound in the end.",
        1000 / EVERY.as_millis()
    ));
    let head = ["seconds", "p50", "p95", "most"];
    let row = |what: &str, took: &[f64]| {
        let figures = [median(took), percentile(took, 0.95), percentile(took, 1.0)];
        let cells = figures.map(short);
        [what.to_owned()].into_iter().chain(cells).collect()
    };
    report.table(&[
        head.map(str::to_owned).to_vec(),
        row("SIGKILL of the extender", &killed),
        row("SIGTERM of the extender", &ended),
        row("SIGTERM of its whole pod", &with_pod),
    ]);
    report.verdicts(&[
        Verdict::at_most(
            "killed, the longest",
            percentile(&killed, 1.0),
            TARGET_KILLED,
            "s",
        ),
        Verdict::at_most(
            "ended, the longest",
            percentile(&ended, 1.0),
            TARGET_ENDED,
            "s",
        ),
    ]);
    Ok(())
}
