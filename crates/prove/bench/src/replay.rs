//! `sublet-bench replay`: jobs of tenants through the queue and through the rules of others, by the
//! command that users run: Microsoft's Philly jobs, whole, and traces on which nothing was tuned.

mod call;
mod lists;
mod tables;
mod targets;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use sublet_testbed::bench;

use self::call::{Run, Setting};
use self::lists::unpacked;
use crate::machine;
use crate::report::Report;

/// Loads of the traces that are no list of a cluster's own jobs: below, near and at what it can do.
const UNTUNED_LOADS: [&str; 2] = ["0.9", "1.0"];

/// Seeds by which openb's jobs get tenants.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;

/// Replay jobs of traces through the queue and through the rules of others.
///
/// Prints Markdown. About ten minutes on two cores.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench replay                Philly's jobs as they came, at 0.7, 0.9 and 1.0 of the
                                          cluster; then two traces on which nothing was tuned
  cargo xtask bench replay --write        kept in docs/benchmarks/replay.md
  cargo xtask bench replay --load 1.0     Philly's jobs at another load alone")]
pub(crate) struct Arguments {
    /// Shares of the cluster's GPU time that Philly's jobs ask for while they come, and nothing but
    /// these. Unless given, all that the page has
    #[arg(long, value_name = "SHARE", value_delimiter = ',')]
    load: Vec<String>,
    /// Store the output in docs/benchmarks/
    #[arg(long)]
    write: bool,
}

/// A trace, as one list or as several that are drawn by seeds, at one load.
struct Section {
    title: String,
    about: &'static str,
    lists: Vec<Setting>,
    /// It is of the list by which rules of ours were chosen: with its tenants, and the targets.
    is_tuned: bool,
}

/// Replays and prints.
///
/// # Errors
/// When something could not be measured. A missed target is not an error.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let began = Instant::now();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let sublet = crate::scheduler::sublet()?;
    let mut report = Report::default();
    report.say("# Jobs of traces through the queue");
    report.say("Written by `cargo xtask bench replay --write`.");
    let remark = "Time is virtual: waits and shares do not depend on the machine.";
    report.say(&machine::described(
        &bench::REPLAY,
        &repository,
        &[],
        remark,
    ));
    report.say(READING);
    let folder = tempfile::tempdir()?;
    let sections = sections(
        &repository.join("fixtures/traces"),
        folder.path(),
        arguments,
    )?;
    let settings = sections.iter().flat_map(|section| &section.lists);
    let settings: Vec<Setting> = settings.cloned().collect();
    let mut runs = call::all(&sublet, &settings)?.into_iter();
    let mut was_tuned = None;
    for section in &sections {
        if was_tuned.replace(section.is_tuned) != Some(section.is_tuned) {
            report.say(if section.is_tuned { TUNED } else { UNTUNED });
        }
        let lists: Vec<Vec<Run>> = runs.by_ref().take(section.lists.len()).collect();
        show(section, &lists, &mut report)?;
    }
    report.misses();
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    report.say(&format!(
        "Took {minutes:.1} minutes. Load average at the end: {}",
        machine::load()
    ));
    if arguments.write {
        report.store(&bench::REPLAY, &repository)?;
    }
    Ok(())
}

const READING: &str = "\
All rules place by the same engine, and decide at most once in 300 s. None knows how long a job runs \
but `easy`, *declared*, which both know it exactly, and *learnt*, which guesses by the last jobs of the \
same tenant and size that have ended. `fair` and `koordinator` are profiles of this queue. With \
`fair` a `min` is there within the time beside its name. An evicted job loses its work; with \
*checkpoints*, which jobs then write each hour, what came after the last.

- *Useful* and *lost*: GPU time of the cluster between the first arrival and the last in which jobs \
ran that ended, and in which jobs ran that were evicted.
- A *wait* lasts until the start of the run in which a job ended.
- A tenant *alone* has a partition for its `min`, on which its jobs start by backfill: *nodes* rounds \
it up to whole ones, so that all partitions together are more than the cluster; `min` is no more than \
the `min`, with a last node of fewer GPUs. Jobs that are larger than their partition are left out of \
this comparison on both sides, and so are tenants without `min`. Tables of tenants and `partitions` \
are of whole nodes.
- *Sharing incentive*: tenants with a `min` of 4 GPUs and more that wait on average no longer than \
alone.
- *Lag*: GPU time that a tenant would have got by then alone and had not got here, at its largest, \
in hours of its `min`. A run that is lost takes its time back.
- *Bounded slowdown* (Feitelson): (wait + run time) / run time, at least 1, with a run time of at \
least 10 s.
- *Within `min`*: the longest that a job waited without a break while its tenant's `min` had room for \
it. *Late* are the jobs that waited so for half an hour longer than the time beside the rule's name.";

const TUNED: &str = "\
## Tuned: Philly

Microsoft's trace of 2017 (`fixtures/traces/philly`: all its jobs, with the virtual cluster of each \
as its tenant) on a made-up cluster of 60 nodes of 8 GPUs, because the trace does not name nodes that \
fit its list. Jobs of more than 8 GPUs are gangs. The `min` of each tenant is its part of the GPU time \
that all ask for, because the sizes of the virtual clusters are not in the list. Rules of ours were \
chosen by these figures.";

const UNTUNED: &str = "\
## Untuned

Traces that nothing was chosen by. The `min` of each tenant is its part of the GPU time that all ask \
for. Figures of several lists are means, and tenants are added.";

const OPENB: &str = "\
Alibaba's trace of 2023: pods of GPUs of its last 30 days with their run times, on 16 nodes of 4 \
GPUs. Those of 8 GPUs are gangs. The list names no tenants; eight get 1 to 100 jobs in a row, the \
second half as many as the first, the third a third, and so on, drawn by three seeds.";

const DLRM: &str = "\
Alibaba's trace of 2025: instances of services with one GPU each of which the begin and the end are \
known, on 32 nodes of 4 GPUs. A service is a tenant.";

/// All that is to be replayed, in the order of the page.
fn sections(traces: &Path, folder: &Path, arguments: &Arguments) -> Result<Vec<Section>> {
    let philly = traces.join("philly");
    let nodes = philly.join("nodes_60x8.csv");
    let tuned = |load: Option<&str>| Section {
        title: match load {
            None => "### As they came".to_owned(),
            Some(load) => format!("### At a load of {load}"),
        },
        about: "",
        lists: vec![Setting {
            nodes: nodes.clone(),
            pods: philly.join("philly.csv.gz"),
            load: load.map(str::to_owned),
            has_all_of_ours: load.is_none() || !arguments.load.is_empty(),
        }],
        is_tuned: true,
    };
    if !arguments.load.is_empty() {
        let loads = arguments.load.iter();
        return Ok(loads.map(|load| tuned(Some(load.as_str()))).collect());
    }
    let loads = [None, Some("0.7"), Some("0.9"), Some("1.0")];
    let mut sections: Vec<Section> = loads.into_iter().map(tuned).collect();
    let mut drawn = Vec::new();
    for seed in SEEDS {
        let path = folder.join(format!("openb-{seed}.csv"));
        let pods = traces.join("openb/openb_pod_list_default.csv.gz");
        lists::openb(unpacked(&pods)?, seed, &path)?;
        drawn.push(path);
    }
    let services = folder.join("dlrm.csv");
    let instances = traces.join("dlrm-2025/disaggregated_DLRM_trace.csv.gz");
    lists::dlrm(unpacked(&instances)?, &services)?;
    let untuned = [
        ("openb", OPENB, lists::nodes(folder, (16, 4))?, drawn),
        (
            "dlrm-2025",
            DLRM,
            lists::nodes(folder, (32, 4))?,
            vec![services],
        ),
    ];
    for (name, about, nodes, pods) in untuned {
        for load in UNTUNED_LOADS {
            let lists = pods.iter();
            sections.push(Section {
                title: format!("### {name}, at a load of {load}"),
                about,
                lists: lists
                    .map(|pods| Setting {
                        nodes: nodes.clone(),
                        pods: pods.clone(),
                        load: Some(load.to_owned()),
                        has_all_of_ours: false,
                    })
                    .collect(),
                is_tuned: false,
            });
        }
    }
    Ok(sections)
}

/// The tables of one section.
fn show(section: &Section, lists: &[Vec<Run>], report: &mut Report) -> Result<()> {
    let rules = tables::rules(&lists.iter().collect::<Vec<_>>());
    let first = lists.first().context("there is no list")?;
    let jobs = first.first().context("sublet simulate made no run")?.jobs;
    report.say(&section.title);
    let about = format!("{jobs} jobs. {}", section.about);
    report.say(about.trim_end());
    report.table(&tables::shares(&rules));
    report.table(&tables::totals(&rules));
    if section.is_tuned {
        report.say("Waits: p50 / p90 / p99, hours.");
        report.table(&tables::waits(first));
        report.say(
            "Each tenant alone, in hours, and the same jobs by each rule: mean wait / p90 / the \
             tenant's largest lag in hours of its `min`.",
        );
        report.table(&tables::beside(first));
        report.say(&tables::abouts(&rules));
        let load = section.lists.first().and_then(|list| list.load.as_deref());
        report.verdicts(&targets::verdicts(&rules, load)?);
    }
    Ok(())
}
