//! The cost of the pure engine of the job queue, without an API server.
//!
//! A thousand nodes, a hundred quotas, fifty thousand groups of the sizes of Philly's jobs, every
//! one of them known to every tick. `cluster` makes them and carries decisions out; here they are
//! measured.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::read::GzDecoder;

use super::cluster::{Cluster, Scale};
use crate::report::{Report, Verdict, short};
use crate::stats::{ms, percentile};

/// Milliseconds of one tick after one event, of a hundred the slowest (issue 19).
const TICK_TARGET: f64 = 50.0;

/// Admissions in a second (issue 19).
const RATE_TARGET: f64 = 5_000.0;

/// Rounds in which all that runs ends at once.
const ROUNDS: usize = 5;

/// Cost of starting groups.
#[derive(Debug, Default, Clone, Copy)]
struct Rate {
    groups: u64,
    slots: u64,
    seconds: f64,
}

impl Rate {
    fn a_second(self, count: u64) -> f64 {
        count as f64 / self.seconds.max(1e-9)
    }
}

/// Measures and prints.
pub(super) fn measure(
    repository: &Path,
    scale: Scale,
    count: usize,
    report: &mut Report,
) -> Result<()> {
    report.say("## The engine alone");
    let sizes = sizes(repository)?;
    report.say(&format!(
        "No API server, one thread; only `plan` is timed, not what carries its decisions out. {} \
         nodes of 8 GPUs, {} quotas in ten branches, {} groups of the sizes of Philly's {} jobs \
         (a job of more than 8 GPUs is a gang of pods of 8). Every group is handed to every tick, \
         and every place is proven down to the card, with CPU and memory. Each quota is promised \
         its part of the cluster and may borrow four times as much.",
        scale.nodes,
        scale.quotas,
        scale.groups,
        sizes.len()
    ));
    let ticks = ticks(scale, &sizes, count)?;
    report.say("### One tick after one event");
    let tail = percentile(&ticks, 0.99);
    report.say(&format!(
        "A group ends, another one comes, and one tick decides who starts: p50 {} ms, p99 {} ms, at \
         most {} ms ({} ticks).",
        short(percentile(&ticks, 0.5)),
        short(tail),
        short(percentile(&ticks, 1.0)),
        ticks.len()
    ));
    report.verdicts(&[Verdict::at_most("a tick, p99", tail, TICK_TARGET, "ms")]);
    report.say("### Admissions");
    report.say(&format!(
        "All that runs ends at once, {ROUNDS} times, and ticks fill the cluster again."
    ));
    let mut rows = vec![["", "groups/s", "slots/s"].map(str::to_owned).to_vec()];
    let mixed = rate(scale, &sizes)?;
    let mut add = |what: &str, rate: Rate| {
        let numbers = [rate.groups, rate.slots].map(|count| short(rate.a_second(count)));
        rows.push([&[what.to_owned()][..], &numbers[..]].concat());
    };
    add("Philly's sizes", mixed);
    for size in [1, 2, 4, 8, 16, 32, 64, 128] {
        add(&format!("all of {size} GPUs"), rate(scale, &[size])?);
    }
    report.table(&rows);
    let admissions = mixed.a_second(mixed.groups);
    report.verdicts(&[Verdict::at_least(
        "admissions, Philly's sizes",
        admissions,
        RATE_TARGET,
        "a second",
    )]);
    Ok(())
}

/// Milliseconds of each tick in a cluster that is full, after one event.
fn ticks(scale: Scale, sizes: &[u32], count: usize) -> Result<Vec<f64>> {
    eprintln!("bench: one tick after one event");
    let mut cluster = Cluster::new(scale, sizes)?;
    cluster.fill()?;
    let mut ticks = Vec::with_capacity(count);
    for _ in 0..count {
        cluster.end_one();
        let (_, time) = cluster.tick()?;
        ticks.push(ms(time));
    }
    Ok(ticks)
}

/// Rate at which groups are admitted into a cluster in which all has ended at once.
fn rate(scale: Scale, sizes: &[u32]) -> Result<Rate> {
    match sizes {
        [size] => eprintln!("bench: admissions, all of {size} GPUs"),
        sizes => eprintln!("bench: admissions, the sizes of {} jobs", sizes.len()),
    }
    let mut cluster = Cluster::new(scale, sizes)?;
    cluster.fill()?;
    let mut rate = Rate::default();
    for _ in 0..ROUNDS {
        cluster.end_all();
        let filled = cluster.fill()?;
        rate.groups += filled.groups;
        rate.slots += filled.slots;
        rate.seconds += filled.time.as_secs_f64();
    }
    Ok(rate)
}

/// The numbers of GPUs of Philly's jobs, in the order of the list.
fn sizes(repository: &Path) -> Result<Vec<u32>> {
    let path = repository.join("fixtures/traces/philly/philly.csv.gz");
    let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
    let mut rows = csv::Reader::from_reader(GzDecoder::new(file));
    let column = rows.headers()?.iter().position(|name| name == "num_gpus");
    let column = column.context("philly.csv.gz has no column num_gpus")?;
    let sizes = rows.records().map(|row| {
        let row = row?;
        let text = row.get(column).unwrap_or_default();
        text.parse()
            .with_context(|| format!("{text:?} is no number of GPUs"))
    });
    sizes.collect()
}
