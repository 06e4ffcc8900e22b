//! `sublet-bench gpu`: the cost of isolation, the exactness of limits, and the shares of programs
//! on one card, on a real card.
//!
//! It needs no cargo and no repository: the product's files beside it are enough, so that it can
//! be carried to the machine that has the card. Parts that need PyTorch say so if it is missing;
//! parts that need no framework also run on the fake driver, to show that the command works.

mod arguments;
mod card;
mod findings;
mod limit;
mod loops;
mod overshoot;
mod sharing;
mod torch;

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use serde_json::json;

pub(crate) use self::arguments::Arguments;
use self::arguments::Figure;
use self::card::Card;
use self::findings::Findings;
use crate::machine;
use crate::stage::{Stage, Stages};

/// Measures and prints.
///
/// # Errors
/// There is no card; or something could not be measured. A target that is missed is no error.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let bin = Stage::bin_dir(arguments.bin_dir.as_deref())?;
    let stages = Stages::new(&bin, arguments.fake_gpu.as_deref());
    let card = Card::find(&stages.open()?)?;
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    for figure in Figure::value_variants() {
        if !arguments.only.is_empty() && !arguments.only.contains(figure) {
            continue;
        }
        let mut findings = Findings::default();
        head(arguments, *figure, &card, &repository, &mut findings);
        match figure {
            Figure::Isolation => {
                let stage = stages.open()?;
                loops::measure(&stage, arguments.call_seconds(), &mut findings)?;
                torch::measure(&stage, &card, arguments, &mut findings)?;
                limit::measure(&stage, &card, arguments, &mut findings)?;
                overshoot::measure(&stage, &mut findings)?;
            }
            Figure::Sharing => {
                sharing::measure(&stages, &card, arguments, &mut findings)?;
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
