//! Pods that kubelet could mean and that all get the same: then the answer is right for each of
//! them. Kubelet's own checkpoint tells afterwards which pod it meant.

use sublet_model::{PodKey, PodUid, Role};

use super::{AllocateError, AllocationResponse, KubeletAsk, Tenant};

/// A pod that kubelet could have meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Twin {
    /// The pod.
    pub pod: PodKey,
    /// Its UID.
    pub uid: PodUid,
}

/// One answer for all of them. `all`: what each would get.
///
/// # Errors
/// They would not get the same, or kubelet asks more than once about one of them.
pub(super) fn one_of(
    asked: KubeletAsk,
    tenants: &[Tenant<'_>],
    all: Vec<Result<AllocationResponse, AllocateError>>,
) -> Result<AllocationResponse, AllocateError> {
    let ambiguous = || AllocateError::Ambiguous {
        asked,
        pods: tenants.iter().map(|one| one.entry.pod.clone()).collect(),
    };
    let sole = |one: &Tenant<'_>| {
        one.entry.claim.containers().len() == 1 && one.container.role == Role::Main
    };
    if !tenants.iter().all(sole) {
        return Err(ambiguous());
    }
    if all.iter().all(Result::is_err) {
        // The same objection to all of them.
        return all.into_iter().next().unwrap_or_else(|| Err(ambiguous()));
    }
    let all: Vec<AllocationResponse> = all
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|_| ambiguous())?;
    let (first, others) = all.split_first().ok_or_else(ambiguous)?;
    if !others.iter().all(|other| is_same(first, other)) {
        return Err(ambiguous());
    }
    let twins = all.iter().map(|one| Twin {
        pod: one.pod.clone(),
        uid: one.uid.clone(),
    });
    Ok(AllocationResponse {
        twins: twins.collect(),
        ..first.clone()
    })
}

/// Would kubelet and the arbiter hear the same of both, but for the pod?
fn is_same(one: &AllocationResponse, other: &AllocationResponse) -> bool {
    let other = AllocationResponse {
        pod: one.pod.clone(),
        uid: one.uid.clone(),
        annotations: one.annotations.clone(),
        ..other.clone()
    };
    *one == other
}
