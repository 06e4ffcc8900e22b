//! Any sequence of sizes and calls, by threads and processes, on drivers that pack memory in ways
//! that nobody told us: NVML's count never exceeds the limit, at any look, and comes close to it
//! when there is no more to be had.
//!
//! 20,000 steps; `cargo xtask soak` runs a million. The seed is printed, and the same one makes
//! each thread ask the same sizes in the same order.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::one_machine::{Machine, Running, mib, number};

/// Cost of a context if the description does not set it.
const CONTEXT: u64 = mib(480);

/// Packing of a driver, as the machine's description says it, and the most that it takes for one
/// small allocation, in MiB.
const PACKINGS: [(&str, u64); 4] = [
    ("", 2),
    (",packing=1MiB:2MiB:0", 2),
    (",packing=512KiB:8MiB:1", 8),
    (",packing=3MiB:32MiB:all", 32),
];

/// Memory that a pool of today's drivers takes at once, in MiB.
const POOL: u64 = 32;

/// Number of processes, threads in each, and the ways to allocate.
const CROWDS: [(u64, u64, &str); 5] = [
    (1, 1, "--path plain"),
    (
        1,
        32,
        "--path plain --path pitch --path managed --path array",
    ),
    (20, 1, "--path plain --path pool --path vmm --path mipmap"),
    (3, 8, "--path async --path plain --path pool --path vmm"),
    (6, 4, "--path plain --path pitch --path async --path graph"),
];

/// Longest time of one case: of a million steps it has fifty thousand.
const PATIENCE: Duration = Duration::from_secs(600);

/// A number from the environment: `cargo xtask soak` sets them.
fn told(name: &str, otherwise: u64) -> u64 {
    let told = std::env::var(name).ok();
    told.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

struct Case {
    packing: &'static str,
    piece: u64,
    processes: u64,
    threads: u64,
    paths: &'static str,
    steps: u64,
    seed: u64,
}

impl Case {
    /// Runs it, and says how many steps it made and how close it came to the limit.
    fn check(&self, machine: &Machine) -> Result<(u64, u64)> {
        let mut watch = machine.command(machine.built("sublet-workload"));
        watch.env("SUBLET_FAKE_GPU", machine.spec());
        watch
            .arg("watch")
            .arg(machine.built("libsublet_fakenvml.so"));
        let referee = Running::start(&mut watch)?;
        // Contexts count: so much is left for each process beside its own, and a little more.
        let limit = self.processes * (CONTEXT >> 20) + 2048;
        let words = format!(
            "race --processes {} --threads {} --churn {} --seed {} {} --size 64MiB --down-to 512 \
             --hold stdin",
            self.processes,
            self.threads,
            self.steps / self.processes,
            self.seed,
            self.paths
        );
        let flags = format!("--memory {limit}MiB --name churn");
        let mut job = Running::start(&mut machine.job(&flags, &words))?;
        let line = job.line_within(PATIENCE)?;
        let report: Value = serde_json::from_str(&line.context("it is too slow")?)?;
        let filled = machine.card(0)?.used;
        job.end()?;
        let seen = referee.end()?.report()?;
        let (highest, looks) = (number(&seen["highest"])?, number(&seen["looks"])?);
        ensure!(looks > 10, "{seen}");
        ensure!(
            highest <= mib(limit),
            "NVML saw {highest} bytes, {} more than the limit: {report}",
            highest - mib(limit)
        );
        // Each may have held back a piece, and a pool what it grows by.
        let held_back = self.processes * (self.piece + POOL);
        let least = (limit * 97 / 100).min(limit.saturating_sub(held_back));
        ensure!(
            filled >= mib(least),
            "refused at {filled} bytes of {}: {report}",
            mib(limit)
        );
        Ok((steps_of(&report)?, filled * 1000 / mib(limit)))
    }
}

fn steps_of(report: &Value) -> Result<u64> {
    ensure!(
        report["refusals"] != 0,
        "nothing was ever refused: {report}"
    );
    number(&report["steps"])
}

#[test]
fn any_sequence_of_sizes_and_calls_stays_within_the_limit_by_nvml_s_count() -> Result<()> {
    let (steps, seed) = (
        told("SUBLET_STEPS", 20_000),
        told("SUBLET_SEED", 20_261_122),
    );
    let cases = (PACKINGS.len() * CROWDS.len()) as u64;
    let (mut done, mut wrong) = (0, Vec::new());
    println!("seed {seed}, {steps} steps");
    for (packing, piece) in PACKINGS {
        let Some(machine) = Machine::new(&format!("1x64GiB{packing}"))? else {
            return Ok(());
        };
        for (processes, threads, paths) in CROWDS {
            let case = Case {
                packing,
                piece,
                processes,
                threads,
                paths,
                steps: steps.div_ceil(cases),
                seed: seed.wrapping_add(done),
            };
            let name = format!(
                "driver `{}`, {processes} × {threads}, {paths}",
                case.packing
            );
            match case.check(&machine) {
                Ok((made, permille)) => {
                    println!("{name}: {made} steps, then {permille} ‰ of the limit in use");
                    done += made;
                }
                Err(error) => wrong.push(format!("{name}: {error:#}")),
            }
        }
    }
    assert!(wrong.is_empty(), "seed {seed}:\n{}", wrong.join("\n"));
    assert!(done >= steps, "{done} of {steps} steps");
    Ok(())
}
