//! The part of the loop that learns from kubelet's books whom it has served, where the answer was
//! for one of several equal pods. It says so on the pod, which then is in nobody's way, and tells
//! the isolation whose seat it is. An agent that starts anew does the same for its predecessor.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sublet_api::dialect;
use sublet_api::is_over;
use sublet_api::object::Pod;
use sublet_client::{Client, patch_pod_annotations};
use sublet_model::{Entry, NodeFacts};
use tokio::sync::{Mutex, Notify};
use tokio::task::spawn_blocking;
use tracing::{debug, info};

use super::LOOK_EVERY;
use crate::allocate::{Given, read_entry};
use crate::books::Books;
use crate::hand_over::{in_time, now_ns, pods_on};
use crate::isolate::node::Isolation;

/// The first pause between two looks while something is open: kubelet writes its books within
/// milliseconds. Each is twice the one before, for a pod may wait for a kubelet that is away.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// What learning whom kubelet has served needs.
pub(super) struct Registrar {
    pub(super) client: Client,
    /// The node's name and unit.
    pub(super) facts: NodeFacts,
    pub(super) given: Arc<Mutex<Given>>,
    pub(super) isolation: Option<Arc<Isolation>>,
    pub(super) books: PathBuf,
    pub(super) doubt: Arc<Notify>,
}

impl Registrar {
    /// Looks again and again.
    pub(super) async fn keep(&self) -> Infallible {
        let mut pause = FIRST_PAUSE;
        loop {
            let settled = self.look().await;
            tokio::select! {
                () = self.doubt.notified() => pause = FIRST_PAUSE,
                () = tokio::time::sleep(if settled { LOOK_EVERY } else { pause }) => {
                    pause = (pause * 2).min(LOOK_EVERY);
                }
            }
        }
    }

    /// One look; true if of every answer it is known for whom it was. Allocate takes turns with it.
    async fn look(&self) -> bool {
        let mut given = self.given.lock().await;
        let pods = match pods_on(&self.client, &self.facts.name).await {
            Ok(pods) => pods,
            Err(error) => {
                debug!(%error, "pods not listed, nothing is learnt");
                return false;
            }
        };
        let waiting = waiting(&pods, &self.facts);
        let (mut open, mut doubts) = (waiting.len(), 0);
        if let Some(books) = Books::read(&self.books) {
            for entry in waiting.iter().filter(|entry| is_served(entry, &books)) {
                open -= usize::from(self.mark(entry, &mut given).await);
            }
            if let Some(isolation) = self.isolation.clone() {
                let look = spawn_blocking(move || isolation.recognise(&books));
                doubts = look.await.unwrap_or(0);
            }
        }
        given.settle(open == 0);
        open == 0 && doubts == 0
    }

    /// Says on a pod that it has its devices.
    async fn mark(&self, entry: &Entry, given: &mut Given) -> bool {
        let containers = entry.claim.containers();
        let done: Vec<String> = containers.iter().map(|one| one.name.to_string()).collect();
        let annotations = dialect::assigned_annotations(&entry.claim, &done, now_ns());
        let pod = &entry.pod;
        match in_time(patch_pod_annotations(
            &self.client,
            pod,
            &entry.uid,
            &annotations,
        ))
        .await
        {
            Ok(()) => {
                for container in containers {
                    given.note(&entry.uid, &container.name);
                }
                info!(%pod, "served, as kubelet's books say");
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
fn waiting(pods: &[Pod], facts: &NodeFacts) -> Vec<Entry> {
    let live = pods.iter().filter(|pod| !is_over(pod));
    let entries = live.filter_map(|pod| read_entry(pod, facts).ok().flatten());
    let entries = entries.map(|(entry, _problem)| entry);
    entries.filter(|entry| !entry.assigned).collect()
}

/// Do the books say that all of a pod was handed over? Only of pods with one container, of which
/// kubelet asks once: the others say themselves how far it has got.
fn is_served(entry: &Entry, books: &Books) -> bool {
    match entry.claim.containers() {
        [one] => books.has_served(entry.uid.as_str(), one.name.as_str()),
        _ => false,
    }
}
