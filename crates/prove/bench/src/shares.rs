//! `sublet-bench shares`: how exactly compute time is shared, on the fake driver. The same figures on
//! a real card are part of `sublet-bench gpu`.
//!
//! Each row runs the same programs three times: as jobs of ours, straight on the driver (which
//! gives a slice in turn to each process that has work), and with a limiter like HAMi-core's in
//! each program. A program's share is counted from its own kernels. Programs that always have work
//! are in `split`, others in `ordinary`, `training`, `requests` and `trouble`.

mod arbiter;
mod charged;
mod convergence;
mod ordinary;
mod requests;
mod split;
mod switches;
mod tenants;
mod training;
mod trouble;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use sublet_testbed::bench;

use crate::machine;
use crate::report::Report;
use crate::stage::{Stage, Stages};

const REMARK: &str = "**Simulated**: the card is a fake one, `--fake-gpu 1x16GiB`, whose kernels \
                      take time and compute nothing. It gives processes that have work slices of \
                      2 ms in turn. Programs, the arbiter and what measures share this machine's \
                      cores.";

/// One figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Figure {
    /// Distance of the shares from those that were asked
    Split,
    /// Time until shares are right after a job came or left
    Convergence,
    /// Programs that pause, crowd, never wait, or leave most of a card
    Ordinary,
    /// A training loop beside a busy program
    Training,
    /// Latency of requests beside busy programs, and at a limit
    Requests,
    /// Programs that lie, and an arbiter that stops
    Trouble,
    /// Changes of the card from program to program, and what they cost of it
    Switches,
    /// Charge of a job, beside the time of its kernels
    Charged,
    /// The arbiter's CPU time with 64 jobs on 8 fake cards, or 8 on a real one
    Arbiter,
}

/// Measure how exactly compute time is shared, on the fake driver.
///
/// Prints Markdown. About 30 minutes at full size.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench shares --write             everything, kept in docs/benchmarks/shares.md
  cargo xtask bench shares --quick             a small run to see that it works (8 min)
  cargo xtask bench shares --only convergence  this figure alone")]
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
    /// Store the output in docs/benchmarks/shares.md
    #[arg(long)]
    write: bool,
}

impl Figure {
    fn measure(self, stages: &Stages, is_quick: bool, report: &mut Report) -> Result<()> {
        match self {
            Figure::Split => split::measure(stages, is_quick, report),
            Figure::Convergence => convergence::measure(stages, is_quick, report),
            Figure::Ordinary => ordinary::measure(stages, is_quick, report),
            Figure::Training => training::measure(stages, is_quick, report),
            Figure::Requests => requests::measure(stages, is_quick, report),
            Figure::Trouble => trouble::measure(stages, is_quick, report),
            Figure::Switches => switches::measure(stages, is_quick, report),
            Figure::Charged => charged::measure(stages, is_quick, report),
            Figure::Arbiter => arbiter::measure(stages, is_quick, report),
        }
    }
}

/// Measures these figures, or all, on fake machines or a real card.
///
/// # Errors
/// Something could not be measured.
pub(crate) fn measure(
    only: &[Figure],
    stages: &Stages,
    is_quick: bool,
    report: &mut Report,
) -> Result<()> {
    let all = Figure::value_variants().iter();
    all.filter(|figure| only.is_empty() || only.contains(figure))
        .try_for_each(|figure| figure.measure(stages, is_quick, report))
}

/// Measures and prints.
///
/// # Errors
/// When something could not be measured. A missed target is not an error.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let bin = Stage::bin_dir(arguments.bin_dir.as_deref())?;
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut report = Report::default();
    report.say("# Shares of compute time, on the fake driver");
    report.say("Written by `cargo xtask bench shares --write`.");
    report.say(&machine::described(
        &bench::SHARES,
        &repository,
        &[],
        REMARK,
    ));
    if arguments.quick {
        report.say("**A quick run: short and few. The figures mean little.**");
    }
    let stages = Stages::new(&bin, Some("1x16GiB"));
    measure(&arguments.only, &stages, arguments.quick, &mut report)?;
    report.misses();
    report.say(&format!("Load average at the end: {}", machine::load()));
    if arguments.write {
        report.store(&bench::SHARES, &repository)?;
    }
    Ok(())
}
