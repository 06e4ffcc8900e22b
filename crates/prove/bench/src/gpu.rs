//! `sublet-bench gpu`: the cost of isolation, the exactness of limits, and the shares of programs
//! on one card, on a real card.
//!
//! It needs no cargo and no repository: the product's files beside it are enough, so that it can
//! be carried to the machine that has the card. Parts that need PyTorch say so if it is missing;
//! parts that need no framework also run on the fake driver, to show that the command works.

mod findings;
mod limit;
mod loops;
mod overshoot;
mod sharing;
mod torch;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::{Value, json};
use sublet_testbed::bench::{self, Bench};

use crate::machine;
use crate::stage::{Shell, Stage};
use findings::Findings;

/// The figures, each in a document of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// Cost of isolation, and exactness of limits: gpu.md
    Isolation,
    /// Shares of programs on one card: gpu-sharing.md
    Sharing,
}

/// Measure what isolation costs, how exact limits are, and how a card is shared, on a real card.
///
/// Prints Markdown. With PyTorch about 6 minutes for each of the two figures, without it 1. Nothing
/// else should use the card.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench gpu --write              everything, kept as gpu.md, gpu.json, gpu-sharing.md
                                             and gpu-sharing.json in docs/benchmarks/
  cargo xtask bench gpu --only sharing       how programs share the card
  cargo xtask bench gpu --fake-gpu 1x80GiB   without a card: shows that it works
  sublet-bench gpu --bin-dir . --out .       from files that were copied to a machine")]
pub(crate) struct Arguments {
    /// A fake machine instead of this one's cards; figures then say nothing about a card
    #[arg(long, value_name = "SPEC")]
    fake_gpu: Option<String>,
    /// Folder of the product's files [default: this program's folder]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Only these figures
    #[arg(long, value_delimiter = ',', value_name = "FIGURES")]
    only: Vec<Figure>,
    /// Short: shows that it works, the figures mean little
    #[arg(long)]
    quick: bool,
    /// Rounds of PyTorch with us, and as many without [default: 5, quick: 1]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Seconds of each PyTorch program [default: 6, quick: 2]
    #[arg(long, value_name = "SECONDS")]
    torch_seconds: Option<f64>,
    /// The Python that has PyTorch
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// Store the documents in this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Store the documents in docs/benchmarks/
    #[arg(long)]
    write: bool,
}

impl Arguments {
    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 5 })
    }

    fn torch_seconds(&self) -> f64 {
        self.torch_seconds
            .unwrap_or(if self.quick { 2.0 } else { 6.0 })
    }

    fn call_seconds(&self) -> f64 {
        if self.quick { 0.3 } else { 5.0 }
    }
}

impl Figure {
    fn bench(self) -> &'static Bench {
        match self {
            Figure::Isolation => &bench::GPU,
            Figure::Sharing => &bench::GPU_SHARING,
        }
    }
}

/// The card that is measured: the first of the machine.
struct Card {
    name: String,
    driver: String,
    bytes: u64,
    is_fake: bool,
}

/// Measures and prints.
///
/// # Errors
/// There is no card; or something could not be measured. A target that is missed is no error.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let bin = Stage::bin_dir(arguments.bin_dir.as_deref())?;
    let stage = Stage::new(&bin, arguments.fake_gpu.as_deref())?;
    let card = Card::find(&stage)?;
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    for figure in Figure::value_variants() {
        if !arguments.only.is_empty() && !arguments.only.contains(figure) {
            continue;
        }
        let mut findings = Findings::default();
        head(arguments, *figure, &card, &repository, &mut findings);
        match figure {
            Figure::Isolation => {
                loops::measure(&stage, arguments.call_seconds(), &mut findings)?;
                torch::measure(&stage, &card, arguments, &mut findings)?;
                limit::measure(&stage, &card, arguments, &mut findings)?;
                overshoot::measure(&stage, &mut findings)?;
            }
            Figure::Sharing => {
                sharing::measure(&stage, &card, arguments, &mut findings)?;
            }
        }
        let name = figure.bench().page;
        let report = &mut findings.report;
        report.say(&format!("Load average at the end: {}", machine::load()));
        let docs = arguments.write.then(|| repository.join("docs/benchmarks"));
        for folder in docs.iter().chain(&arguments.out) {
            findings.write(folder, name)?;
            eprintln!("stored {name}.md and {name}.json in {}", folder.display());
        }
    }
    Ok(())
}

fn head(
    arguments: &Arguments,
    figure: Figure,
    card: &Card,
    repository: &Path,
    findings: &mut Findings,
) {
    let report = &mut findings.report;
    report.say(match figure {
        Figure::Isolation => "# Isolation on a real card",
        Figure::Sharing => "# Programs that share a real card",
    });
    report.say(
        "Written by `cargo xtask bench gpu --write`. Each figure stands beside the same program \
         without us, in turns with it, in the same run.",
    );
    if card.is_fake {
        report.say(
            "**The card is a fake one: this shows that the command works, its figures say nothing \
             about a card.**",
        );
    }
    if arguments.quick {
        report.say("**A quick run: the figures mean little.**");
    }
    let versions = [format!("NVIDIA driver {}", card.driver)];
    let gib = card.bytes as f64 / f64::from(1 << 30);
    let remark = format!("Card: {}, {gib:.1} GiB, with nothing else on it", card.name);
    report.say(&machine::described(
        figure.bench(),
        repository,
        &versions,
        &remark,
    ));
    findings.keep("version", json!(env!("CARGO_PKG_VERSION")));
    findings.keep("date", json!(jiff::Timestamp::now().to_string()));
    findings.keep("driver", json!(card.driver));
    findings.keep(
        "card",
        json!({"name": card.name, "bytes": card.bytes, "fake": card.is_fake}),
    );
}

impl Card {
    /// Looks for it as any program does.
    fn find(stage: &Stage) -> Result<Card> {
        let hint = "`--fake-gpu 1x80GiB` runs what needs none";
        let output = stage
            .bare(stage.built("sublet-workload"))
            .args(["info", "--reach"])
            .arg(stage.bare_reach())
            .arg(format!("--nvml={}", stage.bare_nvml()))
            .output()
            .context("cannot run sublet-workload")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let report: Value = serde_json::from_str(text.trim()).unwrap_or_default();
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            bail!("no GPU here that works ({}); {hint}", why.trim());
        }
        let device = &report["nvml"]["devices"][0];
        let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
        let Some(bytes) = device["memory"]["total"].as_u64() else {
            bail!("no GPU here (the driver shows no device); {hint}");
        };
        Ok(Card {
            name: text(&device["name"]),
            driver: text(&report["nvml"]["driverVersion"]),
            bytes,
            is_fake: stage.is_fake(),
        })
    }
}

/// Bytes of the card that are in use, as its own driver says. Asked past us.
fn used_bytes(bare: &mut Shell) -> Result<f64> {
    let report =
        bare.ask("\"$BENCH_WORKLOAD\" info --reach \"$BENCH_REACH\" --nvml=\"$BENCH_NVML\"")?;
    crate::stage::number(&report, "/nvml/devices/0/memory/used")
}

/// The same when it no longer changes: a driver frees a dead process's memory in its own time.
fn settled_bytes(bare: &mut Shell) -> Result<f64> {
    let mut last = used_bytes(bare)?;
    for _ in 0..50 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let now = used_bytes(bare)?;
        if now.total_cmp(&last).is_eq() {
            break;
        }
        last = now;
    }
    Ok(last)
}
