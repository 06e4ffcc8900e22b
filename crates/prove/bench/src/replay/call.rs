//! Calls of `sublet simulate --protocol queue`, as many at once as there are cores, and their answers.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use sublet_sim::DISCIPLINES;

use crate::progress::progress;

/// A rule of ours: its name on the page, and the flags that choose it.
#[derive(Debug)]
pub(super) struct Ours {
    pub(super) name: &'static str,
    flags: &'static [&'static str],
    /// It is held to the targets, and so it is in each setting; the others are where all of ours are.
    pub(super) is_judged: bool,
    /// Seconds within which a minimum is there, by a rule that promises it.
    pub(super) min_within: Option<u64>,
    /// Jobs write checkpoints.
    pub(super) saves: bool,
}

/// The rules of ours.
pub(super) static OURS: [Ours; 7] = [
    Ours {
        name: "fair, 1 day",
        flags: &["--queue-profile", "fair", "--min-within", "86400"],
        is_judged: true,
        min_within: Some(86_400),
        saves: false,
    },
    Ours {
        name: "fair, 1 h, checkpoints",
        flags: &[
            "--queue-profile",
            "fair",
            "--min-within",
            "3600",
            "--checkpoint-every",
            "3600",
        ],
        is_judged: true,
        min_within: Some(3600),
        saves: true,
    },
    Ours {
        name: "fair, 1 day, learnt",
        flags: &[
            "--queue-profile",
            "fair",
            "--min-within",
            "86400",
            "--run-times",
            "learnt",
        ],
        is_judged: false,
        min_within: Some(86_400),
        saves: false,
    },
    Ours {
        name: "fair, 1 day, declared",
        flags: &[
            "--queue-profile",
            "fair",
            "--min-within",
            "86400",
            "--run-times",
            "declared",
        ],
        is_judged: false,
        min_within: Some(86_400),
        saves: false,
    },
    Ours {
        name: "fair, 1 h",
        flags: &["--queue-profile", "fair", "--min-within", "3600"],
        is_judged: false,
        min_within: Some(3600),
        saves: false,
    },
    Ours {
        name: "fair, 0",
        flags: &["--queue-profile", "fair", "--min-within", "0"],
        is_judged: false,
        min_within: Some(0),
        saves: false,
    },
    Ours {
        name: "koordinator",
        flags: &["--queue-profile", "koordinator"],
        is_judged: false,
        min_within: None,
        saves: false,
    },
];

/// A list of jobs on nodes, at a load: as its jobs come, or so many of the cluster's GPU time.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) nodes: PathBuf,
    pub(super) pods: PathBuf,
    pub(super) load: Option<String>,
    /// Do all rules of ours run, or those alone that are held to the targets?
    pub(super) has_all_of_ours: bool,
}

impl Setting {
    /// The rules of ours that run.
    fn ours(&self) -> impl Iterator<Item = &'static Ours> {
        let all = OURS.iter();
        all.filter(|ours| ours.is_judged || self.has_all_of_ours)
    }

    /// The work that it is, roughly: the more jobs wait, the more.
    fn work(&self) -> f64 {
        let load = self.load.as_deref().and_then(|load| load.parse().ok());
        load.unwrap_or(0.8)
    }
}

#[derive(Debug, Deserialize)]
struct Document {
    runs: Vec<Run>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Run {
    pub(super) discipline: String,
    pub(super) about: String,
    pub(super) jobs: u64,
    pub(super) ended: u64,
    pub(super) impossible: u64,
    pub(super) allocated_percent: f64,
    pub(super) useful_percent: f64,
    pub(super) lost_percent: f64,
    pub(super) evictions: u64,
    pub(super) lost_work_gpu_hours: f64,
    pub(super) makespan_seconds: u64,
    pub(super) mean_wait_seconds: f64,
    pub(super) mean_bounded_slowdown: f64,
    pub(super) sharing_incentive: u64,
    pub(super) sharing_incentive_of: u64,
    pub(super) sharing_incentive_on_min: u64,
    pub(super) largest_lag_seconds: Option<u64>,
    pub(super) largest_lag_on_min_seconds: Option<u64>,
    pub(super) largest_wait_within_min_seconds: Option<u64>,
    pub(super) late_within_min: Option<u64>,
    pub(super) wait_by_size: Vec<Group>,
    pub(super) wait_by_quota: Vec<Group>,
    pub(super) cpu_seconds: f64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Group {
    pub(super) gpus: Option<String>,
    pub(super) quota: Option<String>,
    pub(super) min_gpus: Option<u64>,
    pub(super) jobs: u64,
    pub(super) wait_seconds: Option<Waits>,
    pub(super) partition: Option<Partition>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Waits {
    pub(super) p50: u64,
    pub(super) p90: u64,
    pub(super) p99: u64,
}

/// A tenant on a partition of its own.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Partition {
    pub(super) gpus: u64,
    pub(super) jobs: u64,
    pub(super) mean_wait_seconds: Option<f64>,
    pub(super) p90_wait_seconds: Option<u64>,
    pub(super) same_jobs_mean_wait_seconds: Option<f64>,
    pub(super) same_jobs_p90_wait_seconds: Option<u64>,
    pub(super) lag_seconds: u64,
}

/// One call: the flags that choose its rules, and the name of its run, if it has one of ours.
struct Call<'a> {
    setting: &'a Setting,
    flags: Vec<&'a str>,
    name: Option<&'static str>,
}

impl Call<'_> {
    /// The same for people.
    fn words(&self) -> String {
        let Setting { pods, load, .. } = self.setting;
        let list = pods.file_name().unwrap_or_default().display();
        let at = load.as_deref().unwrap_or("as they came");
        let name = self.name.unwrap_or("rules of others");
        format!("{list}, load {at}, {name}")
    }
}

/// Runs of all rules for each setting, ours first.
pub(super) fn all(sublet: &Path, settings: &[Setting]) -> Result<Vec<Vec<Run>>> {
    let others = DISCIPLINES.iter().skip(1);
    let others = others.flat_map(|other| ["--discipline", other.name()]);
    let others: Vec<&str> = others.collect();
    let mut calls = Vec::new();
    for setting in settings {
        calls.extend(setting.ours().map(|ours| Call {
            setting,
            flags: [&["--discipline", "sublet"][..], ours.flags].concat(),
            name: Some(ours.name),
        }));
        calls.push(Call {
            setting,
            flags: others.clone(),
            name: None,
        });
    }
    let mut answers = side_by_side(sublet, &calls)?.into_iter();
    let of = |setting: &Setting| {
        let count = setting.ours().count() + 1;
        answers.by_ref().take(count).flatten().collect()
    };
    Ok(settings.iter().map(of).collect())
}

/// The answers to all calls, in their order. The longest begin first, so that none is left alone at
/// the end.
fn side_by_side(sublet: &Path, calls: &[Call<'_>]) -> Result<Vec<Vec<Run>>> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_by(|one, other| {
        let work = |at: usize| (calls[at].name.is_some(), calls[at].setting.work());
        let (one, other) = (work(*one), work(*other));
        other.0.cmp(&one.0).then(other.1.total_cmp(&one.1))
    });
    let next = Mutex::new((1..).zip(order));
    let answers: Mutex<Vec<Result<Vec<Run>>>> =
        Mutex::new(calls.iter().map(|_| Ok(Vec::new())).collect());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let next = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((number, at)) = next else { break };
                    let (began, what) = (Instant::now(), calls[at].words());
                    progress(&format!("{number} of {}: {what}", calls.len()));
                    let answer = call(sublet, &calls[at]);
                    progress(&format!("{what}: {:.0} s", began.elapsed().as_secs_f64()));
                    answers.lock().unwrap_or_else(PoisonError::into_inner)[at] = answer;
                }
            });
        }
    });
    let answers = answers.into_inner();
    answers
        .unwrap_or_else(PoisonError::into_inner)
        .into_iter()
        .collect()
}

/// Runs the command.
fn call(sublet: &Path, call: &Call<'_>) -> Result<Vec<Run>> {
    let Setting {
        nodes, pods, load, ..
    } = call.setting;
    let mut command = Command::new(sublet);
    command.args([
        "simulate",
        "--protocol",
        "queue",
        "-o",
        "json",
        "--threads",
        "1",
    ]);
    command.arg("--nodes").arg(nodes).arg("--pods").arg(pods);
    command.args(load.iter().flat_map(|load| ["--load", load]));
    let output = command.args(&call.flags).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "sublet simulate: {error}");
    let document: Document =
        serde_json::from_slice(&output.stdout).with_context(|| call.words())?;
    let mut runs = document.runs;
    if let (Some(name), Some(run)) = (call.name, runs.first_mut()) {
        name.clone_into(&mut run.discipline);
    }
    Ok(runs)
}
