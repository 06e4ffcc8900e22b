//! `cargo xtask bench`: builds what is measured with optimisation, and runs `sublet-bench`.
//!
//! What is measured, and how, is that program's; this only gives it the components.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::screen::heading;
use crate::setup::{Components, cargo, program, repository, run as run_command};

/// Measure, and store the figures in docs/benchmarks/.
#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask bench scheduler           all figures of the scheduler extender
  cargo xtask bench scheduler --help    what can be chosen")]
pub(crate) struct Arguments {
    /// What to measure, and options of that benchmark.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    what: Vec<String>,
}

/// Runs a benchmark.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    heading("components: the control plane (10 min once, then 1 s)");
    let components = Components::without_node()?;
    heading("the product and the benchmark, optimised (4 min cold)");
    run_command(&mut cargo(&[
        "build",
        "--release",
        "-p",
        "sublet",
        "-p",
        "sublet-bench",
    ])?)?;
    heading(&arguments.what.join(" "));
    let mut command = Command::new(program("release", "sublet-bench")?);
    command.args(&arguments.what).current_dir(repository()?);
    command.env("SUBLET_BIN", program("release", "sublet")?);
    components.tell(&mut command);
    run_command(&mut command)
}
