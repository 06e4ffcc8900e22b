//! Arguments of `sublet-bench gpu`.

use std::path::PathBuf;

use clap::ValueEnum;
use sublet_testbed::bench::{self, Bench};

use crate::shares;

/// The figures, each in a document of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Figure {
    /// Cost of isolation, and exactness of limits: gpu.md
    Isolation,
    /// Shares of programs on one card: gpu-sharing.md
    Sharing,
}

/// Measure what isolation costs, how exact limits are, and how a card is shared, on a real card.
///
/// Prints Markdown. Isolation takes about 6 minutes with PyTorch and 1 without, sharing 30 more.
/// Nothing else should use the card.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench gpu --write              everything, kept as gpu.md, gpu.json, gpu-sharing.md
                                             and gpu-sharing.json in docs/benchmarks/
  cargo xtask bench gpu --only sharing       how programs share the card
  cargo xtask bench gpu --only sharing --shares training,requests
                                             of the figures of `bench shares` these alone
  cargo xtask bench gpu --fake-gpu 1x80GiB   without a card: shows that it works
  sublet-bench gpu --bin-dir . --out .       from files that were copied to a machine")]
pub(crate) struct Arguments {
    /// A fake machine instead of this one's cards; figures then say nothing about a card
    #[arg(long, value_name = "SPEC")]
    pub(super) fake_gpu: Option<String>,
    /// Folder of the product's files [default: this program's folder]
    #[arg(long, value_name = "DIR")]
    pub(super) bin_dir: Option<PathBuf>,
    /// Only these figures
    #[arg(long, value_delimiter = ',', value_name = "FIGURES")]
    pub(super) only: Vec<Figure>,
    /// Figures of `bench shares` that are measured; all of them unless named
    #[arg(long, value_delimiter = ',', value_name = "FIGURES")]
    pub(super) shares: Vec<shares::Figure>,
    /// Short: shows that it works, the figures mean little
    #[arg(long)]
    pub(super) quick: bool,
    /// Rounds of PyTorch with us, and as many without [default: 5, quick: 1]
    #[arg(long, value_name = "N")]
    pub(super) rounds: Option<usize>,
    /// Seconds of each PyTorch program [default: 6, quick: 2]
    #[arg(long, value_name = "SECONDS")]
    pub(super) torch_seconds: Option<f64>,
    /// The Python that has PyTorch
    #[arg(long, value_name = "FILE", default_value = "python3")]
    pub(super) python: PathBuf,
    /// Store the documents in this folder
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Store the documents in docs/benchmarks/
    #[arg(long)]
    pub(super) write: bool,
}

impl Arguments {
    pub(super) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 5 })
    }

    pub(super) fn torch_seconds(&self) -> f64 {
        self.torch_seconds
            .unwrap_or(if self.quick { 2.0 } else { 6.0 })
    }

    pub(super) fn call_seconds(&self) -> f64 {
        if self.quick { 0.3 } else { 5.0 }
    }
}

impl Figure {
    pub(super) fn bench(self) -> &'static Bench {
        match self {
            Figure::Isolation => &bench::GPU,
            Figure::Sharing => &bench::GPU_SHARING,
        }
    }
}
