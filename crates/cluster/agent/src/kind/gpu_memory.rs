//! Memory of GPUs, in parts: one device for each unit of it, as long as kubelet can be told so
//! many. Otherwise slots, which carry Allocate. The scheduler decides which card a container gets;
//! a device's ID only tells it to programs that ask kubelet.

use sublet_kubelet::deviceplugin::{Device, DeviceList, HEALTHY, UNHEALTHY};
use sublet_model::{Gpu, GpuUuid, Inventory, Unit};

use crate::allocate::ID_SEPARATOR;

/// The longest list of memory units, in bytes: three quarters of kubelet's limit, since
/// GetPreferredAllocation sends IDs back with more around them.
pub(crate) const LIST_MAX: usize = 3 * 1024 * 1024;

/// Slots per card, where memory is offered by slots. Each container takes one, so this is
/// how many containers can share a card; kubelet starts 110 pods a node unless told
/// otherwise, and a 64th of the largest card is less than a CUDA context with its
/// libraries can use sensibly.
const SLOTS_PER_CARD: usize = 64;

/// Slots per node, shared among its cards where those are very many: about a megabyte
/// of list.
const SLOTS_PER_NODE: usize = 16_384;

/// All memory of the node, in units.
pub(crate) fn amount(inventory: &Inventory, unit: Unit) -> u64 {
    let units = inventory.gpus().iter().map(|gpu| unit.whole_in(gpu.memory));
    units.sum()
}

/// One device per unit of memory; `None` where kubelet cannot be told so many.
pub(crate) fn units(inventory: &Inventory, unit: Unit) -> Option<DeviceList> {
    let devices = named(inventory).flat_map(|(gpu, uuid)| {
        let count = unit.whole_in(gpu.memory);
        // No NUMA node: which card a pod gets does not depend on the IDs, and kubelet
        // would align CPUs with the wrong one.
        (0..count).map(move |n| {
            Device::new(
                format!("{uuid}{ID_SEPARATOR}{n}"),
                gpu.health.is_healthy(),
                None,
            )
        })
    });
    // Sick devices take more bytes. A node must not change its way of advertising when a
    // card gets sick, so those that still are healthy count as if they were not.
    let healthy = named(inventory).filter(|(gpu, _)| gpu.health.is_healthy());
    let n_healthy: u64 = healthy.map(|(gpu, _)| unit.whole_in(gpu.memory)).sum();
    let growth = (UNHEALTHY.len() - HEALTHY.len()) as u64 * n_healthy;
    DeviceList::within(LIST_MAX, devices)
        .filter(|list| list.encoded_size() as u64 + growth <= LIST_MAX as u64)
}

/// Number of containers that each card takes by slots.
pub(crate) fn slots_per_card(inventory: &Inventory) -> usize {
    let cards = inventory.gpus().len().max(1);
    (SLOTS_PER_NODE / cards).clamp(1, SLOTS_PER_CARD)
}

/// Slots, which carry Allocate where the amounts do not.
pub(crate) fn slots(inventory: &Inventory) -> DeviceList {
    let per_card = slots_per_card(inventory);
    let slots = named(inventory).flat_map(|(gpu, uuid)| {
        (0..per_card).map(move |n| {
            Device::new(
                format!("{uuid}{ID_SEPARATOR}{n}"),
                gpu.health.is_healthy(),
                None,
            )
        })
    });
    slots.collect()
}

/// The cards that have a name, with it. One without was lost before the agent started.
pub(super) fn named(inventory: &Inventory) -> impl Iterator<Item = (&Gpu, &GpuUuid)> {
    let gpus = inventory.gpus().iter();
    gpus.filter_map(|gpu| Some((gpu, gpu.uuid.as_ref()?)))
}
