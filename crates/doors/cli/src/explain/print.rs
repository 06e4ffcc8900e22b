//! An explanation as text, JSON or YAML.
//!
//! The JSON form is a promise to programs: fields are added, never renamed or taken away.

use std::fmt::Write as _;

use serde::Serialize;
use sublet_model::Grant;

use super::state::{Doubt, State, Waiting};
use crate::align::columns;
use crate::refusals::{MANY, Refusals};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExplainJson<'a> {
    namespace: String,
    name: String,
    /// `notFound`, `over`, `badClaim`, `noGpu`, `bound`, `deleting`, `heldBack`,
    /// `otherScheduler`, `overQuota`, `waiting`.
    state: &'static str,
    /// One sentence.
    summary: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gpus: Vec<GpuJson>,
    /// The scheduler's message about the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    condition: Option<String>,
    /// Nodes that can take the pod now; only of a pod that waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    fits: Option<Vec<String>>,
    /// Refusals of the other nodes; only for a pod that waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusals: Option<&'a Refusals>,
    /// Rules that the scheduler considers and Sublet does not model; only for a pod that waits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_looked_at: Vec<String>,
}

#[derive(Serialize)]
struct GpuJson {
    container: String,
    gpu: u16,
    uuid: Option<String>,
    #[serde(rename = "grantedMiB")]
    granted_mib: u64,
}

pub(super) fn json<'a>(namespace: &str, name: &str, state: &'a State) -> ExplainJson<'a> {
    let mut json = ExplainJson {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        state: word(state),
        summary: summary(state),
        node: None,
        gpus: Vec::new(),
        condition: None,
        fits: None,
        refusals: None,
        not_looked_at: Vec::new(),
    };
    match state {
        State::Bound { node, devices, .. } => {
            json.node = Some(node.clone());
            let gpu = |grant: &Grant| GpuJson {
                container: grant.container.to_string(),
                gpu: grant.card.index.0,
                uuid: grant.card.uuid.as_ref().map(ToString::to_string),
                granted_mib: grant.memory.get(),
            };
            json.gpus = devices.iter().map(gpu).collect();
        }
        State::Waiting(waiting) => {
            json.condition.clone_from(&waiting.condition);
            json.fits = Some(waiting.fits.clone());
            let unmodelled = waiting.unmodelled.iter();
            json.not_looked_at = unmodelled.map(ToString::to_string).collect();
            json.refusals = Some(&waiting.refusals);
        }
        _ => {}
    }
    json
}

fn word(state: &State) -> &'static str {
    match state {
        State::NotFound { .. } => "notFound",
        State::Over { .. } => "over",
        State::BadClaim { .. } => "badClaim",
        State::NoGpu => "noGpu",
        State::Bound { .. } => "bound",
        State::Deleting => "deleting",
        State::HeldBack { .. } => "heldBack",
        State::OtherScheduler { .. } => "otherScheduler",
        State::OverQuota { .. } => "overQuota",
        State::Waiting(_) => "waiting",
    }
}

/// The state in a sentence.
fn summary(state: &State) -> String {
    match state {
        State::NotFound { .. } => "there is no such pod".to_owned(),
        State::Over { phase, doubt } => {
            let why = doubt.as_ref();
            let why = why.map(|doubt| format!("; which GPU it had is not known: {}", doubt.cause));
            let why = why.unwrap_or_default();
            format!("it has ended ({phase}) and holds no GPU memory{why}")
        }
        State::BadClaim { what } => format!("what it asks for cannot be served: {what}"),
        State::NoGpu => "it asks for no GPU, so Sublet has no part in placing it".to_owned(),
        State::Bound {
            node,
            doubt: Some(doubt),
            ..
        } => format!("it is on node {node}, {}", doubt_summary(doubt)),
        State::Bound {
            node,
            handed_over: true,
            ..
        } => format!("it is on node {node} and has its devices"),
        State::Bound { node, .. } => {
            format!("it is on node {node}, which has not handed over its devices yet")
        }
        State::Deleting => "it is being deleted and was never placed".to_owned(),
        State::HeldBack { gates } => {
            let gates = gates.join(", ");
            format!("it may not be scheduled before these scheduling gates are lifted: {gates}")
        }
        State::OtherScheduler { name } => {
            format!("it is placed by the scheduler {name}, which does not ask Sublet")
        }
        State::OverQuota { what } => format!("it waits for its namespace's quota: {what}"),
        State::Waiting(waiting) => waiting_summary(waiting),
    }
}

fn doubt_summary(doubt: &Doubt) -> String {
    let Doubt {
        cause,
        handed,
        kept,
        ..
    } = doubt;
    if let (None, [_, ..]) = (kept, &handed[..]) {
        let gpus: Vec<String> = handed.iter().map(|gpu| format!("GPU {gpu}")).collect();
        let gpus = gpus.join(", ");
        return format!("whose agent has handed {gpus} to it, but does not say so itself: {cause}");
    }
    let kept = kept.map(|kept| format!("; meanwhile {kept} of each GPU there is kept free for it"));
    let kept = kept.unwrap_or_default();
    format!("but which GPU it has is not known: {cause}{kept}")
}

fn waiting_summary(waiting: &Waiting) -> String {
    let n_fits = waiting.fits.len();
    let n_nodes = n_fits + waiting.refusals.len();
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    if n_nodes == 0 {
        "it waits, and there is no node".to_owned()
    } else if n_fits > 0 {
        let have = if n_fits == 1 { "has" } else { "have" };
        format!("it waits, though {n_fits} of {n_nodes} nodes {have} room for it")
    } else if waiting.is_hopeless() {
        format!(
            "it waits in vain: none of {n_nodes} node{} can ever take it as it is",
            plural(n_nodes)
        )
    } else {
        format!(
            "it waits for room: none of {n_nodes} node{} can take it now",
            plural(n_nodes)
        )
    }
}

/// For people.
pub(super) fn text(namespace: &str, name: &str, state: &State) -> String {
    let mut text = format!("pod {namespace}/{name}: {}\n", summary(state));
    match state {
        State::Bound { devices, .. } if !devices.is_empty() => {
            let rows: Vec<_> = devices
                .iter()
                .map(|grant| {
                    let uuid = grant.card.uuid.as_ref();
                    vec![
                        grant.container.to_string(),
                        grant.card.index.to_string(),
                        grant.memory.to_string(),
                        uuid.map_or_else(|| "-".to_owned(), ToString::to_string),
                    ]
                })
                .collect();
            text.push('\n');
            text += &columns(&["container", "gpu", "grantedMiB", "uuid"], &rows);
        }
        State::Waiting(waiting) => waiting_text(waiting, &mut text),
        _ => {}
    }
    text
}

fn waiting_text(waiting: &Waiting, text: &mut String) {
    let Waiting {
        condition,
        fits,
        refusals,
        unmodelled,
    } = waiting;
    let said = condition.as_deref().unwrap_or("nothing yet");
    let mut add = |line: String| {
        let _never_fails = writeln!(text, "{line}");
    };
    add(format!("\nthe scheduler says: {said}"));
    if !fits.is_empty() {
        let shown = fits.iter().take(MANY).map(String::as_str);
        let shown = shown.collect::<Vec<_>>().join(", ");
        let more = fits.len().saturating_sub(MANY);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        add(format!("\nthere is room on: {shown}{more}"));
    }
    if !unmodelled.is_empty() {
        add("\nthe scheduler also considers what this command does not:".to_owned());
        unmodelled.iter().for_each(|why| add(format!("  {why}")));
    }
    if !refusals.is_empty() {
        add(format!("\nnot on:\n{}", refusals.grouped().trim_end()));
    }
}
