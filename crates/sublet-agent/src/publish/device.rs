//! Koordinator's `Device` of the node, kept true where its CRD is.
//!
//! Server-side apply without force: where koordlet reports the node, the API server refuses what we
//! say, and the object stays koordlet's. Applying what is there already is no write, so an object that
//! somebody removed comes back without being watched.

use std::time::Duration;

use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;
use sublet_api::dialect::koordinator::device::{DeviceObject, GROUP, KIND, VERSION};
use sublet_api::object::Node;
use sublet_client::{Act, Client, ObjectAddress, Write, WriteError, perform};
use sublet_model::Inventory;
use tokio::time::Instant;
use tracing::{info, warn};

/// How often it is applied while nothing changes: whether there is a CRD, and whether koordlet has
/// gone, is seldom another answer.
const AGAIN_AFTER: Duration = Duration::from_secs(600);

/// How long the node's other business waits for an answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    Published,
    NoCrd,
    OfOthers,
    Refused(String),
    Unanswered,
}

impl Said {
    fn of(outcome: &Result<(), WriteError>) -> Said {
        match outcome {
            Ok(()) => Said::Published,
            Err(WriteError::Refused { code: 404, .. }) => Said::NoCrd,
            Err(WriteError::Refused { code: 409, .. }) => Said::OfOthers,
            Err(WriteError::Refused { message, .. }) => Said::Refused(message.clone()),
            Err(WriteError::Unanswered(_)) => Said::Unanswered,
        }
    }

    fn tell(&self, node: &str) {
        match self {
            Said::Published => info!(node, "koordinator's device published"),
            Said::NoCrd => info!(
                node,
                "no CRD of Koordinator's device in the cluster, will look again"
            ),
            Said::OfOthers => warn!(
                node,
                "koordlet, or somebody else, reports the node's device: left alone"
            ),
            Said::Refused(why) => warn!(node, why, "koordinator's device not published"),
            // The look at the node itself says it.
            Said::Unanswered => {}
        }
    }
}

/// Is it time to apply it? `tried` is what was applied last, if there was an answer.
fn is_due(tried: Option<&DeviceObject>, wanted: &DeviceObject, since: Duration) -> bool {
    tried != Some(wanted) || since >= AGAIN_AFTER
}

/// What is known of the node's `Device`.
pub(crate) struct DeviceReport {
    tried: Option<DeviceObject>,
    at: Instant,
    said: Option<Said>,
}

impl DeviceReport {
    pub(crate) fn new() -> DeviceReport {
        DeviceReport {
            tried: None,
            at: Instant::now(),
            said: None,
        }
    }

    /// Applies it if it is time. Logs what came of it when that is news.
    pub(crate) async fn keep(&mut self, client: &Client, node: &Node, inventory: &Inventory) {
        let wanted = DeviceObject::of(node, inventory);
        if !is_due(self.tried.as_ref(), &wanted, self.at.elapsed()) {
            return;
        }
        let name = &node.metadata.name;
        let write = Write {
            to: ObjectAddress {
                kind: ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, KIND)),
                namespace: None,
                name: name.clone(),
            },
            act: Act::ApplyWhereFree(json!(wanted)),
        };
        let outcome = perform(client, &write, "sublet-agent", ANSWER_TIME).await;
        let said = Said::of(&outcome);
        self.tried = (said != Said::Unanswered).then_some(wanted);
        self.at = Instant::now();
        if self.said.as_ref() != Some(&said) {
            said.tell(name);
            self.said = Some(said);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_applied_when_it_changes_and_now_and_then() {
        let of = |uid: &str| {
            let mut node = Node::default();
            node.metadata.uid = uid.to_owned();
            DeviceObject::of(&node, &Inventory::default())
        };
        let (now, other) = (of("a"), of("b"));
        let minutes = |n: u64| Duration::from_secs(60 * n);
        for (tried, since, expected) in [
            (None, 0, true),
            (Some(&now), 0, false),
            (Some(&now), 9, false),
            (Some(&now), 10, true),
            (Some(&other), 0, true),
        ] {
            assert_eq!(is_due(tried, &now, minutes(since)), expected, "{since}");
        }
    }

    #[test]
    fn each_answer_has_its_meaning() {
        let refused = |code| {
            Err(WriteError::Refused {
                code,
                message: "why".to_owned(),
            })
        };
        assert_eq!(Said::of(&Ok(())), Said::Published);
        assert_eq!(Said::of(&refused(404)), Said::NoCrd);
        assert_eq!(Said::of(&refused(409)), Said::OfOthers);
        assert_eq!(Said::of(&refused(403)), Said::Refused("why".to_owned()));
        let late = Err(WriteError::Unanswered("late".to_owned()));
        assert_eq!(Said::of(&late), Said::Unanswered);
    }
}
