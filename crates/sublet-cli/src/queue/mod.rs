//! `sublet queue`: who waits for GPUs, in which order, and what would start them.

mod line;

use sublet_arbiter::libraries::Carried;

use crate::answer::{Answer, Format};
use crate::machine::{Machine, MachineArgs};

/// Arguments of `sublet queue`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet queue                       who waits on this machine, and for what
  sublet queue --fake-gpu 2x16GiB    on a fake machine
  sublet queue -o json | jq '.waiting[] | {position, name, startsWhen}'

Jobs of `sublet run` wait in one line: higher priority first, then users who have less of the
GPUs, then the order of arrival. Nobody passes the first of the line. Who has waited ten
minutes goes by age alone, before all others of its priority that have not.

GPUS are what a user's jobs have of all cards together: of each card the larger of memory and
promised compute time. Several users share a line where root runs
`sublet agent --standalone --shared`.

EXIT CODES
  0  printed
  1  no driver, or no arbiter that this user may ask
  2  wrong arguments")]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Answers `sublet queue`. `carried` are the libraries inside this program, if it has any.
///
/// # Errors
/// There is no arbiter and none can be started, or it cannot be talked to.
pub fn run(args: &Args, carried: Option<&'static Carried>) -> anyhow::Result<Answer> {
    line::show(&Machine::of(&args.machine), args.output, carried)
}
