//! Blows against the leader of several extenders, and how long it takes until another binds.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sublet_testbed::deployed::SchedulerPod;
use sublet_testbed::{Signal, http_get};

use crate::world::{World, eventually};

/// Attack on the pod of the leading extender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// SIGKILL to all of its processes.
    KillPod,
    /// SIGKILL to its extender.
    KillExtender,
    /// SIGTERM to its extender.
    EndExtender,
    /// SIGTERM to all of its processes.
    EndPod,
    /// SIGSTOP to its extender. It may not write when it comes back to life.
    FreezeExtender,
}

/// A bound that only a broken product exceeds, on a busy machine.
const LONGEST: Duration = Duration::from_secs(60);

/// When kubelet kills a container that answers nothing: after three liveness probes, ten seconds
/// apart. Nothing else helps where the kube-scheduler that leads is in the same pod: it calls that
/// extender again and again, and waits 15 s each time.
const PROBED: Duration = Duration::from_secs(30);

/// A blow that was struck.
#[derive(Debug)]
pub struct Struck<'a> {
    blow: Blow,
    begun: Instant,
    pods: &'a [SchedulerPod],
    /// The pod that it hit.
    pub leader: &'a SchedulerPod,
    /// Number of pods that the others had bound before.
    before: u64,
}

impl Blow {
    /// Strikes the leader.
    ///
    /// # Errors
    /// No extender leads, or one does not tell its figures.
    pub fn strike<'a>(self, world: &World, pods: &'a [SchedulerPod]) -> Result<Struck<'a>> {
        let leader = eventually(|| leading(world, pods))?;
        let before = bound_by_others(pods, leader)?;
        let begun = Instant::now();
        let cluster = &world.cluster;
        let all = |signal| {
            for process in leader.processes() {
                // A kube-scheduler that lost its own Lease has ended.
                let _gone = cluster.kill(process, signal);
            }
            Ok(())
        };
        match self {
            Blow::KillPod => all(Signal::KILL),
            Blow::EndPod => all(Signal::TERM),
            Blow::KillExtender => cluster.kill(&leader.extender, Signal::KILL),
            Blow::EndExtender => cluster.kill(&leader.extender, Signal::TERM),
            Blow::FreezeExtender => cluster.kill(&leader.extender, Signal::STOP),
        }?;
        Ok(Struck {
            blow: self,
            begun,
            pods,
            leader,
            before,
        })
    }
}

impl Struck<'_> {
    /// Waits until another extender binds a pod; returns how long that took from the blow. Kills a
    /// frozen one when kubelet would.
    ///
    /// # Errors
    /// Nobody binds.
    pub fn until_another_binds(&self, world: &World) -> Result<Duration> {
        let mut is_frozen = self.blow == Blow::FreezeExtender;
        while bound_by_others(self.pods, self.leader)? == self.before {
            let waited = self.begun.elapsed();
            ensure!(waited < LONGEST, "nobody binds for {waited:.1?}");
            if is_frozen && waited > PROBED {
                world.cluster.kill(&self.leader.extender, Signal::KILL)?;
                is_frozen = false;
            }
            sleep(Duration::from_millis(10));
        }
        Ok(self.begun.elapsed())
    }

    /// Starts again what ended, as kubelet would, and waits until all extenders are ready.
    ///
    /// # Errors
    /// A process does not come back.
    pub fn mend(self, world: &World) -> Result<()> {
        let cluster = &world.cluster;
        match self.blow {
            Blow::FreezeExtender => {
                // It may have been killed.
                let _gone = cluster.kill(&self.leader.extender, Signal::CONT);
            }
            Blow::EndExtender => cluster.stop(&self.leader.extender),
            Blow::EndPod => {
                let processes = self.leader.processes();
                processes.iter().for_each(|process| cluster.stop(process));
            }
            Blow::KillPod | Blow::KillExtender => {}
        }
        for process in self.pods.iter().flat_map(SchedulerPod::processes) {
            // What runs is left alone.
            eventually(|| match cluster.pid(process) {
                Ok(_) => Ok(()),
                Err(_) => cluster.start_again(process),
            })?;
        }
        for pod in self.pods {
            pod.until_ready(cluster)?;
        }
        Ok(())
    }
}

/// The pod whose extender holds the Lease.
fn leading<'a>(world: &World, pods: &'a [SchedulerPod]) -> Result<&'a SchedulerPod> {
    let lease = world.get(&["lease", "sublet-extender", "-n", "sublet-system"])?;
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
    let pod = pods
        .iter()
        .find(|pod| holder.ends_with(&format!("@127.0.0.1:{}", pod.replicas)));
    pod.with_context(|| format!("`{holder}` holds the Lease"))
}

/// Number of pods that all extenders but this one have bound.
fn bound_by_others(pods: &[SchedulerPod], leader: &SchedulerPod) -> Result<u64> {
    let others = pods.iter().filter(|pod| pod.calls != leader.calls);
    others.map(n_bound).sum()
}

fn n_bound(pod: &SchedulerPod) -> Result<u64> {
    let (_, page) = http_get(pod.health, "/metrics")?;
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix("sublet_binds_total{outcome=\"bound\"} "));
    line.map_or(Ok(0), |count| Ok(count.parse()?))
}
