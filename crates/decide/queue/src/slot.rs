//! Places of members: in a decision, in a plan, and as a pod says it.
//!
//! It decides nothing. The key of a slot is made here alone, so that a slot has one name wherever
//! it is.

use std::sync::Arc;

use sublet_model::{Allocation, NameError, NodeName, PodUid};

use crate::group::GroupId;

/// A member's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its role.
    pub role: Arc<str>,
    /// Number of the member in its role.
    pub index: u32,
    /// The node.
    pub node: NodeName,
    /// The cards; empty if it asks for none.
    pub allocation: Allocation,
    /// The pod that it is for, once there is one. A decision names none.
    pub pod: Option<PodUid>,
}

/// Key of a slot in a plan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotKey {
    /// The plan's name.
    pub plan: Arc<str>,
    /// The group.
    pub group: GroupId,
    /// The role within the group.
    pub role: Arc<str>,
    /// Number of the member in its role.
    pub index: u32,
}

/// A pod's slot, as the pod says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotMark {
    /// Key of the slot.
    pub key: SlotKey,
    /// Node of the slot.
    pub node: NodeName,
}

/// The longest name of a slot in the ledger.
const LONGEST: usize = 253;

impl SlotKey {
    /// Key of a group's slot in the plan of that name.
    #[must_use]
    pub fn of(plan: &Arc<str>, group: &GroupId, slot: &Slot) -> SlotKey {
        SlotKey {
            plan: plan.clone(),
            group: group.clone(),
            role: slot.role.clone(),
            index: slot.index,
        }
    }

    /// Name of the slot in the ledger while no pod has it, which no pod's UID is:
    /// `slot:<plan>:<kind>:<namespace>:<name>:<role>:<index>`. If that is too long, its end is a
    /// hash of the whole name.
    ///
    /// # Errors
    /// A character in it that no UID can have.
    pub fn uid(&self) -> Result<PodUid, NameError> {
        let SlotKey {
            plan,
            group,
            role,
            index,
        } = self;
        let text = format!("slot:{plan}:{group}:{role}:{index}").replace('/', ":");
        if let Some(character) = text.chars().find(|one| !one.is_ascii_graphic()) {
            let what = "slot's name";
            return Err(NameError::Character { what, character });
        }
        if text.len() <= LONGEST {
            return PodUid::new(&text);
        }
        let end = format!(":{:016x}", fnv(text.bytes()));
        PodUid::new(&format!("{}{end}", &text[..LONGEST - end.len()]))
    }
}

/// FNV-1a of 64 bits: the same in every process.
fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(plan: &str, group: &str, role: &str, index: u32) -> SlotKey {
        SlotKey {
            plan: plan.into(),
            group: GroupId::new(group),
            role: role.into(),
            index,
        }
    }

    #[test]
    fn long_names_stay_apart() {
        let plan = "p".repeat(63);
        let group = format!("podgroup/{}/{}", "n".repeat(63), "g".repeat(253));
        let keys = [("a", 0), ("a", 1), ("b", 0)];
        let uids = keys.map(|(role, index)| key(&plan, &group, role, index).uid().unwrap());
        assert!(uids.iter().all(|uid| uid.as_str().len() == LONGEST));
        assert!(uids[0] != uids[1] && uids[1] != uids[2] && uids[0] != uids[2]);
        assert!(key(&plan, &group, "ä", 0).uid().is_err());
    }

    proptest! {
        /// Names of Kubernetes have no colon.
        #[test]
        fn two_slots_have_two_names(
            one in ("[a-z0-9-]{1,6}", "[a-z]{1,3}/[a-z]{1,3}/[a-z]{1,3}", "[a-z]{1,3}", 0..3_u32),
            other in ("[a-z0-9-]{1,6}", "[a-z]{1,3}/[a-z]{1,3}/[a-z]{1,3}", "[a-z]{1,3}", 0..3_u32),
        ) {
            let uid = |(plan, group, role, index): &(String, String, String, u32)| {
                key(plan, group, role, *index).uid().unwrap()
            };
            prop_assert_eq!(uid(&one) == uid(&other), one == other);
        }
    }
}
