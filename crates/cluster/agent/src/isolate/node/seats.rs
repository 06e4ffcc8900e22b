//! Seats: the folders, limits and accounts of containers that were served before it is known whose
//! they are. Kubelet's checkpoint says it a moment later. This is for nodes whose runtime does not
//! name containers, and where equal pods are to start together (`Identity::Checkpoint`). The decision
//! that one answer serves several pods is in `allocate/twins`; without it no seat is ever taken.

use std::path::Path;
use std::sync::atomic::Ordering;

use tracing::{debug, info, warn};

use super::Isolation;
use crate::allocate::{AllocationResponse, Twin};
use crate::checkpoint::KubeletCheckpoint;
use crate::isolate::containers::Tracked;
use crate::isolate::found::SEAT;
use crate::isolate::record::{Record, Seat};

impl Isolation {
    /// The record of a container that gets its devices now, in a seat if its pod is not known.
    pub(super) fn seated(&self, record: Record, handed: &AllocationResponse) -> Record {
        match handed.twins.is_empty() {
            true => record,
            false => record.in_doubt(handed, self.free_seat()),
        }
    }

    /// A name for a folder that is nobody's, and that nobody else gets.
    fn free_seat(&self) -> String {
        loop {
            let number = self.seats.fetch_add(1, Ordering::Relaxed) + 1;
            let seat = format!("{SEAT}{number}");
            let place = self.containers.join(&seat);
            if !self.tracked.has_any_below(&place) && !place.exists() {
                return seat;
            }
        }
    }

    /// Is there a container without a known pod?
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubts() > 0
    }

    fn doubts(&self) -> usize {
        let in_doubt = |one: &&Tracked| !one.record.twins().is_empty();
        self.tracked.read(|all| all.filter(in_doubt).count())
    }

    /// Learns from kubelet's checkpoint which of several pods got a seat's devices. Returns how many
    /// seats are still in doubt.
    pub(crate) fn recognise(&self, checkpoint: &KubeletCheckpoint) -> usize {
        let in_doubt = |one: &Tracked| !one.record.twins().is_empty();
        for mut hand in self.tracked.take(in_doubt) {
            let record = &mut hand.tracked.record;
            let Some(seat) = &record.seat else {
                continue;
            };
            let twins = seat.twins.iter().map(|[uid, ..]| uid.as_str());
            let owner = checkpoint.owner(&seat.device, twins).map(str::to_owned);
            let container = record.container.clone();
            if let Some(uid) = owner {
                record.is_of(&uid);
                let (name, seat) = (record.name(), record.folder(Path::new("")));
                info!(container = name, seat = %seat.display(), "kubelet's checkpoint names its container");
                if let Err(error) = record.write(&self.containers) {
                    warn!(container = name, %error, "after a restart it is looked for again");
                }
            } else if record.rule_out(|uid| checkpoint.has_served(uid, &container)) {
                // It is worked out again after a restart.
                let seat = record.name();
                debug!(seat, "some of those that it may be have another");
            }
        }
        self.doubts()
    }
}

impl Record {
    /// The same of one of several pods, in a folder that none of them will have for itself.
    fn in_doubt(self, handed: &AllocationResponse, folder: String) -> Record {
        let twin = |one: &Twin| {
            let (namespace, name) = (one.pod.namespace(), one.pod.name());
            [one.uid.as_str(), namespace, name].map(str::to_owned)
        };
        Record {
            // Nobody's name until it is known whose it is.
            pod: "?".to_owned(),
            uid: folder.clone(),
            seat: Some(Seat {
                folder,
                device: handed.device.clone().unwrap_or_default(),
                twins: handed.twins.iter().map(twin).collect(),
            }),
            ..self
        }
    }

    /// Notes the pod of this seat; false if it was known, or is none of the twins.
    pub fn is_of(&mut self, uid: &str) -> bool {
        let Some(seat) = &mut self.seat else {
            return false;
        };
        let Some([uid, namespace, name]) = seat.twins.iter().find(|[own, ..]| own == uid).cloned()
        else {
            return false;
        };
        seat.twins.clear();
        (self.uid, self.namespace, self.pod) = (uid, namespace, name);
        true
    }

    /// Notes pods that have another seat; true if this one might have been theirs. If no twin is
    /// left, it has no holder: kubelet never got the answer.
    pub fn rule_out(&mut self, has_another: impl Fn(&str) -> bool) -> bool {
        let Some(seat) = &mut self.seat else {
            return false;
        };
        let before = seat.twins.len();
        seat.twins.retain(|[uid, ..]| !has_another(uid));
        seat.twins.len() < before
    }
}
