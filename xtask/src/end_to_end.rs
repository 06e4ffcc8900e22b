//! The end-to-end tests: one program, run several times side by side, each time with the tests
//! of other modules. They wait as much as they work, so that two cores serve two of them.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::screen::{heading, time};
use crate::setup::cargo;

/// Maximum number of modules that run at once.
const AT_ONCE: usize = 2;

/// Modules that run one after the other: a machine has one real node, and `testbed` looks at all
/// that one leaves behind.
const NODE: [&str; 8] = [
    "real_node",
    "real_node_dialects",
    "real_node_install",
    "real_node_isolation",
    "real_node_kinds",
    "real_node_nri",
    "real_node_twins",
    "testbed",
];

/// The longest tests begin first, so that none runs alone at the end.
const LONG: [&str; 8] = [
    "known_failures",
    "real_node",
    "scheduling",
    "one_machine",
    "churn",
    "share_pods",
    "webhook_certificates",
    "limits",
];

/// Modules with this prefix take long, or need components that take long to build: `--all` runs
/// them.
const ONLY_WITH_ALL: &str = "long_";

/// Tests that run one after the other, in one process.
#[derive(Debug, PartialEq, Eq)]
struct Unit {
    modules: Vec<String>,
    tests: Vec<String>,
}

/// Result of tests.
struct Ended {
    passed: bool,
    /// All that they said.
    text: String,
}

/// Builds the tests, and runs those that `filter` selects, the long ones only with `all`; `tell`
/// gives each process its environment. A test that skips itself is a failure, unless its reason
/// names something that the machine lacks.
pub(crate) fn run(
    filter: &[&str],
    all: bool,
    lacking: &[String],
    tell: impl Fn(&mut Command) -> Result<()> + Sync,
) -> Result<()> {
    let program = build()?;
    let listed = Command::new(&program)
        .args(filter)
        .args(["--list", "--format", "terse"])
        .output()
        .context("list the end-to-end tests")?;
    ensure!(
        listed.status.success(),
        "{}",
        String::from_utf8_lossy(&listed.stderr)
    );
    let selected = selected(&String::from_utf8(listed.stdout)?, all);
    let queue = Mutex::new(VecDeque::from(selected));
    let failed = Mutex::new(Vec::new());
    let skipped = Mutex::new(Vec::new());
    let take = || {
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        let is_lost = !failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty();
        if is_lost {
            queue.clear();
        }
        queue.pop_front()
    };
    let work = || -> Result<()> {
        while let Some(unit) = take() {
            let mut command = Command::new(&program);
            command
                .args(["--exact", "--test-threads=1", "--nocapture"])
                .args(&unit.tests);
            tell(&mut command)?;
            let ended = unit.run(&mut command)?;
            if !ended.passed {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.push((unit.modules.join(", "), reasons(&ended.text)));
            }
            let mut skipped = skipped.lock().unwrap_or_else(PoisonError::into_inner);
            skipped.extend(without_reason(&ended.text, lacking));
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| match worker.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            })
    })?;
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    all_passed(&failed)?;
    let skipped = skipped.into_inner().unwrap_or_else(PoisonError::into_inner);
    ensure!(
        skipped.is_empty(),
        "tests were skipped though this machine has what they need:\n  {}",
        skipped.join("\n  ")
    );
    Ok(())
}

/// Names what failed, and why: once more, for a log that is cut keeps its end.
fn all_passed(failed: &[(String, Vec<String>)]) -> Result<()> {
    let Some((first, _)) = failed.first() else {
        return Ok(());
    };
    let (names, why): (Vec<&str>, Vec<String>) = failed
        .iter()
        .map(|(name, why)| (name.as_str(), why.join("\n")))
        .unzip();
    let first = first.split(", ").next().unwrap_or_default();
    bail!(
        "{}\nfailed: {}; to run one again: cargo xtask test -- {first}::",
        why.join("\n"),
        names.join(", ")
    )
}

/// Characters that are shown of a line of a reason.
const SHOWN: usize = 300;

/// The first two lines of each error and panic, with the test that it ended.
fn reasons(text: &str) -> Vec<String> {
    let mut test = "";
    let mut reasons = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some((name, _)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "))
        {
            test = name;
        }
        if line.contains("Error: ")
            || line.contains("' panicked at ")
            || line.contains(") panicked at ")
        {
            let cut = |line: &str| line.chars().take(SHOWN).collect::<String>();
            let next = lines.next().unwrap_or_default();
            reasons.push(format!("{test}: {}\n    {}", cut(line), cut(next)));
        }
    }
    reasons
}

/// The lines by which tests skipped themselves for want of something that is not lacking.
fn without_reason(text: &str, lacking: &[String]) -> Vec<String> {
    let skips = text.lines().filter_map(|line| {
        let at = line.find("skipped: ")?;
        Some(line[at..].to_owned())
    });
    let known = |line: &String| lacking.iter().any(|reason| line.contains(reason.as_str()));
    skips.filter(|line| !known(line)).collect()
}

/// Builds the program with the features that the whole workspace has, so that nothing is
/// compiled twice.
fn build() -> Result<PathBuf> {
    let mut command = cargo(&["test", "--workspace", "--test", "e2e", "--no-run"])?;
    command.arg("--message-format=json-render-diagnostics");
    let built = command
        .stderr(Stdio::inherit())
        .output()
        .context("build the end-to-end tests")?;
    ensure!(
        built.status.success(),
        "the end-to-end tests cannot be built"
    );
    let messages = String::from_utf8(built.stdout)?;
    let executable = messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == "e2e";
        is_it.then(|| message["executable"].as_str().map(PathBuf::from))?
    });
    executable.context("cargo built no program of end-to-end tests")
}

/// Tests by module, out of a list of lines such as `churn::name: test`.
fn units(listed: &str) -> Vec<Unit> {
    let tests = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    let mut units: BTreeMap<&str, Unit> = BTreeMap::new();
    for test in tests {
        let module = test.split("::").next().unwrap_or(test);
        let key = if NODE.contains(&module) {
            NODE[0]
        } else {
            module
        };
        let unit = units.entry(key).or_insert_with(|| Unit {
            modules: Vec::new(),
            tests: Vec::new(),
        });
        unit.tests.push(test.to_owned());
        if unit.modules.last().is_none_or(|last| last != module) {
            unit.modules.push(module.to_owned());
        }
    }
    let rank = |key: &str| LONG.iter().position(|long| *long == key);
    let mut units: Vec<(&str, Unit)> = units.into_iter().collect();
    units.sort_by_key(|(key, _)| rank(key).unwrap_or(LONG.len()));
    units.into_iter().map(|(_, unit)| unit).collect()
}

/// Selects the tests to run out of a list; prints the ones left out.
fn selected(listed: &str, all: bool) -> Vec<Unit> {
    let mut units = units(listed);
    if !all {
        let left_out = leave_out_long(&mut units);
        if !left_out.is_empty() {
            eprintln!("left out without --all: {}", left_out.join(", "));
        }
    }
    if units.is_empty() {
        eprintln!("no end-to-end test is selected");
    }
    units
}

/// Takes the long ones out, and returns their names.
fn leave_out_long(units: &mut Vec<Unit>) -> Vec<String> {
    let is_long = |unit: &mut Unit| {
        unit.modules
            .iter()
            .all(|name| name.starts_with(ONLY_WITH_ALL))
    };
    let long = units.extract_if(.., is_long);
    long.flat_map(|unit| unit.modules).collect()
}

impl Unit {
    /// Runs its tests and shows their output when they have ended.
    fn run(&self, command: &mut Command) -> Result<Ended> {
        let name = self.modules.join(", ");
        let count = self.tests.len();
        eprintln!("  {name}: {count} tests begin");
        let begun = Instant::now();
        // One file for both streams keeps their order.
        let mut said = tempfile::tempfile().context("open a temporary file")?;
        let status = command
            // The text of an error says where it was; a backtrace of each hides it.
            .env("RUST_LIB_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said.try_clone()?)
            .status()
            .with_context(|| format!("run {name}"))?;
        let mut text = Vec::new();
        said.rewind()?;
        said.read_to_end(&mut text)?;
        let word = if status.success() { "passed" } else { "FAILED" };
        // In one piece: others end at the same time.
        static SCREEN: Mutex<()> = Mutex::new(());
        let _screen = SCREEN.lock().unwrap_or_else(PoisonError::into_inner);
        std::io::stdout().write_all(&text)?;
        heading(&format!("{name}: {word} in {}", time(begun.elapsed())));
        Ok(Ended {
            passed: status.success(),
            text: String::from_utf8_lossy(&text).into_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_may_skip_itself_for_what_the_machine_lacks_and_for_nothing_else() {
        let text = "test a ... skipped: no node: cgroups are missing\nok\nskipped: it is late\n";
        let lacking = ["cgroups are missing".to_owned()];
        assert_eq!(without_reason(text, &lacking), ["skipped: it is late"]);
        assert_eq!(without_reason(text, &[]).len(), 2);
        assert!(without_reason("test a ... ok", &[]).is_empty());
    }

    #[test]
    fn a_failed_test_is_named_with_the_beginning_of_its_error() {
        let text = "test a::b ... ok\ntest a::c ... 4 s\nError: the pod is Failed: \"full\"\n\nCaused \
                    by:\nFAILED\ntest a::d ... \nthread 'a::d' (7) panicked at x.rs:1:2:\nleft is 3\n";
        let why = reasons(text);
        assert_eq!(why.len(), 2, "{why:?}");
        assert!(why[0].starts_with("a::c: Error: the pod is Failed"));
        assert!(why[1].starts_with("a::d: ") && why[1].ends_with("left is 3"));
        assert!(reasons("test a ... ok\n").is_empty());
    }

    #[test]
    fn long_ones_are_left_out_by_their_module() {
        let mut units = units("long_prometheus::a: test\nlonging::b: test\nchurn::long_c: test\n");
        assert_eq!(leave_out_long(&mut units), ["long_prometheus"]);
        let names: Vec<String> = units.iter().map(|unit| unit.modules.join("+")).collect();
        assert_eq!(names, ["churn", "longing"]);
    }

    #[test]
    fn the_longest_begin_first_and_those_of_the_node_are_one() {
        let listed = "attacks::a: test\nchurn::b: test\nchurn::c: test\nknown_failures::gate::d: \
                      test\nreal_node::e: test\ntestbed::f: test\n\n6 tests, 0 benchmarks\n";
        let units = units(listed);
        let names: Vec<String> = units.iter().map(|unit| unit.modules.join("+")).collect();
        assert_eq!(
            names,
            ["known_failures", "real_node+testbed", "churn", "attacks"]
        );
        assert_eq!(units[2].tests, ["churn::b", "churn::c"]);
        assert_eq!(
            units.iter().map(|unit| unit.tests.len()).sum::<usize>(),
            6,
            "none is left out"
        );
    }
}
