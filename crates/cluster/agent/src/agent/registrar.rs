//! The part of the loop that learns which container was served after the answer was given: from the
//! runtime, if it is asked, otherwise from kubelet's checkpoint, if the answer was for one of several
//! equal pods. It says so on the pod, which then is in no other pod's way, and tells the isolation
//! which pod has the seat. An agent that starts anew does the same for its predecessor.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sublet_api::dialect;
use sublet_api::is_over;
use sublet_api::object::Pod;
use sublet_client::{Client, Write};
use sublet_model::{ContainerName, Entry, NodeFacts, Pauses};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tracing::{debug, info};

use crate::allocate::{Given, read_entry};
use crate::api_calls::{LOOK_EVERY, now_ns, send};
use crate::checkpoint::KubeletCheckpoint;
use crate::isolate::supervisor::IsolationWatch;
use crate::nri::Created;
use crate::pods::PodSource;

/// The pauses between two looks while something is open: kubelet writes its checkpoint within milliseconds,
/// and a pod may wait for a kubelet that is away.
const PAUSES: Pauses = Pauses::new(Duration::from_millis(50), LOOK_EVERY);

/// Learns which containers kubelet has served.
pub(super) struct Registrar {
    pub(super) client: Client,
    pub(super) pods: PodSource,
    /// Containers that the runtime has created, if the runtime is asked.
    pub(super) created: Option<Created>,
    /// The node's name and unit.
    pub(super) facts: NodeFacts,
    pub(super) given: Arc<Mutex<Given>>,
    pub(super) isolation: IsolationWatch,
    pub(super) checkpoint: PathBuf,
    pub(super) doubt: Arc<Notify>,
}

impl Registrar {
    /// Looks again and again.
    pub(super) async fn keep(&self) -> Infallible {
        let mut looks: u32 = 1;
        loop {
            let settled = self.look().await;
            tokio::select! {
                () = self.doubt.notified() => looks = 1,
                () = tokio::time::sleep(if settled { LOOK_EVERY } else { PAUSES.after(looks) }) => {
                    looks = looks.saturating_add(1);
                }
            }
        }
    }

    /// One look; true if the pod of every answer is known.
    async fn look(&self) -> bool {
        let pods = match self.pods.now().await {
            Ok(pods) => pods,
            Err(error) => {
                debug!(%error, "pods not listed, nothing is learnt");
                return false;
            }
        };
        if let Some(created) = &self.created {
            created.keep(|| self.pods.newest());
        }
        self.given().keep(&pods, pods.asked());
        let waiting = waiting(&pods, &self.facts);
        let (mut open, mut doubts) = (waiting.len(), 0);
        // They are long, and where the runtime is asked they only have news of an earlier agent's
        // answers.
        let isolation = self.isolation.borrow().on().cloned();
        let is_open = isolation.as_ref().is_some_and(|one| one.is_in_doubt());
        let checkpoint =
            (self.created.is_none() || is_open).then(|| KubeletCheckpoint::read(&self.checkpoint));
        let checkpoint = checkpoint.flatten();
        for (pod, entry) in &waiting {
            let done = self.done(entry, checkpoint.as_ref());
            let all = done.len() == entry.claim.containers().len();
            if done.len() > dialect::assigned_containers(pod).len() {
                let is_marked = self.mark(entry, &done).await;
                open -= usize::from(is_marked && all);
            }
        }
        if let (Some(checkpoint), Some(isolation)) = (checkpoint, isolation) {
            let look = spawn_blocking(move || isolation.recognise(&checkpoint));
            doubts = look.await.unwrap_or(0);
        }
        self.given().settle(open == 0, pods.asked());
        open == 0 && doubts == 0
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The containers of a pod that have their devices. Kubelet's checkpoint counts only for pods with
    /// one container, about which kubelet asks once: the other pods say themselves how far kubelet
    /// has got.
    fn done<'a>(
        &self,
        entry: &'a Entry,
        checkpoint: Option<&KubeletCheckpoint>,
    ) -> Vec<&'a ContainerName> {
        let names = entry.claim.containers().iter().map(|one| &one.name);
        let served = |name: &&ContainerName| match &self.created {
            Some(created) => created.has(&entry.uid, name),
            None => checkpoint.is_some_and(|checkpoint| {
                let sole = entry.claim.containers().len() == 1;
                sole && checkpoint.has_served(entry.uid.as_str(), name.as_str())
            }),
        };
        names.filter(served).collect()
    }

    /// Says on a pod that these of its containers have their devices.
    async fn mark(&self, entry: &Entry, done: &[&ContainerName]) -> bool {
        let names: Vec<String> = done.iter().map(ToString::to_string).collect();
        let annotations = dialect::assigned_annotations(&entry.claim, &names, now_ns());
        let pod = &entry.pod;
        let write = Write::pod_annotations(pod, &entry.uid, &annotations);
        match send(&self.client, &write).await {
            Ok(()) => {
                let mut given = self.given();
                for container in done {
                    given.note(&entry.uid, container, Instant::now());
                }
                info!(%pod, containers = ?names, "served");
                true
            }
            Err(error) => {
                debug!(%pod, %error, "not noted, will try again");
                false
            }
        }
    }
}

/// The pods that have cards and do not say that they were handed over.
fn waiting<'a>(pods: &'a [Pod], facts: &NodeFacts) -> Vec<(&'a Pod, Entry)> {
    let live = pods.iter().filter(|pod| !is_over(pod));
    let entries = live.filter_map(|pod| {
        let (entry, _problem) = read_entry(pod, facts).ok().flatten()?;
        Some((pod, entry))
    });
    entries.filter(|(_, entry)| !entry.assigned).collect()
}
