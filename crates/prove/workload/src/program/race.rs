//! Processes that begin at the same moment: all allocate until there is no more, or all call
//! `cuInit`. If told to, they first take and free memory at random ([`churn`]), and begin to fill
//! the rest only when all of them have stopped.
//!
//! One pipe is both the barrier and the signal to end. Every racer reads one byte of it to begin,
//! holds its memory, and ends when the pipe is closed. So the memory that all report was held at
//! the same time, and no racer outlives a parent that was killed.

use std::env;
use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use clap::Args;
use serde_json::Value;

use super::alloc::{Plan, take};
use super::churn;
use crate::allocator::Allocator;
use crate::arguments::{Bytes, Common, Hold};
use crate::driver::Driver;
use crate::path::Path;
use crate::report::{Failure, Report};
use crate::statistics::{rounded, spread};

/// Arguments of `race`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Number of processes
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
    /// Only load the driver and call cuInit, all at once, and say how long that took
    #[arg(long)]
    init_only: bool,
    /// First take and give memory of random sizes so often, in each process
    #[arg(long, default_value_t = 0)]
    churn: u32,
    /// With so many threads in each process, which take the ways in turn
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the memory: a number of seconds, or `stdin` to keep it until standard input is closed
    #[arg(long)]
    hold: Option<Hold>,
}

impl Arguments {
    pub(crate) fn check(&self) -> Result<(), String> {
        let endless = |path: &&Path| match self.churn {
            0 => !path.ends_with_the_card(),
            _ => path.is_on_the_host(),
        };
        if let Some(path) = self.path.iter().find(endless) {
            let path = path.name();
            return Err(format!("path {path} would take the whole machine's memory"));
        }
        if self.size.0 == 0 {
            return Err("--size must be more than nothing".to_owned());
        }
        Ok(())
    }

    /// The command line of a racer.
    fn racer(&self, number: usize) -> Vec<String> {
        let mut list = vec!["racer".to_owned()];
        list.extend(self.common.to_arguments());
        // Each racer begins with another way.
        let ways = self.path.iter().cycle().skip(number % self.path.len());
        for path in ways.take(self.path.len()) {
            list.push(format!("--path={}", path.name()));
        }
        list.push(format!("--size={}", self.size));
        list.push(format!("--down-to={}", self.down_to.unwrap_or(self.size)));
        if self.init_only {
            list.push("--init-only".to_owned());
        }
        if self.churn > 0 {
            let seed = self.seed.wrapping_add(number as u64 * 7919);
            list.push(format!("--churn={}", self.churn));
            list.push(format!("--threads={}", self.threads));
            list.push(format!("--seed={seed}"));
        }
        list
    }
}

/// The arguments of a racer, one of the processes.
#[derive(Debug, Args)]
pub(crate) struct RacerArguments {
    #[command(flatten)]
    common: Common,
    #[arg(long, value_enum)]
    path: Vec<Path>,
    #[arg(long)]
    size: Bytes,
    #[arg(long)]
    down_to: Bytes,
    #[arg(long)]
    init_only: bool,
    #[arg(long, default_value_t = 0)]
    churn: u32,
    #[arg(long, default_value_t = 1)]
    threads: u32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The line that a racer prints when it is ready to start.
const READY: &str = "ready";

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    let (barrier, mut start) = io::pipe().map_err(Failure::system("pipe"))?;
    let mut racers = Vec::new();
    for number in 0..arguments.processes as usize {
        racers.push(Racer::start(arguments, number, &barrier)?);
    }
    drop(barrier);
    let early = open(&mut racers, &mut start, arguments)?;
    if arguments.churn > 0 {
        let still = racers.iter().zip(&early);
        let still = still.filter(|(_, early)| early.is_none());
        let still: Vec<&Racer> = still.map(|(racer, _)| racer).collect();
        for racer in &still {
            racer.wait_until_it_stops()?;
        }
        for racer in &still {
            racer.goes_on()?;
        }
    }
    let mut seen = Vec::new();
    for (racer, early) in racers.iter_mut().zip(early) {
        let line = match early {
            Some(line) => line,
            None => racer.line()?,
        };
        seen.push(parse_line(&line));
    }
    summary(&seen, report);
    let outcome = verdict(&seen);
    if let Some(hold) = arguments.hold {
        report.print(&outcome)?;
        hold.wait()?;
    }
    drop(start);
    for mut racer in racers {
        racer.child.wait().map_err(Failure::system("wait"))?;
    }
    outcome
}

/// Waits until each racer is ready or has ended, and lets the ready ones start. For each racer that
/// is not ready, returns the line that it printed instead.
fn open(
    racers: &mut [Racer],
    start: &mut PipeWriter,
    arguments: &Arguments,
) -> Result<Vec<Option<String>>, Failure> {
    let mut lines: Vec<Option<String>> = Vec::new();
    for racer in racers {
        let line = racer.line()?;
        lines.push((line != READY).then_some(line));
    }
    let ready = lines.iter().filter(|line| line.is_none()).count();
    arguments
        .common
        .progress(format_args!("{ready} at the start"));
    // One write of at most 1,024 bytes is atomic.
    start
        .write_all(&vec![b'!'; ready])
        .map_err(Failure::system("letting the racers start"))?;
    Ok(lines)
}

/// A racer's report, or a failure if it ended without one.
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
    let times = |key: &str| {
        let each = seen.iter().filter_map(|racer| racer[key].as_f64());
        spread(&mut each.collect::<Vec<f64>>())
    };
    report.set("processes", seen.len());
    report.set("bytes", number("bytes"));
    report.set("blocks", number("blocks"));
    let churned = |key: &str| {
        let each = seen
            .iter()
            .filter_map(|racer| racer["churned"][key].as_u64());
        each.sum::<u64>()
    };
    report.set("steps", churned("steps"));
    report.set("refusals", churned("refusals"));
    report.set("initUs", times("initUs"));
    report.set("startUs", times("startUs"));
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

    /// Waits until the racer has stopped itself, or has ended.
    fn wait_until_it_stops(&self) -> Result<(), Failure> {
        // SAFETY: an all-zero value of this plain struct, which the call writes.
        let mut about: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
        // SAFETY: a child of ours, which nobody has waited for.
        let waited = unsafe { libc::waitid(libc::P_PID, self.child.id(), &raw mut about, options) };
        if waited < 0 {
            return Err(Failure::system("waitid")(io::Error::last_os_error()));
        }
        Ok(())
    }

    /// Lets a stopped racer continue.
    fn goes_on(&self) -> Result<(), Failure> {
        let pid = self.child.id().cast_signed();
        // SAFETY: a child of ours that was not waited for, so the number is its own.
        if unsafe { libc::kill(pid, libc::SIGCONT) } < 0 {
            return Err(Failure::system("kill")(io::Error::last_os_error()));
        }
        Ok(())
    }

    /// The racer's next line; empty if it has ended.
    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.lines
            .read_line(&mut line)
            .map_err(Failure::system("hearing a racer"))?;
        Ok(line.trim_end().to_owned())
    }
}

/// Runs a racer to its end.
pub(crate) fn run_racer(arguments: &RacerArguments, report: &mut Report) -> Result<(), Failure> {
    let stdin = io::stdin().as_fd().try_clone_to_owned();
    // Without a buffer: one byte too many would be the start of another racer.
    let mut start = File::from(stdin.map_err(Failure::system("stdin"))?);
    if arguments.init_only {
        // Before the driver is loaded: without us that happens here, with us in cuInit.
        at_the_start(&mut start)?;
    }
    let began = Instant::now();
    let driver = Driver::load(&arguments.common)?;
    let loaded = Instant::now();
    driver.init()?;
    report.set("initUs", rounded(loaded.elapsed().as_secs_f64() * 1e6));
    report.set("startUs", rounded(began.elapsed().as_secs_f64() * 1e6));
    if arguments.init_only {
        return hold(&start, report, Ok(()));
    }
    let context = driver.context(arguments.common.device)?;
    let ends = |path: &&Path| path.ends_with_the_card();
    let path = arguments.path.iter().find(ends).copied();
    let path = path.unwrap_or(Path::Plain);
    let mut allocator = Allocator::new(&context, path, &arguments.common)?;
    at_the_start(&mut start)?;
    if arguments.churn > 0 {
        let plan = churn::Plan {
            paths: &arguments.path,
            steps: arguments.churn,
            threads: arguments.threads,
            seed: arguments.seed,
        };
        let churned = churn::run(&plan, &context, &arguments.common)?;
        report.set("churned", churned.to_json());
        // Wait until all have stopped. Another byte of the pipe would be the start of a slower
        // racer. SAFETY: stops this process until its parent continues it.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
    let plan = Plan {
        size: arguments.size.0,
        count: None,
        until_oom: true,
        down_to: arguments.down_to.0,
    };
    let got = take(&mut allocator, plan, |_, _| {});
    report.set("path", path.name());
    got.describe(report);
    hold(&start, report, got.outcome(true))
}

/// Says that this racer is ready, and waits for its byte.
fn at_the_start(start: &mut File) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{READY}")
        .and_then(|()| out.flush())
        .map_err(Failure::system("telling the parent"))?;
    drop(out);
    match start.read(&mut [0]).map_err(Failure::system("the start"))? {
        0 => Err(Failure::Wrong(
            "the parent ended before the start".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// Reports, then keeps everything until the pipe has no writer left. It must not read, because the
/// bytes in the pipe are the starts of slower racers.
fn hold(start: &File, report: &mut Report, outcome: Result<(), Failure>) -> Result<(), Failure> {
    report.print(&outcome)?;
    let mut poll = libc::pollfd {
        fd: start.as_raw_fd(),
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
            let first = line.iter().find(|word| word.starts_with("--path"));
            assert_eq!(first, Some(&format!("--path={path}")), "{line:?}");
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
