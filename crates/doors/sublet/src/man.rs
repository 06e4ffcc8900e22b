//! Man pages, made of the same definitions as the help.

use std::path::PathBuf;

use anyhow::Context;
use clap::Command;
use sublet_cli::DONE;

/// Arguments of `sublet man-pages`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder to write to
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
}

/// Writes a page for each command that people are told of.
///
/// # Errors
/// The folder cannot be written.
pub(crate) fn run(args: &Args, command: Command) -> anyhow::Result<u8> {
    let written = clap_mangen::generate_to(command, &args.into);
    written.with_context(|| format!("cannot write to {}", args.into.display()))?;
    Ok(DONE)
}
