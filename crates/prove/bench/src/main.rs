//! `sublet-bench`: our figures beside a peer's or a lower bound, measured in the same run.
//!
//! It runs the product's binary as it ships, on a real API server and on a fake or real GPU, and
//! prints Markdown. Nothing here is a test: a figure that misses its target is printed as
//! missed, and the exit status is still 0.
//!
//! Suggested reading order: scheduler (the command), latency, rate, startup, webhook (the figures),
//! then world, objects, noop, caller (their parts); agent (on a real node). One machine's
//! isolation: isolation, shares and gpu (the commands), the files of their folders (the figures),
//! stage (their parts). Placement on traces: simulate and the files of its folder. The job queue:
//! queue and cluster, and replay.

mod agent;
mod caller;
mod gpu;
mod isolation;
mod latency;
mod machine;
mod noop;
mod objects;
mod progress;
mod queue;
mod rate;
mod replay;
mod report;
mod scheduler;
mod shares;
mod simulate;
mod stage;
mod startup;
mod stats;
mod webhook;
mod world;

use clap::Parser;

/// Benchmarks of Sublet; `cargo xtask bench` builds and runs them.
#[derive(Parser)]
#[command(name = "sublet-bench", version)]
enum Command {
    Scheduler(scheduler::Arguments),
    Agent(agent::Arguments),
    Isolation(isolation::Arguments),
    Gpu(gpu::Arguments),
    Shares(shares::Arguments),
    Simulate(simulate::Arguments),
    Plan(simulate::plan::Arguments),
    Queue(queue::Arguments),
    Replay(replay::Arguments),
    Noop(noop::Arguments),
    EmptyWebhook(webhook::EmptyArguments),
}

fn main() -> anyhow::Result<()> {
    // kube's TLS needs a crypto provider that the process has installed.
    let _chosen_before = rustls::crypto::ring::default_provider().install_default();
    match Command::parse() {
        Command::Scheduler(arguments) => scheduler::run(&arguments),
        Command::Agent(arguments) => agent::run(&arguments),
        Command::Isolation(arguments) => isolation::run(&arguments),
        Command::Gpu(arguments) => gpu::run(&arguments),
        Command::Shares(arguments) => shares::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Plan(arguments) => simulate::plan::run(&arguments),
        Command::Queue(arguments) => queue::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Noop(arguments) => noop::run(&arguments),
        Command::EmptyWebhook(arguments) => webhook::run_empty(&arguments),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;
    use sublet_testbed::bench::BENCHES;

    use super::Command;

    /// Commands that start measured programs.
    const NOT_A_BENCH: [&str; 2] = ["noop", "empty-webhook"];

    #[test]
    fn each_figure_of_shares_is_measured_on_a_real_card_too() {
        let command = Command::command();
        let figures = |bench, option| {
            let arguments = command.find_subcommand(bench)?.get_arguments();
            let mut options = arguments.filter(|one| one.get_long() == Some(option));
            let names = options.next()?.get_possible_values();
            let names = names.iter().map(|name| name.get_name().to_owned());
            Some(names.collect::<Vec<String>>())
        };
        let fake = figures("shares", "only");
        assert!(fake.as_ref().is_some_and(|figures| figures.len() > 1));
        assert_eq!(figures("gpu", "shares"), fake);
    }

    #[test]
    fn every_benchmark_says_which_crates_it_measures() {
        let command = Command::command();
        let names = command.get_subcommands().map(clap::Command::get_name);
        let measuring: BTreeSet<&str> = names.filter(|name| !NOT_A_BENCH.contains(name)).collect();
        let first = |words: &'static str| words.split(' ').next();
        let listed: BTreeSet<&str> = BENCHES
            .iter()
            .filter_map(|bench| first(bench.command))
            .collect();
        assert_eq!(
            measuring, listed,
            "crates/prove/testbed/src/bench.rs has a row for each benchmark"
        );
        for bench in BENCHES {
            let words = ["sublet-bench"].into_iter().chain(bench.command.split(' '));
            let read = command
                .clone()
                .try_get_matches_from(words.chain(["--write"]));
            assert!(read.is_ok(), "{}: {read:?}", bench.page);
        }
    }
}
