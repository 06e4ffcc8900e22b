//! `cargo xtask bench`: builds the measured programs as they are handed out, and runs
//! `sublet-bench`.
//!
//! That program chooses the measurements; this module only gives it the components it needs.

use std::process::Command;

use anyhow::{Result, ensure};
use clap::Args;

use crate::screen::heading;
use crate::setup::{
    Components, cargo, has_driver, product, program, repository, run as run_command,
};
use crate::stale;

/// Measure, and store the figures in docs/benchmarks/.
#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask bench scheduler           all figures of the scheduler extender
  cargo xtask bench isolation           what isolation costs, on a fake GPU
  cargo xtask bench shares              how exactly compute time is shared, on a fake GPU
  cargo xtask bench gpu                 isolation and sharing on this machine's GPU
  cargo xtask bench simulate            placement policies on production traces
  cargo xtask bench plan                what a plan of a large cluster costs
  cargo xtask bench queue               what the job queue costs, beside Kueue
  cargo xtask bench replay              how long jobs of a trace wait in the queue
  cargo xtask bench agent               how fast a real node starts pods
  cargo xtask bench scheduler --help    what can be chosen
  cargo xtask bench --stale             stored figures whose crates changed since")]
pub(crate) struct Arguments {
    /// List the stored figures whose crates changed since the measurement, with lines changed and
    /// age; measure nothing.
    #[arg(long, conflicts_with = "what")]
    stale: bool,
    /// Benchmark to run, with its options.
    #[arg(
        required_unless_present = "stale",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    what: Vec<String>,
}

/// Runs a benchmark.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.stale {
        println!("{}", stale::list());
        return Ok(());
    }
    let what = arguments.what.join(" ");
    // Said before minutes of building.
    ensure!(
        !needs_gpu(&arguments.what) || has_driver(),
        "there is no GPU here; `cargo xtask bench gpu --fake-gpu 1x80GiB` runs what needs none"
    );
    let components = if needs_cluster(&arguments.what) {
        heading("components: the control plane (10 min once, then 1 s)");
        Some(match needs_node(&arguments.what) {
            true => Components::with_node()?,
            false => Components::without_node()?,
        })
    } else {
        None
    };
    heading("the product and the benchmark, optimised as what is handed out (8 min cold)");
    let packages = [
        &["build", "--profile", "dist"],
        &product()[..],
        &["-p", "sublet-bench"],
    ]
    .concat();
    run_command(&mut cargo(&packages)?)?;
    heading(&what);
    let mut command = Command::new(program("dist", "sublet-bench")?);
    command.args(&arguments.what).current_dir(repository()?);
    command.env("SUBLET_BIN", program("dist", "sublet")?);
    if let Some(components) = components {
        components.tell(&mut command);
    }
    run_command(&mut command)
}

/// Returns true if a benchmark needs a Kubernetes control plane.
fn needs_cluster(what: &[String]) -> bool {
    match what.first().map(String::as_str) {
        Some("isolation" | "shares" | "gpu" | "plan" | "replay") => false,
        Some("queue") => !what.join(" ").replace('=', " ").contains("--only engine"),
        Some("simulate") => what.iter().any(|word| word == "--cluster"),
        _ => true,
    }
}

/// Returns true if a benchmark starts pods on a real node.
fn needs_node(what: &[String]) -> bool {
    what.first().is_some_and(|what| what == "agent")
}

/// True for the benchmark of a real card, unless it is told of a fake one or only asked.
fn needs_gpu(what: &[String]) -> bool {
    let without = ["--fake-gpu", "--help", "-h"];
    let is_told = |word: &String| without.iter().any(|flag| word.starts_with(flag));
    what.first().is_some_and(|first| first == "gpu") && !what.iter().any(is_told)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Arguments, needs_cluster, needs_gpu};

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn stale_stands_alone_and_a_benchmark_has_options_of_its_own() {
        let read = |line: &str| Line::try_parse_from(words(line)).map(|line| line.arguments);
        assert!(read("bench --stale").is_ok_and(|arguments| arguments.stale));
        let quick = read("bench plan --write").unwrap();
        assert_eq!((quick.stale, quick.what), (false, words("plan --write")));
        assert!(read("bench --stale plan").is_err());
        assert!(read("bench").is_err());
    }

    #[test]
    fn only_the_benchmark_of_a_card_needs_one() {
        let check = |line: &str| needs_gpu(&words(line));
        assert!(check("gpu"));
        assert!(check("gpu --write"));
        for line in [
            "gpu --fake-gpu 1x80GiB",
            "gpu --fake-gpu=1x80GiB",
            "gpu --help",
            "isolation",
        ] {
            assert!(!check(line), "{line}");
        }
    }

    #[test]
    fn traces_alone_need_no_control_plane() {
        for line in [
            "isolation --write",
            "shares --quick",
            "gpu",
            "simulate",
            "plan --write",
            "simulate --only speed",
        ] {
            assert!(!needs_cluster(&words(line)), "{line}");
        }
        for line in ["scheduler", "simulate --quick --cluster"] {
            assert!(needs_cluster(&words(line)), "{line}");
        }
    }
}
