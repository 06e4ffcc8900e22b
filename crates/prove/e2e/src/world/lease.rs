//! Clusters that tests use one after another, because bringing one up takes seconds.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard};

use anyhow::Result;
use sublet_testbed::deployed;

use super::{World, eventually};

/// The cluster that the tests of this process use one after another. Its guard is a process that
/// removes it when this process ends.
static SHARED: Mutex<Option<World>> = Mutex::new(None);

/// The same for those about the queue.
static QUEUEING: Mutex<Option<World>> = Mutex::new(None);

/// The names by which users of Koordinator and of scheduler-plugins ask for those schedulers.
const PEERS_SCHEDULERS: [&str; 2] = ["koord-scheduler", "scheduler-plugins-scheduler"];

/// Flags of extender and controller if jobs queue.
fn queue_flags() -> Vec<String> {
    let names = ["sublet-scheduler"].into_iter().chain(PEERS_SCHEDULERS);
    let names = names.map(|name| format!("--scheduler-name={name}"));
    [String::from("--queue")].into_iter().chain(names).collect()
}

/// A cluster without nodes and pods, for one test alone; see `World` for what it can do.
pub struct Lease(MutexGuard<'static, Option<World>>);

impl Deref for Lease {
    type Target = World;

    fn deref(&self) -> &World {
        self.0.as_ref().expect("a lease is made with its cluster")
    }
}

impl World {
    /// The cluster of this process, empty: the extender is restarted, and what an earlier test
    /// left is deleted. If this machine cannot run it, prints why and returns `None`.
    ///
    /// # Errors
    /// A component does not come up.
    pub fn lease() -> Result<Option<Lease>> {
        World::lease_of(&SHARED, World::start, World::empty)
    }

    /// The same with the queue: its extender, and its controller with the webhooks. They are not
    /// restarted. If there is helm, the kube-scheduler answers to the names of
    /// the peers' schedulers too.
    ///
    /// # Errors
    /// A component does not come up.
    pub fn lease_queueing() -> Result<Option<Lease>> {
        let flags = queue_flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let start = || {
            let world = World::start_of(Some(&PEERS_SCHEDULERS), &flags, |options| options)?;
            if let Some(world) = &world {
                world.start_controller(&flags)?;
            }
            Ok(world)
        };
        World::lease_of(&QUEUEING, start, World::empty_queue)
    }

    /// Starts the controller of such a cluster anew, with these flags beside its own; it may have been
    /// stopped.
    ///
    /// # Errors
    /// It does not come up.
    pub fn restart_queueing_controller(&self, more: &[&str]) -> Result<()> {
        self.cluster.stop(deployed::CONTROLLER);
        let flags = queue_flags();
        let flags = flags.iter().map(String::as_str);
        let flags: Vec<&str> = flags.chain(more.iter().copied()).collect();
        self.start_controller(&flags).map(drop)
    }

    fn lease_of(
        shared: &'static Mutex<Option<World>>,
        start: impl FnOnce() -> Result<Option<World>>,
        empty: impl FnOnce(&World) -> Result<()>,
    ) -> Result<Option<Lease>> {
        let mut world = match shared.lock() {
            Ok(world) => world,
            // A test failed while it held the cluster, so its state is unknown.
            Err(poisoned) => {
                shared.clear_poison();
                let mut world = poisoned.into_inner();
                *world = None;
                world
            }
        };
        match world.as_ref() {
            Some(world) => empty(world)?,
            None => *world = start()?,
        }
        Ok(world.is_some().then(|| Lease(world)))
    }

    /// Deletes all that tests make, and restarts the extender, which has learnt from their pods.
    fn empty(&self) -> Result<()> {
        const MADE: &str =
            "deployments,replicasets,poddisruptionbudgets,resourcequotas,pods,nodes,events";
        self.cluster.stop(deployed::EXTENDER);
        let delete = ["delete", MADE, "--all", "--all-namespaces", "--now"];
        self.cluster.kubectl(&delete)?;
        deployed::start_extender_on(&self.cluster, &self.sublet, self.port, &[])
    }

    /// Deletes all that tests of the queue make, but events: there are hundreds, and kubectl waits
    /// for each.
    fn empty_queue(&self) -> Result<()> {
        const MADE: &str = "deployments,replicasets,jobs,pods,nodes,poddisruptionbudgets,\
             podgroups.scheduling.x-k8s.io,podgroups.scheduling.sigs.k8s.io,\
             elasticquotas.scheduling.x-k8s.io";
        const QUOTAS: &str = "elasticquotas.scheduling.sigs.k8s.io";
        let delete = |kinds: &str| {
            let delete = ["delete", kinds, "--all", "--all-namespaces", "--now"];
            self.cluster.kubectl(&delete).map(drop)
        };
        let group = ["api-resources", "--api-group=kubeflow.org", "-o", "name"];
        let jobs = self.cluster.kubectl(&group)?;
        let jobs = jobs.split_whitespace().collect::<Vec<_>>().join(",");
        if !jobs.is_empty() {
            delete(&jobs)?;
        }
        delete(MADE)?;
        // A quota goes after its pods and its children.
        eventually(|| delete(QUOTAS))
    }
}
