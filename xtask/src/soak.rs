//! `cargo xtask soak`: the property test of the memory limit, for as many steps as one has time
//! for. `cargo xtask test` makes 20,000.

use anyhow::Result;
use clap::Args;

use crate::screen::heading;
use crate::setup::{cargo, product, program, run as run_command};

/// Take and give memory at random, and hold it to the limit by NVML's count.
#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask soak                      a million steps (about two minutes on two idle cores)
  cargo xtask soak --steps 50000 --seed 7")]
pub(crate) struct Arguments {
    /// How often memory is taken or given, over all drivers and crowds together.
    #[arg(long, default_value_t = 1_000_000)]
    steps: u64,
    /// Where the random numbers begin; without it, another place each time.
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs it. The seed is printed, and makes the same sizes in the same order.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    heading("the product and its libraries (20 s cold)");
    let build = [&["build"], product().as_slice()].concat();
    run_command(&mut cargo(&build)?)?;
    let seed = arguments.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |now| now.as_secs())
    });
    heading(&format!("{} steps, seed {seed}", arguments.steps));
    let mut test = cargo(&[
        "test",
        "--workspace",
        "--test",
        "e2e",
        "--",
        "--nocapture",
        "limits::packing::any_sequence",
    ])?;
    test.env("SUBLET_BIN", program("debug", "sublet")?)
        .env("SUBLET_STEPS", arguments.steps.to_string())
        .env("SUBLET_SEED", seed.to_string());
    run_command(&mut test)
}
