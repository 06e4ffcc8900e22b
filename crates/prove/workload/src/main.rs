//! `sublet-workload`: small programs for the CUDA driver API, for tests and benchmarks.
//!
//! They stand for programs that people run: a training loop, an inference server, and programs
//! that take memory in every possible way. They know nothing of Sublet, and run alike on a real
//! card and on the fake driver. Each prints one JSON line with its results.
//!
//! Exit codes: 0 done, 1 the driver (or the system) refused something, 2 wrong arguments. Some
//! programs run until memory is out; for them that counts as done.
//!
//! Suggested reading order: reach (how a driver is found), raw (its functions), driver, stream,
//! allocator (safe calls), then any file of `program`.
//!
//! # Modules
//! Small programs on the driver API, for a real card as for the fake: they train, serve, allocate
//! on every path, race, or ask NVML for everybody's use. One stands for MPS's control program.
#![expect(
    unsafe_code,
    reason = "the programs call a C library; raw.rs and the safe wrappers hold all of it"
)]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("sublet-workload is for Linux on x86-64 only");

mod allocator;
mod arguments;
mod array_shape;
mod chance;
mod driver;
mod external_memory;
mod graphs;
mod ipc_lender;
mod limiter;
mod location;
mod nvml;
mod path;
mod pattern;
mod program;
mod raw;
mod reach;
mod report;
mod retained_memory;
mod statistics;
mod stream;
mod token_bucket;
mod window;

use std::process::ExitCode;

use clap::Parser;
use program::Program;
use report::{Failure, Report};

/// Small programs for the CUDA driver API. Each prints one JSON line of what it saw.
#[derive(Debug, Parser)]
#[command(name = "sublet-workload", bin_name = "sublet workload", version)]
struct CommandLine {
    #[command(subcommand)]
    program: Program,
}

fn main() -> ExitCode {
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(error) => {
            let _nobody_reads = error.print();
            // clap's code is 2 for a wrong argument, and 0 if help was asked for.
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    if let Err(why) = line.program.check() {
        eprintln!("error: {why}");
        return ExitCode::from(2);
    }
    match run(&line.program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("sublet-workload: {failure}");
            ExitCode::from(1)
        }
    }
}

fn run(program: &Program) -> Result<(), Failure> {
    let mut report = Report::new(program.name());
    let outcome = program.run(&mut report);
    if program.reports() {
        report.print(&outcome)?;
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::CommandLine;
    use clap::{CommandFactory, Parser};

    fn check(arguments: &str, accepted: bool) {
        let words = std::iter::once("sublet-workload").chain(arguments.split_whitespace());
        let good = CommandLine::try_parse_from(words)
            .map_err(|error| error.to_string())
            .and_then(|line| line.program.check());
        assert_eq!(good.is_ok(), accepted, "{arguments}: {good:?}");
    }

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn what_is_accepted() {
        for arguments in [
            "info --nvml",
            "info --nvml=/x/libnvidia-ml.so.1 --reach lookup",
            "train --steps 3 --keep 64MiB",
            "serve --seconds 0.5 --reach=/x/libcuda.so.1",
            "alloc --path vmm --size 2MiB --until-oom --down-to 512 --hold stdin",
            "alloc --path host --until-oom --count 4",
            "threads --threads 4 --rounds 10",
            "pair --direct /x/libcuda.so.1 --call launch-kernel --seconds 0.1",
            "pair --side through --call mem-alloc --block 10",
            "regain --size 1GiB --seconds 5",
            "race --processes 8 --path plain --path pool",
            "race --processes 8 --init-only",
            "serve --every 0.011 --seed 7",
            "steady --threads 32 --never-wait --fresh-threads --microseconds 2000",
            "steady --kernels 10 --pause 0.005 --spin",
            "utilisation /x/libnvidia-ml.so.1 --seconds 5",
            "mps-control --record r -f",
            "mps-control --record r",
        ] {
            check(arguments, true);
        }
    }

    #[test]
    fn what_is_refused() {
        for arguments in [
            "",
            "info --reach nowhere",
            "alloc --path heap",
            "alloc --size -1",
            "alloc --size 1XB",
            "alloc --size 0",
            "alloc --count x",
            "alloc --hold forever",
            "alloc --path managed --until-oom",
            "alloc --path host --until-oom",
            "alloc --down-to 512",
            "alloc --size 1MiB --until-oom --down-to 2MiB",
            "pair",
            "pair --side through --block 0",
            "regain --size 0",
            "race --processes 0",
            "race --path host",
            "mps-control -f",
            "threads --threads 0",
            "train --seconds -1",
            "serve --every 0.01 --pause 0.01",
            "serve --seed 7",
            "steady --never-wait --pause 0.01",
            "steady --spin",
            "steady --threads 0",
            "utilisation",
        ] {
            check(arguments, false);
        }
    }
}
