//! The answer for one container: its cards, its limits on them, and the notes for its pod.

use std::collections::BTreeMap;

use sublet_model::{
    Class, ContainerName, GpuIndex, GpuUuid, MiB, PodKey, PodUid, Role, SliceLength,
};
use sublet_share::ComputeRange;

use crate::lifecycle::{DeviceName, card_name};

/// So much of a card for one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardLimit {
    /// The card's number on the node.
    pub index: GpuIndex,
    /// Its UUID, where that is known.
    pub uuid: Option<GpuUuid>,
    /// Memory of the card that the container may use.
    pub memory: MiB,
}

/// The container that kubelet means, and what it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationResponse {
    /// Its pod.
    pub pod: PodKey,
    /// The pod's UID.
    pub uid: PodUid,
    /// The container.
    pub container: ContainerName,
    /// When it runs, compared with the others of its pod.
    pub role: Role,
    /// Its place in the pod's list of (init) containers, from 0.
    pub position: usize,
    /// Its cards, and how much of each it may use.
    pub cards: Vec<CardLimit>,
    /// Is each of them all its own?
    pub whole: bool,
    /// Memory of the node that the container may pin for its cards: at most its own limit of
    /// ordinary memory. `None` if the pod sets no limit.
    pub pinned: Option<MiB>,
    /// Its compute time of each card.
    pub compute: ComputeRange,
    /// Decides which container gives way when compute time is short.
    pub class: Class,
    /// Length of its turns while others wait, if the pod says one.
    pub slice: Option<SliceLength>,
    /// Is it to be held to that?
    pub isolated: bool,
    /// Environment variables of the container.
    pub environment: BTreeMap<String, String>,
    /// Annotations to write on the pod before kubelet gets its answer.
    pub annotations: BTreeMap<String, String>,
    /// All pods that kubelet could mean, the one above among them; none if that is certain. Then
    /// nothing is written before kubelet's checkpoint names the pod.
    pub twins: Vec<Twin>,
    /// The first device that kubelet chose, by which its checkpoint is searched then.
    pub device: Option<String>,
}

impl AllocationResponse {
    /// Must something hold it to its part? Nobody else is on a card that is all its own.
    #[must_use]
    pub fn needs_limit(&self) -> bool {
        self.isolated && !self.whole
    }

    /// The names of its cards among all devices of the node.
    pub(crate) fn card_names(&self) -> Vec<DeviceName> {
        let cards = self.cards.iter();
        cards
            .map(|card| card_name(card.index, card.uuid.as_ref()))
            .collect()
    }
}

/// A pod that kubelet could have meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Twin {
    /// The pod.
    pub pod: PodKey,
    /// Its UID.
    pub uid: PodUid,
}
