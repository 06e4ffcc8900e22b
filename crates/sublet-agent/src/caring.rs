//! Carries out what `care` decides: has devices prepared before their first container and cleaned
//! after their last, and says which cannot be cleaned: to the kinds, which offer them as unhealthy,
//! and on the node as an event.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use sublet_api::is_over;
use sublet_api::object::Pod;
use sublet_client::{Client, EventText, post_node_event};
use sublet_model::{NodeName, PodUid};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Duration, Instant, sleep};
use tonic::Status;
use tracing::{debug, info, warn};

use crate::books::Books;
use crate::care::{Care, CareNews, DeviceName, Held};
use crate::hand_over::{in_time, now_ns};
use crate::kind::DeviceKind;
use crate::pods::PodSource;

/// How long kubelet waits for a device that is not clean: what it does not get fails the pod for good,
/// and what is left of a pod that was deleted by force ends within a second or two.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// How often it is tried meanwhile.
const TRY_EVERY: Duration = Duration::from_millis(200);

/// The devices of one node, and who had them.
pub(crate) struct Caring {
    client: Client,
    node: NodeName,
    pods: PodSource,
    /// Kubelet's books.
    books: PathBuf,
    kinds: Vec<Arc<dyn DeviceKind>>,
    care: Mutex<Care>,
    begun: Instant,
}

impl Caring {
    pub(crate) fn new(
        (client, node): (Client, NodeName),
        pods: PodSource,
        books: PathBuf,
        kinds: Vec<Arc<dyn DeviceKind>>,
    ) -> Caring {
        Caring {
            client,
            node,
            pods,
            books,
            kinds,
            care: Mutex::default(),
            begun: Instant::now(),
        }
    }

    pub(crate) fn kinds(&self) -> &[Arc<dyn DeviceKind>] {
        &self.kinds
    }

    /// Makes devices ready for a container that is about to get them. `who`: the pods whose container
    /// it may be, none where that is not known. `pods`: those of the node, if the caller has listed them
    /// in its turn. `patience`: how long it waits for a device that is not clean.
    ///
    /// # Errors
    /// One of them is not clean, or cannot be prepared; the status says which and why.
    pub(crate) async fn ready(
        &self,
        devices: &[DeviceName],
        who: &[PodUid],
        pods: Option<&Arc<Vec<Pod>>>,
        patience: Duration,
    ) -> Result<(), Status> {
        let begun = Instant::now();
        loop {
            let mut care = self.care.lock().await;
            // Under the lock: who has got a device before is among them.
            if let Some(pods) = self.now(pods).await {
                // For whom it is is known of cards. Kubelet's books are long, and the runtime waits. Of
                // other devices only they say it; kubelet asks about one container after the other, and
                // writes them in between.
                let by_books = who.is_empty();
                let books = by_books.then(|| Books::read(&self.books)).flatten();
                self.see(
                    &mut care,
                    &pods,
                    books.as_ref(),
                    by_books && books.is_some(),
                );
                self.clean(&mut care).await;
            }
            let begins = self.begin(&mut care, devices, who).await;
            if begins.is_ok() || begun.elapsed() > patience {
                return begins;
            }
            drop(care);
            sleep(TRY_EVERY).await;
        }
    }

    async fn begin(
        &self,
        care: &mut Care,
        devices: &[DeviceName],
        who: &[PodUid],
    ) -> Result<(), Status> {
        for device in devices {
            let refused = |why: String| {
                Status::failed_precondition(format!("{device} is not ready for another pod: {why}"))
            };
            let is_first = care.begin(device, who, self.now_ms()).map_err(refused)?;
            if is_first
                && let Some(kind) = self.kind_of(device)
                && let Err(why) = kind.prepare(device).await
            {
                care.withdraw(device);
                return Err(refused(why));
            }
        }
        Ok(())
    }

    /// Looks who is gone, and cleans what nobody has any more. Says when it is to look again, if
    /// nobody comes or goes.
    pub(crate) async fn look(&self, pods: &Arc<Vec<Pod>>) -> Option<Duration> {
        // They are long, and a container that is about to start waits for the lock.
        let books = Books::read(&self.books);
        let mut care = self.care.lock().await;
        let newest = self.pods.newest();
        let pods = newest.as_ref().unwrap_or(pods);
        self.see(&mut care, pods, books.as_ref(), false);
        self.clean(&mut care).await;
        let next = care.next_ms()?;
        Some(Duration::from_millis(next.saturating_sub(self.now_ms())))
    }

    /// The pods of the node: the newest, else those that the caller has, else a new list.
    async fn now(&self, pods: Option<&Arc<Vec<Pod>>>) -> Option<Arc<Vec<Pod>>> {
        if let Some(pods) = self.pods.newest().or_else(|| pods.cloned()) {
            return Some(pods);
        }
        let unknown = |error| debug!(%error, "pods not listed, nothing is cleaned");
        let listed = self.pods.now().await.map_err(unknown).ok();
        listed.map(Arc::new)
    }

    fn see(&self, care: &mut Care, pods: &[Pod], books: Option<&Books>, all: bool) {
        let there = pods.iter().filter(|pod| !is_over(pod));
        let live: BTreeSet<PodUid> = there
            .filter_map(|pod| PodUid::new(&pod.metadata.uid).ok())
            .collect();
        let mut held = Held::new();
        for kind in &self.kinds {
            for (device, users) in kind.held(pods, books) {
                held.entry(device).or_default().extend(users);
            }
        }
        care.see(&live, &held, all);
    }

    async fn clean(&self, care: &mut MutexGuard<'_, Care>) {
        let before = care.ailing();
        for (device, after) in care.due(self.now_ms()) {
            let outcome = match self.kind_of(&device) {
                Some(kind) => kind.clean(&device, &after).await,
                None => Ok(()),
            };
            match care.cleaned(&device, outcome, self.now_ms()) {
                Some(CareNews::Sick(why)) => {
                    warn!(device, why, "not clean, will try again");
                    let message = format!("{device} gets no pod: {why}");
                    self.tell("DeviceNotClean", message).await;
                }
                Some(CareNews::Well) => {
                    info!(device, "clean again");
                    self.tell("DeviceClean", format!("{device} is clean again"))
                        .await;
                }
                None => debug!(device, "clean"),
            }
        }
        let ailing = care.ailing();
        if ailing != before {
            for kind in &self.kinds {
                kind.show(&ailing);
            }
        }
    }

    fn kind_of(&self, device: &str) -> Option<&Arc<dyn DeviceKind>> {
        self.kinds.iter().find(|kind| kind.owns(device))
    }

    async fn tell(&self, reason: &'static str, message: String) {
        let text = EventText { reason, message };
        let at = Timestamp::now().to_string();
        let posted = post_node_event(&self.client, &self.node, (now_ns(), &at), &text);
        if let Err(error) = in_time(posted).await {
            debug!(%error, "event not posted");
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
