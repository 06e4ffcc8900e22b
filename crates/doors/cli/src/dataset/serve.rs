//! `sublet dataset serve`: the arguments of the process that serves data sets, and its start. The
//! process is a program of its own, `sublet-dataset`, so that this one stays small.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use sublet_cache::CacheLimits;
use sublet_dataset::{DatasetServer, ViewMode};
use sublet_model::{Bytes, Milli, parse_bytes};

use super::start::{Store, StoreArgs, server_program};
use crate::standalone::detach;

/// Arguments of `sublet dataset serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet dataset serve                          for this user; as root: for root
  sublet dataset serve --store /nvme/datasets   on another disk
  sublet dataset serve --max-size 500GiB        with a limit of its own

It ends on SIGTERM or Ctrl-C. Fetches under way stop and go on at the next start; jobs that read a
data set notice nothing.")]
pub struct ServeArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The most that the store may take, such as 500GiB; else the disk is the limit
    #[arg(long, value_name = "SIZE", env = "SUBLET_DATASET_MAX_SIZE", value_parser = size)]
    max_size: Option<Bytes>,
    /// Use of the disk, by anybody, above which nothing is fetched, in percent
    #[arg(long, value_name = "PERCENT", env = "SUBLET_DATASET_MAX_DISK", default_value_t = 85,
          value_parser = clap::value_parser!(u16).range(1..=100))]
    max_disk: u16,
    /// The most data sets that are fetched at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 4,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    fetches: u16,
    /// View that programs have of a data set: as the best that this machine can, or as plain files
    #[arg(long, value_enum, default_value_t)]
    view: View,
    /// Exit when nobody has needed it for this long; 60 if no number is given
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
          default_missing_value = "60")]
    idle_exit: Option<u64>,
    /// Start it in a session of its own, print its process number, and end
    #[arg(long, hide = true)]
    detached: bool,
}

/// Ways in which programs see a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum View {
    /// A mount where the kernel and the user's rights allow it
    #[default]
    Best,
    /// Plain files
    Files,
}

fn size(text: &str) -> Result<Bytes, String> {
    parse_bytes(text).map_err(|error| error.to_string())
}

/// Serves until it is told to end: the whole of `sublet-dataset`.
///
/// # Errors
/// Another process serves the store, or the store cannot be used.
pub fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    if args.detached {
        return detach();
    }
    let usual = CacheLimits::default();
    let server = DatasetServer {
        store: Store::of(&args.store)?.folder().to_owned(),
        view: match args.view {
            View::Best => None,
            View::Files => Some(ViewMode::Files),
        },
        limits: CacheLimits {
            store: args.max_size,
            disk: Milli::new(args.max_disk * 10).unwrap_or(usual.disk),
            fetches: args.fetches.into(),
            ..usual
        },
        idle_exit: args.idle_exit.map(Duration::from_secs),
    };
    Ok(server.run()?)
}

/// Becomes the program that serves data sets; it returns only the error.
pub(super) fn become_server(_args: &ServeArgs) -> anyhow::Error {
    let program = match server_program() {
        Ok(program) => program,
        Err(error) => return error,
    };
    // The same arguments, after `dataset serve`.
    let mut own = std::env::args_os().skip_while(|word| word != "serve");
    let _serve = own.next();
    let error = Command::new::<PathBuf>(program.clone()).args(own).exec();
    let failed: anyhow::Result<()> =
        Err(error).context(format!("cannot start {}", program.display()));
    match failed {
        Err(error) => error,
        Ok(()) => anyhow::anyhow!("it was started"),
    }
}
