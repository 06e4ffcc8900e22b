//! The programs that share a card, each run in one of three ways.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::stage::{Stage, Stages, number};

/// Ways in which programs share a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// As jobs, by `sublet run --compute`.
    Ours,
    /// Straight on the driver, which gives slices in turn.
    Slices,
    /// Straight on the driver, each with a limiter like HAMi-core's.
    TokenBucket,
}

impl Way {
    pub(super) const ALL: [Way; 3] = [Way::Ours, Way::Slices, Way::TokenBucket];

    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Ours => "**Sublet**",
            Way::Slices => "the driver's slices",
            Way::TokenBucket => "token bucket",
        }
    }
}

/// Part of a card that a program asks for, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// A promise.
    Share(u32),
    /// No promise, and at most this.
    Limit(u32),
    /// Rest of the card, which others leave.
    Rest,
}

impl Ask {
    fn flags(self) -> [String; 2] {
        let [flag, value] = match self {
            Ask::Share(percent) => ["--compute".to_owned(), format!("{percent}%")],
            Ask::Limit(percent) => ["--compute".to_owned(), format!("0%..{percent}%")],
            Ask::Rest => ["--class".to_owned(), "opportunistic".to_owned()],
        };
        [flag, value]
    }

    /// The limit in a token bucket, which knows nothing else.
    fn bucket(self) -> u32 {
        match self {
            Ask::Share(percent) | Ask::Limit(percent) => percent,
            Ask::Rest => 100,
        }
    }
}

/// Programs of `sublet-workload` that are one job.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) name: &'static str,
    pub(super) ask: Ask,
    /// The program and its arguments.
    pub(super) words: String,
    /// Seconds for which it counts, where its words do not say them.
    pub(super) seconds: u64,
    /// Number of processes.
    pub(super) n_processes: u32,
}

/// One program that always has work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tenant {
    /// The percentage of the card that it asks for.
    pub(super) percent: u32,
    pub(super) is_graph: bool,
    pub(super) microseconds: u32,
    /// When the window begins, on CLOCK_MONOTONIC.
    pub(super) from: Duration,
    pub(super) seconds: u64,
}

/// Programs of a job that run.
pub(super) struct Running(Child);

/// Runs so many processes of a program; one alone takes the shell's place.
const CROWD: &str = r#"n=$1; shift; [ "$n" = 1 ] && exec "$@"
while [ "$n" -gt 0 ]; do "$@" & n=$((n-1)); done; wait"#;

impl Job {
    /// One process of a program.
    pub(super) fn new(name: &'static str, ask: Ask, words: impl Into<String>) -> Job {
        Job {
            name,
            ask,
            words: words.into(),
            seconds: 0,
            n_processes: 1,
        }
    }

    pub(super) fn start(&self, stage: &Stage, way: Way) -> Result<Running> {
        let [flag, value] = self.ask.flags();
        // Each process has a context.
        let memory = format!("{}GiB", self.n_processes);
        let flags = ["--name", self.name, "--memory", &memory, &flag, &value];
        let mut command = match way {
            Way::Ours => stage.job(&flags, "/bin/sh"),
            Way::Slices | Way::TokenBucket => stage.bare("/bin/sh"),
        };
        let n_processes = self.n_processes.to_string();
        command.args(["-c", CROWD, "sh", &n_processes]);
        command.arg(stage.built("sublet-workload"));
        command.args(self.words.split_whitespace());
        match way {
            Way::Ours => command.args(["--reach", "linked"]),
            Way::Slices | Way::TokenBucket => command.args(["--reach", &stage.bare_reach()]),
        };
        if way == Way::TokenBucket {
            // Each process has a bucket of its own.
            let limit = (self.ask.bucket() / self.n_processes).max(1).to_string();
            command.args(["--token-bucket", &limit, "--nvml", &stage.bare_nvml()]);
        }
        Running::of(command)
    }
}

impl Tenant {
    pub(super) fn start(&self, stage: &Stage, way: Way) -> Result<Running> {
        let launch = if self.is_graph { "graph" } else { "eager" };
        let words = format!(
            "steady --launch {launch} --microseconds {} --from {} --seconds {}",
            self.microseconds,
            self.from.as_nanos(),
            self.seconds
        );
        let ask = Ask::Share(self.percent);
        Job::new("tenant", ask, words).start(stage, way)
    }
}

impl Running {
    fn of(mut command: Command) -> Result<Running> {
        let child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn();
        Ok(Running(child.context("cannot start a program")?))
    }

    /// The reports of all processes, when they have ended.
    pub(super) fn reports(self) -> Result<Vec<Value>> {
        let output = self.0.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "a program failed: {text}");
        let reports = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let reports: Vec<Value> = reports.collect();
        ensure!(!reports.is_empty(), "a program said nothing");
        let failed = reports.iter().find(|report| report["ok"] != true);
        ensure!(failed.is_none(), "a program failed: {failed:?}");
        Ok(reports)
    }

    /// The report of one process.
    pub(super) fn report(self) -> Result<Value> {
        let mut reports = self.reports()?;
        reports.pop().context("a program said nothing")
    }

    /// Kernels that ended in each tenth of a second of the programs' window.
    pub(super) fn per_tenth(self) -> Result<Vec<f64>> {
        let mut sum = Vec::new();
        for report in self.reports()? {
            let tenths = report["perTenth"].as_array().context("no counts")?;
            sum.resize(tenths.len(), 0.0);
            for (sum, more) in sum.iter_mut().zip(tenths) {
                *sum += more.as_f64().unwrap_or(0.0);
            }
        }
        Ok(sum)
    }
}

/// A program beside others, which were at work before it came and go on after it.
pub(super) struct Beside {
    /// The reports of its processes.
    pub(super) reports: Vec<Value>,
    /// Reports of the others, job by job.
    pub(super) others: Vec<Vec<Value>>,
}

/// Time that programs have to start and to be at work.
pub(super) const HEAD_START: Duration = Duration::from_secs(3);

/// Runs a program beside others, on a machine of their own. The others' words say no time.
pub(super) fn beside(stages: &Stages, way: Way, others: &[Job], program: &Job) -> Result<Beside> {
    let stage = stages.open()?;
    // Until after the program's end: they are stopped by their own clock.
    let longer = HEAD_START.as_secs() + program.seconds + 1;
    let timed = |job: &Job, seconds| Job {
        words: format!("{} --seconds {seconds}", job.words),
        ..job.clone()
    };
    let running = others
        .iter()
        .map(|job| timed(job, longer).start(&stage, way));
    let running: Vec<Running> = running.collect::<Result<_>>()?;
    std::thread::sleep(HEAD_START);
    let program = timed(program, program.seconds).start(&stage, way)?;
    let reports = program.reports()?;
    let others = running.into_iter().map(Running::reports);
    Ok(Beside {
        reports,
        others: others.collect::<Result<_>>()?,
    })
}

/// The pace of a program beside another one, as a part of its pace without us and with nobody
/// beside it.
pub(super) fn pace(stages: &Stages, way: Way, other: Job, program: &Job) -> Result<f64> {
    let quiet = stages.open()?;
    let longer = HEAD_START.as_secs() + program.seconds;
    let words = format!("{} --seconds {longer}", program.words);
    let alone = Job::new("alone", program.ask, words).start(&quiet, Way::Slices)?;
    let (alone, seen) = if stages.are_fake() {
        // On a card of its own at the same time: what else this machine does slows down both.
        let seen = beside(stages, way, &[other], program)?;
        (alone.report()?, seen)
    } else {
        let alone = alone.report()?;
        (alone, beside(stages, way, &[other], program)?)
    };
    let program = seen.reports.first().context("no report")?;
    let bursts = |report: &Value| number(report, "/burstsPerSecond");
    Ok(bursts(program)? / bursts(&alone)?)
}

/// The share of the card, in percent, of a job's kernels that ended after so many seconds of its
/// window.
pub(super) fn share_of(reports: &[Value], skip: usize) -> Result<f64> {
    let shares = reports.iter().map(|report| {
        let tenths = report["perTenth"].as_array().context("no counts")?;
        let tenths: Vec<f64> = tenths.iter().filter_map(Value::as_f64).collect();
        let microseconds = number(report, "/microseconds")? as u32;
        let late = tenths.get(skip * 10..).unwrap_or_default();
        Ok::<f64, anyhow::Error>(percent_of(late, microseconds))
    });
    shares.sum()
}

/// The share of the card, in percent, that these kernels of each tenth of a second took.
pub(super) fn percent_of(per_tenth: &[f64], microseconds: u32) -> f64 {
    let kernels: f64 = per_tenth.iter().sum();
    let tenths = per_tenth.len().max(1) as f64;
    kernels * f64::from(microseconds) / (tenths * 1e5) * 100.0
}

#[cfg(test)]
mod tests {
    use super::percent_of;

    #[test]
    fn kernels_that_fill_half_of_the_time_are_half_of_the_card() {
        assert!((percent_of(&[100.0, 100.0], 500) - 50.0).abs() < 1e-9);
        assert!(percent_of(&[], 500).abs() < 1e-9);
    }
}
