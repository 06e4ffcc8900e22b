//! The one executable (provisional entry: the scheduler).

use clap::Parser;

#[derive(Parser)]
enum Command {
    Scheduler(sublet_scheduler::Args),
}

fn main() -> anyhow::Result<()> {
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let Command::Scheduler(args) = Command::parse();
    sublet_telemetry::start_logging()?;
    sublet_scheduler::run(args)
}
