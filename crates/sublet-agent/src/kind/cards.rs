//! What the kinds of GPU have in common: the cards of the node, of which one offers memory and the
//! other whole cards. The agent's loop says what is offered, because the node's report says it too.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_api::dialect::{DIALECTS, OfferedDevice, Offering};
use sublet_api::keys;
use sublet_kubelet::deviceplugin::{
    ContainerAllocateResponse, ContainerPreferredAllocationRequest, DeviceList,
};
use tokio::sync::watch;
use tonic::Status;

use super::{DeviceKind, Pool, Pools};
use crate::agent::replace;
use crate::hand_over::HandOut;
use crate::plugin::DeviceIds;

/// The cards of the node.
pub(crate) struct Cards {
    hand_out: HandOut,
    memory: watch::Sender<Pools>,
    whole: watch::Sender<Pools>,
}

impl Cards {
    pub(crate) fn new(hand_out: HandOut) -> Cards {
        Cards {
            hand_out,
            memory: watch::Sender::default(),
            whole: watch::Sender::default(),
        }
    }

    /// Offers this, and nothing else.
    pub(crate) fn offer(&self, lists: &BTreeMap<&'static str, DeviceList>) {
        for (pools, of) in self.kinds() {
            let own = lists
                .iter()
                .filter(|(resource, _)| device_of(resource) == of);
            let wanted = own.map(|(resource, list)| (resource.to_string(), pool(resource, list)));
            let wanted: Pools = wanted.collect();
            pools.send_if_modified(|now| replace(now, &wanted));
        }
    }

    /// Says how the devices fare of what is offered already. Kubelet is to hear of a sick card even
    /// while the API server is away, and of nothing new.
    pub(crate) fn refresh(&self, lists: &BTreeMap<&'static str, DeviceList>) {
        for (pools, _) in self.kinds() {
            pools.send_if_modified(|now| {
                let mut is_new = false;
                for (resource, pool) in now {
                    if let Some(list) = lists.get(resource.as_str()) {
                        is_new |= pool.devices != *list;
                        pool.devices = list.clone();
                    }
                }
                is_new
            });
        }
    }

    fn pools(&self, device: OfferedDevice) -> &watch::Sender<Pools> {
        match device {
            OfferedDevice::Unit => &self.memory,
            OfferedDevice::Card => &self.whole,
        }
    }

    fn kinds(&self) -> [(&watch::Sender<Pools>, OfferedDevice); 2] {
        [OfferedDevice::Unit, OfferedDevice::Card].map(|device| (self.pools(device), device))
    }
}

/// One way to hand out the cards.
pub(super) struct CardKind {
    cards: Arc<Cards>,
    device: OfferedDevice,
}

impl CardKind {
    pub(super) fn of(cards: &Arc<Cards>, device: OfferedDevice) -> Arc<dyn DeviceKind> {
        let cards = Arc::clone(cards);
        Arc::new(CardKind { cards, device })
    }
}

#[tonic::async_trait]
impl DeviceKind for CardKind {
    fn offered(&self) -> watch::Receiver<Pools> {
        self.cards.pools(self.device).subscribe()
    }

    async fn hand_over(
        &self,
        resource: &str,
        devices: DeviceIds,
    ) -> Result<ContainerAllocateResponse, Status> {
        let resource = known(resource)?;
        self.cards.hand_out.allocate(resource, &devices).await
    }

    async fn preferred(
        &self,
        resource: &str,
        asked: Vec<ContainerPreferredAllocationRequest>,
    ) -> Vec<DeviceIds> {
        match known(resource) {
            Ok(resource) => self.cards.hand_out.preferred(resource, asked).await,
            Err(_) => Vec::new(),
        }
    }
}

/// The resource, under the name that lives as long as the program.
fn known(resource: &str) -> Result<&'static str, Status> {
    let offered = offerings().map(|offering| offering.resource);
    let mut all = offered.chain([keys::GPU_SLOT]);
    let found = all.find(|name| *name == resource);
    found.ok_or_else(|| Status::not_found(format!("{resource} is no resource of GPUs")))
}

fn offerings() -> impl Iterator<Item = Offering> {
    DIALECTS.iter().filter_map(|dialect| dialect.offering())
}

/// Slots carry Allocate for units.
fn device_of(resource: &str) -> OfferedDevice {
    let found = offerings().find(|offering| offering.resource == resource);
    found.map_or(OfferedDevice::Unit, |offering| offering.device)
}

fn pool(resource: &str, list: &DeviceList) -> Pool {
    let found = offerings().find(|offering| offering.resource == resource);
    let (socket, prefers) = match found {
        Some(offering) => (offering.socket, true),
        // A slot is as good as any other.
        None => ("sublet-gpu-slot.sock", false),
    };
    Pool {
        socket: socket.to_owned(),
        prefers,
        devices: list.clone(),
    }
}
