//! `sublet workload`: the small programs of the demonstration, for a real card as for a fake one. They
//! are a program of their own (`prove/workload`), which knows nothing of Sublet; this finds it, inside
//! this file or beside it, and becomes it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use sublet_arbiter::libraries::Carried;

use crate::machine::{Machine, MachineArgs};
use crate::run::libraries;

/// Arguments of `sublet workload`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Becomes the program; returns only if it cannot. `carried` are the files inside this program, if it
/// has any.
///
/// # Errors
/// The program is not there, or cannot be started.
pub fn run(args: &Args, carried: Option<&'static Carried>) -> anyhow::Result<u8> {
    let machine = Machine::of(&MachineArgs::default())?;
    let store = libraries::usual_store(&machine, carried)?;
    let program = libraries::workload(&store)?;
    let error = Command::new(&program).args(&args.words).exec();
    Err(anyhow::Error::new(error).context(format!("cannot start {}", program.display())))
}
