//! `cargo xtask test`: everything that must pass before a change lands, cheapest first.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;

use crate::clients;
use crate::driver_tables;
use crate::libraries;
use crate::pip;
use crate::release;
use crate::screen::{heading, time};
use crate::setup::{Components, cargo, product, program, repository, run as run_command};

/// Run every test, cheapest first; stops at the first failure.
#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask test                 everything (about 50 minutes cold on two cores)
  cargo xtask test --fast          no control plane: format, lints and unit tests
  cargo xtask test -- real_node    only tests with `real_node` in their name

SUBLET_KEEP=1 keeps the directories of all clusters, with every log.")]
pub(crate) struct Arguments {
    /// Leave out what needs a control plane.
    #[arg(long)]
    fast: bool,
    /// Passed to the test programs: a part of a test's name, or their options.
    #[arg(last = true)]
    filter: Vec<String>,
}

const LINTS: [&str; 6] = [
    "clippy",
    "--workspace",
    "--all-targets",
    "--",
    "-D",
    "warnings",
];

/// 130 runs of the simulator, and two with 82,247 jobs: too slow for a build that is not
/// optimised.
const FIDELITY: [&str; 9] = [
    "test",
    "--release",
    "-p",
    "sublet-sim",
    "--test",
    "fidelity",
    "--test",
    "philly",
    "--",
];

/// One step: what it is for, how long it takes on two idle cores, and how it is done.
pub(crate) struct Step {
    pub(crate) what: &'static str,
    pub(crate) usual: &'static str,
    pub(crate) command: Command,
}

/// Runs the steps.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let started = Instant::now();
    let filter: Vec<&str> = arguments.filter.iter().map(String::as_str).collect();
    // All steps select the whole workspace, so that each dependency is compiled once. The
    // end-to-end tests skip themselves in the first run, which also builds the product.
    let tests = ["test", "--workspace", "--"];
    let mut steps = vec![
        step("format", "1 s", &["fmt", "--all", "--check"])?,
        step(
            "unit tests",
            "5 min cold",
            &[&tests, filter.as_slice()].concat(),
        )?,
        step("lints", "1 min cold", &LINTS)?,
        step(
            "placement against published results",
            "1 min, cold 2",
            &[&FIDELITY, filter.as_slice()].concat(),
        )?,
    ];
    if !arguments.fast {
        heading("components: Debian packages and the control plane (6 min once, then 1 s)");
        let components = Components::with_node()?;
        if filter.is_empty() {
            steps.push(order_of_published_runs()?);
        }
        // Before the plain product: cargo keeps one `sublet` in a folder, the last that was built.
        steps.push(release::step()?);
        let build = [&["build"], product().as_slice()].concat();
        steps.push(step("the product and its libraries", "20 s cold", &build)?);
        match pip::check() {
            Ok(()) => steps.push(libraries::step()?),
            Err(reason) => eprintln!("libraries for old containers will be skipped: {reason:#}"),
        }
        let mut end_to_end = vec!["test", "--workspace"];
        let names = end_to_end_tests()?;
        for name in &names {
            end_to_end.extend(["--test", name]);
        }
        end_to_end.extend(["--", "--test-threads=1", "--nocapture"]);
        end_to_end.extend(&filter);
        let mut last = step("end to end", "20 min", &end_to_end)?;
        components.tell(&mut last.command);
        last.command.env("SUBLET_BIN", program("debug", "sublet")?);
        last.command.env("SUBLET_ONE_FILE", release::quick_place()?);
        tell_headers(&mut last.command);
        tell_clients(&mut last.command);
        steps.push(last);
    }
    let count = steps.len();
    for (
        number,
        Step {
            what,
            usual,
            mut command,
        },
    ) in (1..).zip(steps)
    {
        heading(&format!("{number}/{count} {what} (usually {usual})"));
        let begun = Instant::now();
        run_command(&mut command).with_context(|| format!("{what} failed"))?;
        eprintln!("{what}: {}", time(begun.elapsed()));
    }
    heading(&format!("all passed in {}", time(started.elapsed())));
    Ok(())
}

/// The Go program that writes the order of arrival of published runs.
fn order_of_published_runs() -> Result<Step> {
    let mut command = Command::new("go");
    command.args(["test", "./..."]);
    command.current_dir(repository()?.join("tools/sequence"));
    Ok(Step {
        what: "the order of published runs (Go)",
        usual: "5 s",
        command,
    })
}

/// Tells a program where NVIDIA's headers are, or why they are nowhere.
fn tell_headers(command: &mut Command) {
    heading("NVIDIA's headers: three Python packages (5 MB once, then nothing)");
    match driver_tables::header_folders() {
        Ok(folders) => command.env("SUBLET_HEADERS", folders),
        Err(reason) => {
            let reason = format!("{reason:#}");
            eprintln!("tests against the headers will be skipped: {reason}");
            command.env("SUBLET_HEADERS_SKIP", reason)
        }
    };
}

/// Tells of the real clients of GPUs, or why there are none.
fn tell_clients(command: &mut Command) {
    match clients::folder() {
        Ok(folder) => command.env("SUBLET_CLIENTS", folder),
        Err(reason) => {
            let reason = format!("{reason:#}");
            eprintln!("tests with real clients will be skipped: {reason}");
            command.env("SUBLET_CLIENTS_SKIP", reason)
        }
    };
}

/// The test programs of `sublet-e2e`, by name.
fn end_to_end_tests() -> Result<Vec<String>> {
    let dir = repository()?.join("crates/sublet-e2e/tests");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(|| format!("read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(
                path.file_stem()
                    .map(|stem| stem.to_string_lossy().into_owned()),
            );
        }
    }
    names.sort();
    Ok(names)
}

fn step(what: &'static str, usual: &'static str, args: &[&str]) -> Result<Step> {
    Ok(Step {
        what,
        usual,
        command: cargo(args)?,
    })
}
