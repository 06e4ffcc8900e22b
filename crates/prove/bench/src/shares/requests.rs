//! Figures: how long a request takes beside programs that always have work, and at a limit.

use anyhow::{Context, Result};
use serde_json::Value;

use super::tenants::{Ask, Job, Way, beside};
use crate::progress::progress;
use crate::report::{Report, Verdict, short};
use crate::stage::{Stages, number};

/// A request of 1 ms.
const REQUEST: &str = "serve --launches 20 --microseconds 50";
const REQUEST_SECONDS: f64 = 0.001;

/// The server's promise, in percent; the others have equal parts of the rest.
const PROMISE: u32 = 50;

/// Parts of its promise that the server uses, in percent.
const USED: [u32; 4] = [5, 18, 40, 60];

/// Numbers of others.
const OTHERS: [u32; 2] = [1, 3];

/// Milliseconds until a neighbour has drained: what it may have queued while somebody has requests,
/// and the kernel that runs.
const DRAIN: f64 = 2.5;

/// Bounds of the middle and of the slowest of a hundred, as multiples of those alone, without the
/// drain (issue 41).
const TARGETS: [(&str, f64); 2] = [("p50", 1.5), ("p99", 2.0)];

/// Milliseconds by which two runs of the same differ.
const NOISE: f64 = 0.1;

/// Percent of the card of a limit, and the longest pause at it in milliseconds (issue 41).
const LIMIT: u32 = 5;
const LONGEST: f64 = 100.0;

pub(super) fn measure(stages: &Stages, is_quick: bool, report: &mut Report) -> Result<()> {
    beside_others(stages, is_quick, report)?;
    at_a_limit(stages, is_quick, report)
}

fn beside_others(stages: &Stages, is_quick: bool, report: &mut Report) -> Result<()> {
    let (used, others, seconds) = match is_quick {
        true => (&USED[1..2], &OTHERS[..1], 3),
        false => (&USED[..], &OTHERS[..], 10),
    };
    report.say("## Requests beside busy programs");
    report.say(&format!(
        "Requests of 1 ms that arrive by themselves (Poisson, the same arrivals in each cell), for \
         {seconds} s, to a server that was promised {PROMISE} %. From the arrival to the end, p50 / \
         p99 in milliseconds. `used` is of its promise. Others always have work, and equal parts of \
         the rest."
    ));
    let mut head = ["used", "others", "alone, without us"]
        .map(str::to_owned)
        .to_vec();
    head.extend(Way::ALL.map(|way| way.name().to_owned()));
    let mut rows = vec![head];
    let (mut worst, mut is_no_worse) = ([0.0_f64; 2], [true; 2]);
    for used in used {
        let alone = alone(stages, *used, seconds)?;
        for n_others in others {
            let mut cells = vec![format!("{used} %"), n_others.to_string(), cell(alone)];
            let mut of_ways = Vec::new();
            for way in Way::ALL {
                progress(&format!(
                    "requests, {used} %, {n_others} others: {}",
                    way.name()
                ));
                of_ways.push(served(stages, way, *used, *n_others, seconds)?);
            }
            cells.extend(of_ways.iter().copied().map(cell));
            rows.push(cells);
            for (at, (_, times)) in TARGETS.iter().enumerate() {
                let ours = of_ways[0][at];
                worst[at] = worst[at].max(ours / (times * alone[at] + DRAIN));
                is_no_worse[at] &= ours <= of_ways[1][at] + NOISE;
            }
        }
    }
    report.table(&rows);
    let mut verdicts = Vec::new();
    for (at, (name, times)) in TARGETS.iter().enumerate() {
        let what = format!("{name} by {times} × that alone and {DRAIN} ms, the worst row");
        verdicts.push(Verdict::at_most_times(&what, worst[at], 1.0));
        let what = format!("{name} no later than by the driver's slices in every row");
        verdicts.push(Verdict::holds(&what, is_no_worse[at]));
    }
    report.verdicts(&verdicts);
    Ok(())
}

/// The server's words for a part of its promise in percent.
fn words(used: u32) -> String {
    let of_card = f64::from(used * PROMISE) / 1e4;
    format!("{REQUEST} --every {:.6}", REQUEST_SECONDS / of_card)
}

/// The middle and the slowest of a hundred, in milliseconds.
fn latency(report: &Value) -> Result<[f64; 2]> {
    let of = |name| Ok::<_, anyhow::Error>(number(report, &format!("/latencyUs/{name}"))? / 1e3);
    Ok([of(TARGETS[0].0)?, of(TARGETS[1].0)?])
}

fn cell([p50, p99]: [f64; 2]) -> String {
    format!("{} / {}", short(p50), short(p99))
}

fn alone(stages: &Stages, used: u32, seconds: u64) -> Result<[f64; 2]> {
    progress(&format!("requests, {used} %, alone"));
    let stage = stages.open()?;
    let words = format!("{} --seconds {seconds}", words(used));
    let server = Job::new("server", Ask::Share(PROMISE), words);
    latency(&server.start(&stage, Way::Slices)?.report()?)
}

fn served(stages: &Stages, way: Way, used: u32, n_others: u32, seconds: u64) -> Result<[f64; 2]> {
    let each = Ask::Share((100 - PROMISE) / n_others);
    let others: Vec<Job> = (0..n_others)
        .map(|_| Job::new("busy", each, "steady"))
        .collect();
    let server = Job {
        seconds,
        ..Job::new("server", Ask::Share(PROMISE), words(used))
    };
    let seen = beside(stages, way, &others, &server)?;
    latency(seen.reports.first().context("no report")?)
}

fn at_a_limit(stages: &Stages, is_quick: bool, report: &mut Report) -> Result<()> {
    let seconds = if is_quick { 3 } else { 10 };
    report.say("## Requests at a limit");
    report.say(&format!(
        "The same requests alone on a card, each 10 ms after the end of the one before, for {seconds} \
         s: they need 9 % of the card, and may have {LIMIT} %. The driver has no limits."
    ));
    let head = ["", "used, %", "p50 / p99, ms", "longest pause, ms"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut verdicts = Vec::new();
    for way in Way::ALL {
        progress(&format!("requests at a limit: {}", way.name()));
        let stage = stages.open()?;
        let words = format!("{REQUEST} --pause 0.01 --seconds {seconds}");
        let server = Job::new("server", Ask::Limit(LIMIT), words);
        let seen = server.start(&stage, way)?.report()?;
        let used = number(&seen, "/requestsPerSecond")? * REQUEST_SECONDS * 100.0;
        let pause = number(&seen, "/longestPauseUs")? / 1e3;
        rows.push(vec![
            way.name().to_owned(),
            short(used),
            cell(latency(&seen)?),
            short(pause),
        ]);
        if way == Way::Ours {
            let error = (used - f64::from(LIMIT)).abs();
            verdicts.push(Verdict::at_most(
                "distance from the limit",
                error,
                0.5,
                "points",
            ));
            verdicts.push(Verdict::at_most("longest pause", pause, LONGEST, "ms"));
        }
    }
    report.table(&rows);
    report.verdicts(&verdicts);
    Ok(())
}
