//! `sublet-bench replay`: Microsoft's Philly jobs, whole, through the queue and through the rules of
//! others, by the command that users run.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use serde::Deserialize;
use sublet_testbed::bench;

use crate::machine;
use crate::report::{Report, Verdict};

/// The discipline that must do no worse than the others.
const OURS: &str = "sublet";

/// The word for jobs that need several nodes.
const GANGS: &str = "gangs";

/// Replay Philly's jobs through the queue and through the rules of others.
///
/// Prints Markdown. About ten minutes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench replay                as the jobs came, at nine tenths of the cluster, and as
                                          one tenant's
  cargo xtask bench replay --write        kept in docs/benchmarks/replay.md
  cargo xtask bench replay --load 1.0     another load alone")]
pub(crate) struct Arguments {
    /// Shares of the cluster's GPU time that jobs ask for while they come. Unless given, as they
    /// came, and 0.9
    #[arg(long, value_name = "SHARE", value_delimiter = ',')]
    load: Vec<String>,
    /// Store the output in docs/benchmarks/
    #[arg(long)]
    write: bool,
}

#[derive(Debug, Deserialize)]
struct Document {
    runs: Vec<Run>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Run {
    discipline: String,
    about: String,
    jobs: u64,
    ended: u64,
    allocated_percent: f64,
    lost_percent: f64,
    evictions: u64,
    lost_work_gpu_hours: f64,
    makespan_seconds: u64,
    wait_by_size: Vec<Group>,
    wait_by_quota: Vec<Group>,
    cpu_seconds: f64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    gpus: Option<String>,
    quota: Option<String>,
    min_gpus: Option<u64>,
    jobs: u64,
    wait_seconds: Option<Waits>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Waits {
    p50: u64,
    p90: u64,
    p99: u64,
}

impl Run {
    /// Percent of the cluster in which jobs ran to their end.
    fn useful(&self) -> f64 {
        self.allocated_percent - self.lost_percent
    }

    /// Hours that nine of ten gangs waited at most.
    fn gangs_p90(&self) -> Option<f64> {
        let gangs = self.wait_by_size.iter();
        let mut gangs = gangs.filter(|group| group.gpus.as_deref() == Some(GANGS));
        Some(hours(gangs.next()?.wait_seconds?.p90))
    }
}

fn hours(seconds: u64) -> f64 {
    seconds as f64 / 3600.0
}

/// Two decimals: a target is printed as it is.
fn rounded(figure: f64) -> f64 {
    (figure * 100.0).round() / 100.0
}

/// Replays and prints.
///
/// # Errors
/// When something could not be measured. A missed target is not an error.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let sublet = crate::scheduler::sublet()?;
    let mut report = Report::default();
    report.say("# Philly's jobs through the queue");
    report.say("Written by `cargo xtask bench replay --write`.");
    let remark = "Time is virtual: waits and shares do not depend on the machine.";
    report.say(&machine::described(
        &bench::REPLAY,
        &repository,
        &[],
        remark,
    ));
    report.say(
        "Microsoft's trace of 2017 (`fixtures/traces/philly`: all its jobs, with the virtual cluster \
         of each as its tenant) on a made-up cluster of 60 nodes of 8 GPUs, because the trace does \
         not name nodes that fit its list. Jobs of more than 8 GPUs are gangs. The `min` of each \
         tenant is its part of the GPU time that all ask for, because the sizes of the virtual \
         clusters are not in the list. All rules place by the same engine and know no run times. An \
         evicted job loses its work.",
    );
    let philly = repository.join("fixtures/traces/philly");
    let pods = philly.join("philly.csv.gz");
    let loads: Vec<Option<&str>> = match &arguments.load[..] {
        [] => vec![None, Some("0.9")],
        given => given.iter().map(|load| Some(load.as_str())).collect(),
    };
    for load in loads {
        let runs = play(&sublet, &philly, &pods, load)?;
        match load {
            None => report.say("## As they came"),
            Some(load) => report.say(&format!("## At a load of {load}")),
        }
        show(&runs, &mut report)?;
    }
    if arguments.load.is_empty() {
        report.say("## As they came, all of one tenant");
        report.say("The same jobs without quotas: what the order and the holds do by themselves.");
        let folder = tempfile::tempdir()?;
        let pods = of_one_tenant(&pods, folder.path())?;
        show(&play(&sublet, &philly, &pods, None)?, &mut report)?;
    }
    report.misses();
    report.say(&format!("Load average at the end: {}", machine::load()));
    if arguments.write {
        report.store(&bench::REPLAY, &repository)?;
    }
    Ok(())
}

/// The same list without its tenants.
fn of_one_tenant(pods: &Path, folder: &Path) -> Result<PathBuf> {
    let mut rows = csv::Reader::from_reader(GzDecoder::new(File::open(pods)?));
    let tenant = rows.headers()?.iter().position(|name| name == "cluster");
    let without = |row: &csv::StringRecord| -> csv::StringRecord {
        let cells = row.iter().enumerate();
        let cells = cells.filter(|(at, _)| Some(*at) != tenant);
        cells.map(|(_, cell)| cell).collect()
    };
    let path = folder.join("pods.csv");
    let mut list = csv::Writer::from_path(&path)?;
    list.write_record(&without(&rows.headers()?.clone()))?;
    for row in rows.records() {
        list.write_record(&without(&row?))?;
    }
    list.flush()?;
    Ok(path)
}

/// Runs the command.
fn play(sublet: &Path, philly: &Path, pods: &Path, load: Option<&str>) -> Result<Vec<Run>> {
    let load_word = load.unwrap_or("as they came");
    eprintln!("bench: {}, load {load_word}", pods.display());
    let mut command = Command::new(sublet);
    command.args(["simulate", "--protocol", "queue", "-o", "json", "--nodes"]);
    command.arg(philly.join("nodes_60x8.csv")).arg("--pods");
    command.arg(pods);
    command.args(load.iter().flat_map(|load| ["--load", load]));
    let output = command.output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "sublet simulate: {error}");
    let document: Document = serde_json::from_slice(&output.stdout)?;
    Ok(document.runs)
}

/// The tables of one load, and the targets of ours.
fn show(runs: &[Run], report: &mut Report) -> Result<()> {
    let first = runs.first().context("sublet simulate made no run")?;
    let all_end = runs.iter().all(|run| run.ended == run.jobs);
    report.say(&format!("{} jobs.", first.jobs));
    report.table(&totals(runs));
    report.say("Waits until the start of the run in which a job ended: p50 / p90 / p99, hours.");
    report.table(&waits(runs, |run| &run.wait_by_size));
    report.table(&waits(runs, |run| &run.wait_by_quota));
    let lines = runs.iter();
    let lines: Vec<String> = lines
        .map(|run| format!("- `{}`: {}", run.discipline, run.about))
        .collect();
    report.say(&lines.join("\n"));
    let ours = runs.iter().find(|run| run.discipline == OURS);
    let ours = ours.context("ours is not among the runs")?;
    let others = || runs.iter().filter(|run| run.discipline != OURS);
    let shortest = others().filter_map(Run::gangs_p90).reduce(f64::min);
    let busiest = others().map(Run::useful).reduce(f64::max);
    report.verdicts(&[
        Verdict::holds("every job ends, by every rule", all_end),
        Verdict::at_most(
            "p90 wait of gangs, beside the shortest of the others",
            rounded(ours.gangs_p90().context("there is no gang")?),
            rounded(shortest.context("there is nobody to compare with")?),
            "h",
        ),
        Verdict::at_least(
            "GPUs in use that came to something, beside the most of the others",
            rounded(ours.useful()),
            rounded(busiest.context("there is nobody to compare with")?),
            "%",
        ),
    ]);
    Ok(())
}

fn totals(runs: &[Run]) -> Vec<Vec<String>> {
    let heading = [
        "",
        "GPUs in use, %",
        "of it lost, %",
        "evictions",
        "GPU hours lost",
        "makespan, h",
        "CPU s",
    ];
    let row = |run: &Run| {
        vec![
            format!("`{}`", run.discipline),
            format!("{:.2}", run.allocated_percent),
            format!("{:.2}", run.lost_percent),
            run.evictions.to_string(),
            format!("{:.0}", run.lost_work_gpu_hours),
            format!("{:.0}", hours(run.makespan_seconds)),
            format!("{:.1}", run.cpu_seconds),
        ]
    };
    let heading = heading.map(str::to_owned).to_vec();
    std::iter::once(heading)
        .chain(runs.iter().map(row))
        .collect()
}

/// A row for each group, a column for each rule.
fn waits(runs: &[Run], groups: impl Fn(&Run) -> &Vec<Group>) -> Vec<Vec<String>> {
    let names = runs.iter().map(|run| format!("`{}`", run.discipline));
    let heading = ["".to_owned(), "jobs".to_owned()];
    let mut rows = vec![heading.into_iter().chain(names).collect()];
    for (at, group) in runs
        .first()
        .map_or(&[][..], |run| groups(run))
        .iter()
        .enumerate()
    {
        let name = match (&group.gpus, &group.quota, group.min_gpus) {
            (Some(gpus), ..) => format!("{gpus} GPUs").replace("gangs GPUs", GANGS),
            (None, Some(quota), Some(min)) => format!("{quota} (min {min})"),
            _ => String::new(),
        };
        let cells = runs.iter().map(|run| cell(groups(run).get(at)));
        let row = [name, group.jobs.to_string()];
        rows.push(row.into_iter().chain(cells).collect());
    }
    rows
}

fn cell(group: Option<&Group>) -> String {
    let waits = group.and_then(|group| group.wait_seconds);
    waits.map_or("-".to_owned(), |Waits { p50, p90, p99 }| {
        let [p50, p90, p99] = [p50, p90, p99].map(hours);
        format!("{p50:.2} / {p90:.2} / {p99:.2}")
    })
}
