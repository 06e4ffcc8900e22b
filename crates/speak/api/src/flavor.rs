//! Flavors: amounts under a name. An administrator defines them, and pods ask for them.
//!
//! A flavor becomes amounts of the `sublet` dialect when a pod is created. Claims and the ledger
//! know no flavors. This module reads a flavor, and refuses a pod that still asks for one.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::dialect::ClaimError;
use crate::keys;
use crate::object::{Meta, Pod, or_default};

/// A `GpuFlavor` (`sublet.dev/v1alpha1`). `deploy/kubernetes/15-flavors.yaml` has its schema, by
/// which the API server checks it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GpuFlavor {
    /// Its metadata.
    pub metadata: Meta,
    /// Amounts that the flavor stands for.
    #[serde(deserialize_with = "or_default")]
    pub spec: FlavorSpec,
}

/// Request of a container with the flavor. A missing field asks for nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlavorSpec {
    /// Number of cards; one if the field is missing.
    pub count: Option<u32>,
    /// Memory of each card, such as `4Gi`.
    pub memory: Option<String>,
    /// Memory of each card, in percent of it.
    pub memory_percent: Option<u32>,
    /// Compute time that is promised, in percent of each card.
    pub compute: Option<u32>,
    /// The most compute time, in percent of each card.
    pub compute_limit: Option<u32>,
    /// The class of a pod that says none.
    pub class: Option<String>,
}

impl FlavorSpec {
    /// Resources by which each container asks.
    #[must_use]
    pub fn resources(&self) -> BTreeMap<&'static str, String> {
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        [
            (keys::GPU, Some(self.count.unwrap_or(1).to_string())),
            (keys::GPU_MEMORY, self.memory.clone()),
            (keys::GPU_MEMORY_PERCENT, number(self.memory_percent)),
            (keys::GPU_COMPUTE, number(self.compute)),
        ]
        .into_iter()
        .filter_map(|(key, amount)| Some((key, amount?)))
        .collect()
    }
}

/// The flavor that a pod asks for, by label or annotation.
///
/// # Errors
/// The two name different ones.
pub fn flavor_of(pod: &Pod) -> Result<Option<&str>, ClaimError> {
    let metadata = &pod.metadata;
    let label = metadata.labels.get(keys::FLAVOR);
    let annotation = metadata.annotations.get(keys::FLAVOR);
    match (label, annotation) {
        (Some(label), Some(annotation)) if label != annotation => Err(ClaimError::Field {
            field: keys::FLAVOR,
            value: format!("{label}, {annotation}"),
            wanted: "the same as a label and as an annotation, or only one of them",
        }),
        (name, other) => Ok(name.or(other).map(String::as_str)),
    }
}

/// Refuses a pod whose flavor has not become amounts. `asks`: the field by which it asks beside
/// its flavor.
pub(crate) fn must_be_expanded(pod: &Pod, asks: Option<&'static str>) -> Result<(), ClaimError> {
    let Some(flavor) = flavor_of(pod)? else {
        return Ok(());
    };
    let is_expanded = pod.metadata.annotations.contains_key(keys::FLAVOR_APPLIED);
    match asks {
        None => Err(ClaimError::Flavor(flavor.to_owned())),
        Some(_) if is_expanded => Ok(()),
        Some(field) => Err(ClaimError::Dialects(keys::FLAVOR, field)),
    }
}
