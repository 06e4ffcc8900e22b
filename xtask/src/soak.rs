//! `cargo xtask soak`: the property test of the memory limit, the simulations of an arbiter and jobs
//! that take turns and of leaders of the queue, and the storm at an arbiter's sockets, for as many
//! steps as one has time for. `cargo xtask test` makes 20,000 of memory and of the storm, and 160,000
//! of turns.

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::screen::heading;
use crate::setup::{cargo, product, program, run as run_command};

/// Part to play.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Take and give memory at random, and hold it to the limit by NVML's count.
    Memory,
    /// Jobs come, go, and answer late or twice; an exclusive card has one owner, and no job
    /// starves.
    Turns,
    /// Leaders of the queue die and are late, writes are lost and come twice; no card is given away
    /// twice, and no part of a gang stays. And from any state the rules lead to a quiet one.
    Plans,
    /// Hostile processes send anything to every socket of an arbiter, descriptors that never close
    /// too; its thread never stands still, and every honest client gets every answer.
    Hostile,
}

/// Play at random, and check that the rules hold.
#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask soak                      a million steps (about two minutes on two idle cores)
  cargo xtask soak turns                a million steps of turns (a minute)
  cargo xtask soak plans                a million steps of plans (minutes)
  cargo xtask soak hostile              a million steps of attackers
  cargo xtask soak --steps 50000 --seed 7")]
pub(crate) struct Arguments {
    /// Part to play; all parts, one after the other, if none is given.
    part: Option<Part>,
    /// Steps to play: changes of memory over all drivers and crowds together; half milliseconds in
    /// which jobs take turns; actions of all attackers together.
    #[arg(long, default_value_t = 1_000_000)]
    steps: u64,
    /// Seed of the random numbers; another one each time, if none is given.
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs it. The seed is printed, and makes the same things happen in the same order.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let seed = arguments.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |now| now.as_secs())
    });
    let simulations: [(Part, &str, &[&str], &str); 4] = [
        (
            Part::Turns,
            "turns",
            &["sublet-share", "--lib"],
            "turns::properties::whatever_goes_wrong",
        ),
        (
            Part::Plans,
            "plans",
            &["sublet-queue", "--lib"],
            "protocol::simulation::whatever_is_lost",
        ),
        (
            Part::Plans,
            "plans with loans and budgets, from any state",
            &["sublet-queue", "--lib"],
            "plan::tests::promises",
        ),
        (
            Part::Hostile,
            "hostile",
            &["sublet-arbiter", "--test", "sockets"],
            "storm::whatever_they_send",
        ),
    ];
    for (part, name, program, test) in simulations {
        if arguments.part.is_some_and(|only| only != part) {
            continue;
        }
        heading(&format!("{name}: {} steps, seed {seed}", arguments.steps));
        let words = [
            &["test", "--package"],
            program,
            &["--", "--nocapture", test],
        ]
        .concat();
        let mut test = cargo(&words)?;
        test.env("SUBLET_STEPS", arguments.steps.to_string())
            .env("SUBLET_SEED", seed.to_string())
            .env("PROPTEST_RNG_SEED", seed.to_string());
        run_command(&mut test)?;
    }
    if arguments.part.is_some_and(|only| only != Part::Memory) {
        return Ok(());
    }
    heading("the product and its libraries (20 s cold)");
    let build = [&["build"], product().as_slice()].concat();
    run_command(&mut cargo(&build)?)?;
    heading(&format!("memory: {} steps, seed {seed}", arguments.steps));
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
