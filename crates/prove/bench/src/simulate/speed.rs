//! Figure: what a run costs, with kept costs and without, and how long all runs take together.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use sublet_plan::Policy;
use sublet_sim::{Inflation, Outcome, Variant, inflate};

use super::bank::{Bank, CORES, Way};
use super::quality::{OURS, PEER};
use super::setting::Setting;
use super::traces::{Orders, Traces, openb, pod_list};
use crate::progress::progress;
use crate::report::{Report, Verdict, short};

/// CPU seconds of one run (issue 6).
const RUN_TARGET: f64 = 0.4;
/// MiB.
const MEMORY_TARGET: f64 = 100.0;
/// Minutes for all published runs.
const ALL_TARGET: f64 = 3.0;
/// CPU seconds of the published simulator: the default list, FGD, seed 42. Measured on another
/// day, on a machine of this kind.
const PUBLISHED_CPU: f64 = 2071.0;

/// Runs of the program; the best one counts.
const TRIES: usize = 5;

/// The policies with published results.
const PUBLISHED: [&str; 6] = [
    "random",
    "dot-product",
    "gpu-clustering",
    "gpu-packing",
    "best-fit",
    PEER,
];

/// Time of all published runs together. They are done first, while the bank is empty.
pub(super) struct Together {
    runs: usize,
    took: Duration,
}

pub(super) fn together(bank: &mut Bank<'_>) -> Result<Together> {
    let (runs, took) = bank.fill_all("published policies", &PUBLISHED, Way::Protocol)?;
    Ok(Together { runs, took })
}

/// The cost of one run.
struct Cost {
    policy: &'static str,
    /// CPU seconds of the whole program, best of several; then its peak memory in MiB.
    program: f64,
    memory: f64,
    /// CPU seconds of the run alone: with kept costs, and with every cost computed again.
    kept: f64,
    naive: f64,
}

pub(super) fn measure(
    setting: &Setting,
    traces: &Traces,
    seed: u64,
    together: &Together,
    report: &mut Report,
) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let order = folder.path().join("order");
    std::fs::write(
        &order,
        Orders::build(&setting.repository)?.of("default", seed)?,
    )?;
    let mut costs = Vec::new();
    for policy in [PEER, OURS] {
        progress(&format!("speed: {policy}"));
        let (mut program, mut memory) = (f64::INFINITY, 0.0_f64);
        for _ in 0..TRIES {
            let (seconds, mib) = run_program(setting, &order, policy)?;
            program = program.min(seconds);
            memory = memory.max(mib);
        }
        let (kept, outcome) = run_here(traces, seed, policy, false)?;
        let (naive, again) = run_here(traces, seed, policy, true)?;
        ensure!(outcome == again, "{policy}: kept costs change placements");
        costs.push(Cost {
            policy,
            program,
            memory,
            kept,
            naive,
        });
    }
    print(&costs, seed, together, report);
    Ok(())
}

fn print(costs: &[Cost], seed: u64, together: &Together, report: &mut Report) {
    report.say("## Speed");
    report.say(&format!(
        "One run on the default list, seed {seed}, 130 % arrived: CPU seconds, user and system, of \
         `sublet simulate` in a process of its own, best of {TRIES}, with reading, learning and \
         the curve. Beside it the run alone, within this process: as it is, and with every node's \
         cost worked out anew for every pod (the same engine without kept costs, and the same \
         placements). The published simulator took {PUBLISHED_CPU} CPU seconds for `{PEER}`, \
         quoted from another day."
    ));
    let head = [
        "policy",
        "`sublet simulate`, s",
        "peak memory, MiB",
        "the run alone, s",
        "without kept costs, s",
        "times as long",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut verdicts = Vec::new();
    for cost in costs {
        let policy = cost.policy;
        let figures = [cost.program, cost.memory, cost.kept, cost.naive];
        let mut row = vec![policy.to_owned()];
        row.extend(figures.map(short));
        row.push(short(cost.naive / cost.kept));
        rows.push(row);
        let what = format!("one run of `{policy}`");
        verdicts.push(Verdict::at_most(&what, cost.program, RUN_TARGET, "CPU s"));
        let what = format!("peak memory of `{policy}`");
        verdicts.push(Verdict::at_most(&what, cost.memory, MEMORY_TARGET, "MiB"));
    }
    report.table(&rows);
    let minutes = together.took.as_secs_f64() / 60.0;
    let what = format!(
        "all {} runs of the {} published policies on {CORES} cores",
        together.runs,
        PUBLISHED.len()
    );
    verdicts.push(Verdict::at_most(&what, minutes, ALL_TARGET, "min"));
    report.verdicts(&verdicts);
    if let Some(peer) = costs.iter().find(|cost| cost.policy == PEER) {
        let times = PUBLISHED_CPU / peer.program;
        report.say(&format!(
            "The published simulator's CPU time, as quoted, is {times:.0} times that of our `{PEER}`."
        ));
    }
}

/// CPU seconds and peak memory (MiB) of the program.
fn run_program(setting: &Setting, order: &Path, policy: &str) -> Result<(f64, f64)> {
    let nodes = openb(&setting.repository, "openb_node_list_gpu_node.csv.gz");
    let mut command = Command::new(&setting.sublet);
    command
        .args(["simulate", "-o", "json", "--policy", policy, "--nodes"])
        .arg(nodes)
        .arg("--pods")
        .arg(pod_list(&setting.repository, "default"))
        .arg("--sequence")
        .arg(order);
    let (seconds, answer) = timed(&command, &[0])?;
    let document: serde_json::Value = serde_json::from_str(&answer)?;
    let memory = document["peakMemoryMiB"].as_f64();
    Ok((seconds, memory.context("no peakMemoryMiB")?))
}

/// CPU seconds of a command that exits with one of these codes, and its answer.
pub(super) fn timed(command: &Command, codes: &[i32]) -> Result<(f64, String)> {
    // The shell's `time` prints the kernel's figures, to the millisecond.
    let output = Command::new("bash")
        .args(["-c", "TIMEFORMAT='%3U %3S'; time \"$@\"", "bash"])
        .arg(command.get_program())
        .args(command.get_args())
        .output()
        .context("run bash")?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output
            .status
            .code()
            .is_some_and(|code| codes.contains(&code)),
        "{command:?}: {told}"
    );
    Ok((cpu_seconds(&told)?, String::from_utf8(output.stdout)?))
}

/// The sum of both times in the last line.
fn cpu_seconds(told: &str) -> Result<f64> {
    let line = told.lines().last().unwrap_or_default();
    let times: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
    match times.as_deref() {
        Ok([user, system]) => Ok(user + system),
        _ => anyhow::bail!("no times in `{line}`"),
    }
}

/// CPU seconds of a run on this thread.
fn run_here(traces: &Traces, seed: u64, policy: &str, naive: bool) -> Result<(f64, Outcome)> {
    let policy: Policy = policy.parse()?;
    let run = Inflation {
        nodes: &traces.nodes,
        pods: traces.lists.get("default").context("no default list")?,
        sequence: traces.sequence("default", seed)?,
        policy: &policy,
        variant: Variant {
            naive,
            ..Variant::default()
        },
    };
    let began = thread_seconds();
    let outcome = inflate(run, |_| {});
    Ok((thread_seconds() - began, outcome))
}

fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_stand_in_the_last_line() {
        assert!((cpu_seconds("a warning\n0.231 0.012\n").unwrap() - 0.243).abs() < 1e-9);
        assert!(cpu_seconds("").is_err());
        assert!(cpu_seconds("0.231 0.012\nkilled by signal 9").is_err());
    }
}
