//! Rewrites a pod that asks for a flavor: it then asks for amounts, in the `sublet` dialect.
//!
//! Pure. It never changes an amount that a pod says for itself: a pod that asks for a flavor and
//! for amounts is refused.

use std::collections::BTreeMap;

use json_patch::PatchOperation;
use serde_json::json;
use sublet_api::dialect::{ClaimError, asked_by};
use sublet_api::keys;
use sublet_api::object::{Container, Pod};
use sublet_api::{FlavorSpec, flavor_of};

use crate::patch::add;

/// Name of the flavor that is the namespace's default.
const DEFAULT: &str = "default";

/// Flavors by name.
pub(crate) type KnownFlavors = BTreeMap<String, FlavorSpec>;

/// Reason why a flavor does not become amounts.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FlavorError {
    /// There is none of that name. The others.
    #[error(
        "{by} is `{name}`, and there is no such GpuFlavor; {}",
        there_are(known)
    )]
    Unknown {
        by: &'static str,
        name: String,
        known: Vec<String>,
    },
    /// Nobody could list them.
    #[error(
        "`{key}` is `{0}`, and flavors cannot be read yet: is 15-flavors.yaml applied, and may the \
         controller list gpuflavors?",
        key = keys::FLAVOR
    )]
    Unread(String),
    /// It asks for the default of a namespace that has none.
    #[error(
        "`{key}` is `default`, and the namespace has no label `{label}`: name a flavor",
        key = keys::FLAVOR, label = keys::DEFAULT_FLAVOR_LABEL
    )]
    NoDefault,
    /// It does not say which container is to have it.
    #[error(
        "the pod has {0} containers: give those that are to have the flavor `{slot}: 1`",
        slot = keys::GPU_SLOT
    )]
    Containers(usize),
    /// It asks in another way too.
    #[error(transparent)]
    Claim(#[from] ClaimError),
}

fn there_are(known: &[String]) -> String {
    match known {
        [] => "there are none".to_owned(),
        names => format!("there are `{}`", names.join("`, `")),
    }
}

/// The flavor that a pod gets, and the place that names it. `labels`: its namespace's.
///
/// # Errors
/// Label and annotation differ, or there is no default.
pub(crate) fn wanted<'a>(
    pod: &'a Pod,
    labels: &'a BTreeMap<String, String>,
) -> Result<Option<(&'static str, &'a str)>, FlavorError> {
    if pod.metadata.annotations.contains_key(keys::FLAVOR_APPLIED) {
        return Ok(None);
    }
    let default = labels.get(keys::DEFAULT_FLAVOR_LABEL);
    let default =
        default.map(|name| ("the namespace's label `sublet.dev/default-flavor`", &**name));
    match flavor_of(pod)? {
        Some(DEFAULT) => default.map(Some).ok_or(FlavorError::NoDefault),
        Some(name) => Ok(Some(("`sublet.dev/flavor`", name))),
        // A container that asks for a GPU and does not say how much of one.
        None if has_slot(pod) && asked_by(pod)?.is_none() => Ok(default),
        None => Ok(None),
    }
}

fn has_slot(pod: &Pod) -> bool {
    let mut all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    all.any(asks_for_slot)
}

fn asks_for_slot(container: &Container) -> bool {
    container.resources.asked(keys::GPU_SLOT).is_some()
}

/// The patch that makes the pod ask for its flavor's amounts; empty if it asks for no flavor.
///
/// # Errors
/// There is no such flavor, or the pod also asks for something else.
pub(crate) fn expand(
    pod: &Pod,
    labels: &BTreeMap<String, String>,
    known: Option<&KnownFlavors>,
) -> Result<Vec<PatchOperation>, FlavorError> {
    let Some((by, name)) = wanted(pod, labels)? else {
        return Ok(Vec::new());
    };
    if let Some(field) = asked_by(pod)? {
        return Err(ClaimError::Dialects(keys::FLAVOR, field).into());
    }
    let known = known.ok_or_else(|| FlavorError::Unread(name.to_owned()))?;
    let flavor = known.get(name).ok_or_else(|| FlavorError::Unknown {
        by,
        name: name.to_owned(),
        known: known.keys().cloned().collect(),
    })?;
    let mut patch = Vec::new();
    for (list, position, container) in receivers(pod)? {
        let begin = ["spec", list, &position.to_string(), "resources", "limits"];
        if container.resources.limits.is_empty() {
            patch.push(add(&begin, json!({})));
        }
        for (resource, amount) in flavor.resources() {
            patch.push(add(&[&begin[..], &[resource]].concat(), json!(amount)));
        }
    }
    let metadata = &pod.metadata;
    if metadata.annotations.is_empty() {
        patch.push(add(&["metadata", "annotations"], json!({})));
    }
    let mut annotate = |key, value| {
        patch.push(add(&["metadata", "annotations", key], json!(value)));
    };
    annotate(keys::FLAVOR_APPLIED, name.to_owned());
    if let Some(limit) = flavor.compute_limit {
        annotate(keys::COMPUTE_LIMIT, limit.to_string());
    }
    if let (Some(class), None) = (&flavor.class, metadata.labels.get(keys::CLASS_LABEL)) {
        if metadata.labels.is_empty() {
            patch.push(add(&["metadata", "labels"], json!({})));
        }
        patch.push(add(
            &["metadata", "labels", keys::CLASS_LABEL],
            json!(class),
        ));
    }
    Ok(patch)
}

/// The containers that get the flavor: those with a slot, else the only main one.
fn receivers(pod: &Pod) -> Result<Vec<(&'static str, usize, &Container)>, FlavorError> {
    let init = pod.spec.init_containers.iter().enumerate();
    let init = init.map(|(at, container)| ("initContainers", at, container));
    let main = pod.spec.containers.iter().enumerate();
    let main = main.map(|(at, container)| ("containers", at, container));
    let mut marked: Vec<_> = init.chain(main.clone()).collect();
    marked.retain(|(.., container)| asks_for_slot(container));
    match pod.spec.containers.len() {
        _ if !marked.is_empty() => Ok(marked),
        1 => Ok(main.collect()),
        count => Err(FlavorError::Containers(count)),
    }
}

#[cfg(test)]
mod tests;
