//! `cargo xtask test`: everything that must pass before a change lands, cheapest first.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::clients;
use crate::driver_tables;
use crate::end_to_end;
use crate::fuzz;
use crate::libraries;
use crate::pip;
use crate::real_drivers::RealDrivers;
use crate::release;
use crate::screen::{Cost, heading, tell_free_space};
use crate::setup::{
    Components, cargo, has_driver, product, program, repository, run as run_command,
};
use crate::stale;
use crate::step::Step;

/// Run every test, cheapest first; stops at the first failure.
#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask test                 everything (about 40 minutes cold on two cores)
  cargo xtask test --fast          no control plane: format, lints and unit tests
  cargo xtask test -- real_node    only tests with `real_node` in their name
  cargo xtask test --all           long tests too: those of modules called `long_…`, and fuzz targets

SUBLET_KEEP=1 keeps the directories of all clusters, with every log.")]
pub(crate) struct Arguments {
    /// Leave out the tests that need a control plane.
    #[arg(long)]
    fast: bool,
    /// Also run the end-to-end tests that take long, or need components that take long to
    /// build.
    #[arg(long, conflicts_with = "fast")]
    all: bool,
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
const FIDELITY: [&str; 8] = [
    "test",
    "--release",
    "-p",
    "sublet-sim",
    "--test",
    "fidelity",
    "--test",
    "philly",
];

/// The same jobs in a queue, which takes another minute: only with `--all`.
const REPLAY: [&str; 2] = ["--test", "replay"];

/// Space that a run takes: the first one builds everything, and fetches what it builds.
const FIRST_RUN_GIB: u64 = 24;
const NEXT_RUN_GIB: u64 = 6;

fn needed_gib() -> Result<u64> {
    let is_first = !repository()?.join("target/debug/sublet").exists();
    Ok(if is_first {
        FIRST_RUN_GIB
    } else {
        NEXT_RUN_GIB
    })
}

/// Runs the steps.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let whole = Cost::begin();
    tell_free_space(repository()?, needed_gib()?);
    let filter: Vec<&str> = arguments.filter.iter().map(String::as_str).collect();
    let replay = if arguments.all { &REPLAY[..] } else { &[] };
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
        step("lints", "4 min cold", &LINTS)?,
        step(
            "placement against published results",
            "1 min, cold 2",
            &[&FIDELITY, replay, &["--"], filter.as_slice()].concat(),
        )?,
    ];
    let mut last = None;
    if !arguments.fast {
        let components = components(arguments.all)?;
        if filter.is_empty() {
            steps.push(order_of_published_runs()?);
            steps.extend(weaknesses()?);
        }
        steps.extend(builds()?);
        if arguments.all && filter.is_empty() {
            match fuzz::check() {
                Ok(()) => steps.push(fuzz::step()?),
                Err(reason) => eprintln!("skipped: fuzz targets: {reason:#}"),
            }
        }
        last = Some(EndToEnd {
            components,
            headers: headers(),
            clients: clients(),
            drivers: arguments.all.then(RealDrivers::find),
        });
    }
    let count = steps.len() + usize::from(last.is_some());
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
        let cost = Cost::begin();
        run_command(&mut command).with_context(|| format!("{what} failed"))?;
        eprintln!("{what}: {cost}");
    }
    if let Some(last) = last {
        heading(&format!(
            "{count}/{count} end to end, two at once (usually 18 min)"
        ));
        let cost = Cost::begin();
        let lacking = last.lacking();
        end_to_end::run(&filter, arguments.all, &lacking, |command| {
            last.tell(command)
        })?;
        eprintln!("end to end: {cost}");
    }
    println!("{}", stale::list());
    heading(&format!("all passed in {whole}"));
    Ok(())
}

/// Builds or finds the real programs that the end-to-end tests run.
fn components(all: bool) -> Result<Components> {
    heading(
        "components: Debian packages, the control plane, helm and two operators (8 min once, then 1 s)",
    );
    let mut components = Components::for_tests()?;
    if all {
        heading("what long tests need: Prometheus and operators (10 to 15 min once, then nothing)");
        components.add_long()?;
    }
    Ok(components)
}

/// The builds of what the end-to-end tests run.
fn builds() -> Result<Vec<Step>> {
    let build = [&["build"], product().as_slice()].concat();
    let mut steps = vec![
        // Before the plain product: cargo keeps one `sublet` in a folder, the last that was built.
        release::step()?,
        step("the product and its libraries", "20 s cold", &build)?,
    ];
    match pip::check() {
        Ok(()) => steps.push(libraries::step()?),
        Err(reason) => eprintln!("libraries for old containers will be skipped: {reason:#}"),
    }
    Ok(steps)
}

/// `cargo deny`, where it is installed: known weaknesses of packages of others, beside what a unit test
/// checks anyway. To build it for the tests would take minutes.
fn weaknesses() -> Result<Option<Step>> {
    let mut look = cargo(&["deny", "--version"])?;
    if !look.output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: known weaknesses of packages: `cargo install cargo-deny`, then again");
        return Ok(None);
    }
    let fetched = cargo(&["deny", "fetch", "db"])?.output();
    let all: &[&str] = match fetched.is_ok_and(|output| output.status.success()) {
        true => &["deny", "check"],
        false => {
            eprintln!("skipped: known weaknesses of packages: their list cannot be fetched");
            &["deny", "check", "bans", "licenses", "sources"]
        }
    };
    let what = "packages of others (cargo deny)";
    Ok(Some(step(what, "10 s", all)?))
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

/// The facts that the end-to-end tests are told.
struct EndToEnd {
    components: Components,
    headers: Result<OsString, String>,
    clients: Result<OsString, String>,
    /// Found for long tests.
    drivers: Option<RealDrivers>,
}

impl EndToEnd {
    /// The parts that this machine lacks, in words of the tests that need them. A machine like
    /// CI's lacks only a GPU.
    fn lacking(&self) -> Vec<String> {
        let mut lacking: Vec<String> = self.components.no_node.iter().cloned().collect();
        lacking.extend(self.headers.as_ref().err().cloned());
        lacking.extend(self.clients.as_ref().err().cloned());
        let drivers = self.drivers.iter();
        lacking.extend(drivers.flat_map(|drivers| drivers.reasons.iter().cloned()));
        lacking.push(match has_driver() {
            true => "this machine has a driver".to_owned(),
            false => "a driver that is not NVIDIA's".to_owned(),
        });
        if !rustix::process::geteuid().is_root() {
            lacking.extend(["root".to_owned(), "ptrace".to_owned()]);
        }
        lacking
    }

    fn tell(&self, command: &mut Command) -> Result<()> {
        self.components.tell(command);
        command.env("SUBLET_BIN", program("debug", "sublet")?);
        command.env("SUBLET_ONE_FILE", release::quick_place()?);
        for (key, found) in [
            ("SUBLET_HEADERS", &self.headers),
            ("SUBLET_CLIENTS", &self.clients),
        ] {
            match found {
                Ok(found) => command.env(key, found),
                Err(reason) => command.env(format!("{key}_SKIP"), reason),
            };
        }
        match &self.drivers {
            Some(drivers) => drivers.tell(command),
            None => Ok(()),
        }
    }
}

/// The folders of NVIDIA's headers, or the reason why there are none.
fn headers() -> Result<OsString, String> {
    heading("NVIDIA's headers: three Python packages (5 MB once, then nothing)");
    let found = driver_tables::header_folders();
    or_say(found, "tests against the headers will be skipped")
}

/// The folder of real clients of GPUs, or the reason why there are none.
fn clients() -> Result<OsString, String> {
    let found = clients::folder().map(OsString::from);
    or_say(found, "tests with real clients will be skipped")
}

fn or_say(found: Result<OsString>, skipped: &str) -> Result<OsString, String> {
    found.map_err(|reason| {
        let reason = format!("{reason:#}");
        eprintln!("{skipped}: {reason}");
        reason
    })
}

fn step(what: &'static str, usual: &'static str, args: &[&str]) -> Result<Step> {
    Ok(Step {
        what,
        usual,
        command: cargo(args)?,
    })
}
