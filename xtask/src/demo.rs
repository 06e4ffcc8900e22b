//! `cargo xtask demo`: see it work. Two doors, so two demonstrations: one machine, which needs
//! nothing but a C compiler and shows itself on a fake GPU (`sublet demo`), and a cluster.

mod cluster;
mod recording;

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::screen::heading;
use crate::setup::{cargo, product, program, run as run_command};

/// See it work: programs on a fake GPU, or a whole Kubernetes.
#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask demo                    one machine, a fake GPU: 4 min cold, then 15 s
  cargo xtask demo --cluster          a stock Kubernetes with the GPUShare examples;
                                      on a terminal it waits, so that you can look around
  cargo xtask demo --cluster --keep   waits elsewhere too, until it is killed
  cargo xtask demo --record docs/demo.svg     the picture in the README, from a real run")]
pub(crate) struct Arguments {
    /// Start a cluster and place the published GPUShare examples on it.
    #[arg(long)]
    cluster: bool,
    /// Stay up, even without a terminal.
    #[arg(long, requires = "cluster")]
    keep: bool,
    /// Write the demonstration of one machine as a picture that plays.
    #[arg(long, value_name = "SVG", conflicts_with = "cluster")]
    record: Option<PathBuf>,
}

/// Runs the demonstration that is asked for.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.cluster {
        return cluster::run(arguments.keep);
    }
    heading("the product: the program, its libraries and a fake GPU (4 min cold, then 1 s)");
    run_command(&mut cargo(&[&["build"], &product()[..]].concat())?)?;
    let sublet = program("debug", "sublet")?;
    if let Some(picture) = &arguments.record {
        return recording::record(&sublet, picture);
    }
    run_command(Command::new(sublet).arg("demo"))?;
    println!("`cargo xtask demo --cluster` shows the same engine in Kubernetes.");
    Ok(())
}
