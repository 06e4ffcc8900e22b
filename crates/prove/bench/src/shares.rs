//! `sublet-bench shares`: how exactly compute time is shared, on the fake driver.
//!
//! Each row runs the same programs three times: as jobs of ours, straight on the driver (which
//! gives a slice in turn to each process that has work), and with a limiter like HAMi-core's in
//! each program. A program's share is counted from its own kernels.

mod arbiter;
mod charged;
mod convergence;
mod split;
mod tenants;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use sublet_testbed::bench;

use crate::machine;
use crate::report::Report;
use crate::stage::Stage;

const REMARK: &str = "**Simulated**: the card is a fake one, `--fake-gpu 1x16GiB`, whose kernels \
                      take time and compute nothing. It gives processes that have work slices of \
                      2 ms in turn. Programs, the arbiter and what measures share this machine's \
                      cores.";

/// One figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// Distance of the shares from those that were asked
    Split,
    /// Time until shares are right after a job came or left
    Convergence,
    /// Charge of a job, beside the time of its kernels
    Charged,
    /// The arbiter's CPU time with 64 jobs on 8 cards
    Arbiter,
}

/// Measure how exactly compute time is shared, on the fake driver.
///
/// Prints Markdown. About 12 minutes at full size.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench shares --write             everything, kept in docs/benchmarks/shares.md
  cargo xtask bench shares --quick             a small run to see that it works (1 min)
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
    if arguments.wants(Figure::Split) {
        split::measure(&bin, arguments.quick, &mut report)?;
    }
    if arguments.wants(Figure::Convergence) {
        convergence::measure(&bin, arguments.quick, &mut report)?;
    }
    if arguments.wants(Figure::Charged) {
        charged::measure(&bin, arguments.quick, &mut report)?;
    }
    if arguments.wants(Figure::Arbiter) {
        arbiter::measure(&bin, arguments.quick, &mut report)?;
    }
    report.misses();
    report.say(&format!("Load average at the end: {}", machine::load()));
    if arguments.write {
        report.store(&bench::SHARES, &repository)?;
    }
    Ok(())
}
