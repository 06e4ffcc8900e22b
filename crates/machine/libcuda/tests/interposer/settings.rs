//! Sources that a program believes if it cannot trust its environment: root's file, in a `/run` of
//! the test's own, and a setuid program without one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sublet_script::cc_text;
use tempfile::TempDir;

use crate::reach::{ANSWER, CALLS, with_contexts};
use crate::support::arbiter::FakeArbiter;
use crate::support::{Program, file, tenant};

/// As `cuInit` answers a program that may not run without an arbiter.
const NOT_PERMITTED: &str = "800";

/// True if this user can mount, which only root can; says so otherwise.
fn is_root() -> bool {
    let output = Command::new("unshare").args(["--mount", "true"]).output();
    let is_root = output.is_ok_and(|output| output.status.success());
    if !is_root {
        println!("skipped: this user may not mount (it takes root)");
    }
    is_root
}

/// A folder that every user may look into.
fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    set_mode(folder.path(), 0o755);
    folder
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("own file");
}

/// Starts its arguments as a user without rights.
const AS_NOBODY: &str = "exec setpriv --reuid 65534 --regid 65534 --clear-groups";

/// The command behind a line of shell, whose `$0` is this file.
fn behind(line: &str, file: &Path, command: &Command) -> Command {
    let mut own = Command::new("unshare");
    own.args(["--mount", "sh", "-c", line])
        .arg(file)
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => own.env(name, value),
            None => own.env_remove(name),
        };
    }
    own
}

/// The command with this text as root's file; `more` is shell before it, or [`AS_NOBODY`].
fn with_file(folder: &TempDir, text: &str, more: &str, command: &Command) -> Command {
    let file = folder.path().join("settings");
    fs::write(&file, text).expect("a file");
    set_mode(&file, 0o644);
    let line = format!(
        "mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sublet-job && \
         cp -p \"$0\" /run/sublet-job/settings && {more} \"$@\""
    );
    behind(&line, &file, command)
}

/// A program that is linked against ours, and the library that its caller would like it to load.
struct Linked {
    folder: TempDir,
    program: PathBuf,
    evil: PathBuf,
}

impl Linked {
    fn build() -> Linked {
        let folder = open_folder();
        let at = |name: &str| folder.path().join(name);
        let (program, evil) = (at("program"), at("evil.so"));
        cc_text(EVIL, &evil, &["-shared", "-fPIC"]).expect("a C compiler");
        let ours = file("ours").display().to_string();
        let (library, path) = (format!("{ours}/libcuda.so.1"), format!("-Wl,-rpath,{ours}"));
        cc_text(CALLS, &program, &[&library, &path]).expect("a C compiler");
        Linked {
            folder,
            program,
            evil,
        }
    }

    /// The program with all that its caller can say.
    fn misled(&self, arbiter: &FakeArbiter) -> Command {
        let mut command = Command::new(&self.program);
        for (name, value) in tenant(arbiter).get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command
            .env_remove("LD_LIBRARY_PATH")
            .env("SUBLET_DRIVER_CUDA", &self.evil)
            .env("SUBLET_DIR", self.folder.path())
            .env("SUBLET_MODE", "compat");
        command
    }
}

/// Says that it was loaded.
const EVIL: &str = r#"
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
    printf("evil code runs with euid %d\n", geteuid());
    fflush(stdout);
}
"#;

fn said(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors, "", "{command:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the file's text for this arbiter and the tests' driver.
fn text_for(arbiter: &FakeArbiter) -> String {
    format!(
        "sublet settings 1\nSUBLET_DIR={}\nSUBLET_MODE=strict\nSUBLET_DRIVER_CUDA={}\n",
        arbiter.folder().display(),
        file("driver.so").display()
    )
}

#[test]
fn where_root_s_file_is_no_variable_counts() {
    if !is_root() {
        return;
    }
    let linked = Linked::build();
    let arbiter = FakeArbiter::start(&with_contexts());
    let misled = linked.misled(&arbiter);
    // Without the file the program does as it is told, which is what the variables are for.
    let without = said(&mut behind("exec \"$@\"", &linked.program, &misled));
    assert!(without.starts_with("evil code runs"), "{without}");

    let text = text_for(&arbiter);
    let mut with = with_file(&linked.folder, &text, "exec", &misled);
    assert_eq!(said(&mut with), ANSWER);
    let mut bare = Command::new("env");
    bare.arg("-i").arg(&linked.program);
    let arbiter = FakeArbiter::start(&with_contexts());
    let text = text_for(&arbiter);
    assert_eq!(
        said(&mut with_file(&linked.folder, &text, "exec", &bare)),
        ANSWER
    );
}

/// A setuid program gets its limit and its driver as every program does where the file is. Without
/// it, it has no limit, and nothing of its caller's choice.
#[test]
fn a_setuid_program_runs_nobody_s_code() {
    if !is_root() {
        return;
    }
    let linked = Linked::build();
    set_mode(&linked.program, 0o4755);
    let arbiter = FakeArbiter::start(&with_contexts());
    let misled = linked.misled(&arbiter);
    let text = text_for(&arbiter);
    let mut with = with_file(&linked.folder, &text, AS_NOBODY, &misled);
    assert_eq!(said(&mut with), ANSWER);
    let line = format!("{AS_NOBODY} \"$@\"");
    let without = said(&mut behind(&line, &linked.program, &misled));
    assert!(!without.contains("evil"), "{without}");
    assert_eq!(without.lines().count(), 1, "{without}");
}

#[test]
fn a_file_that_says_nothing_clear_lets_no_program_run_without_a_limit() {
    if !is_root() {
        return;
    }
    let folder = open_folder();
    let arbiter = FakeArbiter::start(&with_contexts());
    for text in [
        "",
        "SUBLET_MODE=compat\n",
        "sublet settings 2\nSUBLET_MODE=compat\n",
    ] {
        let mut program = Program::start(&mut with_file(&folder, text, "exec", &tenant(&arbiter)));
        assert_eq!(program.call("cuInit 0"), NOT_PERMITTED, "{text}");
    }
}

/// In a container with a user namespace, the host's root may have no number, so that its file seems to
/// be nobody's. Only root can mount it for reading only.
#[test]
fn a_file_of_an_owner_without_a_number_counts_where_nobody_can_write() {
    if !is_root() {
        return;
    }
    let folder = open_folder();
    let arbiter = FakeArbiter::start(&with_contexts());
    let text = text_for(&arbiter);
    let given_away = "chown 65534 /run/sublet-job/settings &&";
    for (then, answer) in [
        ("exec", NOT_PERMITTED),
        ("mount -o remount,ro /run && exec", "0"),
    ] {
        let more = format!("{given_away} {then}");
        let mut run = with_file(&folder, &text, &more, &tenant(&arbiter));
        let mut program = Program::start(run.env("SUBLET_DIR", "/nowhere"));
        assert_eq!(program.call("cuInit 0"), answer, "{then}");
    }
}
