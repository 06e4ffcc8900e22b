//! Processes that begin at the same moment: all allocate until there is no more, or all call
//! `cuInit` at once.
//!
//! One pipe is the barrier and the end: every racer reads one byte of it to begin, holds what it
//! got, and ends when the pipe does. So the sum of what all report was held at one time, and no
//! racer outlives a parent that was killed.

use std::env;
use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use clap::Args;
use serde_json::Value;

use super::alloc::{Plan, take};
use crate::arguments::{Bytes, Common};
use crate::blocks::Allocator;
use crate::driver::Driver;
use crate::figures::{rounded, spread};
use crate::path::Path;
use crate::report::{Failure, Report};

/// What `race` is told.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// How many processes
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    processes: u32,
    /// The ways to get memory, which the processes take in turn; can be given several times
    #[arg(long, value_enum, default_value = "plain")]
    path: Vec<Path>,
    /// Bytes of a block
    #[arg(long, default_value = "2MiB")]
    size: Bytes,
    /// After a refusal go on with half the size, as long as it is at least this
    #[arg(long)]
    down_to: Option<Bytes>,
    /// Only call cuInit, all at once, and say how long each call took
    #[arg(long)]
    init_only: bool,
}

impl Arguments {
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some(path) = self.path.iter().find(|path| !path.ends_with_the_card()) {
            let path = path.name();
            return Err(format!("path {path} would take the whole machine's memory"));
        }
        if self.size.0 == 0 {
            return Err("--size must be more than nothing".to_owned());
        }
        Ok(())
    }

    /// The command line of one racer.
    fn racer(&self, number: usize) -> Vec<String> {
        let path = self.path[number % self.path.len()];
        let mut list = vec!["racer".to_owned()];
        list.extend(self.common.to_arguments());
        list.push(format!("--path={}", path.name()));
        list.push(format!("--size={}", self.size));
        list.push(format!("--down-to={}", self.down_to.unwrap_or(self.size)));
        if self.init_only {
            list.push("--init-only".to_owned());
        }
        list
    }
}

/// What one of its processes is told.
#[derive(Debug, Args)]
pub(crate) struct RacerArguments {
    #[command(flatten)]
    common: Common,
    #[arg(long, value_enum)]
    path: Path,
    #[arg(long)]
    size: Bytes,
    #[arg(long)]
    down_to: Bytes,
    #[arg(long)]
    init_only: bool,
}

/// The word that a racer says when it stands at the start.
const READY: &str = "ready";

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    let (barrier, mut gate) = io::pipe().map_err(Failure::system("pipe"))?;
    let mut racers = Vec::new();
    for number in 0..arguments.processes as usize {
        racers.push(Racer::start(arguments, number, &barrier)?);
    }
    drop(barrier);
    let mut lines: Vec<Option<String>> = Vec::new();
    for racer in &mut racers {
        let line = racer.line()?;
        lines.push((line != READY).then_some(line));
    }
    let ready = lines.iter().filter(|line| line.is_none()).count();
    arguments
        .common
        .progress(format_args!("{ready} at the start"));
    // One write of at most 1,024 bytes: all of it is there at once.
    gate.write_all(&vec![b'!'; ready])
        .map_err(Failure::system("opening the gate"))?;
    let mut seen = Vec::new();
    for (racer, early) in racers.iter_mut().zip(lines) {
        let line = match early {
            Some(line) => line,
            None => racer.line()?,
        };
        seen.push(parse_line(&line));
    }
    drop(gate);
    for mut racer in racers {
        racer.child.wait().map_err(Failure::system("wait"))?;
    }
    summary(&seen, report);
    verdict(&seen)
}

/// What a racer printed, or that it died without a word.
fn parse_line(line: &str) -> Value {
    serde_json::from_str(line)
        .unwrap_or_else(|_| serde_json::json!({"ok": false, "error": {"why": "it died"}}))
}

fn summary(seen: &[Value], report: &mut Report) {
    let number = |key: &str| {
        seen.iter()
            .filter_map(|racer| racer[key].as_u64())
            .sum::<u64>()
    };
    let mut init: Vec<f64> = seen
        .iter()
        .filter_map(|racer| racer["initUs"].as_f64())
        .collect();
    report.set("processes", seen.len());
    report.set("bytes", number("bytes"));
    report.set("blocks", number("blocks"));
    report.set("initUs", spread(&mut init));
    report.set("racers", seen);
}

fn verdict(seen: &[Value]) -> Result<(), Failure> {
    let mut failed = seen.iter().filter(|racer| racer["ok"] != true);
    match failed.next() {
        None => Ok(()),
        Some(first) => Err(Failure::Wrong(format!(
            "{} of {} processes failed, the first with {}",
            failed.count() + 1,
            seen.len(),
            first["error"]
        ))),
    }
}

/// The parent's end of a racer.
struct Racer {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Racer {
    fn start(arguments: &Arguments, number: usize, barrier: &PipeReader) -> Result<Self, Failure> {
        let program = env::current_exe().map_err(Failure::system("finding this program"))?;
        let barrier = barrier.try_clone().map_err(Failure::system("pipe"))?;
        let mut child = Command::new(program)
            .args(arguments.racer(number))
            .stdin(barrier)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Failure::system("starting a racer"))?;
        match child.stdout.take() {
            Some(lines) => Ok(Self {
                child,
                lines: BufReader::new(lines),
            }),
            None => Err(Failure::Wrong("a racer has no pipe".to_owned())),
        }
    }

    /// Its next line, empty if it has ended.
    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.lines
            .read_line(&mut line)
            .map_err(Failure::system("hearing a racer"))?;
        Ok(line.trim_end().to_owned())
    }
}

/// One racer's life.
pub(crate) fn run_racer(arguments: &RacerArguments, report: &mut Report) -> Result<(), Failure> {
    let stdin = io::stdin().as_fd().try_clone_to_owned();
    // Unbuffered: a byte too many would be another racer's start.
    let mut gate = File::from(stdin.map_err(Failure::system("stdin"))?);
    let driver = Driver::load(&arguments.common)?;
    if arguments.init_only {
        at_the_gate(&mut gate)?;
    }
    let begin = Instant::now();
    driver.init()?;
    report.set("initUs", rounded(begin.elapsed().as_secs_f64() * 1e6));
    if arguments.init_only {
        return hold(&gate, report, Ok(()));
    }
    let context = driver.context(arguments.common.device)?;
    let mut allocator = Allocator::new(&context, arguments.path, &arguments.common)?;
    at_the_gate(&mut gate)?;
    let plan = Plan {
        size: arguments.size.0,
        count: None,
        until_oom: true,
        down_to: arguments.down_to.0,
    };
    let got = take(&mut allocator, plan, |_, _| {});
    report.set("path", arguments.path.name());
    got.describe(report);
    hold(&gate, report, got.outcome(true))
}

/// Says that it is ready and waits for its byte.
fn at_the_gate(gate: &mut File) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{READY}")
        .and_then(|()| out.flush())
        .map_err(Failure::system("telling the parent"))?;
    drop(out);
    match gate.read(&mut [0]).map_err(Failure::system("the gate"))? {
        0 => Err(Failure::Wrong(
            "the parent ended before the start".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// Reports, then keeps everything until the pipe has no writer any more. It must not read:
/// what is in the pipe are the starts of racers that are slower.
fn hold(gate: &File, report: &mut Report, outcome: Result<(), Failure>) -> Result<(), Failure> {
    report.print(&outcome)?;
    let mut poll = libc::pollfd {
        fd: gate.as_raw_fd(),
        events: 0,
        revents: 0,
    };
    while poll.revents == 0 {
        // SAFETY: the list has one entry; the file is open. Hanging up is always reported.
        if unsafe { libc::poll(&raw mut poll, 1, -1) } < 0 {
            let why = io::Error::last_os_error();
            if why.kind() != io::ErrorKind::Interrupted {
                return Err(Failure::system("poll")(why));
            }
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::{Arguments, parse_line, summary, verdict};
    use crate::report::Report;
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn racers_take_the_paths_in_turn() {
        let words = [
            "race",
            "--path=vmm",
            "--path=pool",
            "--size=4MiB",
            "--down-to=512",
        ];
        let arguments = Alone::parse_from(words).arguments;
        for (number, path) in [(0, "vmm"), (1, "pool"), (2, "vmm")] {
            let line = arguments.racer(number);
            assert!(line.contains(&format!("--path={path}")), "{line:?}");
            assert!(line.contains(&"--down-to=512".to_owned()), "{line:?}");
        }
    }

    #[test]
    fn one_failure_fails_the_race() {
        let good = json!({"ok": true, "bytes": 5, "initUs": 1.5});
        assert_eq!(verdict(&[good.clone(), good.clone()]), Ok(()));
        let dead = parse_line("");
        let failure = verdict(&[good.clone(), dead]).expect_err("one died");
        assert!(failure.to_string().starts_with("1 of 2 processes failed"));
        let mut report = Report::new("race");
        summary(&[good.clone(), good], &mut report);
        assert_eq!(report.get("bytes"), Some(&json!(10)));
        assert_eq!(report.get("initUs").map(|init| &init["n"]), Some(&json!(2)));
    }
}
