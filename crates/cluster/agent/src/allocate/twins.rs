//! Pods that kubelet could mean and that all get the same: then the answer is right for each of
//! them. Kubelet's own checkpoint tells afterwards which pod it meant.

use super::refusal::AllocateError;
use super::response::{AllocationResponse, Twin};

/// One answer for all of them; `None` if they would not get the same. `all`: what each would get.
pub(super) fn one_of(
    all: Vec<Result<AllocationResponse, AllocateError>>,
) -> Option<Result<AllocationResponse, AllocateError>> {
    if all.iter().all(Result::is_err) {
        // The same objection to all of them.
        return all.into_iter().next();
    }
    let all: Vec<AllocationResponse> = all.into_iter().collect::<Result<_, _>>().ok()?;
    let (first, others) = all.split_first()?;
    if !others.iter().all(|other| is_same(first, other)) {
        return None;
    }
    let twins = all.iter().map(|one| Twin {
        pod: one.pod.clone(),
        uid: one.uid.clone(),
    });
    Some(Ok(AllocationResponse {
        twins: twins.collect(),
        ..first.clone()
    }))
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
