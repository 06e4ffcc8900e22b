//! Terms on which a gang starts, and the rules of one dialect of gangs.

use std::fmt;

use sublet_queue::{GangMode, GroupPast, MatchPolicy};

use crate::duration::milliseconds;
use crate::group::field::{Field, GroupError};
use crate::group::past::{past_of, runs_of};
use crate::group::priority::AskedPriority;
use crate::keys;
use crate::object::{Meta, Pod};

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
    /// Its evictions and its saved work.
    pub past: GroupPast,
    /// Milliseconds that it says to run at most.
    pub runs_ms: Option<u64>,
    /// Fields that its own scheduler would not understand either. Their defaults count.
    pub odd: Vec<GroupError>,
}

/// Reads a gang's terms from annotations, for all dialects alike: `mode`, `match-policy`,
/// `waiting-time`, `groups`, its past and its run time. `word` is the kind of the gangs in `groups`.
pub(in crate::group) fn annotated(meta: &Meta, min: u32, word: &'static str) -> GangTerms {
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
    terms.past = past_of(meta, &mut terms.odd);
    terms.runs_ms = runs_of(meta, &mut terms.odd);
    terms
}

/// A duration in Go's form, in whole seconds, rounded up; `None` if it is not above zero.
fn seconds(text: &str) -> Option<u32> {
    let seconds = milliseconds(text)?.div_ceil(1000);
    u32::try_from(seconds).ok().filter(|&seconds| seconds > 0)
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
