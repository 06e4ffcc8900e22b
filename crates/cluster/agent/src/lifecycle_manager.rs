//! Carries out what `lifecycle` decides: has devices prepared before their first container and cleaned
//! after their last, and says which cannot be cleaned: to the kinds, which offer them as unhealthy,
//! and on the node as an event. The lock is for `lifecycle` alone: nothing is awaited under it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sublet_api::is_over;
use sublet_api::object::Pod;
use sublet_model::PodUid;
use tokio::sync::Notify;
use tokio::time::timeout;
use tonic::Status;
use tracing::{debug, info, warn};

use crate::checkpoint::KubeletCheckpoint;
use crate::kind::DeviceKind;
use crate::lifecycle::{Ailing, DeviceName, Held, Lifecycle, LifecycleNews};
use crate::node_events::NodeEvents;
use crate::pods::{PodList, PodSource};

/// Longest wait of kubelet for a device that is not clean. A device that it does not get fails the
/// pod for good, and the remains of a pod that was deleted by force end within a second or two.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Interval between tries meanwhile.
const TRY_EVERY: Duration = Duration::from_millis(200);

/// The devices of one node, and the pods that had them.
pub(crate) struct LifecycleManager {
    events: NodeEvents,
    pods: PodSource,
    /// Kubelet's checkpoint.
    checkpoint: PathBuf,
    kinds: Vec<Arc<dyn DeviceKind>>,
    lifecycle: Mutex<Lifecycle>,
    /// Told whenever a device is put down that was prepared or cleaned.
    put_down: Notify,
    /// Sick devices that the kinds were shown last.
    shown: Mutex<Ailing>,
    begun: Instant,
}

/// A device that this task prepares or cleans. If the task ends before, as it does when kubelet or the
/// runtime hangs up, another may try.
struct InHand<'a> {
    lifecycles: &'a LifecycleManager,
    device: &'a str,
    /// Records the outcome for the device.
    put: fn(&mut Lifecycle, &str),
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        (self.put)(&mut self.lifecycles.lifecycle(), self.device);
        self.lifecycles.put_down.notify_waiters();
    }
}

impl LifecycleManager {
    pub(crate) fn new(
        events: NodeEvents,
        pods: PodSource,
        checkpoint: PathBuf,
        kinds: Vec<Arc<dyn DeviceKind>>,
    ) -> LifecycleManager {
        LifecycleManager {
            events,
            pods,
            checkpoint,
            kinds,
            lifecycle: Mutex::default(),
            put_down: Notify::new(),
            shown: Mutex::default(),
            begun: Instant::now(),
        }
    }

    pub(crate) fn kinds(&self) -> &[Arc<dyn DeviceKind>] {
        &self.kinds
    }

    /// Makes devices ready for a container that is about to get them. `who`: the pods that the
    /// container may belong to, none if that is not known. `pods`: those of the node, if the caller
    /// has listed them. `patience`: the longest wait for a device that is not clean.
    ///
    /// # Errors
    /// One of them is not clean, or cannot be prepared; the status says which and why.
    pub(crate) async fn ready(
        &self,
        devices: &[DeviceName],
        who: &[PodUid],
        pods: Option<&PodList>,
        patience: Duration,
    ) -> Result<(), Status> {
        let begun = Instant::now();
        loop {
            if let Some(pods) = self.now(pods).await {
                // For whom it is is known of cards. Kubelet's checkpoint is long, and the runtime waits. Of
                // other devices only they say it; kubelet asks about one container after the other, and
                // writes them in between.
                let by_checkpoint = who.is_empty();
                let checkpoint = by_checkpoint
                    .then(|| KubeletCheckpoint::read(&self.checkpoint))
                    .flatten();
                self.see(
                    &pods,
                    checkpoint.as_ref(),
                    by_checkpoint && checkpoint.is_some(),
                );
                self.clean().await;
            }
            let put_down = self.put_down.notified();
            let begins = self.begin(devices, who).await;
            if begins.is_ok() || begun.elapsed() > patience {
                return begins;
            }
            let _told_or_late = timeout(TRY_EVERY, put_down).await;
        }
    }

    async fn begin(&self, devices: &[DeviceName], who: &[PodUid]) -> Result<(), Status> {
        for device in devices {
            let refused = |why: String| {
                Status::failed_precondition(format!("{device} is not ready for another pod: {why}"))
            };
            let now_ms = self.now_ms();
            let is_first = self
                .lifecycle()
                .begin(device, who, now_ms)
                .map_err(refused)?;
            if !is_first {
                continue;
            }
            let mut hand = InHand {
                lifecycles: self,
                device,
                put: Lifecycle::withdraw,
            };
            if let Some(kind) = self.kind_of(device) {
                kind.prepare(device).await.map_err(refused)?;
            }
            hand.put = Lifecycle::put_down;
        }
        Ok(())
    }

    /// Looks for pods that are gone, and cleans the devices that no pod has any more. Says when it
    /// is to look again, if no pod comes or goes.
    pub(crate) async fn look(&self, pods: &PodList) -> Option<Duration> {
        let checkpoint = KubeletCheckpoint::read(&self.checkpoint);
        let newest = self.pods.newest();
        self.see(newest.as_ref().unwrap_or(pods), checkpoint.as_ref(), false);
        self.clean().await;
        let next = self.lifecycle().next_ms()?;
        Some(Duration::from_millis(next.saturating_sub(self.now_ms())))
    }

    /// The pods of the node: the newest, else those that the caller has, else a new list.
    async fn now(&self, pods: Option<&PodList>) -> Option<PodList> {
        if let Some(pods) = self.pods.newest().or_else(|| pods.cloned()) {
            return Some(pods);
        }
        let unknown = |error| debug!(%error, "pods not listed, nothing is cleaned");
        self.pods.now().await.map_err(unknown).ok()
    }

    /// `all`: see [`Lifecycle::see`].
    fn see(&self, pods: &PodList, checkpoint: Option<&KubeletCheckpoint>, all: bool) {
        let there = pods.iter().filter(|pod: &&Pod| !is_over(pod));
        let live: BTreeSet<PodUid> = there
            .filter_map(|pod| PodUid::new(&pod.metadata.uid).ok())
            .collect();
        let mut held = Held::new();
        for kind in &self.kinds {
            for (device, users) in kind.held(pods, checkpoint) {
                held.entry(device).or_default().extend(users);
            }
        }
        let asked_ms = millis(pods.asked().saturating_duration_since(self.begun));
        self.lifecycle().see(&live, &held, asked_ms, all);
    }

    async fn clean(&self) {
        let now_ms = self.now_ms();
        loop {
            let due = self.lifecycle().take_due(now_ms);
            let Some((device, after)) = due else { break };
            let mut hand = InHand {
                lifecycles: self,
                device: &device,
                put: Lifecycle::put_down,
            };
            let outcome = match self.kind_of(&device) {
                Some(kind) => kind.clean(&device, &after).await,
                None => Ok(()),
            };
            // From here on it may be somebody's.
            hand.put = |_, _| {};
            let news = self.lifecycle().cleaned(&device, outcome, self.now_ms());
            drop(hand);
            match news {
                Some(LifecycleNews::Sick(why)) => {
                    warn!(device, why, "not clean, will try again");
                    let message = format!("{device} gets no pod: {why}");
                    self.events.tell("DeviceNotClean", message);
                }
                Some(LifecycleNews::Well) => {
                    info!(device, "clean again");
                    let message = format!("{device} is clean again");
                    self.events.tell("DeviceClean", message);
                }
                None => debug!(device, "clean"),
            }
        }
        self.show();
    }

    fn show(&self) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let ailing = self.lifecycle().ailing();
        if ailing != *shown {
            for kind in &self.kinds {
                kind.show(&ailing);
            }
            *shown = ailing;
        }
    }

    fn kind_of(&self, device: &str) -> Option<&Arc<dyn DeviceKind>> {
        self.kinds.iter().find(|kind| kind.owns(device))
    }

    fn lifecycle(&self) -> MutexGuard<'_, Lifecycle> {
        self.lifecycle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        millis(self.begun.elapsed())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
