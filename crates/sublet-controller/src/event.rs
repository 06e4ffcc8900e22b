//! Events: a controller's messages to people about an object.
//!
//! One of a kind for each object: the next is in its place.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde_json::{Value, json};
use sublet_client::{Act, ObjectAddress, Write};

/// The place of the event of a reason about the object with this UID.
pub(crate) fn event_address(reason: &str, namespace: &str, uid: &str) -> ObjectAddress {
    let name = format!("{}.{uid}", reason.to_lowercase());
    ObjectAddress::of::<Event>(Some(namespace), &name)
}

/// An event about an object. `kind`: `Normal` or `Warning`; `about`: an object reference.
pub(crate) fn event(
    component: &'static str,
    about: &Value,
    kind: &'static str,
    reason: &'static str,
    message: &str,
    now: Timestamp,
) -> Write {
    let text = |field: &str| about[field].as_str().unwrap_or_default();
    let at = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Write {
        to: event_address(reason, text("namespace"), text("uid")),
        act: Act::Apply(json!({
            "involvedObject": about,
            "type": kind,
            "reason": reason,
            "message": message,
            "source": { "component": component },
            "reportingComponent": component,
            "firstTimestamp": at.to_string(),
            "lastTimestamp": at.to_string(),
            "count": 1,
        })),
    }
}
