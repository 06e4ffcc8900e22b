//! `sublet-bench isolation`: what isolation on one machine costs, on the fake driver.
//!
//! Beside each figure stands the same without Sublet, measured in the same run by the same
//! program: a slow or busy machine slows both. Nothing here needs a real card.

mod arbiter;
mod init;
mod null_driver;
mod racing;
mod reclaim;
mod ways;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use sublet_testbed::bench;

use crate::machine;
use crate::report::Report;
use crate::stage::Stage;

const REMARK: &str = "The card is a fake one, `--fake-gpu 1x80GiB`. Programs, the arbiter and what \
                      measures share this machine's cores.";

/// One figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// Time added to launches
    Launch,
    /// Time added to allocating and freeing
    Memory,
    /// Time added to cuInit
    Init,
    /// From a process's death to its memory being free
    Reclaim,
    /// The arbiter's memory and CPU time with many jobs
    Arbiter,
}

/// Measure what isolation on one machine costs, on the fake driver.
///
/// Prints Markdown. About 4 minutes at full size.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench isolation --write            everything, kept in docs/benchmarks/isolation.md
  cargo xtask bench isolation --quick            a small run to see that it works (1 min)
  cargo xtask bench isolation --only launch,init these figures alone")]
pub(crate) struct Arguments {
    /// Short and few: shows that it works, the figures mean little
    #[arg(long)]
    quick: bool,
    /// Only these figures
    #[arg(long, value_delimiter = ',', value_name = "FIGURES")]
    only: Vec<Figure>,
    /// Folder of the product's files [default: where cargo xtask bench put them]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Store the output in docs/benchmarks/isolation.md
    #[arg(long)]
    write: bool,
}

/// Size of each measurement.
#[derive(Debug, Clone, Copy)]
struct Size {
    /// Seconds for each call, both ways together.
    call_seconds: f64,
    /// Number of processes that measure the launches, one after another.
    launch_runs: usize,
    /// Seconds for each call while several processes make it at once.
    race_seconds: f64,
    /// Starts of a single process, as many without us as with us.
    starts: usize,
    /// Rounds of many starts at once, as many without us as with us.
    start_rounds: usize,
    /// Number of processes that start at once.
    at_once: usize,
    /// Number of processes that are killed.
    kills: usize,
    /// Number of jobs that hold memory at the same time.
    jobs: usize,
    /// Seconds for which the arbiter of these jobs is watched.
    idle_seconds: u64,
}

const FULL: Size = Size {
    call_seconds: 2.0,
    launch_runs: 5,
    race_seconds: 1.0,
    starts: 100,
    start_rounds: 5,
    at_once: 300,
    kills: 50,
    jobs: 100,
    idle_seconds: 20,
};

const QUICK: Size = Size {
    call_seconds: 0.2,
    launch_runs: 1,
    race_seconds: 0.2,
    starts: 10,
    start_rounds: 1,
    at_once: 50,
    kills: 5,
    jobs: 20,
    idle_seconds: 2,
};

impl Arguments {
    fn wants(&self, figure: Figure) -> bool {
        self.only.is_empty() || self.only.contains(&figure)
    }
}

/// Measures and prints.
///
/// # Errors
/// When something could not be measured. A missed target is not an error.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let bin = Stage::bin_dir(arguments.bin_dir.as_deref())?;
    let size = if arguments.quick { QUICK } else { FULL };
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut report = Report::default();
    report.say("# Isolation on one machine, on the fake driver");
    report.say(
        "Written by `cargo xtask bench isolation --write`. What is ours is the difference to \
         the same program without us, measured in the same run.",
    );
    report.say(&machine::described(
        &bench::ISOLATION,
        &repository,
        &[],
        REMARK,
    ));
    if arguments.quick {
        report.say("**A quick run: short and few. The figures mean little.**");
    }
    let (launch, memory) = (Figure::Launch, Figure::Memory);
    if arguments.wants(launch) || arguments.wants(memory) {
        calls(arguments, &bin, size, &mut report)?;
    }
    if arguments.wants(Figure::Init) {
        init::measure(&bin, size, &mut report)?;
    }
    if arguments.wants(Figure::Reclaim) {
        reclaim::measure(&bin, size, &mut report)?;
    }
    if arguments.wants(Figure::Arbiter) {
        arbiter::measure(&bin, size, &mut report)?;
    }
    report.say(&format!("Load average at the end: {}", machine::load()));
    if arguments.write {
        report.store(&bench::ISOLATION, &repository)?;
    }
    Ok(())
}

/// The figures that are measured on a driver that does nothing.
fn calls(arguments: &Arguments, bin: &Path, size: Size, report: &mut Report) -> Result<()> {
    let stage = Stage::new(bin, Some("1x80GiB"))?;
    let null = null_driver::build(stage.path())?;
    if arguments.wants(Figure::Launch) {
        ways::launches(&stage, &null, size, report)?;
    }
    if arguments.wants(Figure::Memory) {
        ways::memory(&stage, &null, size, report)?;
        racing::measure(&stage, &null, size, report)?;
    }
    Ok(())
}
