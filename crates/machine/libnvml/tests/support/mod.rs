//! A tenant with a program, a library and an arbiter, each as small as the tests need it.

pub(crate) mod arbiter;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use arbiter::FakeArbiter;

/// A file that was compiled for the tests.
pub(crate) fn file(name: &str) -> PathBuf {
    static BUILT: OnceLock<TempDir> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        let compile = |source: &str, out: &str, more: &[&str]| {
            let status = Command::new("cc")
                .args(["-O1", "-std=gnu11", "-o"])
                .arg(folder.path().join(out))
                .arg(sources.join(source))
                .args(more)
                .arg("-ldl")
                .status()
                .expect("a C compiler");
            assert!(status.success(), "{source} does not compile");
        };
        compile("library.c", "library.so", &["-shared", "-fPIC"]);
        compile("program.c", "program", &[]);
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

/// The program, asking `library`.
pub(crate) fn program(library: &Path, what: &[&str]) -> Command {
    let mut command = Command::new(file("program"));
    command
        .arg(library)
        .args(what)
        .env("SUBLET_DRIVER_NVML", file("library.so"))
        .env_remove("SUBLET_DIR")
        .env_remove("SUBLET_MODE")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// The program of an arbiter's tenant.
pub(crate) fn tenant(arbiter: &FakeArbiter, what: &[&str]) -> Command {
    let mut command = program(&ours(), what);
    command.env("SUBLET_DIR", arbiter.folder());
    command
}

/// Returns the program's output, to its end.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{:?} after\n{text}", output.status);
    text
}

/// Compares line by line; the expected text is written indented.
pub(crate) fn check(found: &str, expected: &str) {
    let expected: Vec<&str> = expected.lines().map(str::trim).collect();
    let found: Vec<&str> = found.lines().map(str::trim).collect();
    let expected = expected.strip_prefix(&[""]).unwrap_or(&expected);
    let expected = expected.strip_suffix(&[""]).unwrap_or(expected);
    assert_eq!(found, expected, "\n{}", found.join("\n"));
}
