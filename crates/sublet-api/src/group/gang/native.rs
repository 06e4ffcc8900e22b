//! Kubernetes' own gangs: a field of the pod, and a PodGroup of `scheduling.k8s.io`.
//!
//! Source: `k8s.io/api` v0.36.3, `scheduling/v1alpha2` and `core/v1`. A PodGroup says all of its
//! terms itself; the Workload that it was made from is not read.

use super::{GangDialect, GangTerms, annotated};
use crate::group::field::{Field, GroupError};
use crate::group::priority::AskedPriority;
use crate::object::{Meta, Pod};

pub(super) struct Native;

impl GangDialect for Native {
    fn pod_groups(&self) -> (&'static str, &'static str) {
        ("scheduling.k8s.io", "v1alpha2")
    }

    fn word(&self) -> &'static str {
        "native-podgroup"
    }

    fn named<'a>(&self, pod: &'a Pod) -> Option<&'a str> {
        let name = &pod.spec.scheduling_group.pod_group_name;
        (!name.is_empty()).then_some(name)
    }

    fn on_object(&self, meta: &Meta, spec: &Field<'_>) -> Result<GangTerms, GroupError> {
        let gang = spec.at(&["schedulingPolicy", "gang"])?;
        // The policy `basic`: each pod for itself.
        let min = match gang.is_there() {
            true => gang.get("minCount")?.count()?.unwrap_or(1),
            false => 0,
        };
        Ok(GangTerms {
            priority: AskedPriority {
                number: spec.get("priority")?.number()?,
                class: spec.get("priorityClassName")?.text()?.map(str::to_owned),
            },
            ..annotated(meta, min, self.word())
        })
    }
}
