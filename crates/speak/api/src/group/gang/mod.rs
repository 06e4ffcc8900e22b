//! Gangs: the gang of each pod, and its terms from a PodGroup or a pod.
//!
//! A dialect is a file here and a line in [`GANG_DIALECTS`]. If a dialect's own scheduler cannot
//! read a field and takes the default, the default counts here too, and the fault is reported.

mod koordinator;
mod native;
mod plugins;

use std::fmt;

use serde_json::Value;
use sublet_model::Time;
use sublet_queue::{GangMode, MatchPolicy};

use super::field::{Field, GroupError, moment};
use super::priority::AskedPriority;
use crate::keys;
use crate::object::{Meta, OwnerReference, Pod};

/// Every dialect in which a pod can name its gang. If a pod is written in several, the first counts.
pub const GANG_DIALECTS: &[&dyn GangDialect] = &[
    &plugins::Plugins,
    &koordinator::Koordinator,
    &native::Native,
];

/// Rules and names of one dialect of gangs.
pub trait GangDialect: Sync {
    /// The API group of its PodGroups.
    fn api_group(&self) -> &'static str;

    /// The versions of that group in which its PodGroups can be read.
    fn versions(&self) -> &'static [&'static str] {
        &["v1alpha1"]
    }

    /// The first word of the names of its gangs. Dialects with one word mean one gang by one name.
    fn word(&self) -> &'static str {
        "podgroup"
    }

    /// The gang that a pod names, without its namespace.
    fn named<'a>(&self, pod: &'a Pod) -> Option<&'a str>;

    /// Terms that the pods of a gang carry themselves, if the gang needs no object.
    ///
    /// # Errors
    /// A field without which there is no gang.
    fn on_pod(&self, _pod: &Pod) -> Result<Option<GangTerms>, GroupError> {
        Ok(None)
    }

    /// Terms in a PodGroup.
    ///
    /// # Errors
    /// A field without which there is no gang.
    fn on_object(&self, meta: &Meta, spec: &Field<'_>) -> Result<GangTerms, GroupError>;
}

/// A gang by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GangName {
    /// [`GangDialect::word`].
    pub word: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

impl fmt::Display for GangName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GangName {
            word,
            namespace,
            name,
        } = self;
        write!(f, "{word}/{namespace}/{name}")
    }
}

/// Terms on which a gang starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GangTerms {
    /// Number of members that must start together.
    pub min: u32,
    /// Number of members, if it is given.
    pub total: Option<u32>,
    /// Treatment of members that have a place, if the gang does not start in time.
    pub mode: GangMode,
    /// Members that count for the minimum.
    pub matching: MatchPolicy,
    /// Longest time that members with a place wait for the others, in seconds.
    pub waits_s: Option<u32>,
    /// Gangs that start together with it, itself included; empty if it starts alone.
    pub with: Vec<GangName>,
    /// Its priority. If it asks none, the priority of its pods counts.
    pub priority: AskedPriority,
    /// Fields that its own scheduler would not understand either. Their defaults count.
    pub odd: Vec<GroupError>,
}

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

/// Reads a gang's terms from annotations, for all dialects alike: `mode`, `match-policy`,
/// `waiting-time`, `groups`. `word` is the kind of the gangs in `groups`.
pub(super) fn annotated(meta: &Meta, min: u32, word: &'static str) -> GangTerms {
    let mut terms = GangTerms {
        min,
        ..GangTerms::default()
    };
    let text = |key: &str| meta.annotations.get(key).map(String::as_str);
    let odd = |key: &str, wanted: &str| {
        GroupError::of_key("annotations", key, text(key).unwrap_or_default(), wanted)
    };
    match text(keys::GANG_MODE) {
        None | Some("Strict") => {}
        Some("NonStrict") => terms.mode = GangMode::NonStrict,
        Some(_) => terms
            .odd
            .push(odd(keys::GANG_MODE, "Strict or NonStrict; Strict counts")),
    }
    let policy = text(keys::GANG_MATCH).filter(|text| !text.is_empty());
    let (key, policy) = match policy {
        Some(policy) => (keys::GANG_MATCH, Some(policy)),
        None => (keys::GANG_MATCH_ALIAS, text(keys::GANG_MATCH_ALIAS)),
    };
    match policy {
        None | Some("once-satisfied") => {}
        Some("only-waiting") => terms.matching = MatchPolicy::OnlyWaiting,
        Some("waiting-and-running") => terms.matching = MatchPolicy::WaitingAndRunning,
        Some(_) => terms.odd.push(odd(
            key,
            "only-waiting, waiting-and-running or once-satisfied; once-satisfied counts",
        )),
    }
    if let Some(duration) = text(keys::GANG_WAIT) {
        terms.waits_s = seconds(duration);
        if terms.waits_s.is_none() {
            let wanted = "a duration such as 10m; the scheduler's own counts";
            terms.odd.push(odd(keys::GANG_WAIT, wanted));
        }
    }
    if let Some(total) = text(keys::GANG_TOTAL) {
        terms.total = total.parse().ok().filter(|&total| total >= min);
        if terms.total.is_none() {
            let wanted = "a whole number that is no less than min-available; that one counts";
            terms.odd.push(odd(keys::GANG_TOTAL, wanted));
        }
    }
    if let Some(list) = text(keys::GANG_GROUPS).filter(|list| !list.is_empty()) {
        match gangs(list, word) {
            Some(gangs) => terms.with = gangs,
            None => terms.odd.push(odd(
                keys::GANG_GROUPS,
                "a JSON list such as [\"namespace/gang\"]; the gang starts alone",
            )),
        }
    }
    terms
}

/// A duration in Go's form, in whole seconds, rounded up; `None` if it is not above zero.
fn seconds(text: &str) -> Option<u32> {
    let duration: jiff::SignedDuration = text.parse().ok()?;
    let whole = duration.as_secs() + i64::from(duration.subsec_nanos() > 0);
    u32::try_from(whole).ok().filter(|&seconds| seconds > 0)
}

/// Gangs as `groups` lists them, sorted and each once.
fn gangs(list: &str, word: &'static str) -> Option<Vec<GangName>> {
    let list: Vec<String> = serde_json::from_str(list).ok()?;
    let gang = |text: String| {
        let (namespace, name) = text.split_once('/')?;
        let is_whole = !namespace.is_empty() && !name.is_empty();
        is_whole.then(|| GangName {
            word,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    };
    let mut gangs: Vec<GangName> = list.into_iter().map(gang).collect::<Option<_>>()?;
    gangs.sort();
    gangs.dedup();
    Some(gangs)
}
