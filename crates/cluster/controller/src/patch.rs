//! Operations of JSON patches, as the webhook answers with them. What a patch changes is decided
//! elsewhere.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation};
use serde_json::Value;

/// Sets a member, whether or not it is there; `-` at the end appends to a list.
pub(crate) fn add(path: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation {
        path: PointerBuf::from_tokens(path.iter().copied()),
        value,
    })
}
