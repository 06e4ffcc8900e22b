//! Whole GPUs: one device for each card, or several where containers that share a card ask for it by
//! that name.

use std::num::NonZeroU8;

use sublet_kubelet::deviceplugin::{Device, DeviceList};
use sublet_model::{Inventory, Sharing};

use super::gpu_memory::named;
use crate::allocate::ID_SEPARATOR;

/// The devices; nothing on nodes that hand out parts only.
pub(crate) fn devices(
    inventory: &Inventory,
    sharing: Sharing,
    splits: Option<NonZeroU8>,
) -> Option<DeviceList> {
    let times = match (sharing, splits) {
        (Sharing::Whole, _) | (Sharing::Both, None) => 1,
        (Sharing::Memory, None) => return None,
        (_, Some(splits)) => splits.get().into(),
    };
    Some(cards(inventory, times))
}

/// Makes `times` devices per card. If it is one, the ID is the card, and kubelet is told its NUMA
/// node; if there are several, the ID does not say which card a pod gets.
fn cards(inventory: &Inventory, times: usize) -> DeviceList {
    let devices = named(inventory).flat_map(|(gpu, uuid)| {
        let device = move |n: usize| match times {
            1 => Device::new(uuid.to_string(), gpu.health.is_healthy(), gpu.numa),
            _ => {
                let id = format!("{uuid}{ID_SEPARATOR}{n}");
                Device::new(id, gpu.health.is_healthy(), None)
            }
        };
        (0..times).map(device)
    });
    devices.collect()
}
