//! A process and a fake machine of their own for one test.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sublet_fakegpu::FakeMachine;

/// Variable with the purpose of a copy of the test process.
const ROLE: &str = "SUBLET_TEST_ROLE";
/// Variable with the place and kind of a test's machine.
pub(crate) const MACHINE: &str = "SUBLET_FAKE_GPU";
pub(crate) const ROOT: &str = "SUBLET_FAKE_ROOT";
/// The longest that a process of a test may take. Then the kernel ends it, whatever it does, so
/// that a process that waits for it goes on and fails.
const LIMIT_S: u32 = 120;

/// The library, which cargo built beside this test.
pub(crate) fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.with_file_name("libsublet_fakenvml.so")
}

/// The part of this process, if a test gave it one.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The machine of this process.
pub(crate) fn machine() -> FakeMachine {
    FakeMachine::from_text(&std::env::var(MACHINE).unwrap()).unwrap()
}

/// A copy of this process that runs only `test`, in the same machine.
pub(crate) fn copy(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "--nocapture", test])
        .env(ROLE, role);
    limit(&mut command);
    command
}

/// Gives a process an end.
pub(crate) fn limit(command: &mut Command) {
    let limit = || {
        // SAFETY: takes a number, and sets an alarm that outlives exec.
        unsafe { libc::alarm(LIMIT_S) };
        Ok(())
    };
    // SAFETY: between fork and exec there is that one system call.
    unsafe { command.pre_exec(limit) };
}

/// True in the process that shall do the test. The one that calls this first makes the
/// machine, starts that process, and fails if it does.
pub(crate) fn inside(test: &str, spec: &str) -> bool {
    if role().is_some() {
        return true;
    }
    let root = tempfile::tempdir().unwrap();
    run(test, spec, root.path());
    false
}

fn run(test: &str, spec: &str, root: &Path) {
    let mut command = copy(test, "test");
    let output = command.env(MACHINE, spec).env(ROOT, root).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    // A name that is not a test's would pass without running anything.
    let passed = output.status.success() && out.contains("1 passed");
    assert!(passed, "{test}: {}\n{out}\n{err}", output.status);
}

/// A process that is killed when the test ends.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Another copy of this process, which runs `test` in that role.
    pub(crate) fn start(test: &str, role: &str) -> Running {
        Running::spawn(copy(test, role))
    }

    /// Any process, with a pipe that tells it when we are gone.
    pub(crate) fn spawn(mut command: Command) -> Running {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null());
        Running(command.spawn().unwrap())
    }

    /// SIGKILL, and gone.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nothing can be done if it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks until there is an answer.
pub(crate) fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "no {what} in 20 seconds");
        std::thread::yield_now();
    }
}
