//! Events: messages to people about an object.
//!
//! One writer for all processes. The name of an event is `REASON.UID`, with the UID of its object. It
//! is in the object's namespace, or in `default` for an object outside of namespaces, and the next
//! event of that reason takes its place. A process that may make events and change none adds the
//! time to the name: each of its warnings stands beside the earlier ones.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde_json::{Value, json};
use sublet_api::object::Pod;

use crate::write::{Act, ObjectAddress, Write};

/// The API server refuses messages of more than 1,024 characters.
const LONGEST: usize = 1_000;

/// Text of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventText {
    /// One word in CamelCase.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// A reference to an object, as events have it. `namespace`: empty for one outside of namespaces.
#[must_use]
pub fn reference(api_version: &str, kind: &str, namespace: &str, name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": api_version, "kind": kind, "namespace": namespace, "name": name, "uid": uid,
    })
}

/// A reference to a pod.
#[must_use]
pub fn pod_reference(pod: &Pod) -> Value {
    let meta = &pod.metadata;
    reference("v1", "Pod", &meta.namespace, &meta.name, &meta.uid)
}

/// The place of the event of a reason about an object.
#[must_use]
pub fn event_address(reason: &str, about: &Value) -> ObjectAddress {
    let text = |field: &str| about[field].as_str().unwrap_or_default();
    let name = format!("{}.{}", reason.to_lowercase(), text("uid"));
    let namespace = match text("namespace") {
        "" => "default",
        namespace => namespace,
    };
    ObjectAddress::of::<Event>(Some(namespace), &name)
}

/// An event about an object, in the place of the last one of this reason. `by`: the component that
/// reports it; `kind`: `Normal` or `Warning`.
#[must_use]
pub fn event(
    by: &str,
    about: &Value,
    kind: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Write {
    Write {
        to: event_address(reason, about),
        act: Act::Apply(content(by, about, kind, (reason, message), now)),
    }
}

/// A warning about an object, beside the earlier ones.
#[must_use]
pub fn warning(by: &str, about: &Value, text: &EventText, now: Timestamp) -> Write {
    let mut to = event_address(text.reason, about);
    to.name = format!("{}.{:016x}", to.name, now.as_nanosecond());
    let said = (text.reason, text.message.as_str());
    Write {
        to,
        act: Act::Create(content(by, about, "Warning", said, now)),
    }
}

fn content(
    by: &str,
    about: &Value,
    kind: &str,
    (reason, message): (&str, &str),
    now: Timestamp,
) -> Value {
    let at = Timestamp::from_second(now.as_second()).unwrap_or(now);
    json!({
        "involvedObject": about,
        "type": kind,
        "reason": reason,
        "message": shortened(message),
        "source": { "component": by },
        "reportingComponent": by,
        "firstTimestamp": at.to_string(),
        "lastTimestamp": at.to_string(),
        "count": 1,
    })
}

fn shortened(message: &str) -> String {
    if message.len() <= LONGEST {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(LONGEST);
    format!("{}…", &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00.25Z".parse().unwrap()
    }

    #[test]
    fn the_next_event_takes_the_place_of_the_last_and_a_warning_stands_beside() {
        let about = reference("v1", "Pod", "ns", "p", "u1");
        let Write { to, act } = event("us", &about, "Normal", "Preempted", "why", now());
        assert_eq!(to, event_address("Preempted", &about));
        assert_eq!(
            (to.namespace.as_deref(), to.name.as_str()),
            (Some("ns"), "preempted.u1")
        );
        let content = json!({
            "involvedObject": about, "type": "Normal", "reason": "Preempted", "message": "why",
            "source": {"component": "us"}, "reportingComponent": "us", "count": 1,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
        });
        assert_eq!(act, Act::Apply(content));

        // As kubelet writes them: the name of a node in place of its UID.
        let about = reference("v1", "Node", "", "n1", "n1");
        let text = EventText {
            reason: "DeviceNotClean",
            message: "why".to_owned(),
        };
        let Write { to, act } = warning("us", &about, &text, now());
        assert_eq!(to.namespace.as_deref(), Some("default"));
        assert_eq!(to.name, "devicenotclean.n1.18867251fce0b280");
        assert!(matches!(act, Act::Create(_)), "{act:?}");
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = "ä".repeat(600);
        assert_eq!(shortened(&long), format!("{}…", "ä".repeat(500)));
    }
}
