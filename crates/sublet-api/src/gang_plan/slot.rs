//! `sublet.dev/slot`: the slot of a plan that a pod has, as JSON on the pod; and the name of the
//! slot in the ledger while no pod has it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sublet_model::{NameError, NodeName, PodUid};

/// With this a slot's name in the ledger begins. No pod's UID does.
const BEGIN: &str = "slot:";

/// Key of a slot in a plan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotKey {
    /// The plan's name.
    pub plan: Arc<str>,
    /// The group.
    pub group: Arc<str>,
    /// The role within the group.
    pub role: Arc<str>,
    /// Index of the member in its role.
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

/// Reason why a text does not give a pod's slot.
#[derive(Debug, thiserror::Error)]
pub enum SlotTextError {
    /// Not the JSON that was expected.
    #[error("not a plan, a group, a role, an index and a node: {0}")]
    Json(#[from] serde_json::Error),
    /// A wrong name.
    #[error(transparent)]
    Name(#[from] NameError),
}

#[derive(Serialize, Deserialize)]
struct SlotMarkJson {
    plan: String,
    group: String,
    role: String,
    index: u32,
    node: String,
}

impl SlotKey {
    /// Name of the slot in the ledger: `slot:<plan>:<kind>:<namespace>:<name>:<role>:<index>`. If
    /// that is too long for a UID, its end is a hash of the whole name.
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
        let text = format!("{BEGIN}{plan}:{group}:{role}:{index}").replace('/', ":");
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

/// The longest UID.
const LONGEST: usize = 253;

/// FNV-1a of 64 bits: the same in every process.
fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Is it the name of a slot in the ledger, and no pod's?
#[must_use]
pub fn is_slot_uid(uid: &PodUid) -> bool {
    uid.as_str().starts_with(BEGIN)
}

/// The annotation's text.
#[must_use]
pub fn slot_to_json(mark: &SlotMark) -> String {
    let SlotKey {
        plan,
        group,
        role,
        index,
    } = &mark.key;
    let json = SlotMarkJson {
        plan: plan.to_string(),
        group: group.to_string(),
        role: role.to_string(),
        index: *index,
        node: mark.node.to_string(),
    };
    serde_json::to_string(&json).expect("strings and numbers are always JSON")
}

/// Reads the annotation's text.
///
/// # Errors
/// Not such JSON, or a wrong name.
pub fn slot_from_json(text: &str) -> Result<SlotMark, SlotTextError> {
    let json: SlotMarkJson = serde_json::from_str(text)?;
    let mark = SlotMark {
        key: SlotKey {
            plan: Arc::from(json.plan),
            group: Arc::from(json.group),
            role: Arc::from(json.role),
            index: json.index,
        },
        node: NodeName::new(&json.node)?,
    };
    mark.key.uid()?;
    Ok(mark)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str =
        r#"{"plan":"p1","group":"podgroup/team-a/g1","role":"worker","index":3,"node":"n1"}"#;

    #[test]
    fn the_text_is_read_back() {
        let mark = slot_from_json(TEXT).unwrap();
        assert_eq!(slot_to_json(&mark), TEXT);
        let uid = mark.key.uid().unwrap();
        assert_eq!(uid.as_str(), "slot:p1:podgroup:team-a:g1:worker:3");
        assert!(is_slot_uid(&uid));
        assert!(!is_slot_uid(&PodUid::new("3d9f").unwrap()));
    }

    #[test]
    fn long_names_stay_apart() {
        let key = |role: &str, index| SlotKey {
            plan: "p".repeat(63).into(),
            group: format!("podgroup/{}/{}", "n".repeat(63), "g".repeat(253)).into(),
            role: role.into(),
            index,
        };
        let uids = [key("a", 0), key("a", 1), key("b", 0)].map(|key| key.uid().unwrap());
        assert!(uids.iter().all(|uid| uid.as_str().len() == LONGEST));
        assert!(uids[0] != uids[1] && uids[1] != uids[2] && uids[0] != uids[2]);
        assert!(key("ä", 0).uid().is_err() && slot_from_json("{}").is_err());
    }

    proptest! {
        #[test]
        fn any_text_says_something_or_nothing(at in 0..TEXT.len(), byte in any::<u8>()) {
            prop_assert!(slot_from_json(&TEXT[..at]).is_err());
            let mut damaged = TEXT.as_bytes().to_vec();
            damaged[at] = byte;
            if let Ok(read) = slot_from_json(&String::from_utf8_lossy(&damaged)) {
                prop_assert_eq!(slot_from_json(&slot_to_json(&read)).unwrap(), read);
            }
        }

        /// Names of Kubernetes have no colon.
        #[test]
        fn two_slots_have_two_names(
            one in ("[a-z0-9-]{1,6}", "[a-z]{1,3}/[a-z]{1,3}/[a-z]{1,3}", "[a-z]{1,3}", 0..3_u32),
            other in ("[a-z0-9-]{1,6}", "[a-z]{1,3}/[a-z]{1,3}/[a-z]{1,3}", "[a-z]{1,3}", 0..3_u32),
        ) {
            let key = |(plan, group, role, index): &(String, String, String, u32)| SlotKey {
                plan: plan.as_str().into(),
                group: group.as_str().into(),
                role: role.as_str().into(),
                index: *index,
            };
            let uid = |of| key(of).uid().unwrap();
            prop_assert_eq!(uid(&one) == uid(&other), one == other);
        }
    }
}
