//! Pods in random order until they ask for a share of the cluster: runs of policies and seeds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;
use sublet_sim::{Curve, Drops, Outcome, Reasons, inflate};

use super::args::Args;
use super::compare::Spread;
use super::input::Input;
use super::plot::Chart;
use super::print::{self, Report, head, rounded, write};
use super::runs::{self, Planned};
use crate::align::{columns, table};
use crate::answer::Answer;

type Run<'a> = runs::Run<'a, Planned, Outcome>;

struct Inflated<'a> {
    args: &'a Args,
    input: &'a Input,
    runs: Vec<Run<'a>>,
}

/// Does the runs, one for each policy and seed, and shows their results.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn answer(args: &Args, input: &Input, plan: &[Planned]) -> anyhow::Result<Answer> {
    let runs = runs::side_by_side(args, plan, |planned, progress| {
        let sequence = planned.sequence(args, input);
        let inflation = planned.inflation(args, input, &sequence);
        let all = sequence.arrivals.len();
        Ok(inflate(inflation, |number| progress.arrived(number, all)))
    })?;
    if let (Some(file), [run]) = (&args.placements, &runs[..]) {
        write(file, &placements(input, run))?;
    }
    print::answer(args, input, &Inflated { args, input, runs })
}

impl Report for Inflated<'_> {
    type View = RunView;

    fn table(&self) -> String {
        let groups = self.by_policy();
        let over_seeds = match self.runs.len() > groups.len() {
            true => ", mean ± standard deviation over seeds",
            false => "",
        };
        let head = head(self.args, self.input);
        let mut text = format!("{head} Percent of all GPUs{over_seeds}.\n");
        for group in &groups {
            let seeds = match group.len() {
                1 => String::new(),
                seeds => format!(", {seeds} seeds"),
            };
            let _ = writeln!(text, "\n{}{seeds}", group[0].planned.policy);
            let row = |percent: u32| {
                let of = |value: &dyn Fn(&Curve) -> Option<f64>| spread(&figures(group, value));
                vec![
                    format!("{percent} %"),
                    of(&|curve| Some(curve.at(percent)?.allocated_percent)),
                    of(&unallocated(percent)),
                    of(&|curve| Some(curve.at(percent)?.fragmented_percent)),
                ]
            };
            let rows: Vec<_> = steps(group).into_iter().map(row).collect();
            let keys = [
                "arrivedPercent",
                "allocatedPercent",
                "unallocatedPercent",
                "fragmentedPercent",
            ];
            text += &columns(&keys, &rows);
            text += &summary(group, !self.args.no_timing);
        }
        text + &comparison(&groups)
    }

    fn views(&self) -> Vec<RunView> {
        let view = |run: &Run<'_>| {
            let Drops { none, share, whole } = run.outcome.drops;
            let [one, two, four, eight] = whole;
            let points = run.outcome.curve.points.iter();
            RunView {
                policy: run.planned.policy.to_string(),
                seed: run.planned.seed,
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
                cpu_seconds: (!self.args.no_timing).then_some(run.cpu.as_secs_f64()),
                curve: points
                    .map(|point| PointView {
                        arrived_percent: point.arrived_percent,
                        allocated_percent: rounded(point.allocated_percent),
                        unallocated_percent: rounded(100.0 - point.allocated_percent),
                        fragmented_percent: rounded(point.fragmented_percent),
                    })
                    .collect(),
            }
        };
        self.runs.iter().map(view).collect()
    }

    fn csv(&self) -> Vec<String> {
        let heading = "policy,seed,arrived_percent,allocated_percent,fragmented_percent";
        let mut lines = vec![heading.to_owned()];
        for run in &self.runs {
            // A mix has commas in its name.
            let policy = &run.planned.policy;
            let seed = run
                .planned
                .seed
                .map_or(String::new(), |seed| seed.to_string());
            lines.extend(run.outcome.curve.points.iter().map(|point| {
                format!(
                    "\"{policy}\",{seed},{},{:.4},{:.4}",
                    point.arrived_percent, point.allocated_percent, point.fragmented_percent
                )
            }));
        }
        lines
    }

    /// Capacity left unallocated while pods arrived: means over seeds.
    fn chart(&self) -> Option<Chart> {
        let curve = |group: &Vec<&Run<'_>>| {
            let mut figures: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
            for point in group.iter().flat_map(|run| &run.outcome.curve.points) {
                let figures = figures.entry(point.arrived_percent).or_default();
                figures.push(100.0 - point.allocated_percent);
            }
            let points = figures.into_iter();
            let points = points.map(|(at, figures)| (f64::from(at), Spread::of(&figures).mean));
            (group[0].planned.policy.to_string(), points.collect())
        };
        let mut chart = Chart {
            title: "Unallocated GPUs",
            curves: self.by_policy().iter().map(curve).collect(),
            from: 0.0,
            across: "GPU share asked by all that arrived, percent of the cluster".to_owned(),
            across_unit: " %",
            up: "GPU share left unallocated, percent of the cluster",
        };
        // Below 80 % every policy places everything: nothing to see.
        if chart.to() > 90.0 {
            chart.from = 80.0;
        }
        Some(chart)
    }
}

impl<'a> Inflated<'a> {
    /// Runs of each policy, at least one.
    fn by_policy(&self) -> Vec<Vec<&Run<'a>>> {
        let mut groups: Vec<Vec<&Run<'a>>> = Vec::new();
        for run in &self.runs {
            let policy = &run.planned.policy;
            let mut known = groups.iter_mut();
            match known.find(|group| group[0].planned.policy == *policy) {
                Some(group) => group.push(run),
                None => groups.push(vec![run]),
            }
        }
        groups
    }
}

fn figures(runs: &[&Run<'_>], of: impl Fn(&Curve) -> Option<f64>) -> Vec<f64> {
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
fn steps(runs: &[&Run<'_>]) -> Vec<u32> {
    let known = runs.iter().flat_map(|run| &run.outcome.curve.points);
    let known: BTreeSet<u32> = known.map(|point| point.arrived_percent).collect();
    let ends = [known.first().copied(), known.last().copied()];
    let shown = |percent: &u32| {
        let is_step = percent.is_multiple_of(10) || *percent == 95;
        *percent > 0 && (is_step || ends.contains(&Some(*percent)))
    };
    known.iter().copied().filter(shown).collect()
}

/// Arrivals, drops, nodes and time of one policy's runs, means over seeds.
fn summary(group: &[&Run<'_>], timing: bool) -> String {
    let n = group.len() as f64;
    let mean = |of: &dyn Fn(&Run<'_>) -> f64| group.iter().map(|run| of(run)).sum::<f64>() / n;
    let arrivals = mean(&|run| run.outcome.placements.len() as f64);
    let placed = mean(&|run| run.outcome.placed as f64);
    // One run has no half pods.
    let decimals = usize::from(group.len() > 1);
    let drops = |of: &dyn Fn(&Drops) -> u32| {
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
fn reasons(group: &[&Run<'_>]) -> String {
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
fn comparison(groups: &[Vec<&Run<'_>>]) -> String {
    let [ones, others] = groups else {
        return String::new();
    };
    let row = |percent: u32| {
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
        vec![
            format!("{percent} %"),
            format!("{:+.2}", spread.mean),
            interval,
        ]
    };
    let shown = steps(ones).into_iter().filter(|percent| *percent >= 80);
    let rows: Vec<_> = shown.map(row).collect();
    format!(
        "\nUnallocated by {} minus {}, paired by seed\n{}",
        others[0].planned.policy,
        ones[0].planned.policy,
        table(&["ARRIVED", "DIFFERENCE", "95 % INTERVAL"], &rows)
    )
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
    #[serde(rename = "part")]
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
    unallocated_percent: f64,
    fragmented_percent: f64,
}

fn placements(input: &Input, run: &Run<'_>) -> String {
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
