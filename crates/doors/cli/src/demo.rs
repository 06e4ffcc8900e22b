//! `sublet demo`: unchanged programs share two cards of a fake driver, so that everybody can see what
//! Sublet does, without a card.
//!
//! Two fit beside each other on one card, the third gets the other card, the fourth waits until
//! there is room; a fifth takes memory until it is refused, and with its context is at its limit.
//! `sublet run` does all of it and `sublet top` shows it. This module only starts them, and
//! checks at the end that their output is true.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::answer::{Advised, DONE, to_stdout};
use crate::paste;

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

/// The program that takes all that it can get, and its limit in bytes.
const GREEDY: (Job, u64) = (
    Job {
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
    },
    2 << 30,
);

/// The error that it gets: `cuda.h`, `CUresult`.
const OUT_OF_MEMORY: &str = "CUDA_ERROR_OUT_OF_MEMORY";

/// Longest time of a step on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Arguments of `sublet demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet demo                        five programs on a fake machine with two cards, in 15 s

It needs no GPU and no driver, and changes nothing: a fake driver plays the cards, and the programs
are inside this file. What it types can be typed: `sublet workload --help` lists its programs.

EXIT CODES
  0  everything was as it should be
  1  something was not
  2  wrong arguments")]
pub struct Args {}

/// Runs the demonstration and prints what happens.
///
/// # Errors
/// A program of it failed, or what it saw was not true; the fake machine has other jobs.
pub fn run(_args: &Args) -> anyhow::Result<u8> {
    let mut demo = Demo {
        children: Vec::new(),
        sublet: std::env::current_exe().context("cannot tell where sublet itself is")?,
    };
    demo.refuse_other_jobs()?;
    heading(&format!(
        "four programs on a machine of {MACHINE}, which a fake driver plays"
    ))?;
    for (at, job) in JOBS.iter().enumerate() {
        say(&format!("{}: {}\n  $ {}", job.name, job.why, shown(job)))?;
        demo.start(job)?;
        demo.until_seen(at + 1)?;
    }
    // Until the programs hold what they keep.
    demo.until(|top| top.contains("waiting") && top.matches("running").count() == 3)?;
    sleep(Duration::from_secs(1));

    let program = paste::program();
    heading(&format!("{program} top --once --fake-gpu {MACHINE}"))?;
    say(demo.top()?.trim_end())?;

    heading("and when there is room (10 s)")?;
    for (mut child, job) in demo.children.drain(..).zip(&JOBS) {
        let status = child.wait();
        let status = status.with_context(|| format!("cannot wait for {}", job.name))?;
        ensure!(status.success(), "{} failed: {status}", job.name);
        say(&format!("{}: done", job.name))?;
    }

    heading("a program that takes all it can get")?;
    demo.let_greedy_try()?;

    heading("try it")?;
    say(&format!(
        "  {program} run --fake-gpu {MACHINE} --memory 4GiB -- YOUR-PROGRAM\n  \
         {program} top --fake-gpu {MACHINE}\n\
         With a GPU and NVIDIA's driver, leave --fake-gpu away. The fake driver runs no GPU code: \
         kernels take time and compute nothing."
    ))?;
    Ok(DONE)
}

/// A line above what follows.
fn heading(text: &str) -> anyhow::Result<()> {
    match io::stdout().is_terminal() {
        true => say(&format!("\x1b[1m==> {text}\x1b[0m")),
        false => say(&format!("==> {text}")),
    }
}

fn say(text: &str) -> anyhow::Result<()> {
    to_stdout(|out| writeln!(out, "{text}"))
}

/// The command of a job, as one would type it.
fn shown(job: &Job) -> String {
    let program = paste::program();
    let Job { name, memory, .. } = job;
    let does = job.does.join(" ");
    format!(
        "{program} run --fake-gpu {MACHINE} --memory {memory} --name {name} -- {program} workload {does}"
    )
}

struct Demo {
    /// This executable.
    sublet: PathBuf,
    /// The programs that were started, in the order of [`JOBS`].
    children: Vec<Child>,
}

impl Demo {
    fn command(&self, job: &Job) -> Command {
        let mut command = Command::new(&self.sublet);
        command
            .args(["run", "--fake-gpu", MACHINE, "--memory", job.memory])
            .args(["--name", job.name, "--"])
            .arg(&self.sublet)
            .arg("workload")
            .args(job.does)
            .stdin(Stdio::null());
        command
    }

    fn start(&mut self, job: &Job) -> anyhow::Result<()> {
        let mut command = self.command(job);
        // Their results are one line of JSON each, which belong to programs.
        command.stdout(Stdio::null());
        let child = command.spawn().with_context(|| self.not_started())?;
        self.children.push(child);
        Ok(())
    }

    fn not_started(&self) -> String {
        format!("cannot start {}", self.sublet.display())
    }

    /// # Errors
    /// Somebody else's jobs are on the machine: the places would be others.
    fn refuse_other_jobs(&self) -> anyhow::Result<()> {
        let output = self.asked(&["ps", "-o", "json"])?;
        let machine: Value =
            serde_json::from_str(&output).context("`sublet ps` printed no JSON")?;
        let jobs = machine["jobs"].as_array().map_or(0, Vec::len);
        if jobs == 0 {
            return Ok(());
        }
        let program = paste::program();
        Err(Advised::new(
            format!("the fake machine {MACHINE} has {jobs} jobs, and the demo wants it empty"),
            format!("is another demo running? `{program} ps --fake-gpu {MACHINE}` lists them"),
        )
        .into())
    }

    fn let_greedy_try(&self) -> anyhow::Result<()> {
        let (greedy, limit) = &GREEDY;
        say(&format!(
            "{}: {}\n  $ {}",
            greedy.name,
            greedy.why,
            shown(greedy)
        ))?;
        let output = self.command(greedy).output();
        let output = output.with_context(|| self.not_started())?;
        let said = String::from_utf8_lossy(&output.stdout);
        let report: Value = serde_json::from_str(&said)
            .with_context(|| format!("{} printed no report: {said}", greedy.name))?;
        let bytes = report["bytes"].as_u64();
        let bytes = bytes.with_context(|| format!("{} took nothing: {said}", greedy.name))?;
        let is_refused = said.contains(OUT_OF_MEMORY);
        ensure!(is_refused, "{} was refused nothing: {said}", greedy.name);
        ensure!(bytes <= *limit, "{bytes} bytes are more than its limit");
        say(&format!(
            "it got {bytes} bytes; with what its CUDA context takes, that is its limit of {limit}; \
             the driver said {OUT_OF_MEMORY}"
        ))
    }

    fn top(&self) -> anyhow::Result<String> {
        self.asked(&["top", "--once"])
    }

    /// Output of a command of this program about the fake machine.
    fn asked(&self, words: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.sublet);
        command.args(words).args(["--fake-gpu", MACHINE]);
        let output = command.output().with_context(|| self.not_started())?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "`sublet {}` failed: {error}",
            words[0]
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Waits until this number of jobs is known, so that they come in this order.
    fn until_seen(&mut self, count: usize) -> anyhow::Result<()> {
        let known = |top: &str| JOBS.iter().filter(|job| top.contains(job.name)).count();
        self.until(|top| known(top) == count)
    }

    /// # Errors
    /// It takes too long, or a program ended meanwhile, which has said why.
    fn until(&mut self, holds: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            // While an arbiter starts, it may not answer yet.
            let top = self.top().unwrap_or_else(|error| format!("{error:#}"));
            if holds(&top) {
                return Ok(());
            }
            for (child, job) in self.children.iter_mut().zip(&JOBS) {
                if let Some(status) = child.try_wait()? {
                    bail!("{} ended too soon: {status}", job.name);
                }
            }
            if Instant::now() > deadline {
                bail!("not within {} s; last seen:\n{top}", LIMIT.as_secs());
            }
            sleep(Duration::from_millis(50));
        }
    }
}
