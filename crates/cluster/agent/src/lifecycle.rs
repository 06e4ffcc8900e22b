//! Decides when a device is prepared and when it is cleaned: before the first container that gets
//! it, and after the last is gone. A shared device waits for the last of its pods. A device that
//! cannot be cleaned is sick and given to no pod; cleaning is tried again with growing pauses.
//! While a device is prepared or cleaned it is in hand, and given to no pod. Pure: owners of
//! devices go in, work to do comes out. Times are milliseconds on any clock that only rises.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sublet_model::{GpuIndex, GpuUuid, Pauses, PodUid};

/// The name of a device among all of the node: a card's UUID, a file's path.
pub(crate) type DeviceName = String;

/// The name of a card among all devices of the node.
pub(crate) fn card_name(index: GpuIndex, uuid: Option<&GpuUuid>) -> DeviceName {
    uuid.map_or_else(|| format!("GPU {index}"), ToString::to_string)
}

/// The pods that have each device.
pub(crate) type Held = BTreeMap<DeviceName, BTreeSet<PodUid>>;

/// Devices that cannot be cleaned, each with the reason.
pub(crate) type Ailing = BTreeMap<DeviceName, String>;

/// Time that cleaning may fail before the device is called sick: kubelet ends the remains of a pod
/// that was deleted by force within a second or two, of twenty at once within five.
const GRACE_MS: u64 = 10_000;

/// The pause until then.
const GRACE_PAUSE_MS: u64 = 200;

/// The pauses before a cleaning is tried again. It costs a look at the node's processes.
const PAUSES: Pauses = Pauses::new(Duration::from_secs(2), Duration::from_secs(300));

/// Time for which a device that was handed over counts as used although no pod is known to have it.
/// Kubelet writes its checkpoint within milliseconds.
const AWAITED_MS: u64 = 10_000;

/// The devices of a node that somebody had since they were clean. All others are clean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lifecycle {
    devices: BTreeMap<DeviceName, Use>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Use {
    /// Pods that have it, each with the earliest time since when.
    now: BTreeMap<PodUid, u64>,
    /// Pods that had it since it was clean.
    ever: BTreeSet<PodUid>,
    /// Time until which it counts as used even if no pod is known to have it.
    awaited_ms: u64,
    hand: Option<Hand>,
    trouble: Option<Trouble>,
}

/// Work in progress on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hand {
    Preparing,
    Cleaning,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Trouble {
    why: String,
    since_ms: u64,
    /// Since it is called sick.
    tries: u32,
    again_ms: u64,
}

/// News of a device, to be reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LifecycleNews {
    /// It cannot be cleaned, or for another reason than before.
    Sick(String),
    /// It is clean after all.
    Well,
}

impl Lifecycle {
    /// Begins to give that device to a pod; `who` is empty if the pod is not known. True if no pod
    /// had it since it was clean: it is to be prepared first, and is in hand until then.
    ///
    /// # Errors
    /// It is not clean, or in hand, and why.
    pub(crate) fn begin(
        &mut self,
        device: &str,
        who: &[PodUid],
        now_ms: u64,
    ) -> Result<bool, String> {
        let is_first = !self.devices.contains_key(device);
        let of = self.devices.entry(device.to_owned()).or_default();
        if let Some(trouble) = &of.trouble {
            return Err(trouble.why.clone());
        }
        match of.hand {
            Some(Hand::Preparing) => return Err("it is being prepared".to_owned()),
            Some(Hand::Cleaning) => return Err("it is being cleaned".to_owned()),
            None => {}
        }
        of.now.extend(who.iter().map(|uid| (uid.clone(), now_ms)));
        of.ever.extend(who.iter().cloned());
        if who.is_empty() {
            of.awaited_ms = now_ms + AWAITED_MS;
        }
        of.hand = is_first.then_some(Hand::Preparing);
        Ok(is_first)
    }

    /// It is prepared, or was not cleaned to the end: it is put down as it is.
    pub(crate) fn put_down(&mut self, device: &str) {
        if let Some(of) = self.devices.get_mut(device) {
            of.hand = None;
        }
    }

    /// It could not be prepared, and nobody has got it.
    pub(crate) fn withdraw(&mut self, device: &str) {
        self.devices.remove(device);
    }

    /// Learns which pods existed at `asked_ms`, when they were asked for, and the devices of each;
    /// pods that are gone may be among them. A pod that got a device since then keeps it. `all`: no
    /// other pod can have got a device before that, so a device that no pod has is free.
    pub(crate) fn see(&mut self, live: &BTreeSet<PodUid>, held: &Held, asked_ms: u64, all: bool) {
        for (device, pods) in held {
            // What somebody had before this process began is as clean as it ever will be.
            let is_used = pods.iter().any(|uid| live.contains(uid));
            // No pod gets a device that is not clean. Kubelet's checkpoint lists the waiting pods as its
            // owners all the same; if they counted, it would never be cleaned.
            let is_unclean = |of: &Use| of.trouble.is_some() || of.hand == Some(Hand::Cleaning);
            if self.devices.get(device).is_some_and(is_unclean) {
                continue;
            }
            if is_used || self.devices.contains_key(device) {
                let of = self.devices.entry(device.clone()).or_default();
                for uid in pods {
                    of.now.entry(uid.clone()).or_default();
                }
                of.ever.extend(pods.iter().cloned());
            }
        }
        for of in self.devices.values_mut() {
            of.now
                .retain(|uid, since_ms| *since_ms >= asked_ms || live.contains(uid));
            if all && of.awaited_ms < asked_ms.saturating_add(AWAITED_MS) {
                of.awaited_ms = 0;
            }
        }
    }

    /// Takes one in hand that is to be cleaned now; returns it with the pods that had it.
    pub(crate) fn take_due(&mut self, now_ms: u64) -> Option<(DeviceName, BTreeSet<PodUid>)> {
        let is_due = |of: &Use| {
            let is_time = of.trouble.as_ref().is_none_or(|one| one.again_ms <= now_ms);
            of.now.is_empty() && of.awaited_ms <= now_ms && is_time && of.hand.is_none()
        };
        let (device, of) = self.devices.iter_mut().find(|(_, of)| is_due(of))?;
        of.hand = Some(Hand::Cleaning);
        Some((device.clone(), of.ever.clone()))
    }

    /// A cleaning has ended.
    pub(crate) fn cleaned(
        &mut self,
        device: &str,
        outcome: Result<(), String>,
        now_ms: u64,
    ) -> Option<LifecycleNews> {
        let of = self.devices.get_mut(device)?;
        of.hand = None;
        let before = of.trouble.take();
        match outcome {
            Ok(()) => {
                self.devices.remove(device);
                before
                    .filter(|one| one.tries > 0)
                    .map(|_| LifecycleNews::Well)
            }
            Err(why) => {
                let since_ms = before.as_ref().map_or(now_ms, |one| one.since_ms);
                let tries = before.as_ref().map_or(0, |one| one.tries);
                let is_sick = now_ms >= since_ms + GRACE_MS;
                let is_news = before.is_none_or(|one| one.tries == 0 || one.why != why);
                let tries = tries.saturating_add(u32::from(is_sick));
                let pause_ms = match is_sick {
                    true => u64::try_from(PAUSES.after(tries).as_millis()).unwrap_or(u64::MAX),
                    false => GRACE_PAUSE_MS,
                };
                of.trouble = Some(Trouble {
                    why: why.clone(),
                    since_ms,
                    tries,
                    again_ms: now_ms + pause_ms,
                });
                (is_sick && is_news).then_some(LifecycleNews::Sick(why))
            }
        }
    }

    /// Devices that are sick because they cannot be cleaned, each with the reason.
    pub(crate) fn ailing(&self) -> Ailing {
        let ailing = self.devices.iter().filter_map(|(device, of)| {
            let trouble = of.trouble.as_ref().filter(|one| one.tries > 0)?;
            Some((device.clone(), trouble.why.clone()))
        });
        ailing.collect()
    }

    /// When something may be due that is not due now, if nobody comes or goes.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        let idle = self.devices.values().filter(|of| of.now.is_empty());
        let times = idle.map(|of| {
            let again = of.trouble.as_ref().map_or(0, |one| one.again_ms);
            again.max(of.awaited_ms)
        });
        times.min()
    }
}

#[cfg(test)]
mod tests;
