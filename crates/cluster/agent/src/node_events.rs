//! Posts the agent's events of its node. A part of the agent hands its event in and goes on: the
//! API server may take seconds, and a container that is about to start does not wait for news of
//! another. So only [`EventPost`] can post events.

use std::convert::Infallible;

use jiff::Timestamp;
use sublet_client::{Client, EventText, reference, warning};
use sublet_model::NodeName;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::api_calls::send;

/// Most events that wait to be posted. Each names one card or one container of the node.
const WAITING_MAX: usize = 64;

/// The end where events are handed in.
#[derive(Clone, Debug)]
pub(crate) struct NodeEvents(mpsc::Sender<EventText>);

impl NodeEvents {
    /// An event of the node: one word in CamelCase, and a sentence. It is in the log as well, so one
    /// too many is not posted.
    pub(crate) fn tell(&self, reason: &'static str, message: String) {
        let text = EventText { reason, message };
        if let Err(error) = self.0.try_send(text) {
            debug!(reason, %error, "event not posted");
        }
    }
}

/// The end that posts events.
pub(crate) struct EventPost {
    client: Client,
    node: NodeName,
    waiting: mpsc::Receiver<EventText>,
}

/// The two ends.
pub(crate) fn node_events(client: Client, node: NodeName) -> (NodeEvents, EventPost) {
    let (events, waiting) = mpsc::channel(WAITING_MAX);
    let post = EventPost {
        client,
        node,
        waiting,
    };
    (NodeEvents(events), post)
}

impl EventPost {
    /// Posts one after the other, for ever. One that the API server does not take is not tried again:
    /// it may be full.
    pub(crate) async fn keep(mut self) -> Infallible {
        // As kubelet refers to it: `kubectl describe node` looks for the name in place of the UID.
        let node = self.node.as_str();
        let about = reference("v1", "Node", "", node, node);
        while let Some(text) = self.waiting.recv().await {
            let event = warning("sublet-agent", &about, &text, Timestamp::now());
            if let Err(error) = send(&self.client, &event).await {
                warn!(reason = text.reason, %error, "event not posted");
            }
        }
        // Nobody is left who could say anything.
        std::future::pending().await
    }
}
