//! Pods, as any user who may create one writes them, in every dialect. The form is that of
//! [`crate::object`].

use std::sync::Arc;

use sublet_api::dialect::{allocation_of, asked_by, assigned_containers, claim_of, is_assigned};
use sublet_api::group::{gang_of, is_queued, job_of, member_shape};
use sublet_api::object::Pod;
use sublet_api::{
    amounts_of, bound_entry, flavor_of, gpu_amounts, host_of, pod_key, pod_uid, stock, stock_ask,
};
use sublet_model::{MiB, Unit, charges_of};

use crate::{Target, object, text};

pub(super) const TARGET: Target = Target { name: "pod", run };

fn run(bytes: &[u8]) {
    if let Some(text) = text(bytes) {
        read(&object::pod(text));
    }
}

/// Reads all of a pod that anything of ours reads.
pub(super) fn read(pod: &Pod) {
    for unit in [Unit::MiB, Unit::GiB] {
        read_claim(pod, unit);
        let _ = member_shape(pod, unit, MiB::from(81_920));
    }
    let _ = (pod_key(pod), pod_uid(pod), asked_by(pod), flavor_of(pod));
    let _ = (host_of(pod), stock_ask(pod), amounts_of(pod));
    let _ = (
        stock::pod_rules(pod),
        stock::unmodelled(pod),
        stock::kept_away(pod),
    );
    let _ = (
        gang_of(pod),
        job_of(pod),
        is_queued(pod, &pod.metadata.labels),
    );
    let _ = assigned_containers(pod);
}

fn read_claim(pod: &Pod, unit: Unit) {
    let claim = match claim_of(pod, unit) {
        Ok(Some(claim)) => claim,
        Ok(None) => return,
        Err(error) => {
            assert!(!error.to_string().is_empty() && !error.field(pod).is_empty());
            return;
        }
    };
    assert_eq!(claim_of(pod, unit).ok().flatten().as_ref(), Some(&claim));
    let _ = (
        is_assigned(pod, &claim),
        gpu_amounts(&claim, MiB::from(81_920)),
    );
    if let Ok(Some(allocation)) = allocation_of(pod, &claim) {
        // Amounts come from the claim: what the pod says it got makes it no cheaper.
        if allocation.answers(&claim) {
            assert!(!charges_of(&claim, &allocation).is_empty());
        }
    }
    let _ = bound_entry(pod, Arc::new(claim));
}
