//! A tenant with a program, a driver and an arbiter, each as small as the tests need it.
//!
//! Tests are scripts (`sublet-script`): the program's calls, their results, and the ledger after
//! them.

pub(crate) mod arbiter;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sublet_driver_api::CUDA;
pub(crate) use sublet_fakearbiter::DEADLINE;
use sublet_hook::cuda::table::{Kind, kind};
use sublet_script::{Calls, cc, compile};
use tempfile::TempDir;

use self::arbiter::FakeArbiter;

/// Compiled once for all tests of one run.
struct Built {
    folder: TempDir,
}

fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interposer/support/driver.c");
        let gated = folder.path().join("gated.c");
        fs::write(&gated, gated_functions()).expect("a file");
        let gated = gated.to_str().expect("text");
        let driver = folder.path().join("driver.so");
        let shared = ["-O1", "-shared", "-fPIC", gated, "-ldl", "-pthread"];
        cc(&source, &driver, &shared).expect("a C compiler");
        compile(&folder.path().join("program")).expect("a C compiler");
        let ours = folder.path().join("ours");
        fs::create_dir(&ours).expect("a folder");
        std::os::unix::fs::symlink(library(), ours.join("libcuda.so.1")).expect("a link");
        Built { folder }
    })
}

/// All that passes the gate, by the table.
pub(crate) fn gated_rows() -> Vec<&'static str> {
    let is_gated = |index: usize| match CUDA[index].base {
        "cuGraphLaunch" => true,
        _ => matches!(kind(index), Kind::Gate(_)),
    };
    let rows = (0..CUDA.len()).filter(|&index| is_gated(index));
    rows.map(|index| CUDA[index].symbol).collect()
}

/// Returns functions that only report their call, for those that `driver.c` lacks.
fn gated_functions() -> String {
    let functions = gated_rows().into_iter().map(|symbol| {
        format!("__attribute__((weak)) int {symbol}(void) {{ return fake_arrive(); }}\n")
    });
    format!("int fake_arrive(void);\n{}", functions.collect::<String>())
}

/// The library that was built with this test.
pub(crate) fn library() -> PathBuf {
    let test = env::current_exe().expect("this test");
    let library = test.with_file_name("libsublet_cuda.so");
    assert!(library.exists(), "no {}", library.display());
    library
}

/// A file that was compiled for the tests.
pub(crate) fn file(name: &str) -> PathBuf {
    built().folder.path().join(name)
}

/// The program, with our library as its driver.
pub(crate) fn command() -> Command {
    let mut command = Command::new(file("program"));
    command
        .env("LD_LIBRARY_PATH", file("ours"))
        .env("SUBLET_DRIVER_CUDA", file("driver.so"))
        .env("FAKE_DRIVER", file("driver.so"));
    for name in [
        "SUBLET_DIR",
        "SUBLET_MODE",
        "CUDA_VISIBLE_DEVICES",
        "LD_PRELOAD",
    ] {
        command.env_remove(name);
    }
    command
}

/// The program of an arbiter's tenant.
pub(crate) fn tenant(arbiter: &FakeArbiter) -> Command {
    let mut command = command();
    command.env("SUBLET_DIR", arbiter.folder());
    command
}

/// The program, while it runs. A call that it refuses fails the test.
pub(crate) struct Program(Calls);

impl Program {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(Calls::start(command).expect("the program starts"))
    }

    /// One line there, one back.
    pub(crate) fn call(&mut self, line: &str) -> String {
        self.0.call(line).unwrap_or_else(|why| panic!("{why:#}"))
    }

    /// The next line. A program that says nothing for too long hangs.
    pub(crate) fn read(&mut self) -> String {
        self.0.answer().unwrap_or_else(|why| panic!("{why:#}"))
    }

    /// Sends; false if there is no answer within that time. It comes later.
    pub(crate) fn is_answered(&mut self, line: &str, within: Duration) -> bool {
        self.send(line);
        let answer = self.0.answer_within(within);
        answer.unwrap_or_else(|why| panic!("{why:#}")).is_some()
    }

    /// Sends without waiting.
    pub(crate) fn send(&mut self, line: &str) {
        self.0.tell(line).expect("the program reads");
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.running().pid().as_raw_nonzero().get()
    }

    /// Ends it, and returns its standard error.
    pub(crate) fn end(self) -> String {
        let ended = self.0.into_running().end().expect("it ends");
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.errors
    }

    /// Plays a script, in which `used card bytes` and `pinned bytes` are the ledger's values,
    /// `readings n` is how often the arbiter was asked for a reading of the driver, and `finds card
    /// bytes` says what it finds there from now on that no account explains.
    pub(crate) fn play(&mut self, arbiter: Option<&FakeArbiter>, script: &str) {
        let played = self.0.play_with(script, |line| ledger_says(arbiter, line));
        played.unwrap_or_else(|why| panic!("{why:#}"));
    }
}

/// Checks or obeys a line that is about the arbiter; false for any other.
fn ledger_says(arbiter: Option<&FakeArbiter>, line: &str) -> Result<bool> {
    let (what, expected) = line.split_once(' ').unwrap_or((line, ""));
    let (found, bytes) = match what {
        "pinned" => (arbiter.context("no ledger")?.pinned(), expected),
        "readings" => (arbiter.context("no arbiter")?.n_readings() as u64, expected),
        "finds" => {
            let (card, bytes) = expected.split_once(' ').context("card and bytes")?;
            let arbiter = arbiter.context("no arbiter")?;
            arbiter.finds(card.parse()?, bytes_of(bytes));
            return Ok(true);
        }
        "used" => {
            let (card, bytes) = expected.split_once(' ').context("card and bytes")?;
            (arbiter.context("no ledger")?.used(card.parse()?), bytes)
        }
        _ => return Ok(false),
    };
    ensure!(found == bytes_of(bytes), "it is {found}");
    Ok(true)
}

/// `5M` and the like, and sums of them.
pub(crate) fn bytes_of(text: &str) -> u64 {
    text.split('+')
        .map(|part| {
            let (digits, shift) = match part.as_bytes().last() {
                Some(b'K') => (&part[..part.len() - 1], 10),
                Some(b'M') => (&part[..part.len() - 1], 20),
                Some(b'G') => (&part[..part.len() - 1], 30),
                _ => (part, 0),
            };
            digits.parse::<u64>().expect("a number of bytes") << shift
        })
        .sum()
}

/// Waits for something that happens in another process.
pub(crate) fn eventually(what: &str, check: impl Fn() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(
            start.elapsed() < DEADLINE,
            "not within {DEADLINE:?}: {what}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}
