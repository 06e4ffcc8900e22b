//! `sublet-dataset`, the process that serves the data sets of a store. `sublet dataset` starts it;
//! it decides nothing itself.

use std::process::ExitCode;

use clap::Parser;
use sublet_cli::dataset::{ServeArgs, serve};
use sublet_cli::{exit_code, print_error};
use sublet_telemetry::start_logging;

/// Serve the data sets of a store
#[derive(Debug, Parser)]
#[command(name = "sublet-dataset", version)]
struct Cli {
    #[command(flatten)]
    serve: ServeArgs,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match start_logging().and_then(|()| serve(&cli.serve)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::from(exit_code(&error))
        }
    }
}
