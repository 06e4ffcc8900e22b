//! Results of replays, as a table, as JSON and as CSV.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use sublet_sim::{ReplayOutcome, SizeClass, WaitGroup};

use super::super::Args;
use super::super::input::Input;
use super::super::print::{aligned, cluster, document, rounded};
use super::super::timed::print::{Waits, span};
use super::{QueueRun, interval};

pub(super) fn table(args: &Args, input: &Input, runs: &[QueueRun]) -> String {
    let mut text = head(args, input, runs);
    text.push('\n');
    text += &aligned(&totals(args, runs));
    text += "\nWaits: p50 / p90 / p99, until the start of the run in which a job ended.\n\n";
    let sizes: Vec<_> = runs.iter().map(|run| &run.outcome.sizes[..]).collect();
    text += &aligned(&waits(runs, &["GPUS", "JOBS"], &sizes, |of| {
        vec![of.of.words().to_owned()]
    }));
    text.push('\n');
    let tenants: Vec<_> = runs.iter().map(|run| &run.outcome.tenants[..]).collect();
    text += &aligned(&waits(runs, &["TENANT", "MIN", "JOBS"], &tenants, |of| {
        vec![of.of.to_string(), (of.min_milli / 1000).to_string()]
    }));
    text.push('\n');
    text.extend(runs.iter().map(why));
    for run in runs {
        let _ = writeln!(
            text,
            "{}: {}.",
            run.discipline.name(),
            run.discipline.about()
        );
    }
    text
}

/// Describes the replayed input and its options.
fn head(args: &Args, input: &Input, runs: &[QueueRun]) -> String {
    let mut text = format!("{}.", cluster(input));
    if let Some(load) = args.load {
        let _ = write!(text, " They ask {load} of its GPU time while they come.");
    }
    let quotas = match &args.quotas {
        Some(file) => format!("is from {}", file.display()),
        None => "is its part of the GPU time that all jobs ask".to_owned(),
    };
    let when = match interval(args) {
        0 => "at each arrival and each end".to_owned(),
        seconds => format!("at most once in {seconds} s"),
    };
    let _ = writeln!(
        text,
        "\nThe min of each tenant {quotas}. The queue decides {when}.\n\
         An evicted job loses its work and waits again. No rule knows how long a job will run."
    );
    // The same for all of them.
    let impossible = runs.first().map(|run| &run.outcome.impossible);
    if let Some((count @ 1.., Some(first))) = impossible {
        let _ = writeln!(
            text,
            "{count} jobs could not start even if nothing ran, and are left out (the first: {first})."
        );
    }
    text
}

fn totals(args: &Args, runs: &[QueueRun]) -> Vec<Vec<String>> {
    let mut heading = vec![
        "DISCIPLINE",
        "ENDED",
        "GPUS IN USE",
        "OF IT LOST",
        "EVICTIONS",
        "GPU HOURS LOST",
        "MAKESPAN",
    ];
    if !args.no_timing {
        heading.push("CPU SECONDS");
    }
    let row = |run: &QueueRun| {
        let outcome = &run.outcome;
        let mut row = vec![
            run.discipline.name().to_owned(),
            outcome.ended.to_string(),
            format!("{:.2} %", outcome.useful_percent + outcome.lost_percent),
            format!("{:.2} %", outcome.lost_percent),
            outcome.evictions.to_string(),
            format!("{:.0}", outcome.lost_hours),
            span(outcome.makespan),
        ];
        if !args.no_timing {
            row.push(format!("{:.1}", run.cpu.as_secs_f64()));
        }
        row
    };
    let heading = heading.into_iter().map(str::to_owned).collect();
    std::iter::once(heading)
        .chain(runs.iter().map(row))
        .collect()
}

/// Reasons why gangs waited, if the discipline says so, and the number of evicted gangs.
fn why(run: &QueueRun) -> String {
    let waited = &run.outcome.gangs_waited_for;
    let all: u64 = waited.values().sum();
    if all == 0 {
        return String::new();
    }
    let percent = |seconds: u64| 100.0 * seconds as f64 / all as f64;
    let mut parts: Vec<(&str, u64)> = waited.iter().map(|(word, of)| (*word, *of)).collect();
    parts.sort_by_key(|(_, seconds)| std::cmp::Reverse(*seconds));
    let parts = parts.into_iter();
    let parts: Vec<String> = parts
        .map(|(word, seconds)| format!("{word} {:.0} %", percent(seconds)))
        .collect();
    let gangs = run.outcome.sizes.iter();
    let gangs = gangs.filter(|group| group.of == SizeClass::Gang);
    let evictions: u64 = gangs.map(|group| group.evictions).sum();
    format!(
        "Gangs of {} waited for: {}. They were evicted {evictions} times.\n\n",
        run.discipline.name(),
        parts.join(", ")
    )
}

/// A row for each group, with a cell for each run. All runs have the same groups.
fn waits<T>(
    runs: &[QueueRun],
    first: &[&str],
    groups: &[&[WaitGroup<T>]],
    name: impl Fn(&WaitGroup<T>) -> Vec<String>,
) -> Vec<Vec<String>> {
    let names = runs.iter().map(|run| run.discipline.name());
    let heading = first.iter().copied().chain(names);
    let mut rows = vec![heading.map(str::to_owned).collect()];
    for (at, group) in groups.first().copied().unwrap_or(&[]).iter().enumerate() {
        let mut row = name(group);
        row.push(group.jobs.to_string());
        let cells = groups.iter().map(|groups| cell(groups.get(at)));
        row.extend(cells);
        rows.push(row);
    }
    rows
}

fn cell<T>(group: Option<&WaitGroup<T>>) -> String {
    let waits = group.and_then(|group| Waits::of(&group.waits));
    waits.map_or("-".to_owned(), |waits| {
        let Waits { p50, p90, p99, .. } = waits;
        format!("{} / {} / {}", span(p50), span(p90), span(p99))
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QueueView {
    discipline: &'static str,
    about: &'static str,
    protocol: &'static str,
    policy: String,
    interval_seconds: u64,
    jobs: usize,
    ended: usize,
    impossible: u32,
    gpu_percent: f64,
    lost_gpu_percent: f64,
    evictions: u64,
    lost_gpu_hours: f64,
    makespan_seconds: u64,
    wait_by_size: Vec<GroupView>,
    wait_by_tenant: Vec<GroupView>,
    gangs_waited_for_seconds: BTreeMap<&'static str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_seconds: Option<f64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupView {
    #[serde(skip_serializing_if = "Option::is_none")]
    gpus: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_gpus: Option<u64>,
    jobs: usize,
    evictions: u64,
    wait_seconds: Option<Waits>,
}

pub(super) fn json(args: &Args, input: &Input, runs: &[QueueRun]) -> anyhow::Result<String> {
    let policies: Vec<String> = args.policy.iter().map(ToString::to_string).collect();
    let view = |run: &QueueRun| {
        let ReplayOutcome {
            useful_percent,
            lost_percent,
            ..
        } = run.outcome;
        QueueView {
            discipline: run.discipline.name(),
            about: run.discipline.about(),
            protocol: "queue",
            policy: policies.join(" "),
            interval_seconds: interval(args),
            jobs: input.pods.rows.len(),
            ended: run.outcome.ended,
            impossible: run.outcome.impossible.0,
            gpu_percent: rounded(useful_percent + lost_percent),
            lost_gpu_percent: rounded(lost_percent),
            evictions: run.outcome.evictions,
            lost_gpu_hours: rounded(run.outcome.lost_hours),
            makespan_seconds: run.outcome.makespan,
            wait_by_size: run.outcome.sizes.iter().map(of_size).collect(),
            wait_by_tenant: run.outcome.tenants.iter().map(of_tenant).collect(),
            gangs_waited_for_seconds: run.outcome.gangs_waited_for.clone(),
            cpu_seconds: (!args.no_timing).then_some(run.cpu.as_secs_f64()),
        }
    };
    document(runs.iter().map(view).collect(), !args.no_timing)
}

fn of_size(group: &WaitGroup<SizeClass>) -> GroupView {
    GroupView {
        gpus: Some(group.of.words()),
        tenant: None,
        min_gpus: None,
        jobs: group.jobs,
        evictions: group.evictions,
        wait_seconds: Waits::of(&group.waits),
    }
}

fn of_tenant(group: &WaitGroup<std::sync::Arc<str>>) -> GroupView {
    GroupView {
        gpus: None,
        tenant: Some(group.of.to_string()),
        min_gpus: Some(group.min_milli / 1000),
        jobs: group.jobs,
        evictions: group.evictions,
        wait_seconds: Waits::of(&group.waits),
    }
}

pub(super) fn csv(runs: &[QueueRun]) -> String {
    let mut text =
        "discipline,by,group,jobs,p50_seconds,p90_seconds,p99_seconds,max_seconds\n".to_owned();
    for run in runs {
        let name = run.discipline.name();
        let sizes = run.outcome.sizes.iter();
        let sizes = sizes.map(|group| ("size", group.of.words().to_owned(), &group.waits));
        let tenants = run.outcome.tenants.iter();
        let tenants = tenants.map(|group| ("tenant", group.of.to_string(), &group.waits));
        for (by, group, waits) in sizes.chain(tenants) {
            if let Some(Waits { p50, p90, p99, max }) = Waits::of(waits) {
                let jobs = waits.len();
                let _ = writeln!(text, "{name},{by},{group},{jobs},{p50},{p90},{p99},{max}");
            }
        }
    }
    text
}
