//! `sublet run`: a command with its part of a GPU. Asks the machine's arbiter for a place,
//! starting one if none runs, and runs the command behind our libraries.
//!
//! `run_job` is the whole of it, one step a line. The order of reading is the order of the steps:
//! - `program`: the file of the command.
//! - `setup`: the job's needs on this machine; with `libraries`, `driver` and `mounts`.
//! - `request` and `visible_cards`: the request to the arbiter.
//! - `containers`: a note about a CMD that leaves the job.
//! - `datasets`: brought here before the job waits for GPUs.
//! - `arbiter`: the machine's arbiter, started if none runs.
//! - `wait`: until there is a place; with `terminal` and `signals`.
//! - `start`: the command in its place; with `environment`.
//! - `supervise`: to the command's end; with `job_connection`, `notices` and `memory_hint`.

mod arbiter;
pub(crate) mod args;
mod containers;
mod datasets;
mod driver;
mod environment;
mod job_connection;
pub(crate) mod libraries;
mod memory_hint;
mod mounts;
mod notices;
mod program;
mod request;
mod setup;
mod signals;
mod start;
mod supervise;
mod terminal;
mod visible_cards;
mod wait;

pub use args::Args;
pub(crate) use driver::real_nvml;
pub use visible_cards::{VisibleCardsArgs, visible_cards};

use std::io::{IsTerminal, Write};

use anyhow::Context;
use sublet_arbiter::libraries::Carried;

use crate::answer::{Advised, print_error};
use crate::machine::Machine;
use job_connection::JobConnection;
use notices::Notices;
use setup::Setup;
use signals::Signals;
use start::Failure;
use supervise::Ending;
use wait::Waited;

/// Runs the command and returns its exit code. `carried` are the libraries inside this program,
/// if it has any.
///
/// # Errors
/// It was not started: no driver, no arbiter, no place.
pub fn run(args: &Args, carried: Option<&'static Carried>) -> anyhow::Result<u8> {
    // CMD runs as the same user, and must not ask of the arbiter what this process may ask. So
    // CMD must not be able to read or trace this process. CMD itself is dumpable again after exec.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .context("cannot protect this process from others")?;
    let ending = match run_job(args, carried) {
        Ok(ending) => ending,
        Err(Failure::Program(error)) => {
            let code = error.code();
            print_error(&Advised::new(error.to_string(), error.hint()).into());
            return Ok(code);
        }
        Err(Failure::Other(error)) => return Err(error),
    };
    if ending == Ending::Interrupted {
        // A shell ends its loop only if the interrupt key ended this process too; its exit
        // code is the same.
        signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGINT)?;
    }
    Ok(ending.code())
}

/// A job from its arguments to its end.
fn run_job(args: &Args, carried: Option<&'static Carried>) -> Result<Ending, Failure> {
    request::refuse_contradiction(args)?;
    let program = program::of(&args.command)?;
    let machine = Machine::of(&args.machine)?;
    let setup = Setup::find(&machine, carried)?;
    setup.refuse_if_told_otherwise()?;
    let submit = request::complete(args, &setup, say)?;
    containers::note(&args.command)
        .iter()
        .for_each(|note| say(note));
    // Before signals are caught: until there is a place to leave, Ctrl-C may simply end us.
    let datasets = datasets::hold(&args.dataset, &args.dataset_store, mounts::is_allowed())?;
    drop(arbiter::open(&machine, &setup.launch)?);
    let mut signals = Signals::listen().context("cannot catch signals")?;
    let job = match wait::for_place(&machine, &setup.launch, submit, &mut signals, say)? {
        Waited::Placed(job) => *job,
        Waited::Left(signal) => return Ok(Ending::before_start(signal)),
    };
    let mut notices = Notices::listen(setup.fake.as_deref(), std::io::stderr().is_terminal());
    let child = start::start(args, &program, &setup, &job, &notices, &datasets)?;
    let mut connection = JobConnection::new(&machine, &setup.launch, job);
    let ending = supervise::follow(child, &mut signals, &mut connection, &mut notices, say)?;
    notices.last().into_iter().for_each(say);
    memory_hint::after(ending, args, &machine, &mut connection, say);
    Ok(ending)
}

/// A line for people, marked as ours among the command's own.
fn say(line: &str) {
    let mut stderr = std::io::stderr().lock();
    let _nobody_listens = writeln!(stderr, "sublet: {line}");
}
