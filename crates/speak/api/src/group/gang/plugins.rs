//! scheduler-plugins' coscheduling: a label on pods, and a PodGroup of `scheduling.x-k8s.io`.
//!
//! Source: `apis/scheduling/v1alpha1/types.go` of v0.30.6.

use super::terms::{GangDialect, GangTerms, annotated};
use crate::group::field::{Field, GroupError};
use crate::keys;
use crate::object::{Meta, Pod};

pub(super) struct Plugins;

impl GangDialect for Plugins {
    fn api_group(&self) -> &'static str {
        "scheduling.x-k8s.io"
    }

    fn named<'a>(&self, pod: &'a Pod) -> Option<&'a str> {
        let label = pod.metadata.labels.get(keys::PLUGINS_POD_GROUP);
        label.map(String::as_str)
    }

    fn on_object(&self, meta: &Meta, spec: &Field<'_>) -> Result<GangTerms, GroupError> {
        let min = spec.get("minMember")?.count()?.unwrap_or(1);
        let mut terms = annotated(meta, min, self.word());
        let timeout = spec.get("scheduleTimeoutSeconds")?.count()?;
        terms.waits_s = timeout.filter(|&seconds| seconds > 0).or(terms.waits_s);
        Ok(terms)
    }
}
