//! Results of the runs, as a table, as JSON, as CSV, and as a list of placements.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;
use sublet_sim::{Curve, Reasons};

use super::compare::Spread;
use super::input::Input;
use super::runs::{Run, peak_memory_mib};
use crate::align::align;

/// Rows of cells, each column as wide as its widest cell.
pub(super) fn aligned(rows: &[Vec<String>]) -> String {
    let lines: Vec<String> = rows.iter().map(|row| row.join("\t")).collect();
    align(&(lines.join("\n") + "\n"))
}

/// Runs of one policy.
fn by_policy(runs: &[Run]) -> Vec<(&Run, Vec<&Run>)> {
    let mut groups: Vec<(&Run, Vec<&Run>)> = Vec::new();
    for run in runs {
        match groups
            .iter_mut()
            .find(|(first, _)| first.policy == run.policy)
        {
            Some((_, group)) => group.push(run),
            None => groups.push((run, vec![run])),
        }
    }
    groups
}

fn figures(runs: &[&Run], of: impl Fn(&Curve) -> Option<f64>) -> Vec<f64> {
    runs.iter()
        .filter_map(|run| of(&run.outcome.curve))
        .collect()
}

fn unallocated(percent: u32) -> impl Fn(&Curve) -> Option<f64> {
    move |curve| {
        curve
            .at(percent)
            .map(|point| 100.0 - point.allocated_percent)
    }
}

fn spread(figures: &[f64]) -> String {
    match figures {
        [] => "-".to_owned(),
        [one] => format!("{one:.2}"),
        _ => {
            let Spread { mean, deviation } = Spread::of(figures);
            format!("{mean:.2} ± {deviation:.2}")
        }
    }
}

/// The percents of arrival that a table shows, out of the known ones: tens, 95, the first and the
/// last. In a small cluster a single pod passes by many.
fn steps(runs: &[&Run]) -> Vec<u32> {
    let known = runs.iter().flat_map(|run| &run.outcome.curve.points);
    let known: BTreeSet<u32> = known.map(|point| point.arrived_percent).collect();
    let ends = [known.first().copied(), known.last().copied()];
    let shown = |percent: &u32| {
        let is_step = percent.is_multiple_of(10) || *percent == 95;
        *percent > 0 && (is_step || ends.contains(&Some(*percent)))
    };
    known.iter().copied().filter(shown).collect()
}

/// Describes the input of the runs.
pub(super) fn cluster(input: &Input) -> String {
    let cards = input
        .nodes
        .rows
        .iter()
        .map(|row| row.inventory.gpus().len());
    let gpus: usize = cards.sum();
    let (nodes, pods) = (input.nodes.rows.len(), input.pods.rows.len());
    match input.nodes.running.len() {
        0 => format!("{nodes} nodes with {gpus} GPUs; {pods} pods in the list"),
        run => format!("{nodes} nodes with {gpus} GPUs; {run} pods run, new ones are like {pods}"),
    }
}

pub(super) fn table(input: &Input, runs: &[Run], timing: bool) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}. Percent of all GPUs{}.",
        cluster(input),
        if runs.len() > by_policy(runs).len() {
            ", mean ± standard deviation over seeds"
        } else {
            ""
        },
    );
    for (first, group) in by_policy(runs) {
        let seeds = group.len();
        let _ = writeln!(
            text,
            "\n{}{}",
            first.policy,
            if seeds > 1 {
                format!(", {seeds} seeds")
            } else {
                String::new()
            }
        );
        let mut rows = vec![vec![
            "ARRIVED".to_owned(),
            "ALLOCATED".to_owned(),
            "UNALLOCATED".to_owned(),
            "FRAGMENTED".to_owned(),
        ]];
        for percent in steps(&group) {
            let of = |value: &dyn Fn(&Curve) -> Option<f64>| spread(&figures(&group, value));
            rows.push(vec![
                format!("{percent} %"),
                of(&|curve| Some(curve.at(percent)?.allocated_percent)),
                of(&unallocated(percent)),
                of(&|curve| Some(curve.at(percent)?.fragmented_percent)),
            ]);
        }
        text += &aligned(&rows);
        text += &summary(&group, timing);
    }
    text += &comparison(runs);
    text
}

/// Arrivals, drops, nodes and time of one policy's runs, means over seeds.
fn summary(group: &[&Run], timing: bool) -> String {
    let n = group.len() as f64;
    let mean = |of: &dyn Fn(&Run) -> f64| group.iter().map(|run| of(run)).sum::<f64>() / n;
    let arrivals = mean(&|run| run.outcome.placements.len() as f64);
    let placed = mean(&|run| run.outcome.placed as f64);
    // One run has no half pods.
    let decimals = usize::from(group.len() > 1);
    let drops = |of: &dyn Fn(&sublet_sim::Drops) -> u32| {
        let dropped = mean(&|run| f64::from(of(&run.outcome.drops)));
        format!("{dropped:.decimals$}")
    };
    let mut text = format!(
        "{arrivals:.0} arrived, {placed:.0} placed on {:.0} nodes. Dropped until 100 % had arrived: \
         {} parts of a GPU, {} × 1 GPU, {} × 2, {} × 4, {} × 8, {} without GPU.\n",
        mean(&|run| run.outcome.used_nodes as f64),
        drops(&|drops| drops.share),
        drops(&|drops| drops.whole[0]),
        drops(&|drops| drops.whole[1]),
        drops(&|drops| drops.whole[2]),
        drops(&|drops| drops.whole[3]),
        drops(&|drops| drops.none),
    );
    text += &reasons(group);
    if timing {
        let cpu = mean(&|run| run.cpu.as_secs_f64());
        let each = match arrivals {
            0.0 => String::new(),
            _ => format!(", {:.1} µs a decision", cpu * 1e6 / arrivals),
        };
        let _ = writeln!(text, "{cpu:.2} CPU seconds a run{each}.");
    }
    text
}

/// Reasons why pods were dropped, most frequent first; empty if none was dropped.
fn reasons(group: &[&Run]) -> String {
    let mut sums: BTreeMap<&str, u32> = BTreeMap::new();
    for (label, count) in group.iter().flat_map(|run| &run.outcome.reasons) {
        *sums.entry(label).or_default() += count;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, count)| Reverse(*count));
    let mean = |count: u32| f64::from(count) / group.len() as f64;
    let decimals = usize::from(group.len() > 1);
    let words = sums
        .iter()
        .map(|(label, count)| format!("{:.decimals$} {label}", mean(*count)));
    match words.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => none,
        some => format!("What they lacked: {some}.\n"),
    }
}

/// For two policies: the reduction of unallocated capacity by the second, seed by seed.
fn comparison(runs: &[Run]) -> String {
    let groups = by_policy(runs);
    let [(first, ones), (second, others)] = &groups[..] else {
        return String::new();
    };
    let mut rows = vec![vec![
        "ARRIVED".to_owned(),
        "DIFFERENCE".to_owned(),
        "95 % INTERVAL".to_owned(),
    ]];
    for percent in steps(ones).into_iter().filter(|percent| *percent >= 80) {
        let of = unallocated(percent);
        let pairs = ones.iter().zip(others);
        let differences: Vec<f64> = pairs
            .filter_map(|(one, other)| Some(of(&other.outcome.curve)? - of(&one.outcome.curve)?))
            .collect();
        let spread = Spread::of(&differences);
        let interval = spread
            .half_width(differences.len())
            .map_or("-".to_owned(), |half| {
                format!("{:+.2} to {:+.2}", spread.mean - half, spread.mean + half)
            });
        rows.push(vec![
            format!("{percent} %"),
            format!("{:+.2}", spread.mean),
            interval,
        ]);
    }
    format!(
        "\nUnallocated by {} minus {}, paired by seed\n{}",
        second.policy,
        first.policy,
        aligned(&rows)
    )
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<R> {
    runs: Vec<R>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_memory_mi_b: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RunView {
    policy: String,
    seed: Option<u64>,
    arrivals: usize,
    placed: usize,
    dropped_by_gpus: DropsView,
    dropped_by_reason: Reasons,
    used_nodes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_seconds: Option<f64>,
    curve: Vec<PointView>,
}

#[derive(Serialize)]
struct DropsView {
    none: u32,
    share: u32,
    #[serde(rename = "1")]
    one: u32,
    #[serde(rename = "2")]
    two: u32,
    #[serde(rename = "4")]
    four: u32,
    #[serde(rename = "8")]
    eight: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PointView {
    arrived_percent: u32,
    allocated_percent: f64,
    fragmented_percent: f64,
}

pub(super) fn json(runs: &[Run], timing: bool) -> anyhow::Result<String> {
    let view = |run: &Run| {
        let sublet_sim::Drops { none, share, whole } = run.outcome.drops;
        let [one, two, four, eight] = whole;
        let points = run.outcome.curve.points.iter();
        RunView {
            policy: run.policy.to_string(),
            seed: run.seed,
            arrivals: run.outcome.placements.len(),
            placed: run.outcome.placed,
            dropped_by_gpus: DropsView {
                none,
                share,
                one,
                two,
                four,
                eight,
            },
            dropped_by_reason: run.outcome.reasons.clone(),
            used_nodes: run.outcome.used_nodes,
            cpu_seconds: timing.then_some(run.cpu.as_secs_f64()),
            curve: points
                .map(|point| PointView {
                    arrived_percent: point.arrived_percent,
                    allocated_percent: rounded(point.allocated_percent),
                    fragmented_percent: rounded(point.fragmented_percent),
                })
                .collect(),
        }
    };
    document(runs.iter().map(view).collect(), timing)
}

/// Runs as one document.
pub(super) fn document<R: Serialize>(runs: Vec<R>, timing: bool) -> anyhow::Result<String> {
    let document = Document {
        runs,
        peak_memory_mi_b: if timing { peak_memory_mib() } else { None },
    };
    crate::answer::document(&document, false)
}

/// Four decimals: more would be noise.
pub(super) fn rounded(percent: f64) -> f64 {
    (percent * 1e4).round() / 1e4
}

pub(super) fn csv(runs: &[Run]) -> String {
    let mut text = "policy,seed,arrived_percent,allocated_percent,fragmented_percent\n".to_owned();
    for run in runs {
        // A mix has commas in its name.
        let policy = run.policy.to_string();
        let seed = run.seed.map_or(String::new(), |seed| seed.to_string());
        for point in &run.outcome.curve.points {
            let _ = writeln!(
                text,
                "\"{policy}\",{seed},{},{:.4},{:.4}",
                point.arrived_percent, point.allocated_percent, point.fragmented_percent
            );
        }
    }
    text
}

pub(super) fn placements(input: &Input, run: &Run) -> String {
    let mut text = String::new();
    for placement in &run.outcome.placements {
        let _ = match &placement.place {
            None => writeln!(text, "{} - []", placement.pod),
            Some((node, cards)) => {
                let facts = &input.nodes.rows[*node as usize];
                let (node, gpus) = (&facts.name, facts.inventory.gpus());
                let cards = cards
                    .iter()
                    .map(|&at| gpus[usize::from(at)].index.to_string());
                let cards: Vec<String> = cards.collect();
                writeln!(text, "{} {node} [{}]", placement.pod, cards.join(","))
            }
        };
    }
    text
}
