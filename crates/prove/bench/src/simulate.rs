//! `sublet-bench simulate`: how well the placement policies do on production traces, and how far
//! the simulator can be trusted.
//!
//! Most figures need only the traces in `fixtures/`. Two figures need a cluster, and have a
//! report of their own.

mod bank;
mod deployed;
mod fidelity;
mod latency;
mod learnt;
mod manifest;
pub(crate) mod plan;
mod quality;
mod same_code;
mod setting;
mod speed;
mod spot;
mod traces;
mod trial;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use sublet_testbed::{Binaries, bench};

use self::bank::Bank;
use self::setting::Setting;
use self::traces::{PUBLISHED, TUNED_ON, Traces};
use crate::machine;
use crate::progress::progress;
use crate::report::Report;

const REMARK: &str = "Traces: Alibaba's openb (2023) and spot (2026) clusters, `fixtures/traces`. \
                      Unallocated shares do not depend on the machine.";

/// One figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// The published policies against the published rows
    Fidelity,
    /// Share that each policy leaves unallocated
    Quality,
    /// The same without learning
    Learning,
    /// The same with a restart
    Restart,
    /// The same with the stock scheduler for pods without GPU
    Deployed,
    /// The same on the node shapes of another cluster
    Spot,
    /// CPU time and memory
    Speed,
    /// With --cluster: the stock scheduler and the extender against the simulator
    SameCode,
    /// With --cluster: how long the extender takes while prices change
    Latency,
}

/// Measure placement on production traces.
///
/// Prints Markdown. About 8 minutes at full size.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench simulate --write            kept in docs/benchmarks/simulate.md and .svg
  cargo xtask bench simulate --only quality     what each policy leaves unallocated, alone
  cargo xtask bench simulate --quick            a small run to see that it works (1 min)
  cargo xtask bench simulate --cluster --write  the figures that need a cluster, kept in
                                                docs/benchmarks/simulate-cluster.md")]
pub(crate) struct Arguments {
    /// Few seeds and lists: shows that it works
    #[arg(long)]
    quick: bool,
    /// The figures that need a Kubernetes control plane, in place of the others
    #[arg(long)]
    cluster: bool,
    /// Only these figures
    #[arg(long, value_delimiter = ',', value_name = "FIGURES")]
    only: Vec<Figure>,
    /// Store the output in docs/benchmarks/
    #[arg(long)]
    write: bool,
}

impl Figure {
    fn needs_cluster(self) -> bool {
        matches!(self, Figure::SameCode | Figure::Latency)
    }
}

impl Arguments {
    fn wants(&self, figure: Figure) -> bool {
        figure.needs_cluster() == self.cluster
            && (self.only.is_empty() || self.only.contains(&figure))
    }
}

/// Measures and prints.
///
/// When something could not be measured. A missed target is not an error.
/// When something could not be measured; a target that is missed is none.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    for figure in &arguments.only {
        ensure!(
            figure.needs_cluster() == arguments.cluster,
            "--only: give --cluster for same-code and latency, and for these alone"
        );
    }
    let setting = Setting {
        quick: arguments.quick,
        repository: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.."),
        sublet: crate::scheduler::sublet()?,
    };
    let mut report = Report::default();
    let bench = if arguments.cluster {
        in_cluster(arguments, &setting, &mut report)?;
        &bench::SIMULATE_CLUSTER
    } else {
        offline(arguments, &setting, &mut report)?;
        &bench::SIMULATE
    };
    report.misses();
    report.say(&format!("Load average at the end: {}", machine::load()));
    if arguments.write {
        report.store(bench, &setting.repository)?;
    }
    Ok(())
}

/// The figures that need a control plane.
fn in_cluster(arguments: &Arguments, setting: &Setting, report: &mut Report) -> Result<()> {
    let binaries = Binaries::from_env()?
        .context("SUBLET_CONTROL_PLANE is not set: run `cargo xtask bench simulate --cluster`")?;
    report.say("# The policy in a cluster");
    report.say("Written by `cargo xtask bench simulate --cluster --write`.");
    report.say(&machine::description(
        &bench::SIMULATE_CLUSTER,
        &binaries,
        &setting.repository,
    ));
    if arguments.quick {
        report.say("**A quick run: the figures mean little.**");
    }
    if arguments.wants(Figure::SameCode) {
        same_code::measure(setting, &binaries, report)?;
    }
    if arguments.wants(Figure::Latency) {
        latency::measure(setting, &binaries, report)?;
    }
    Ok(())
}

/// The figures that need the traces alone.
fn offline(arguments: &Arguments, setting: &Setting, report: &mut Report) -> Result<()> {
    report.say("# Placement on production traces");
    report.say(
        "Written by `cargo xtask bench simulate --write`. How the policy works, what it was tuned \
         on and what was tried: [placement](../placement.md).",
    );
    report.say(&machine::described(
        &bench::SIMULATE,
        &setting.repository,
        &[],
        REMARK,
    ));
    // While a policy is being tuned, the orders of arrival that are reported stay unused.
    let (lists, seeds, compared): (&[_], Vec<u64>, Vec<u64>) = if setting.quick {
        report.say("**A quick run: two lists that were tuned on, three orders of arrival.**");
        (&TUNED_ON, (1..=3).collect(), vec![42])
    } else {
        (&PUBLISHED, (42..=51).collect(), (42..=51).collect())
    };
    progress("reading the lists, drawing the orders of arrival");
    let mut drawn = seeds.clone();
    drawn.extend(compared.iter().filter(|seed| !seeds.contains(seed)));
    let traces = Traces::read(&setting.repository, lists, &drawn)?;
    let mut bank = Bank::new(&traces, &seeds);
    // First, before the bank holds any of these runs.
    let together = match arguments.wants(Figure::Speed) {
        true => Some(speed::together(&mut bank)?),
        false => None,
    };
    if arguments.wants(Figure::Fidelity) {
        fidelity::measure(setting, &mut bank, &compared, report)?;
    }
    if arguments.wants(Figure::Quality) {
        quality::measure(&mut bank, report)?;
        if arguments.write {
            plot(setting, &seeds)?;
            report.say("![Unallocated GPU share on the default list](simulate.svg)");
        }
    }
    if arguments.wants(Figure::Learning) {
        learnt::still(&mut bank, report)?;
    }
    if arguments.wants(Figure::Restart) {
        learnt::restart(&mut bank, report)?;
    }
    if arguments.wants(Figure::Deployed) {
        deployed::measure(&mut bank, report)?;
    }
    if arguments.wants(Figure::Spot) {
        spot::measure(setting, &traces, &seeds, report)?;
    }
    if let Some(together) = together {
        speed::measure(setting, &traces, seeds[0], &together, report)?;
    }
    Ok(())
}

/// Draws the curves of the default list, for orders of arrival that we drew ourselves.
fn plot(setting: &Setting, seeds: &[u64]) -> Result<()> {
    progress("the plot");
    let nodes = traces::openb(&setting.repository, "openb_node_list_gpu_node.csv.gz");
    let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
    let policies = [
        "random",
        "dot-product",
        "best-fit",
        quality::PEER,
        quality::OURS,
    ];
    let output = Command::new(&setting.sublet)
        .args(["simulate", "--seed", &seeds.join(","), "--nodes"])
        .arg(nodes)
        .arg("--pods")
        .arg(traces::pod_list(&setting.repository, "default"))
        .args(policies.iter().flat_map(|policy| ["--policy", policy]))
        .arg("--plot")
        .arg(setting.repository.join("docs/benchmarks/simulate.svg"))
        .output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "sublet simulate --plot: {error}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn figures_of_a_cluster_are_for_a_cluster() {
        Line::command().debug_assert();
        let wants = |line: &str, figure| {
            let words = line.split(' ').filter(|word| !word.is_empty());
            Line::parse_from(words).arguments.wants(figure)
        };
        assert!(wants("x", Figure::Quality) && !wants("x", Figure::SameCode));
        assert!(wants("x --cluster", Figure::SameCode) && !wants("x --cluster", Figure::Quality));
        assert!(!wants("x --only speed", Figure::Quality));
        let mixed = Line::parse_from(["x", "--only", "latency"]).arguments;
        assert!(run(&mixed).unwrap_err().to_string().contains("--cluster"));
    }
}
