//! What the queue decides: who is admitted and where, who is evicted for whom, what is kept for
//! whom, and why everybody else waits.

use std::sync::Arc;

use sublet_model::{Allocation, NodeIdx, NodeName, PodUid, Time};

use crate::{GroupId, QueueReason};

/// One thing to do or to say. Whoever carries it out writes it down first: nothing has changed
/// anywhere when it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueDecision {
    /// These members start now.
    Admit {
        /// Whose.
        group: GroupId,
        /// Their places.
        slots: Vec<Slot>,
    },
    /// These members start as soon as the victims are gone.
    Evict {
        /// Whose.
        group: GroupId,
        /// Their places, which are proven once the victims are gone.
        slots: Vec<Slot>,
        /// Who goes; every one of them is needed.
        victims: Vec<QueueVictim>,
    },
    /// What comes free is kept for that group.
    Hold(QueueHold),
    /// A group waits.
    Explain {
        /// Which.
        group: GroupId,
        /// How many others of its quota come first.
        position: u32,
        /// Why.
        reason: QueueReason,
    },
}

/// A member's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its role.
    pub role: Arc<str>,
    /// Which of the role.
    pub index: u32,
    /// Where.
    pub node: NodeName,
    /// Which cards.
    pub allocation: Allocation,
}

/// A member that goes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueVictim {
    /// Whose.
    pub group: GroupId,
    /// Its pod.
    pub uid: PodUid,
}

/// What is kept for a group that has waited long. It is handed in again with the next snapshot, so
/// that it does not wander.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueHold {
    /// For whom.
    pub group: GroupId,
    /// On these nodes nobody starts who may still be there when the group could start. None of
    /// them while its quota is what it waits for.
    pub nodes: Vec<NodeIdx>,
    /// When all who are there have ended, if all of them say when.
    pub until: Option<Time>,
}
