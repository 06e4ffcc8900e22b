//! A tenant with a program, a driver and an arbiter, each as small as the tests need it.
//!
//! Tests are scripts: what the program calls, what comes back, and what the ledger says then.

pub(crate) mod arbiter;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use self::arbiter::FakeArbiter;
pub(crate) use sublet_fakearbiter::DEADLINE;
use tempfile::TempDir;

/// Compiled once for all tests of one run.
struct Built {
    folder: TempDir,
}

fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interposer/programs");
        let compile = |source: &str, out: &str, more: &[&str]| {
            let status = Command::new("cc")
                .args(["-O1", "-o"])
                .arg(folder.path().join(out))
                .arg(sources.join(source))
                .args(more)
                .args(["-ldl", "-pthread"])
                .status()
                .expect("a C compiler");
            assert!(status.success(), "{source} does not compile");
        };
        compile("driver.c", "driver.so", &["-shared", "-fPIC"]);
        compile("program.c", "program", &[]);
        let ours = folder.path().join("ours");
        fs::create_dir(&ours).expect("a folder");
        std::os::unix::fs::symlink(library(), ours.join("libcuda.so.1")).expect("a link");
        Built { folder }
    })
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

/// A program that runs.
pub(crate) struct Program {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Program {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (send, answers) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            input,
            answers,
        }
    }

    /// One line there, one back.
    pub(crate) fn call(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").expect("the program reads");
        self.read()
    }

    /// The next line. A program that says nothing for too long hangs.
    pub(crate) fn read(&mut self) -> String {
        let answer = self.answers.recv_timeout(DEADLINE);
        answer.unwrap_or_else(|_| panic!("no answer within {DEADLINE:?}"))
    }

    /// Sends without waiting.
    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the program reads");
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Plays a script: `call -> answer`, and `used card bytes` and `pinned bytes` for what the
    /// ledger says.
    /// Lines that begin with `#` are for the reader.
    pub(crate) fn play(&mut self, arbiter: Option<&FakeArbiter>, script: &str) {
        for line in script.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(bytes) = line.strip_prefix("pinned ") {
                let pinned = arbiter.expect("a script with a ledger").pinned();
                assert_eq!(pinned, bytes_of(bytes), "{line}\nin{script}");
                continue;
            }
            if let Some(expected) = line.strip_prefix("used ") {
                let (card, bytes) = expected.split_once(' ').expect("card and bytes");
                let arbiter = arbiter.expect("a script with a ledger");
                let used = arbiter.used(card.parse().expect("a number"));
                assert_eq!(used, bytes_of(bytes), "{line}\nin{script}");
                continue;
            }
            let (call, expected) = line.split_once(" -> ").unwrap_or((line, "0"));
            assert_eq!(self.call(call), expected, "{line}\nin{script}");
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
