//! `sublet.dev/slot`: the slot of a plan that a pod has, as JSON on the pod.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sublet_model::{NameError, NodeName};
use sublet_queue::{GroupId, SlotKey, SlotMark};

use crate::keys;
use crate::object::Pod;

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
            group: GroupId::new(json.group),
            role: Arc::from(json.role),
            index: json.index,
        },
        node: NodeName::new(&json.node)?,
    };
    mark.key.uid()?;
    Ok(mark)
}

/// Slot that a pod says it has. A text that cannot be read counts as none: the extender reports it.
#[must_use]
pub fn slot_of(pod: &Pod) -> Option<SlotMark> {
    slot_from_json(pod.metadata.annotations.get(keys::SLOT)?).ok()
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
        assert!(slot_from_json("{}").is_err());
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
    }
}
