//! Places that plans have promised: taken for the engine, as they are for the extender.

use std::collections::BTreeSet;

use sublet_api::gang_plan::{GangPlan, SlotEntry, SlotError, SlotKey, slot_entries, slot_of};
use sublet_api::object::Pod;
use sublet_api::pod_uid;
use sublet_model::{Entry, PodUid, Standing, Unit};

use crate::verdict::{Cluster, asked};

/// Enters the slots of a plan that no pod on a node has. `taken`: the slots that such pods have.
///
/// # Errors
/// The ledger cannot have the plan's slots; none is entered then.
pub(super) fn enter(
    cluster: &mut Cluster,
    plan: &GangPlan,
    taken: &BTreeSet<SlotKey>,
    unit: Unit,
) -> Result<(), SlotError> {
    for (key, SlotEntry { of, own }) in slot_entries(plan, |role| asked(&role.pod, unit))? {
        let standing = |uid: &PodUid| Some(cluster.engine.ledger().entry(uid)?.standing);
        let of_pod = of.as_ref().and_then(standing);
        if of_pod == Some(Standing::Bound) || taken.contains(&key) {
            continue;
        }
        // Who has a slot in two plans has one of them under the slot's own name.
        let uid = of.filter(|_| of_pod.is_none());
        let uid = uid.unwrap_or_else(|| own.uid.clone());
        cluster.engine.observe(Entry { uid, ..own });
    }
    Ok(())
}

/// The slots that pods on nodes say they have.
pub(super) fn taken<'a>(
    cluster: &Cluster,
    pods: impl Iterator<Item = &'a Pod>,
) -> BTreeSet<SlotKey> {
    let ledger = cluster.engine.ledger();
    let is_there = |pod: &&Pod| pod_uid(pod).is_ok_and(|uid| ledger.entry(&uid).is_some());
    let said = pods.filter(is_there).filter_map(slot_of);
    said.map(|mark| mark.key).collect()
}
