//! Koordinator's gangs: labels or annotations on pods, and a PodGroup of `scheduling.sigs.k8s.io`,
//! which a gang can do without. KubeDL's operator writes the same.
//!
//! Sources: `apis/extension/coscheduling.go` and
//! `pkg/scheduler/plugins/coscheduling/{core/gang.go,util}` of v1.7.0.

use super::terms::{GangDialect, GangTerms, annotated};
use crate::group::field::{Field, GroupError};
use crate::keys;
use crate::object::{Meta, Pod};

pub(super) struct Koordinator;

impl GangDialect for Koordinator {
    fn api_group(&self) -> &'static str {
        "scheduling.sigs.k8s.io"
    }

    fn named<'a>(&self, pod: &'a Pod) -> Option<&'a str> {
        let Meta {
            labels,
            annotations,
            ..
        } = &pod.metadata;
        let label = |key: &str| labels.get(key).filter(|name| !name.is_empty());
        let name = label(keys::KOORDINATOR_POD_GROUP);
        let name = name.or_else(|| label(keys::KOORDINATOR_POD_GROUP_NAME));
        let name = name.or_else(|| annotations.get(keys::GANG_NAME));
        name.map(String::as_str)
    }

    /// A pod that says no minimum belongs to a PodGroup.
    fn on_pod(&self, pod: &Pod) -> Result<Option<GangTerms>, GroupError> {
        let meta = &pod.metadata;
        if self.named(pod).is_none_or(str::is_empty) {
            return Ok(None);
        }
        let label = meta.labels.get(keys::KOORDINATOR_POD_GROUP_MIN);
        let (list, key, text) = match label.filter(|text| !text.is_empty()) {
            Some(text) => ("labels", keys::KOORDINATOR_POD_GROUP_MIN, text),
            None => match meta.annotations.get(keys::GANG_MIN) {
                Some(text) => ("annotations", keys::GANG_MIN, text),
                None => return Ok(None),
            },
        };
        let min: Option<u32> = text.parse().ok();
        let min = min.filter(|&min| min <= i32::MAX as u32);
        let wanted = "how many pods of the gang must start together, a whole number";
        let min = min.ok_or_else(|| GroupError::of_key(list, key, text, wanted))?;
        Ok(Some(annotated(meta, min, self.word())))
    }

    fn on_object(&self, meta: &Meta, spec: &Field<'_>) -> Result<GangTerms, GroupError> {
        let min = spec.get("minMember")?.count()?.unwrap_or(0);
        let mut terms = annotated(meta, min, self.word());
        let timeout = spec.get("scheduleTimeoutSeconds")?.count()?;
        terms.waits_s = timeout.filter(|&seconds| seconds > 0).or(terms.waits_s);
        Ok(terms)
    }
}
