//! The one-machine door: four unchanged programs share two cards of a fake driver.
//!
//! Two fit beside each other on one card, the third gets the other card, the fourth waits until
//! there is room; a fifth takes memory until it is refused, and with its context is at its limit.
//! `sublet run` does all of it and `sublet top` shows it. This module only starts them, and
//! checks at the end that their output is true.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::screen::heading;
use crate::setup::{cargo, product, program, run as run_command};

/// The fake machine.
const MACHINE: &str = "2x16GiB";

/// A program of the demonstration: its name, request and work.
struct Job {
    name: &'static str,
    memory: &'static str,
    does: &'static [&'static str],
    why: &'static str,
}

const JOBS: [Job; 4] = [
    Job {
        name: "trainer",
        memory: "6GiB",
        does: &["train", "--seconds", "9", "--keep", "3GiB"],
        why: "gets the first card",
    },
    Job {
        name: "server",
        memory: "4GiB",
        does: &["serve", "--seconds", "9", "--keep", "1GiB"],
        why: "fits beside it: cards are filled before new ones are opened",
    },
    Job {
        name: "bigger",
        memory: "12GiB",
        does: &["train", "--seconds", "9", "--keep", "8GiB"],
        why: "does not fit there, and gets the second card",
    },
    Job {
        name: "late",
        memory: "8GiB",
        does: &["train", "--steps", "20", "--keep", "2GiB"],
        why: "fits nowhere now: it waits, and says why",
    },
];

/// Longest time of a step on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs the demonstration.
pub(crate) fn run() -> Result<()> {
    heading("the product: the program, its libraries and a fake GPU (4 min cold, then 1 s)");
    run_command(&mut cargo(&[&["build"], &product()[..]].concat())?)?;
    let demo = Demo {
        sublet: program("debug", "sublet")?,
        workload: program("debug", "sublet-workload")?,
    };

    heading(&format!(
        "four programs on a machine of {MACHINE}, which a fake driver plays"
    ));
    let mut children = Vec::new();
    for (at, job) in JOBS.iter().enumerate() {
        println!("{}: {}", job.name, job.why);
        println!("  $ {}", demo.shown(job));
        children.push(demo.start(job)?);
        demo.until_seen(at + 1)?;
    }
    // Until the programs hold what they keep.
    demo.until(|top| top.contains("waiting") && top.matches("running").count() == 3)?;
    sleep(Duration::from_secs(1));

    heading("sublet top --once");
    let top = demo.top()?;
    print!("{top}");

    heading("and when there is room (10 s)");
    for (mut child, job) in children.into_iter().zip(&JOBS) {
        let status = child
            .wait()
            .with_context(|| format!("wait for {}", job.name))?;
        ensure!(status.success(), "{} failed: {status}", job.name);
        println!("{}: done", job.name);
    }

    heading("a program that takes all it can get");
    let greedy = Job {
        name: "greedy",
        memory: "2GiB",
        does: &[
            "alloc",
            "--until-oom",
            "--size",
            "64MiB",
            "--down-to",
            "2MiB",
        ],
        why: "is refused at its limit, with the driver's own error",
    };
    println!("{}: {}", greedy.name, greedy.why);
    println!("  $ {}", demo.shown(&greedy));
    let output = demo.command(&greedy).output().context("run greedy")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let bytes = number(&said, "\"bytes\":").context("greedy printed no bytes")?;
    let limit = 2 << 30;
    println!(
        "it got {bytes} bytes; with what its CUDA context takes, that is its limit of {limit}; \
         the driver said {}",
        if said.contains("CUDA_ERROR_OUT_OF_MEMORY") {
            "CUDA_ERROR_OUT_OF_MEMORY"
        } else {
            "nothing"
        }
    );
    ensure!(bytes <= limit, "more than its limit");

    heading("try it");
    println!(
        "  {0} run --fake-gpu {MACHINE} --memory 4GiB -- YOUR-PROGRAM\n  \
         {0} top --fake-gpu {MACHINE}\n\
         With a GPU and NVIDIA's driver, leave --fake-gpu away. `cargo xtask demo --cluster` \
         shows the same engine in Kubernetes.",
        demo.sublet.display()
    );
    Ok(())
}

struct Demo {
    sublet: PathBuf,
    workload: PathBuf,
}

impl Demo {
    fn command(&self, job: &Job) -> Command {
        let mut command = Command::new(&self.sublet);
        command
            .args(["run", "--fake-gpu", MACHINE, "--memory", job.memory])
            .args(["--name", job.name, "--"])
            .arg(&self.workload)
            .args(job.does)
            .stdin(Stdio::null());
        command
    }

    /// The command as one would type it.
    fn shown(&self, job: &Job) -> String {
        format!(
            "sublet run --fake-gpu {MACHINE} --memory {} --name {} -- sublet-workload {}",
            job.memory,
            job.name,
            job.does.join(" ")
        )
    }

    fn start(&self, job: &Job) -> Result<Child> {
        let mut command = self.command(job);
        // Their results are one line of JSON each, which belong to programs.
        command.stdout(Stdio::null());
        command
            .spawn()
            .with_context(|| format!("start {}", self.sublet.display()))
    }

    fn top(&self) -> Result<String> {
        let output = Command::new(&self.sublet)
            .args(["top", "--once", "--fake-gpu", MACHINE])
            .output()
            .with_context(|| format!("start {}", self.sublet.display()))?;
        ensure!(
            output.status.success(),
            "sublet top failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Waits until this number of jobs is known, so that they come in this order.
    fn until_seen(&self, count: usize) -> Result<()> {
        let known = |top: &str| JOBS.iter().filter(|job| top.contains(job.name)).count();
        self.until(|top| known(top) == count)
    }

    fn until(&self, holds: impl Fn(&str) -> bool) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            // While an arbiter starts, it may not answer yet.
            let top = self.top().unwrap_or_else(|error| format!("{error:#}"));
            if holds(&top) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("not within {} s; last seen:\n{top}", LIMIT.as_secs());
            }
            sleep(Duration::from_millis(50));
        }
    }
}

/// The number behind a key in a line of JSON.
fn number(line: &str, key: &str) -> Option<u64> {
    let (_, rest) = line.split_once(key)?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}
