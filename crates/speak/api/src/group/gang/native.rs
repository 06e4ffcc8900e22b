//! Kubernetes' own gangs: a field of the pod, and a PodGroup of `scheduling.k8s.io`.
//!
//! Sources: `k8s.io/api` v0.36.3 (`scheduling/v1alpha2`) and v0.37.2 (`scheduling/v1beta1`), and
//! `core/v1` of both. The fields that are read here are the same in both versions. A PodGroup has
//! all of its terms itself: the Workload that it was made from is not read, nor are the composite
//! groups of 1.37, which name PodGroups.

use super::terms::{GangDialect, GangTerms, annotated};
use crate::group::field::{Field, GroupError};
use crate::group::priority::AskedPriority;
use crate::object::{Meta, Pod};

pub(super) struct Native;

impl GangDialect for Native {
    fn api_group(&self) -> &'static str {
        "scheduling.k8s.io"
    }

    fn versions(&self) -> &'static [&'static str] {
        &["v1alpha2", "v1beta1"]
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
        let mut terms = annotated(meta, min, self.word());
        let topology = spec.at(&["schedulingConstraints", "topology"])?;
        if !topology.list()?.is_empty() {
            let what = "the queue does not look at it: its pods may get places apart";
            terms.odd.push(topology.wrong(what));
        }
        Ok(GangTerms {
            priority: AskedPriority {
                number: spec.get("priority")?.number()?,
                class: spec.get("priorityClassName")?.text()?.map(str::to_owned),
            },
            ..terms
        })
    }
}
