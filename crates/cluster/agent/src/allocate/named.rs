//! The other way round: the container is known, and only its devices are asked.

use sublet_api::object::Pod;
use sublet_api::{keys, pod_key};

use super::refusal::anew;
use super::{AllocateError, AllocationResponse, Site, Tenant, Tenants, hand_over};

/// Decides the devices of that container of that pod, if the container is known by its name. The
/// annotations to write on the pod are left empty.
///
/// # Errors
/// It asks for no GPU, the pod has no allocation of cards, or the last referee objects.
pub fn decide_for(
    pods: &[Pod],
    site: &Site,
    uid: &str,
    container: &str,
) -> Result<AllocationResponse, AllocateError> {
    let named = pods.iter().find(|pod| pod.metadata.uid == uid);
    // Anybody may write an annotation, and nobody a UID.
    let found = named.or_else(|| pods.iter().find(|pod| is_pod(pod, uid)));
    let Some((pod, key)) = found.and_then(|pod| Some((pod, pod_key(pod).ok()?))) else {
        return Err(AllocateError::NotAsked);
    };
    let unplaced = |why: &str| AllocateError::Unplaced {
        pod: key.clone(),
        why: why.to_owned(),
        advice: anew(pod),
    };
    if pod.metadata.uid != uid {
        return Err(unplaced("nobody has chosen a card for it"));
    }
    let tenants = Tenants::read(pods, &site.facts);
    let mut garbled = tenants.garbled.iter();
    let problem = garbled.find(|(garbled, _)| *garbled == key);
    let problem = problem.map(|(_, problem)| problem.as_str());
    let mut known = tenants.known.iter();
    let Some((_, entry)) = known.find(|(_, entry)| entry.uid.as_str() == uid) else {
        return Err(problem.map_or(AllocateError::NotAsked, unplaced));
    };
    let mut containers = entry.claim.containers().iter();
    let Some(container) = containers.find(|one| one.name.as_str() == container) else {
        return Err(AllocateError::NotAsked);
    };
    let Some(allocation) = &entry.allocation else {
        let why = problem.unwrap_or("it was bound by somebody who chose no card");
        return Err(unplaced(why));
    };
    let tenant = Tenant {
        pod,
        entry,
        allocation,
        container,
    };
    hand_over(&tenants, &tenant, site)
}

/// Does the runtime mean that pod by `uid`? Kubelet runs a static pod under another UID than that of
/// its mirror in the API server, where an annotation has it (kubelet's `config/common.go` and
/// `pod/mirror_client.go`).
pub(crate) fn is_pod(pod: &Pod, uid: &str) -> bool {
    let mirrored = pod.metadata.annotations.get(keys::MIRROR);
    pod.metadata.uid == uid || mirrored.is_some_and(|own| own == uid)
}
