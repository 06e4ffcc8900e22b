//! Code that the two kinds of GPU share: the cards of the node. One kind offers memory and the
//! other whole cards. The agent's loop sets the offer, because the node's report says it too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use sublet_api::dialect::{self, DIALECTS, OfferedDevice, Offering};
use sublet_api::keys;
use sublet_api::object::Pod;
use sublet_kubelet::deviceplugin::{
    ContainerAllocateResponse, ContainerPreferredAllocationRequest, DeviceList,
};
use sublet_model::{Inventory, PodUid, Portion};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tonic::Status;

use super::{DeviceKind, Pool, Pools, remains};
use crate::allocate::read_entry;
use crate::card_allocator::CardAllocator;
use crate::checkpoint::KubeletCheckpoint;
use crate::lifecycle::{Ailing, Held, card_name};
use crate::lifecycle_manager::LifecycleManager;
use crate::plugin::DeviceIds;
use crate::watched::send_if_new;

/// The cards of the node.
pub(crate) struct Cards {
    allocator: CardAllocator,
    memory: watch::Sender<Pools>,
    whole: watch::Sender<Pools>,
    ailing: watch::Sender<Ailing>,
    seen: Mutex<Option<Seen>>,
}

/// The cards as they are, and with those sick that cannot be cleaned.
struct Seen {
    of: Arc<Inventory>,
    ailing: Ailing,
    with_sick: Arc<Inventory>,
}

impl Cards {
    pub(crate) fn new(allocator: CardAllocator) -> Cards {
        Cards {
            allocator,
            memory: watch::Sender::default(),
            whole: watch::Sender::default(),
            ailing: watch::Sender::default(),
            seen: Mutex::default(),
        }
    }

    /// Cards that cannot be cleaned.
    pub(crate) fn ailing(&self) -> watch::Receiver<Ailing> {
        self.ailing.subscribe()
    }

    /// The cards, with those sick that cannot be cleaned. The same ones for the same.
    pub(crate) fn with_ailing(&self, inventory: &Arc<Inventory>) -> Arc<Inventory> {
        let ailing = self.ailing.borrow().clone();
        if ailing.is_empty() {
            return Arc::clone(inventory);
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = &*seen
            && Arc::ptr_eq(&seen.of, inventory)
            && seen.ailing == ailing
        {
            return Arc::clone(&seen.with_sick);
        }
        let mut sick = (**inventory).clone();
        for gpu in inventory.gpus() {
            if let Some(why) = ailing.get(&card_name(gpu.index, gpu.uuid.as_ref())) {
                sick = sick.with_sick(&[gpu.index].into(), why);
            }
        }
        let with_sick = Arc::new(sick);
        *seen = Some(Seen {
            of: Arc::clone(inventory),
            ailing,
            with_sick: Arc::clone(&with_sick),
        });
        with_sick
    }

    /// The pods that have each card in that way, as pods and their allocations say.
    fn held(
        &self,
        device: OfferedDevice,
        pods: &[Pod],
        checkpoint: Option<&KubeletCheckpoint>,
    ) -> Held {
        let site = self.allocator.site.borrow().clone();
        let gpus = site.facts.inventory.gpus();
        let mut held = Held::new();
        for pod in pods {
            let Ok(Some((entry, _problem))) = read_entry(pod, &site.facts) else {
                continue;
            };
            let has_any = entry.assigned
                || !dialect::assigned_containers(pod).is_empty()
                || checkpoint.is_some_and(|checkpoint| checkpoint.has_any(entry.uid.as_str()));
            let containers = entry.claim.containers().iter();
            let own = containers.filter(|one| match one.demand.portion {
                Portion::Part(_) => device == OfferedDevice::Unit,
                Portion::Whole => device == OfferedDevice::Card,
            });
            let Some(allocation) = entry.allocation.as_ref().filter(|_| has_any) else {
                continue;
            };
            for grant in own.flat_map(|one| allocation.of(&one.name)) {
                if let Some(at) = site.facts.inventory.position(&grant.card) {
                    let card = card_name(gpus[at].index, gpus[at].uuid.as_ref());
                    held.entry(card).or_default().insert(entry.uid.clone());
                }
            }
        }
        if let Some(isolation) = self.allocator.injector.isolation.borrow().on().cloned()
            && device == OfferedDevice::Unit
        {
            for (card, uid) in isolation.holders() {
                held.entry(card).or_default().insert(uid);
            }
        }
        held
    }

    /// Offers this, and nothing else.
    pub(crate) fn offer(&self, lists: &BTreeMap<&'static str, DeviceList>) {
        for (pools, of) in self.kinds() {
            let own = lists
                .iter()
                .filter(|(resource, _)| device_of(resource) == of);
            let wanted = own.map(|(resource, list)| (resource.to_string(), pool(resource, list)));
            let wanted: Pools = wanted.collect();
            send_if_new(pools, &wanted);
        }
    }

    /// Updates the health of the devices that are offered already. Kubelet is to hear of a sick
    /// card even while the API server is away, and of nothing new.
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

    fn owns(&self, device: &str) -> bool {
        let site = self.cards.allocator.site.borrow();
        let mut gpus = site.facts.inventory.gpus().iter();
        gpus.any(|gpu| card_name(gpu.index, gpu.uuid.as_ref()) == device)
    }

    fn held(&self, pods: &[Pod], checkpoint: Option<&KubeletCheckpoint>) -> Held {
        self.cards.held(self.device, pods, checkpoint)
    }

    /// Removes the folders that we made for the containers, and looks for processes that run on.
    /// The driver's state of a process is gone with the process. Compute mode and MPS are the
    /// operator's, and stay as they are.
    async fn clean(&self, device: &str, after: &BTreeSet<PodUid>) -> Result<(), String> {
        let (card, after) = (device.to_owned(), after.clone());
        let injector = &self.cards.allocator.injector;
        let isolation = injector.isolation.borrow().on().cloned();
        let looked = spawn_blocking(move || {
            if let Some(isolation) = isolation {
                isolation.clear_leftovers(&card)?;
            }
            remains::none_left(&after)
        });
        looked.await.unwrap_or_else(|panic| Err(panic.to_string()))
    }

    fn show(&self, ailing: &Ailing) {
        send_if_new(&self.cards.ailing, ailing);
    }

    async fn hand_over(
        &self,
        resource: &str,
        devices: DeviceIds,
        lifecycles: &LifecycleManager,
    ) -> Result<ContainerAllocateResponse, Status> {
        let resource = known(resource)?;
        let allocator = &self.cards.allocator;
        allocator.allocate(resource, &devices, lifecycles).await
    }

    async fn preferred(
        &self,
        resource: &str,
        asked: Vec<ContainerPreferredAllocationRequest>,
    ) -> Vec<DeviceIds> {
        match known(resource) {
            Ok(resource) => self.cards.allocator.preferred(resource, &asked).await,
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
