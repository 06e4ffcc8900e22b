//! A tenant with a program, a library and an arbiter, each as small as the tests need it.
//!
//! Tests are scripts (`sublet-script`): the program's calls and their results.

pub(crate) mod arbiter;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use sublet_script::{Calls, cc, compile};
use tempfile::TempDir;

use arbiter::FakeArbiter;

/// A file that was compiled for the tests.
pub(crate) fn file(name: &str) -> PathBuf {
    static BUILT: OnceLock<TempDir> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/library.c");
        let shared = ["-O1", "-std=gnu11", "-shared", "-fPIC"];
        cc(&source, &folder.path().join("library.so"), &shared).expect("a C compiler");
        compile(&folder.path().join("program")).expect("a C compiler");
        folder
    });
    folder.path().join(name)
}

/// The library that was built with this test.
pub(crate) fn ours() -> PathBuf {
    let test = env::current_exe().expect("this test");
    let library = test.with_file_name("libsublet_nvml.so");
    assert!(library.exists(), "no {}", library.display());
    library
}

/// The program that asks `library`, and no other.
pub(crate) fn program(library: &Path) -> Command {
    let mut command = Command::new(file("program"));
    command
        .arg("/nowhere/libcuda.so.1")
        .arg(library)
        .env("SUBLET_DRIVER_NVML", file("library.so"))
        .env_remove("SUBLET_DIR")
        .env_remove("SUBLET_MODE");
    command
}

/// The program of an arbiter's tenant.
pub(crate) fn tenant(arbiter: &FakeArbiter) -> Command {
    let mut command = program(&ours());
    command.env("SUBLET_DIR", arbiter.folder());
    command
}

/// The program, while it runs. A call that it refuses fails the test.
pub(crate) struct Program(Calls);

impl Program {
    /// Starts it, with room in `list` and `text` for what it is told.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut program = Self(Calls::start(command).expect("the program starts"));
        program.play("set list struct:12000\nset text struct:96");
        program
    }

    /// Starts it and initialises the library. Its first card is `card`.
    pub(crate) fn begin(command: &mut Command) -> Self {
        let mut program = Self::start(command);
        program.play(
            "
            nvmlDeviceGetCount_v2 &n -> 1
            nvmlDeviceGetHandleByIndex_v2 40 &card -> 1
            nvmlInit_v2
            nvmlInitWithFlags 7
            let said nvmlErrorString 0
            text said -> error 0
            nvmlDeviceGetHandleByIndex_v2 0 &card
            ",
        );
        program
    }

    /// One line there, one back.
    pub(crate) fn call(&mut self, line: &str) -> String {
        self.0.call(line).unwrap_or_else(|why| panic!("{why:#}"))
    }

    /// Plays a script, whose answers are as it says.
    pub(crate) fn play(&mut self, script: &str) {
        self.0.play(script).unwrap_or_else(|why| panic!("{why:#}"));
    }

    /// The same in a child.
    pub(crate) fn play_in_child(&mut self, script: &str) {
        let played = self.0.play_in(0, script);
        played.unwrap_or_else(|why| panic!("{why:#}"));
    }

    /// The answers to a script's calls, whatever it expects.
    pub(crate) fn answers(&mut self, script: &str) -> Vec<String> {
        let lines = script.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty());
        let calls = lines.map(|line| line.split(" -> ").next().unwrap_or(line));
        calls.map(|call| self.call(call)).collect()
    }

    /// Makes a call that fills `LIST`: first for the length alone. Returns the result of that, the
    /// length, and the result of the second call; and the elements, of so many words each.
    pub(crate) fn list(&mut self, call: &str, words: usize) -> (String, Vec<Vec<u32>>) {
        self.play("set count 0");
        let first = self.call(&call.replace("LIST", "null"));
        let length = self.call("print count");
        self.play("set count 200");
        let result = self.call(&call.replace("LIST", "list"));
        let elements = match result.as_str() {
            "0" => self.elements("print count", words),
            _ => Vec::new(),
        };
        (format!("{first} {length} {result}"), elements)
    }

    /// So many elements of `list` as this call says, in their words.
    pub(crate) fn elements(&mut self, count: &str, words: usize) -> Vec<Vec<u32>> {
        let count: usize = self.call(count).parse().expect("a number");
        let hex = self.call(&format!("hex list {}", 4 * words * count));
        let word = |at: usize| {
            let word = u32::from_str_radix(&hex[8 * at..8 * (at + 1)], 16);
            word.expect("hex").swap_bytes()
        };
        let element = |at: usize| -> Vec<u32> {
            let places = at * words..(at + 1) * words;
            places.map(word).collect()
        };
        (0..count).map(element).collect()
    }
}
