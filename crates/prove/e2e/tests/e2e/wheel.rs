//! The wheel that is handed out, in an empty virtual environment: it brings the command, its man pages
//! and completions, and all that the demonstration needs.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sublet_e2e::eventually;
use sublet_e2e::one_machine::{Machine, Running, mib};

use crate::chart::repository;

/// A card of another size than the demonstration's.
const SPEC: &str = "1x8GiB,context=0MiB";

/// Asks CUDA for the size of the card, as a program in Python does.
const ASKS: &str = "\
import ctypes
cuda = ctypes.CDLL('libcuda.so.1')
size = ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(size), 0) == 0
print(size.value)
";

/// The lines of the picture of the demonstration, without numbers.
fn drawn(picture: &str) -> Vec<String> {
    let texts = picture.lines().filter(|line| line.starts_with("<text "));
    let texts = texts.filter_map(|line| line.strip_suffix("</text>")?.split_once('>'));
    let plain = |text: &str| {
        let text = text.replace("&lt;", "<").replace("&gt;", ">");
        text.replace("&amp;", "&")
    };
    texts.map(|(_, text)| masked(&plain(text))).collect()
}

/// A line without the numbers, and with single blanks: those of processes and jobs are others each time.
fn masked(line: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let parts: Vec<&str> = word.split(|c: char| c.is_ascii_digit()).collect();
        parts.concat()
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The wheel in an environment of its own.
struct Installed {
    machine: Machine,
    venv: PathBuf,
}

impl Installed {
    /// Installs it. If this machine cannot, prints why and returns `None`.
    fn new() -> Result<Option<Installed>> {
        let Some(file) = std::env::var_os("SUBLET_ONE_FILE").map(PathBuf::from) else {
            println!("skipped: SUBLET_ONE_FILE is not set; run `cargo xtask test`");
            return Ok(None);
        };
        let Some(machine) = Machine::new(SPEC)? else {
            return Ok(None);
        };
        let venv = machine.path().join("venv");
        let folder = file.parent().context("it lies in no folder")?;
        let wheels = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
        let mut wheels = wheels.filter(|path| path.extension().is_some_and(|end| end == "whl"));
        let Some(wheel) = wheels.next() else {
            // The same reason as that for which there are no headers, which come by pip too.
            let reason = std::env::var("SUBLET_HEADERS_SKIP");
            println!("skipped: {}", reason.context("no wheel, and no reason")?);
            return Ok(None);
        };
        let mut make = Command::new("python3");
        make.args(["-m", "venv", "--without-pip"]).arg(&venv);
        let made = Running::start(&mut make)?.end()?;
        ensure!(made.code == Some(0), "{made:?}");
        let mut install = Command::new("python3");
        install
            .args(["-m", "pip", "--disable-pip-version-check", "--python"])
            .arg(venv.join("bin/python"))
            .args(["install", "--no-index", "--no-deps", "--quiet"])
            .arg(&wheel);
        let ended = Running::start(&mut install)?.end()?;
        ensure!(ended.code == Some(0), "{ended:?}");
        Ok(Some(Installed { machine, venv }))
    }

    fn sublet(&self, words: &[&str]) -> Command {
        let mut command = self.machine.command(self.venv.join("bin/sublet"));
        command.args(words);
        command
    }
}

#[test]
fn it_brings_a_command_that_limits_python() -> Result<()> {
    let Some(installed) = Installed::new()? else {
        return Ok(());
    };
    let version = Running::start(&mut installed.sublet(&["--version"]))?.end()?;
    let wanted = format!("sublet {}", env!("CARGO_PKG_VERSION"));
    assert!(version.lines[0].starts_with(&wanted), "{version:?}");
    let words = ["run", "--fake-gpu", SPEC, "--memory", "1GiB", "--"];
    let mut python = installed.sublet(&words);
    python
        .arg(installed.venv.join("bin/python"))
        .args(["-c", ASKS]);
    let ended = Running::start(&mut python)?.end()?;
    assert_eq!(ended.lines, [mib(1024).to_string()], "{ended:?}");
    for place in [
        "share/man/man1/sublet.1",
        "share/man/man1/sublet-run.1",
        "share/bash-completion/completions/sublet",
        "share/zsh/site-functions/_sublet",
        "share/fish/vendor_completions.d/sublet.fish",
    ] {
        let text = fs::read_to_string(installed.venv.join(place)).context(place)?;
        ensure!(text.contains("sublet"), "{place}: {text}");
        // A script must find the command where it is installed, not where it was built.
        ensure!(!text.contains("one-file"), "{place}: {text}");
    }
    Ok(())
}

#[test]
fn its_demonstration_needs_nothing_else() -> Result<()> {
    let Some(installed) = Installed::new()? else {
        return Ok(());
    };
    let mut demo = installed.sublet(&["demo"]);
    // As people type it: the commands that it shows begin so.
    let demo = Running::start(demo.arg0("sublet"))?;
    let jobs = || {
        let mut jobs = installed.sublet(&["ps", "--fake-gpu", "2x16GiB", "-o", "json"]);
        Running::start(&mut jobs)?.end()?.document()
    };
    // The first job of the first one.
    eventually(|| {
        let jobs = jobs()?;
        ensure!(jobs["jobs"][0]["name"] == "trainer", "{jobs}");
        Ok(())
    })?;
    let second = Running::start(&mut installed.sublet(&["demo"]))?.end()?;
    assert_eq!(second.code, Some(1), "{second:?}");
    let told = "error: the fake machine 2x16GiB has ";
    assert!(second.errors.starts_with(told), "{second:?}");
    let first = demo.end()?;
    assert_eq!(first.code, Some(0), "{first:?}");
    let text = first.lines.join("\n");
    for wanted in [
        "late: done",
        "its limit of 2147483648; the driver said CUDA_ERROR_OUT_OF_MEMORY",
        "GPU 0 lacks 2048 MiB: 8192 MiB asked, and 6144 MiB are free there",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let picture = fs::read_to_string(repository().join("docs/demo.svg"))?;
    let lines = first.lines.iter().map(|line| masked(line));
    assert_eq!(
        drawn(&picture),
        lines.collect::<Vec<_>>(),
        "draw it anew: cargo xtask demo --record docs/demo.svg"
    );
    // What it types can be typed.
    let help = Running::start(&mut installed.sublet(&["workload", "--help"]))?.end()?;
    assert_eq!(help.code, Some(0), "{help:?}");
    assert!(
        help.lines.iter().any(|line| line.contains("train")),
        "{help:?}"
    );
    Ok(())
}
