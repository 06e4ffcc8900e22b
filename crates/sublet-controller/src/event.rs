//! Events: what a controller tells people about an object.
//!
//! One of a kind for each object: the next is in its place.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde_json::{Value, json};
use sublet_client::{Act, ObjectAddress, Write};

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
    let name = format!("{}.{}", reason.to_lowercase(), text("uid"));
    let at = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Write {
        to: ObjectAddress::of::<Event>(Some(text("namespace")), &name),
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
