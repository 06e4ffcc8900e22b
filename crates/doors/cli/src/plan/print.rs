//! A plan as a table, JSON or YAML.
//!
//! The JSON form is a promise to programs: fields are added, never renamed or taken away.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

use serde::Serialize;
use sublet_model::Grant;

use super::input::Unreadable;
use super::schedule::{Outcome, Place, Plan, PlannedPod};
use crate::align::columns;
use crate::answer::{BAD_INPUT, DONE, Format, NOT_DONE, write_document};
use crate::compute::{self, ComputeTime};
use crate::refusals::Refusals;

/// Column of the compute time, if the table has it.
const COMPUTE: usize = 6;

/// Form of a printed plan.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Printing {
    /// In which form.
    pub format: Format,
    /// With the annotations that each pod would get, in a table too?
    pub annotations: bool,
    /// Is an object that cannot be read an error?
    pub strict: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PlanJson<'a> {
    pods: Vec<PodJson<'a>>,
    placed: usize,
    conditional: usize,
    refused: usize,
    held_back: usize,
    unreadable: &'a [Unreadable],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodJson<'a> {
    namespace: String,
    name: String,
    /// `placed`, `conditional`, `refused` or `heldBack`.
    verdict: &'static str,
    /// Null if it is not placed.
    node: Option<String>,
    /// Other nodes that the scheduler may take instead: it picks at random among those of one
    /// score, and weighs preferences about other pods that are not weighed here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alternatives: Vec<String>,
    gpus: Vec<GpuJson>,
    annotations: BTreeMap<String, String>,
    refusals: &'a Refusals,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scheduling_gates: Vec<String>,
    /// Reasons why the verdict is uncertain, or refusals by something other than the nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<String>,
    /// The place that is reserved for a pod which may be placed.
    #[serde(skip_serializing_if = "Option::is_none")]
    candidate: Option<CandidateJson>,
}

#[derive(Serialize)]
struct CandidateJson {
    node: String,
    gpus: Vec<GpuJson>,
}

#[derive(Serialize)]
struct GpuJson {
    container: String,
    gpu: u16,
    uuid: Option<String>,
    #[serde(rename = "grantedMiB")]
    granted_mib: u64,
    /// Only if any pod of the plan asks for compute time.
    #[serde(flatten)]
    compute: Option<ComputeTime>,
}

/// Writes the plan.
///
/// # Errors
/// An error of the writer.
pub(super) fn write(plan: &Plan, how: Printing, out: &mut dyn io::Write) -> io::Result<()> {
    match how.format {
        Format::Table => out.write_all(as_table(plan, how.annotations).as_bytes()),
        Format::Json => write_document(&as_json(plan), false, out),
        Format::Yaml => write_document(&as_json(plan), true, out),
    }
}

/// Notes beside the plan, and the exit code. The exit code says whether every pod that may be
/// scheduled is placed.
pub(super) fn verdict(plan: &Plan, how: Printing) -> (Vec<String>, u8) {
    let done = |pod: &PlannedPod| matches!(pod.outcome, Outcome::Placed(_) | Outcome::HeldBack(_));
    let lost = plan.unreadable.iter().any(|odd| odd.may_wait);
    let (word, code) = match how.strict {
        true if !plan.unreadable.is_empty() => ("error", BAD_INPUT),
        _ if plan.pods.iter().all(done) && !lost => ("warning", DONE),
        _ => ("warning", NOT_DONE),
    };
    let odd = plan.unreadable.iter().map(|odd| format!("{word}: {odd}"));
    (plan.notes.iter().cloned().chain(odd).collect(), code)
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Placed(_) => "placed",
        Outcome::Conditional { .. } => "conditional",
        Outcome::Refused(_) | Outcome::OverQuota(_) => "refused",
        Outcome::HeldBack(_) => "heldBack",
    }
}

fn count(plan: &Plan, verdict: &str) -> usize {
    let pods = plan.pods.iter();
    pods.filter(|pod| word(&pod.outcome) == verdict).count()
}

/// Does any pod ask for compute time of a part? Else none is shown.
fn has_compute(plan: &Plan) -> bool {
    plan.pods.iter().any(|pod| compute::is_asked(&pod.claim))
}

fn as_json(plan: &Plan) -> PlanJson<'_> {
    let with_compute = has_compute(plan);
    let pods = plan.pods.iter();
    PlanJson {
        placed: count(plan, "placed"),
        conditional: count(plan, "conditional"),
        refused: count(plan, "refused"),
        held_back: count(plan, "heldBack"),
        unreadable: &plan.unreadable,
        pods: pods.map(|pod| pod_json(pod, with_compute)).collect(),
    }
}

fn pod_json(planned: &PlannedPod, with_compute: bool) -> PodJson<'_> {
    static NONE: Refusals = Refusals::NONE;
    let mut json = PodJson {
        namespace: planned.pod.namespace().to_owned(),
        name: planned.pod.name().to_owned(),
        verdict: word(&planned.outcome),
        node: None,
        alternatives: Vec::new(),
        gpus: Vec::new(),
        annotations: BTreeMap::new(),
        refusals: &NONE,
        scheduling_gates: Vec::new(),
        reasons: Vec::new(),
        candidate: None,
    };
    let gpu = |grant: &Grant| GpuJson {
        container: grant.container.to_string(),
        gpu: grant.card.index.0,
        uuid: grant.card.uuid.as_ref().map(ToString::to_string),
        granted_mib: grant.memory.get(),
        compute: ComputeTime::of_container(&planned.claim, &grant.container)
            .filter(|_| with_compute),
    };
    let gpus = |place: &Place| place.allocation.grants.iter().map(gpu).collect();
    match &planned.outcome {
        Outcome::Placed(place) => {
            json.node = Some(place.node.clone());
            json.alternatives.clone_from(&place.alternatives);
            json.gpus = gpus(place);
            json.annotations.clone_from(&place.annotations);
        }
        Outcome::Conditional {
            because,
            place,
            refusals,
        } => {
            json.reasons = because.iter().map(ToString::to_string).collect();
            json.refusals = refusals;
            json.candidate = place.as_ref().map(|place| CandidateJson {
                node: place.node.clone(),
                gpus: gpus(place),
            });
        }
        Outcome::Refused(refusals) => json.refusals = refusals,
        Outcome::OverQuota(over) => json.reasons.push(over.to_string()),
        Outcome::HeldBack(gates) => json.scheduling_gates.clone_from(gates),
    }
    json
}

fn as_table(plan: &Plan, with_annotations: bool) -> String {
    if plan.pods.is_empty() {
        return "no pod waits\n".to_owned();
    }
    let with_compute = has_compute(plan);
    let pods = plan.pods.iter();
    let rows: Vec<_> = pods.flat_map(|pod| rows(pod, with_compute)).collect();
    let mut keys = vec![
        "namespace",
        "name",
        "node",
        "container",
        "gpu",
        "grantedMiB",
        "uuid",
    ];
    if with_compute {
        keys.insert(COMPUTE, "computeRequestPercent");
    }
    let mut text = columns(&keys, &rows);
    for planned in &plan.pods {
        let _never_fails = more(planned, with_annotations, &mut text);
    }
    text.push('\n');
    let sums: Vec<String> = [
        ("placed", "placed"),
        ("conditional", "conditional"),
        ("refused", "not placed"),
        ("heldBack", "held back"),
    ]
    .into_iter()
    .map(|(verdict, shown)| (count(plan, verdict), shown))
    // A conditional place is rare, and shown where there is one.
    .filter(|(count, shown)| *shown != "conditional" || *count > 0)
    .map(|(count, shown)| format!("{count} {shown}"))
    .collect();
    let _never_fails = writeln!(text, "{}", sums.join(", "));
    let drawn = plan.pods.iter();
    let drawn = drawn
        .filter(|pod| matches!(&pod.outcome, Outcome::Placed(p) if !p.alternatives.is_empty()));
    match drawn.count() {
        0 => {}
        n => {
            let _never_fails = writeln!(
                text,
                "{n} of them may go elsewhere too: the scheduler picks at random among nodes of equal \
                 scores, and weighs preferences about other pods"
            );
        }
    }
    text
}

/// Writes the facts that a pod's row does not show.
fn more(planned: &PlannedPod, with_annotations: bool, text: &mut String) -> std::fmt::Result {
    let pod = &planned.pod;
    match &planned.outcome {
        Outcome::Placed(place) if with_annotations && !place.annotations.is_empty() => {
            writeln!(text, "\n{pod} gets the annotations")?;
            for (key, value) in &place.annotations {
                writeln!(text, "  {key}: {value}")?;
            }
            Ok(())
        }
        Outcome::Placed(_) => Ok(()),
        Outcome::Conditional {
            because, refusals, ..
        } => {
            writeln!(text, "\n{pod} may be placed or not")?;
            for why in because {
                writeln!(text, "  {why}")?;
            }
            write!(text, "{}", refusals.grouped())
        }
        Outcome::Refused(refusals) if refusals.is_empty() => {
            writeln!(text, "\n{pod} is not placed: there is no node")
        }
        Outcome::Refused(refusals) => {
            write!(text, "\n{pod} is not placed\n{}", refusals.grouped())
        }
        Outcome::OverQuota(over) => writeln!(text, "\n{pod} is not placed\n  {over}"),
        Outcome::HeldBack(gates) => {
            let gates = gates.join(", ");
            writeln!(text, "\n{pod} is held back by scheduling gates: {gates}")
        }
    }
}

fn rows(planned: &PlannedPod, with_compute: bool) -> Vec<Vec<String>> {
    let row = |node: &str, rest: [String; 4], compute: Option<ComputeTime>| {
        let mut row = vec![
            planned.pod.namespace().to_owned(),
            planned.pod.name().to_owned(),
            node.to_owned(),
        ];
        row.extend(rest);
        if with_compute {
            let compute = compute.map_or_else(|| "-".to_owned(), |time| time.to_string());
            row.insert(COMPUTE, compute);
        }
        row
    };
    let none = || ["-", "-", "-", "-"].map(str::to_owned);
    let devices = |node: &str, place: &Place| {
        let device = |grant: &Grant| {
            let uuid = grant.card.uuid.as_ref();
            row(
                node,
                [
                    grant.container.to_string(),
                    grant.card.index.to_string(),
                    grant.memory.to_string(),
                    uuid.map_or_else(|| "-".to_owned(), ToString::to_string),
                ],
                ComputeTime::of_container(&planned.claim, &grant.container),
            )
        };
        let rows: Vec<_> = place.allocation.grants.iter().map(device).collect();
        if rows.is_empty() {
            // It asks for no GPU.
            return vec![row(node, none(), None)];
        }
        rows
    };
    match &planned.outcome {
        Outcome::Placed(place) => devices(&place.node, place),
        Outcome::Conditional {
            place: Some(place), ..
        } => devices(&format!("{}?", place.node), place),
        Outcome::Conditional { .. } => vec![row("?", none(), None)],
        Outcome::Refused(_) | Outcome::OverQuota(_) => vec![row("(none)", none(), None)],
        Outcome::HeldBack(_) => vec![row("(held back)", none(), None)],
    }
}
