//! `sublet-bench isolation`: what isolation on one machine costs, on the fake driver.
//!
//! Beside each figure stands the same without Sublet, measured in the same run by the same
//! program: a slow or busy machine slows both. Nothing here needs a real card.

mod arbiter;
mod init;
mod racing;
mod reclaim;
mod size;
mod ways;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use sublet_script::cc_text;
use sublet_testbed::bench;

use self::size::{FULL, QUICK, Size};
use crate::machine;
use crate::report::Report;
use crate::stage::Stage;

const REMARK: &str = "The card is a fake one, `--fake-gpu 1x80GiB`. Programs, the arbiter and what \
                      measures share this machine's cores.";

/// The driver that does nothing. It is C because its functions must have C names.
const NULL_DRIVER: &str = include_str!("../c/null_driver.c");

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
    let null = stage.path().join("null_driver.so");
    cc_text(NULL_DRIVER, &null, &["-O2", "-shared", "-fPIC"])?;
    if arguments.wants(Figure::Launch) {
        ways::launches(&stage, &null, size, report)?;
    }
    if arguments.wants(Figure::Memory) {
        ways::memory(&stage, &null, size, report)?;
        racing::measure(&stage, &null, size, report)?;
    }
    Ok(())
}
