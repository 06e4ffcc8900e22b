//! Koordinator's `Device` of the node, kept true if the cluster has its CRD.
//!
//! Server-side apply without force: if koordlet reports the node, the API server refuses our
//! version, and the object stays koordlet's. Applying the same content again is no write, so an
//! object that was removed comes back without being watched. If it stays koordlet's it is read:
//! cards that koordlet calls unhealthy get no new work.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;
use sublet_api::dialect::koordinator::device::{DeviceObject, GROUP, KIND, VERSION, unhealthy_in};
use sublet_api::object::Node;
use sublet_client::{Act, Client, ObjectAddress, Write, WriteError, read_object};
use sublet_model::{Gpu, GpuUuid, Inventory};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::api_calls::{in_time, send};

/// Interval between applies while nothing changes: it seldom changes whether there is a CRD, and
/// whether koordlet has gone.
const AGAIN_AFTER: Duration = Duration::from_secs(600);

/// Reason why such a card gets no new work.
const UNHEALTHY: &str = "unhealthy by koordlet's Device";

/// Outcome of an apply.
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
                "koordlet, or somebody else, reports the node's device: left alone, and read"
            ),
            Said::Refused(why) => warn!(node, why, "koordinator's device not published"),
            // The look at the node itself says it.
            Said::Unanswered => {}
        }
    }
}

/// Is it time to apply it? `tried`: the object that was applied last, if there was an answer.
fn is_due(tried: Option<&DeviceObject>, wanted: &DeviceObject, since: Duration) -> bool {
    tried != Some(wanted) || since >= AGAIN_AFTER
}

/// Knowledge of the node's `Device`.
pub(crate) struct DeviceReport {
    tried: Option<DeviceObject>,
    at: Instant,
    said: Option<Said>,
    /// The cards that koordlet calls unhealthy.
    unhealthy: BTreeSet<GpuUuid>,
    /// Devices with these cards sick, and the devices that they were made of.
    seen: Option<(Arc<Inventory>, Arc<Inventory>)>,
}

impl DeviceReport {
    pub(crate) fn new() -> DeviceReport {
        DeviceReport {
            tried: None,
            at: Instant::now(),
            said: None,
            unhealthy: BTreeSet::new(),
            seen: None,
        }
    }

    /// The devices, with the cards sick that koordlet calls unhealthy. The same ones for the same.
    pub(crate) fn seen_by_koordlet(&mut self, inventory: &Arc<Inventory>) -> Arc<Inventory> {
        if self.unhealthy.is_empty() {
            return inventory.clone();
        }
        if let Some((of, seen)) = &self.seen
            && Arc::ptr_eq(of, inventory)
        {
            return seen.clone();
        }
        let gpus = inventory.gpus().iter();
        let is_unhealthy = |gpu: &&Gpu| {
            let uuid = gpu.uuid.as_ref();
            uuid.is_some_and(|uuid| self.unhealthy.contains(uuid))
        };
        let indices = gpus.filter(is_unhealthy).map(|gpu| gpu.index).collect();
        let seen = Arc::new(inventory.with_sick(&indices, UNHEALTHY));
        self.seen = Some((inventory.clone(), seen.clone()));
        seen
    }

    /// Applies it if it is time, and reads it where it is koordlet's. Logs what came of it when that
    /// is news.
    pub(crate) async fn keep(&mut self, client: &Client, node: &Node, inventory: &Inventory) {
        let to = ObjectAddress {
            kind: ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, KIND)),
            namespace: None,
            name: node.metadata.name.clone(),
        };
        let wanted = DeviceObject::of(node, inventory);
        if is_due(self.tried.as_ref(), &wanted, self.at.elapsed()) {
            self.apply(client, &to, wanted).await;
        }
        let unhealthy = match self.said {
            Some(Said::OfOthers) => read(client, &to).await,
            _ => Some(BTreeSet::new()),
        };
        if let Some(unhealthy) = unhealthy.filter(|new| *new != self.unhealthy) {
            info!(node = %to.name, ?unhealthy, "cards that koordlet calls unhealthy");
            self.unhealthy = unhealthy;
            self.seen = None;
        }
    }

    async fn apply(&mut self, client: &Client, to: &ObjectAddress, wanted: DeviceObject) {
        let name = &to.name;
        let write = Write {
            to: to.clone(),
            act: Act::ApplyWhereFree(json!(wanted)),
        };
        let outcome = send(client, &write).await;
        let said = Said::of(&outcome);
        self.tried = (said != Said::Unanswered).then_some(wanted);
        self.at = Instant::now();
        if self.said.as_ref() != Some(&said) {
            said.tell(name);
            self.said = Some(said);
        }
    }
}

/// The cards that are unhealthy there; `None` where that is not known now.
async fn read(client: &Client, of: &ObjectAddress) -> Option<BTreeSet<GpuUuid>> {
    let object = in_time(read_object(client, of)).await.ok()?;
    let found = object.as_ref().map_or(Ok(BTreeSet::new()), unhealthy_in);
    let node = &of.name;
    found
        .inspect_err(|error| warn!(node, %error, "koordinator's device cannot be read"))
        .ok()
}

#[cfg(test)]
mod tests {
    use sublet_model::{GpuIndex, MiB};

    use super::*;

    #[test]
    fn a_card_that_koordlet_calls_unhealthy_is_sick_and_the_rest_as_before() {
        let gpu = |index: u16| Gpu {
            uuid: GpuUuid::new(&format!("GPU-{index}")).ok(),
            ..Gpu::plain(GpuIndex(index), MiB::from(100))
        };
        let inventory = Inventory::new(vec![gpu(0), gpu(1)], vec![], vec![], vec![]);
        let inventory = Arc::new(inventory.unwrap());
        let mut report = DeviceReport::new();
        assert!(Arc::ptr_eq(
            &report.seen_by_koordlet(&inventory),
            &inventory
        ));
        report.unhealthy = ["GPU-1", "GPU-9"]
            .map(|uuid| GpuUuid::new(uuid).unwrap())
            .into();
        let seen = report.seen_by_koordlet(&inventory);
        let healthy = seen.gpus().iter().map(|gpu| gpu.health.is_healthy());
        assert_eq!(healthy.collect::<Vec<_>>(), [true, false]);
        // What is made of it is made once.
        assert!(Arc::ptr_eq(&report.seen_by_koordlet(&inventory), &seen));
    }

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
