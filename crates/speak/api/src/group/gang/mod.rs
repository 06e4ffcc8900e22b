//! Gangs: the gang of each pod, and its terms from a PodGroup or a pod.
//!
//! A dialect is a file here and a line in [`GANG_DIALECTS`]. If a dialect's own scheduler cannot
//! read a field and takes the default, the default counts here too, and the fault is reported.

mod koordinator;
mod native;
mod plugins;
mod terms;

use serde_json::Value;
use sublet_model::Time;

pub(super) use self::terms::annotated;
pub use self::terms::{GangDialect, GangName, GangTerms};
use super::field::{Field, GroupError, moment};
use crate::keys;
use crate::object::{Meta, OwnerReference, Pod};

/// Every dialect in which a pod can name its gang. If a pod is written in several, the first counts.
pub const GANG_DIALECTS: &[&dyn GangDialect] = &[
    &plugins::Plugins,
    &koordinator::Koordinator,
    &native::Native,
];

/// The gang that a pod belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangOfPod {
    /// Name of the gang.
    pub gang: GangName,
    /// Terms on the pod, if the gang needs no PodGroup.
    pub terms: Option<GangTerms>,
}

/// Facts in a PodGroup of any API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodGroupFacts {
    /// Name of its gang.
    pub gang: GangName,
    /// Its API group.
    pub api_group: &'static str,
    /// Group and version in which it was read.
    pub api_version: String,
    /// Its UID.
    pub uid: String,
    /// When it was made.
    pub created: Option<Time>,
    /// Controller of the PodGroup: an operator's job that has its pods too.
    pub owner: Option<OwnerReference>,
    /// The quota that its label names.
    pub quota: Option<String>,
    /// Terms on which it starts.
    pub terms: GangTerms,
}

/// The gang of a pod; `None` if the pod names none.
///
/// # Errors
/// The pod names two gangs, or its terms cannot be read.
pub fn gang_of(pod: &Pod) -> Result<Option<GangOfPod>, GroupError> {
    let mut found: Option<(&dyn GangDialect, &str)> = None;
    for &dialect in GANG_DIALECTS {
        let Some(name) = dialect.named(pod).filter(|name| !name.is_empty()) else {
            continue;
        };
        match found {
            None => found = Some((dialect, name)),
            Some((first, other)) if other == name && first.word() == dialect.word() => {}
            Some((_, other)) => {
                return Err(GroupError {
                    field: "metadata.labels".to_owned(),
                    what: format!("it names two gangs, {other} and {name}: leave one of them out"),
                });
            }
        }
    }
    let Some((dialect, name)) = found else {
        return Ok(None);
    };
    let gang = GangName {
        word: dialect.word(),
        namespace: namespace_of(&pod.metadata).to_owned(),
        name: name.to_owned(),
    };
    let terms = dialect.on_pod(pod)?;
    Ok(Some(GangOfPod { gang, terms }))
}

/// Is it a PodGroup of an API that is read here?
#[must_use]
pub fn is_pod_group(api_version: &str, kind: &str) -> bool {
    kind == "PodGroup" && dialect_of(api_version).is_some()
}

/// Reads a PodGroup; `None` if its API is not read here.
///
/// # Errors
/// A field that cannot be read.
pub fn read_pod_group(
    api_version: &str,
    object: &Value,
) -> Result<Option<PodGroupFacts>, GroupError> {
    let Some(dialect) = dialect_of(api_version) else {
        return Ok(None);
    };
    let root = Field::root(object);
    let meta: Meta = root.get("metadata")?.read()?;
    let terms = dialect.on_object(&meta, &root.get("spec")?)?;
    Ok(Some(PodGroupFacts {
        gang: GangName {
            word: dialect.word(),
            namespace: namespace_of(&meta).to_owned(),
            name: meta.name.clone(),
        },
        api_group: dialect.api_group(),
        api_version: api_version.to_owned(),
        uid: meta.uid.clone(),
        created: meta.creation_timestamp.as_deref().and_then(moment),
        owner: meta.controller().cloned(),
        quota: meta.labels.get(keys::QUOTA_NAME).cloned(),
        terms,
    }))
}

/// The dialect of a PodGroup's API; any version of it, as the API server converts them.
fn dialect_of(api_version: &str) -> Option<&'static dyn GangDialect> {
    let group = api_version.split_once('/').map(|(group, _)| group);
    let mut dialects = GANG_DIALECTS.iter().copied();
    dialects.find(|dialect| Some(dialect.api_group()) == group)
}

/// The namespace of an object; files written by hand often leave it out.
pub(super) fn namespace_of(meta: &Meta) -> &str {
    match meta.namespace.as_str() {
        "" => "default",
        namespace => namespace,
    }
}
