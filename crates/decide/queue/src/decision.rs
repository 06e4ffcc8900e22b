//! Decisions of the queue: the groups that are admitted and their places, the members that are
//! evicted for them, the room that is kept, and the reason why each other group waits.

use sublet_model::{NodeIdx, PodUid, Time};

use crate::{GroupId, QueueReason, Slot};

/// One thing to do or to say. The caller that carries it out writes it down first: nothing has
/// changed anywhere when it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueDecision {
    /// These members start now.
    Admit {
        /// Group of the members.
        group: GroupId,
        /// Their places.
        slots: Vec<Slot>,
    },
    /// These members start as soon as the victims are gone.
    Evict {
        /// Group of the members.
        group: GroupId,
        /// Their places, which are proven once the victims are gone.
        slots: Vec<Slot>,
        /// The members to evict; every one of them is needed.
        victims: Vec<QueueVictim>,
    },
    /// Room that comes free is kept for that group.
    Hold(QueueHold),
    /// A group waits.
    Explain {
        /// The group.
        group: GroupId,
        /// Number of groups of its quota that come first.
        position: u32,
        /// Reason of the wait.
        reason: QueueReason,
        /// Since when its quota's minimum has room for it, which the caller hands in again with the
        /// group; none if it has none.
        room_since: Option<Time>,
    },
}

/// A member that goes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueVictim {
    /// Its group.
    pub group: GroupId,
    /// Its pod.
    pub uid: PodUid,
}

/// Room that is kept for a group that has waited long. It is handed in again with the next
/// snapshot, so that it does not wander.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueHold {
    /// Group for which the room is kept.
    pub group: GroupId,
    /// Nodes on which no group starts that may still be there when this group could start. Empty
    /// while the group waits only for its quota.
    pub nodes: Vec<NodeIdx>,
    /// Time when all groups on these nodes have ended, if all of them have an end.
    pub until: Option<Time>,
}
