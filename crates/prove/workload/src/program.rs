//! The programs, one file each.

mod alloc;
mod churn;
mod info;
mod mps_control;
mod pair;
mod race;
mod regain;
mod serve;
mod steady;
mod threads;
mod train;
mod utilisation;
mod watch;

use clap::Subcommand;

use crate::arguments::Common;
use crate::ipc_lender;
use crate::report::{Failure, Report};

/// The program to run, with its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Program {
    /// Print everything that the API reports about the devices
    Info(info::Arguments),
    /// A training loop: copy in, kernels, copy out, memory that is kept
    Train(train::Arguments),
    /// An inference server: bursts of small launches with pauses between them
    Serve(serve::Arguments),
    /// Take memory in one way, a number of times or until there is no more
    Alloc(alloc::Arguments),
    /// Threads that allocate and free in a race
    Threads(threads::Arguments),
    /// Bursts of kernels for a given time, and the share of a window that they filled
    Steady(steady::Arguments),
    /// The same calls by two ways to a driver, in turns, and the cost of each way
    Pair(pair::Arguments),
    /// Ask for memory that another process has, until the request succeeds
    Regain(regain::Arguments),
    /// Processes that begin at the same moment and allocate until there is no more
    Race(race::Arguments),
    /// Watch a card's memory by NVML's count until standard input is closed
    Watch(watch::Arguments),
    /// Percent of a card that each process used, by NVML's samples, for a given time
    Utilisation(utilisation::Arguments),
    /// A stand-in for NVIDIA's MPS control program, which records its commands
    MpsControl(mps_control::Arguments),
    /// One of the processes of `race`
    #[command(hide = true)]
    Racer(race::RacerArguments),
    /// The process that `alloc --path ipc` borrows from
    #[command(hide = true)]
    Lend(Common),
}

impl Program {
    /// The program's name on the command line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Info(_) => "info",
            Self::Train(_) => "train",
            Self::Serve(_) => "serve",
            Self::Alloc(_) => "alloc",
            Self::Threads(_) => "threads",
            Self::Steady(_) => "steady",
            Self::Pair(_) => "pair",
            Self::Regain(_) => "regain",
            Self::Race(_) => "race",
            Self::Watch(_) => "watch",
            Self::Utilisation(_) => "utilisation",
            Self::MpsControl(_) => "mps-control",
            Self::Racer(_) => "racer",
            Self::Lend(_) => "lend",
        }
    }

    /// Finds arguments that are each right but do not fit together.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::Alloc(arguments) => arguments.check(),
            Self::Pair(arguments) => arguments.check(),
            Self::Regain(arguments) => arguments.check(),
            Self::Race(arguments) => arguments.check(),
            _ => Ok(()),
        }
    }

    /// Whether the program prints a report. The lender talks to its borrower instead, and the MPS
    /// stand-in answers as the real program does.
    pub(crate) fn reports(&self) -> bool {
        !matches!(self, Self::Lend(_) | Self::MpsControl(_))
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, report: &mut Report) -> Result<(), Failure> {
        match self {
            Self::Info(arguments) => info::run(arguments, report),
            Self::Train(arguments) => train::run(arguments, report),
            Self::Serve(arguments) => serve::run(arguments, report),
            Self::Alloc(arguments) => alloc::run(arguments, report),
            Self::Threads(arguments) => threads::run(arguments, report),
            Self::Steady(arguments) => steady::run(arguments, report),
            Self::Pair(arguments) => pair::run(arguments, report),
            Self::Regain(arguments) => regain::run(arguments, report),
            Self::Race(arguments) => race::run(arguments, report),
            Self::Watch(arguments) => watch::run(arguments, report),
            Self::Utilisation(arguments) => utilisation::run(arguments, report),
            Self::MpsControl(arguments) => mps_control::run(arguments),
            Self::Racer(arguments) => race::run_racer(arguments, report),
            Self::Lend(common) => ipc_lender::serve(common),
        }
    }
}
