//! The texts of annotations: allocations, cards that were handed over, measured use, nominations
//! and slots. Every user who may write a pod or a node may write any of them.

use sublet_api::gang_plan::{slot_from_json, slot_to_json};
use sublet_api::{
    allocation_from_json, allocation_to_json, handed_from_json, handed_to_json,
    preempting_from_json, preempting_to_json, use_from_json, use_to_json,
};

use crate::{Target, text};

pub(super) const TARGET: Target = Target {
    name: "annotation",
    run,
};

fn run(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Ok(read) = allocation_from_json(text) {
        assert_eq!(
            allocation_from_json(&allocation_to_json(&read)).unwrap(),
            read
        );
    }
    if let Ok(read) = handed_from_json(text) {
        assert_eq!(handed_from_json(&handed_to_json(&read)).unwrap(), read);
    }
    if let Ok(read) = use_from_json(text) {
        // It is written in whole per cent.
        let written = use_to_json(&read);
        assert_eq!(use_to_json(&use_from_json(&written).unwrap()), written);
    }
    if let Ok(read) = preempting_from_json(text) {
        assert_eq!(
            preempting_from_json(&preempting_to_json(&read)).unwrap(),
            read
        );
    }
    if let Ok(read) = slot_from_json(text) {
        assert_eq!(slot_from_json(&slot_to_json(&read)).unwrap(), read);
    }
}
