//! The wheel, by which `pip install` and `uv tool install` put the one file on a machine. A wheel is a
//! zip archive whose names say where its files go.
//!
//! The same files make the same bytes, for any packer at any time. (PyPA specifications: binary
//! distribution format 1.0, core metadata 2.4; platform tags of PEP 600.)

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_library::FLOOR;

/// Writes the archive: whoever installs a wheel has Python, and whoever makes a release has pip.
const SCRIPT: &str = include_str!("wheel.py");

/// Name of the package. An index may have given it to somebody else; the command is `sublet` always.
const NAME: &str = "sublet";

const VERSION: &str = env!("CARGO_PKG_VERSION");

const ABOUT: &str = "\
# Sublet

Sublet lets several programs share one NVIDIA GPU and holds each of them to its part of the memory and
of the compute time. Programs stay as they are.

    sublet demo                                        # see it work: needs no GPU
    sublet run --memory 8GiB -- python train.py        # on a machine with a GPU

It is one program, which has the scheduler extender, the controller and the node agent for Kubernetes
in it too. It needs x86-64 Linux, and for real cards NVIDIA's driver. It was never run on a real card
by those who make it.
";

/// A file of an installation.
pub(crate) struct Installed {
    /// Its place below the prefix, such as `/usr/local`.
    pub(crate) place: String,
    pub(crate) file: PathBuf,
}

/// Work that goes into making it small.
#[derive(Clone, Copy)]
pub(crate) enum Effort {
    /// For tests.
    Little,
    /// For people.
    Best,
}

/// Name of the wheel's file. pip goes by it, and refuses a wheel of another kind of machine.
pub(crate) fn file_name() -> String {
    format!("{NAME}-{VERSION}-{}.whl", tag())
}

/// Any Python 3, no interface of its C library, and the oldest glibc that the file needs.
fn tag() -> String {
    format!(
        "py3-none-manylinux_{}_{}_x86_64",
        u32::from(FLOOR.0),
        u32::from(FLOOR.1)
    )
}

/// Writes the wheel of the programs, their licences, the list of its contents (PEP 770), and the other
/// files of an installation.
pub(crate) fn pack(
    programs: &[PathBuf],
    (licenses, contents): (&[PathBuf], &Path),
    others: &[Installed],
    wheel: &Path,
    effort: Effort,
) -> Result<()> {
    let data = format!("{NAME}-{VERSION}.data");
    let about = format!("{NAME}-{VERSION}.dist-info");
    let file = |name: String, file: &Path, mode: u32| {
        let file = file.to_str().context("a path that is not UTF-8")?;
        anyhow::Ok(json!({ "name": name, "file": file, "mode": mode }))
    };
    let text = |name: &str, text: String| -> Value {
        json!({ "name": format!("{about}/{name}"), "text": text, "mode": PLAIN })
    };
    let mut entries = Vec::new();
    for program in programs {
        let name = program.file_name().context("a program without a name")?;
        let name = format!("{data}/scripts/{}", name.to_string_lossy());
        entries.push(file(name, program, 0o755)?);
    }
    for Installed { place, file: from } in others {
        entries.push(file(format!("{data}/data/{place}"), from, PLAIN)?);
    }
    let mut license_files = String::new();
    for license in licenses {
        let name = license.file_name().context("a licence without a name")?;
        let name = name.to_string_lossy();
        let _never_fails = writeln!(license_files, "License-File: {name}");
        entries.push(file(format!("{about}/licenses/{name}"), license, PLAIN)?);
    }
    let name = contents.file_name().context("a list without a name")?;
    let name = format!("{about}/sboms/{}", name.to_string_lossy());
    entries.push(file(name, contents, PLAIN)?);
    entries.push(text("METADATA", metadata(&license_files)));
    let format = format!(
        "Wheel-Version: 1.0\nGenerator: xtask {VERSION}\nRoot-Is-Purelib: false\nTag: {}\n",
        tag()
    );
    entries.push(text("WHEEL", format));
    let asked = json!({
        "wheel": wheel, "entries": entries, "record": format!("{about}/RECORD"),
        "level": match effort { Effort::Little => 1, Effort::Best => 9 },
    });
    write(&asked)
}

/// Rights of a file that is no program.
const PLAIN: u32 = 0o644;

fn write(asked: &Value) -> Result<()> {
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).stdin(Stdio::piped());
    let mut python = python.spawn().context("run python3")?;
    let mut into = python.stdin.take().context("no pipe to python3")?;
    into.write_all(asked.to_string().as_bytes())?;
    drop(into);
    let status = python.wait()?;
    ensure!(status.success(), "python3 wrote no wheel: {status}");
    Ok(())
}

fn metadata(license_files: &str) -> String {
    format!(
        "Metadata-Version: 2.4\nName: {NAME}\nVersion: {VERSION}\n\
         Summary: Share GPUs between programs, and hold each to its part\n\
         License-Expression: Apache-2.0\n{license_files}\
         Requires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n{ABOUT}"
    )
}
