//! The one door for people who work on Sublet: `cargo xtask --help`.
//!
//! Sets up the parts that a machine with only Rust, Go and a C compiler lacks, says what it
//! does and how long that takes, runs the tests, the demo and the benchmarks, and makes the
//! files to hand out. It holds no logic of the product, and depends on none of its crates but
//! the one that reads libraries: a broken product must not break this door.
//!
//! # Modules
//! `cargo xtask bench NAME --write` measures and stores `docs/benchmarks/NAME.md`, for
//! `scheduler`, `agent`, `isolation`, `shares`, `gpu`, `simulate`, `plan`, `replay` and `queue`
//! (beside the real Kueue, on the same file of work). Each page names the crates that it measures
//! (`prove/testbed/src/bench.rs`, because `xtask` reads them too); `cargo xtask bench --stale`
//! lists the pages whose crates changed since the commit that was measured, and `cargo xtask
//! test` ends with that list. `simulate/bank` does each run once, however many figures need it.
//! `cargo xtask soak` makes a million random allocations against the limit and compares with
//! NVML's count, and plays a million steps of turns with answers that are late or false, and as
//! many of plans. `cargo xtask soak hostile` has attackers do whatever comes to their minds at an
//! arbiter's sockets. `xtask` is the one door for development. It links nothing of the product
//! but `sublet-library` and the test bed. Its tests hold the house rules (`tidy`).

mod bench;
mod cache;
mod chart;
mod clients;
mod contents;
mod control_plane;
mod debian;
mod demo;
mod driver_tables;
mod end_to_end;
mod fuzz;
mod image;
mod libraries;
mod linker;
mod pip;
mod real_drivers;
mod release;
mod screen;
mod setup;
mod soak;
mod stale;
mod step;
mod test;
#[cfg(test)]
mod tidy;
mod wheel;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Work on Sublet: demo, tests, benchmarks, releases and a Kubernetes control plane to play with.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", max_term_width = 100, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

const EXAMPLES: &str = "Examples:
  cargo xtask demo                      see it work
  cargo xtask test                      everything that must pass
  cargo xtask test --fast -- ledger     the quick tests with `ledger` in their name
  cargo xtask control-plane up --nodes 20";

#[derive(Subcommand)]
enum Task {
    /// See it work: programs on a fake GPU, or a whole Kubernetes.
    Demo(demo::Arguments),
    /// Run every test: format, lints, unit tests, and end to end on real components.
    Test(test::Arguments),
    /// Play at random for a million steps: memory against its limit, jobs against their turns, an
    /// arbiter against hostile input.
    Soak(soak::Arguments),
    /// Look for bytes that a parser does not stand, with a fuzzer.
    Fuzz(fuzz::Arguments),
    /// Measure, and store the figures in docs/benchmarks/.
    Bench(bench::Arguments),
    /// Build the libraries that go into containers, for glibc 2.28 and newer.
    Libraries,
    /// Build the one file that is handed out: `sublet` with its libraries inside.
    Release(release::Arguments),
    /// Render the Helm chart into deploy/kubernetes/, after a template or a default value changed.
    Chart,
    /// Write the tables of the GPU driver's functions anew, from NVIDIA's headers.
    DriverTables,
    /// A stock Kubernetes control plane on loopback, in the background.
    #[command(subcommand)]
    ControlPlane(control_plane::Action),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Demo(arguments) => demo::run(&arguments),
        Task::Test(arguments) => test::run(&arguments),
        Task::Soak(arguments) => soak::run(&arguments),
        Task::Fuzz(arguments) => fuzz::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Libraries => libraries::run(),
        Task::Release(arguments) => release::run(&arguments),
        Task::Chart => chart::run(),
        Task::DriverTables => driver_tables::run(),
        Task::ControlPlane(action) => control_plane::run(&action),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Not by returning it: a person wants the reason, never a backtrace.
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
