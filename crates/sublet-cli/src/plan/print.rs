//! A plan as a table, JSON or YAML.
//!
//! The JSON form is a promise to programs: fields are added, never renamed or taken away.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use sublet_model::Grant;

use super::schedule::{Outcome, Plan, PlannedPod};
use crate::align::table;
use crate::answer::{Answer, DONE, Format, NOT_DONE, document};
use crate::grouped::grouped;

#[derive(Serialize)]
struct PlanJson {
    pods: Vec<PodJson>,
    placed: usize,
    refused: usize,
    gated: usize,
}

#[derive(Serialize)]
struct PodJson {
    namespace: String,
    name: String,
    /// Null where it is not placed.
    node: Option<String>,
    devices: Vec<DeviceJson>,
    annotations: BTreeMap<String, String>,
    refusals: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gates: Vec<String>,
}

#[derive(Serialize)]
struct DeviceJson {
    container: String,
    index: u16,
    uuid: Option<String>,
    #[serde(rename = "memoryMiB")]
    memory_mib: u64,
}

/// The plan as text; the exit code says whether every pod that may be scheduled is placed.
///
/// # Errors
/// None that can happen: every plan can be written.
pub fn print(plan: &Plan, format: Format, with_annotations: bool) -> anyhow::Result<Answer> {
    let refused = count(plan, |outcome| matches!(outcome, Outcome::Refused(_)));
    let text = match format {
        Format::Table => as_table(plan, with_annotations),
        Format::Json => document(&as_json(plan), false)?,
        Format::Yaml => document(&as_json(plan), true)?,
    };
    Ok(Answer {
        text,
        notes: plan.notes.clone(),
        code: if refused == 0 { DONE } else { NOT_DONE },
    })
}

fn count(plan: &Plan, is: fn(&Outcome) -> bool) -> usize {
    plan.pods.iter().filter(|pod| is(&pod.outcome)).count()
}

fn as_json(plan: &Plan) -> PlanJson {
    let pods: Vec<PodJson> = plan.pods.iter().map(pod_json).collect();
    PlanJson {
        placed: pods.iter().filter(|pod| pod.node.is_some()).count(),
        refused: count(plan, |outcome| matches!(outcome, Outcome::Refused(_))),
        gated: pods.iter().filter(|pod| !pod.gates.is_empty()).count(),
        pods,
    }
}

fn pod_json(planned: &PlannedPod) -> PodJson {
    let mut json = PodJson {
        namespace: planned.pod.namespace().to_owned(),
        name: planned.pod.name().to_owned(),
        node: None,
        devices: Vec::new(),
        annotations: BTreeMap::new(),
        refusals: BTreeMap::new(),
        gates: Vec::new(),
    };
    match &planned.outcome {
        Outcome::Placed {
            node,
            allocation,
            annotations,
        } => {
            json.node = Some(node.to_string());
            json.devices = allocation.grants.iter().map(device_json).collect();
            json.annotations.clone_from(annotations);
        }
        Outcome::Refused(refusals) => {
            json.refusals = refusals
                .iter()
                .map(|(node, refusal)| (node.clone(), refusal.to_string()))
                .collect();
        }
        Outcome::Gated(gates) => json.gates.clone_from(gates),
    }
    json
}

fn device_json(grant: &Grant) -> DeviceJson {
    DeviceJson {
        container: grant.container.to_string(),
        index: grant.card.index.0,
        uuid: grant.card.uuid.as_ref().map(ToString::to_string),
        memory_mib: grant.memory.get(),
    }
}

fn as_table(plan: &Plan, with_annotations: bool) -> String {
    if plan.pods.is_empty() {
        return "no pod waits for a GPU\n".to_owned();
    }
    let rows: Vec<_> = plan.pods.iter().flat_map(rows).collect();
    let heading = [
        "NAMESPACE",
        "POD",
        "NODE",
        "CONTAINER",
        "GPU",
        "MEMORY",
        "UUID",
    ];
    let mut text = table(&heading, &rows);
    for planned in &plan.pods {
        let pod = &planned.pod;
        let never_fails = match &planned.outcome {
            Outcome::Placed { annotations, .. } if with_annotations => {
                let lines = annotations
                    .iter()
                    .map(|(key, value)| format!("  {key}: {value}\n"));
                writeln!(text, "\n{pod} gets the annotations").map(|()| text.extend(lines))
            }
            Outcome::Placed { .. } => Ok(()),
            Outcome::Refused(refusals) if refusals.is_empty() => {
                writeln!(text, "\n{pod} is not placed: there is no node")
            }
            Outcome::Refused(refusals) => {
                let lines = grouped(refusals);
                write!(text, "\n{pod} is not placed\n{lines}")
            }
            Outcome::Gated(gates) => {
                let gates = gates.join(", ");
                writeln!(text, "\n{pod} is gated by {gates}")
            }
        };
        debug_assert!(never_fails.is_ok(), "writing to a String does not fail");
    }
    let json = as_json(plan);
    let _never_fails = writeln!(
        text,
        "\n{} placed, {} not placed, {} gated",
        json.placed, json.refused, json.gated
    );
    text
}

fn rows(planned: &PlannedPod) -> Vec<Vec<String>> {
    let row = |node: &str, rest: [String; 4]| {
        let mut row = vec![
            planned.pod.namespace().to_owned(),
            planned.pod.name().to_owned(),
            node.to_owned(),
        ];
        row.extend(rest);
        row
    };
    let none = || ["-", "-", "-", "-"].map(str::to_owned);
    match &planned.outcome {
        Outcome::Placed {
            node, allocation, ..
        } => {
            let device = |grant: &Grant| {
                let uuid = grant.card.uuid.as_ref();
                row(
                    node.as_str(),
                    [
                        grant.container.to_string(),
                        grant.card.index.to_string(),
                        grant.memory.to_string(),
                        uuid.map_or_else(|| "-".to_owned(), ToString::to_string),
                    ],
                )
            };
            allocation.grants.iter().map(device).collect()
        }
        Outcome::Refused(_) => vec![row("(none)", none())],
        Outcome::Gated(_) => vec![row("(gated)", none())],
    }
}
