//! The slot resource. A container asks for it if kubelet asks about the container by slots.

use sublet_model::{Advertise, Carrier, Claim, Role};

use crate::keys;
use crate::object::{Pod, Quantity};

/// Gives each container of the claim the slot that it lacks, as the webhook does when the pod is
/// created. `advertise`: the way in which the pod's possible nodes advertise their memory. Returns
/// true if any container lacked a slot.
pub fn add_slots(pod: &mut Pod, claim: &Claim, advertise: Advertise) -> bool {
    let mut added = false;
    if claim.carrier_on(advertise) != Carrier::Slots {
        return added;
    }
    for part in claim.containers() {
        let list = match part.role {
            Role::Main => &mut pod.spec.containers,
            Role::Init | Role::Sidecar => &mut pod.spec.init_containers,
        };
        let Some(container) = list.get_mut(part.position) else {
            continue;
        };
        if container.resources.asked(keys::GPU_SLOT).is_none() {
            let one = Quantity("1".to_owned());
            let limits = &mut container.resources.limits;
            limits.insert(keys::GPU_SLOT.to_owned(), one);
            added = true;
        }
    }
    added
}
