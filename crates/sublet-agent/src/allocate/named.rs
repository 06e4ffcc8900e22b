//! The other way round: the container is known, and only its devices are asked.

use sublet_api::object::Pod;
use sublet_api::pod_key;
use sublet_model::Entry;

use super::{AllocateError, AllocationResponse, Site, Tenant, Tenants, hand_over};

/// Decides the devices of that container of that pod, if the container is known by its name. `None`
/// if it asks for no GPU. The annotations to write on the pod are left empty.
///
/// # Errors
/// The pod has no allocation of cards, or the last referee objects.
pub fn decide_for(
    pods: &[Pod],
    site: &Site,
    uid: &str,
    container: &str,
) -> Result<Option<AllocationResponse>, AllocateError> {
    let tenants = Tenants::read(pods, &site.facts);
    let own = |(_, entry): &&(&Pod, Entry)| entry.uid.as_str() == uid;
    let Some((pod, entry)) = tenants.known.iter().find(own) else {
        let pod = pods.iter().find(|pod| pod.metadata.uid == uid);
        let key = pod.and_then(|pod| pod_key(pod).ok());
        let mut garbled = tenants.garbled.iter();
        return match garbled.find(|(pod, _)| Some(pod) == key.as_ref()) {
            Some((pod, problem)) => Err(AllocateError::Unplaced {
                pod: pod.clone(),
                why: problem.clone(),
            }),
            None => Ok(None),
        };
    };
    let mut containers = entry.claim.containers().iter();
    let Some(container) = containers.find(|one| one.name.as_str() == container) else {
        return Ok(None);
    };
    let Some(allocation) = &entry.allocation else {
        let mut garbled = tenants.garbled.iter();
        let problem = garbled.find(|(key, _)| *key == entry.pod);
        return Err(AllocateError::Unplaced {
            pod: entry.pod.clone(),
            why: problem.map_or_else(
                || "it was bound by somebody who chose no card".to_owned(),
                |(_, problem)| problem.clone(),
            ),
        });
    };
    let tenant = Tenant {
        pod,
        entry,
        allocation,
        container,
    };
    hand_over(&tenants, &tenant, site).map(Some)
}
