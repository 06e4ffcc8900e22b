//! `--defrag N`: pods to move, their order, and the gain of each move.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;
use sublet_model::{Ask, Claim, MiB, Parts};
use sublet_plan::{ClusterState, Largest};
use sublet_sim::{Location, Relocation, Relocations, relocate};

use super::args::{Args, BadRequest, Output};
use super::input::Input;
use super::print::rounded;
use super::progress::meanwhile;
use super::runs::Planned;
use crate::align::columns;
use crate::answer::Answer;

/// Finds the moves of the only run, and shows their gain.
///
/// # Errors
/// Several runs, or a form of answer that there is not.
pub(super) fn answer(
    args: &Args,
    input: &Input,
    plan: &[Planned],
    most: usize,
) -> anyhow::Result<Answer> {
    let [planned] = plan else {
        let (flag, runs) = ("--defrag", plan.len());
        return Err(BadRequest::Several { flag, runs }.into());
    };
    let sequence = planned.sequence(args, input);
    let found = || {
        meanwhile("looking for moves", || {
            relocate(planned.inflation(args, input, &sequence), most)
        })
    };
    let text = match args.output {
        Output::Table => as_table(input, &found()),
        Output::Json => json(input, &found())?,
        Output::Csv => return Err(BadRequest::NoCsv.into()),
    };
    Ok(Answer {
        text,
        notes: input.notes.clone(),
        ..Answer::default()
    })
}

/// Numbers of moves after which the table shows the cluster: 0, 1, 2, 5, 10, 20, 50 and so on, and
/// the last.
fn steps(last: usize) -> BTreeSet<usize> {
    let mut steps = BTreeSet::from([0, last]);
    let mut ten = 1;
    while ten <= last {
        steps.extend(
            [ten, 2 * ten, 5 * ten]
                .into_iter()
                .filter(|step| *step < last),
        );
        ten *= 10;
    }
    steps
}

fn as_table(input: &Input, found: &Relocations) -> String {
    let mut text = format!(
        "{} nodes with {} GPUs; {} pods with GPUs that can be moved",
        input.nodes.rows.len(),
        input.gpus(),
        found.movable,
    );
    for (why, count) in &found.staying {
        let _ = write!(text, ", {count} that stay: {why}");
    }
    text += ".\n";
    if found.moves.is_empty() {
        text += "No move helps.\n";
    } else {
        let row = |(number, step): (usize, &Relocation)| {
            vec![
                number.to_string(),
                step.pod.to_string(),
                asked(input, &step.claim),
                location(input, &step.from),
                location(input, &step.to),
            ]
        };
        let rows: Vec<_> = (1..).zip(&found.moves).map(row).collect();
        let _ = write!(
            text,
            "\n{}",
            columns(&["move", "name", "requestMiB", "from", "to"], &rows)
        );
    }
    let first = found.states.first().map_or(0, |state| state.free);
    let row = |moves: usize| {
        let state = found.states[moves];
        let [eight, four, two, one] = state.nodes;
        vec![
            moves.to_string(),
            largest(input, state.largest),
            state.free.to_string(),
            format!("{:+}", i64::from(state.free) - i64::from(first)),
            state.fed.to_string(),
            format!("{eight}×8 {four}×4 {two}×2 {one}×1"),
            format!("{:.2} %", fragmented_percent(input, &state)),
        ]
    };
    let rows: Vec<_> = steps(found.moves.len()).into_iter().map(row).collect();
    let keys = [
        "moves",
        "largestPod",
        "freeGpus",
        "wonGpus",
        "freeGpusWithCpu",
        "nodesWithFree",
        "fragmentedPercent",
    ];
    let _ = write!(text, "\n{}", columns(&keys, &rows));
    text += "FREE GPUS WITH CPU: free GPUs whose node has CPU left for them, as much for each as \
             running pods have.\nNODES WITH FREE: so many nodes with 8, 4, 2 and 1 free GPUs.\n";
    text
}

/// `node/0,1`
fn location(input: &Input, location: &Location) -> String {
    let cards: Vec<String> = location.cards.iter().map(ToString::to_string).collect();
    let node = &input.nodes.rows[location.node as usize].name;
    format!("{node}/{}", cards.join(","))
}

fn asked(input: &Input, claim: &Claim) -> String {
    match claim.ask() {
        Ask::Nothing => "no GPU".to_owned(),
        Ask::Parts(parts) => match parts_compute(parts) {
            0 => part(input, parts.memory()),
            milli => {
                let percent = milli as f64 / 10.0;
                format!(
                    "{} and {percent} % of compute time",
                    part(input, parts.memory())
                )
            }
        },
        Ask::WholeCards(count) => whole(count.get()),
    }
}

/// Compute time of all parts together, in thousandths of a card.
fn parts_compute(parts: &Parts) -> u64 {
    parts.iter().map(|part| u64::from(part.compute.get())).sum()
}

/// Lists that know no memory ask thousandths of a GPU.
fn part(input: &Input, memory: MiB) -> String {
    if input.nodes.by_memory {
        memory.to_string()
    } else {
        format!("{:.3} GPU", memory.get() as f64 / 1000.0)
    }
}

fn whole(count: u32) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} GPU{plural}")
}

fn largest(input: &Input, largest: Largest) -> String {
    match (largest.gpus, largest.memory) {
        (0, MiB::ZERO) => "none".to_owned(),
        (0, memory) => part(input, memory),
        (count, _) => whole(count),
    }
}

fn fragmented_percent(input: &Input, state: &ClusterState) -> f64 {
    state.fragmented_milli / (10 * input.gpus().max(1)) as f64
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    nodes: usize,
    gpus: usize,
    movable_pods: usize,
    staying_pods: &'a BTreeMap<&'static str, usize>,
    moves: Vec<MoveView>,
    /// Before the first move, and after each.
    states: Vec<StateView>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MoveView {
    /// Its number, from 1.
    #[serde(rename = "move")]
    number: usize,
    namespace: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_gpus: Option<u32>,
    #[serde(rename = "requestMiB", skip_serializing_if = "Option::is_none")]
    request_mib: Option<u64>,
    /// On all its cards together.
    #[serde(skip_serializing_if = "Option::is_none")]
    compute_request_percent: Option<f64>,
    cpu_request_milli: u64,
    from: LocationView,
    to: LocationView,
}

#[derive(Serialize)]
struct LocationView {
    node: String,
    gpus: Vec<u16>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StateView {
    moves: usize,
    largest_pod: LargestView,
    free_gpus: u32,
    won_gpus: i64,
    free_gpus_with_cpu: u32,
    nodes_with_free: NodesView,
    fragmented_percent: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LargestView {
    request_gpus: u32,
    #[serde(rename = "requestMiB")]
    request_mib: u64,
}

#[derive(Serialize)]
struct NodesView {
    #[serde(rename = "8")]
    eight: u32,
    #[serde(rename = "4")]
    four: u32,
    #[serde(rename = "2")]
    two: u32,
    #[serde(rename = "1")]
    one: u32,
}

fn json(input: &Input, found: &Relocations) -> anyhow::Result<String> {
    let location = |location: &Location| LocationView {
        node: input.nodes.rows[location.node as usize].name.to_string(),
        gpus: location.cards.iter().map(|card| card.0).collect(),
    };
    let step = |(number, step): (usize, &Relocation)| MoveView {
        number,
        namespace: step.pod.namespace().to_owned(),
        name: step.pod.name().to_owned(),
        request_gpus: match step.claim.ask() {
            Ask::WholeCards(count) => Some(count.get()),
            _ => None,
        },
        request_mib: match step.claim.ask() {
            Ask::Parts(parts) => Some(parts.memory().get()),
            _ => None,
        },
        compute_request_percent: match step.claim.ask() {
            Ask::Parts(parts) => Some(parts_compute(parts))
                .filter(|milli| *milli > 0)
                .map(|milli| milli as f64 / 10.0),
            _ => None,
        },
        cpu_request_milli: step.claim.host().cpu.get(),
        from: location(&step.from),
        to: location(&step.to),
    };
    let first = found.states.first().map_or(0, |state| state.free);
    let state = |(moves, state): (usize, &ClusterState)| {
        let [eight, four, two, one] = state.nodes;
        StateView {
            moves,
            largest_pod: LargestView {
                request_gpus: state.largest.gpus,
                request_mib: state.largest.memory.get(),
            },
            free_gpus: state.free,
            won_gpus: i64::from(state.free) - i64::from(first),
            free_gpus_with_cpu: state.fed,
            nodes_with_free: NodesView {
                eight,
                four,
                two,
                one,
            },
            fragmented_percent: rounded(fragmented_percent(input, state)),
        }
    };
    let document = Document {
        nodes: input.nodes.rows.len(),
        gpus: input.gpus(),
        movable_pods: found.movable,
        staying_pods: &found.staying,
        moves: (1..).zip(&found.moves).map(step).collect(),
        states: found.states.iter().enumerate().map(state).collect(),
    };
    crate::answer::document(&document, false)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sublet_model::{GpuIndex, PodKey};
    use sublet_sim::{BadLines, PodList, read_nodes};

    use super::*;
    use crate::compute::tests::claim;

    #[test]
    fn a_move_says_the_compute_time_that_its_pod_asks() {
        let nodes = "sn,cpu_milli,memory_mib,gpu,gpu_memory_mib\na,1,1,1,100\n";
        let (nodes, _) = read_nodes(nodes.as_bytes(), BadLines::Stop).unwrap();
        let input = Input {
            nodes,
            pods: PodList::default(),
            sequence: None,
            quotas: None,
            notes: Vec::new(),
        };
        for (compute, asks, percent) in [
            (0, "8 MiB", None),
            (125, "8 MiB and 12.5 % of compute time", Some(12.5)),
        ] {
            let at = || Location {
                node: 0,
                cards: vec![GpuIndex(0)],
            };
            let found = Relocations {
                moves: vec![Relocation {
                    pod: PodKey::new("default", "p").unwrap(),
                    claim: Arc::new(claim(8, compute, 1000)),
                    from: at(),
                    to: at(),
                }],
                states: Vec::new(),
                movable: 1,
                staying: BTreeMap::new(),
            };
            assert_eq!(asked(&input, &found.moves[0].claim), asks);
            let json: serde_json::Value =
                serde_json::from_str(&json(&input, &found).unwrap()).unwrap();
            let shown = json["moves"][0].get("computeRequestPercent");
            assert_eq!(shown.and_then(serde_json::Value::as_f64), percent);
        }
    }

    #[test]
    fn the_table_s_steps_grow() {
        let check = |last, expected: &[usize]| {
            assert!(
                steps(last).into_iter().eq(expected.iter().copied()),
                "{last}"
            );
        };
        check(0, &[0]);
        check(1, &[0, 1]);
        check(7, &[0, 1, 2, 5, 7]);
        check(60, &[0, 1, 2, 5, 10, 20, 50, 60]);
        check(100, &[0, 1, 2, 5, 10, 20, 50, 100]);
    }
}
