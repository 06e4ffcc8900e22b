//! `cargo xtask fuzz`: looks for outside bytes that break one of our parsers, with libFuzzer, which
//! follows the branches that are taken.
//!
//! Our crates count their branches by plain options of the pinned compiler: `rustc.sh` adds them,
//! as Cargo's wrapper for the crates of the workspace, so all other crates stay as in every build.
//! Findings go to `target/fuzz`; nothing is ever written into the corpus.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::screen::{Cost, heading};
use crate::setup::{cargo, program, repository, run as run_command};
use crate::step::Step;

/// Give parsers bytes that a fuzzer makes up.
#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask fuzz                       every target for a minute
  cargo xtask fuzz pod --seconds 3600    one, for an hour
  cargo xtask fuzz pod -- -jobs=2        with an option of libFuzzer's

Needs a C++ compiler. Inputs that are found lie in target/fuzz/TARGET, and are begun with the next
time. An input that a target does not stand belongs into crates/prove/fuzz/corpus/TARGET, where
every run of the tests tries it.")]
pub(crate) struct Arguments {
    /// A target; all of crates/prove/fuzz/src/target.rs, if nothing is said.
    target: Option<String>,
    /// Seconds to try each target.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Options of libFuzzer's.
    #[arg(last = true)]
    options: Vec<String>,
}

/// Longest time of one input, in seconds. They take microseconds; the machine may be busy.
const SLOW: &str = "-timeout=20";

/// The most memory that a target may take, in MiB.
const MEMORY: &str = "-rss_limit_mb=2048";

/// Builds the targets, and tries them one after the other.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    check()?;
    let corpus = repository()?.join("crates/prove/fuzz/corpus");
    let targets = match &arguments.target {
        Some(target) => vec![target.clone()],
        None => targets(&corpus)?,
    };
    heading("the targets, with their branches counted (4 min cold)");
    let mut build = cargo(&[
        "build",
        "--workspace",
        "--bin",
        "sublet-fuzz",
        "--features",
        "sublet-fuzz/libfuzzer",
    ])?;
    build.env("RUSTC_WORKSPACE_WRAPPER", corpus.with_file_name("rustc.sh"));
    run_command(&mut build)?;
    let fuzzer = program("debug", "sublet-fuzz")?;
    for target in targets {
        heading(&format!("{target}: {} s", arguments.seconds));
        let cost = Cost::begin();
        let tried = try_one(&fuzzer, &target, &corpus, arguments)?;
        eprintln!("{target}: {tried} inputs, {cost}");
    }
    Ok(())
}

/// Returns the number of tried inputs. Shows libFuzzer's output if it has found something.
fn try_one(fuzzer: &Path, target: &str, corpus: &Path, arguments: &Arguments) -> Result<u64> {
    let place = repository()?.join("target/fuzz");
    let found = place.join(target);
    fs::create_dir_all(&found).with_context(|| format!("make {}", found.display()))?;
    let mut command = Command::new(fuzzer);
    command
        .env("SUBLET_FUZZ_TARGET", target)
        .arg(format!("-max_total_time={}", arguments.seconds))
        .arg(format!("-artifact_prefix={}/{target}-", place.display()))
        .args([SLOW, MEMORY, "-print_final_stats=1", "-verbosity=0"])
        .args(&arguments.options)
        .arg(found)
        .arg(corpus.join(target));
    let output = command.output().context("run the fuzzer")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{said}\n{target} does not stand an input: it lies in {}; keep it in {}, and mend the parser",
        place.display(),
        corpus.join(target).display()
    );
    tried(&said).with_context(|| format!("libFuzzer does not say what it tried: {said}"))
}

/// Number of tried inputs, from libFuzzer's last lines.
fn tried(said: &str) -> Option<u64> {
    let mut lines = said.lines();
    let count = lines.find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))?;
    count.trim().parse().ok()
}

/// Every target has inputs in a folder of its name; a test of the crate holds it to that.
fn targets(corpus: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(corpus).with_context(|| format!("read {}", corpus.display()))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<String>>>()?;
    names.sort();
    Ok(names)
}

/// Says what to install if the C++ compiler, which libFuzzer needs, is missing.
pub(crate) fn check() -> Result<()> {
    let compiler = std::env::var_os("CXX").map_or_else(|| PathBuf::from("c++"), PathBuf::from);
    let mut command = Command::new(&compiler);
    let version = command.arg("--version").stdout(Stdio::null()).status();
    let hint = || {
        format!(
            "no C++ compiler `{}`; Debian's g++ brings it",
            compiler.display()
        )
    };
    ensure!(version.with_context(hint)?.success(), hint());
    Ok(())
}

/// Every target for five seconds, as a step of `cargo xtask test --all`.
pub(crate) fn step() -> Result<Step> {
    let mut command = Command::new(std::env::current_exe().context("find the running program")?);
    command.args(["fuzz", "--seconds", "5"]);
    Ok(Step {
        what: "fuzz targets",
        usual: "2 min, cold 6",
        command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_tried_is_counted_by_libfuzzers_last_words() {
        let said = "INFO: a\nstat::number_of_executed_units: 15536\nstat::peak_rss_mb: 60\n";
        assert_eq!(tried(said), Some(15_536));
        assert_eq!(tried("stat::number_of_executed_units: x"), None);
        assert_eq!(tried(""), None);
    }
}
