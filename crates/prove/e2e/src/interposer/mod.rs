//! Checks that each call through the interposer reaches the driver unchanged.
//!
//! The prototypes come from NVIDIA's headers, which a C compiler reads, and not from the table
//! that the interposer is built from. From the prototypes this module writes two programs in C: a
//! *recorder* that stands in for the driver and stores each call, and a *caller* that makes each
//! call and compares. `c/recorder.h` and `c/caller.h` say what they do; this module only writes
//! and builds them.

mod programs;
mod prototypes;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

pub use programs::{Expect, Programs};
pub use prototypes::{Prototype, prototypes};

/// One of the driver's two libraries.
#[derive(Debug)]
pub struct Library {
    /// The name under which programs load it.
    pub soname: &'static str,
    /// The variable that tells the interposer where to look for the real library first.
    pub variable: &'static str,
    /// The prefix of the names of its functions.
    pub prefix: &'static str,
    /// The file of `c/` that includes its headers.
    pub declarations: &'static str,
    /// A folder with this header is taken for a package with the library's headers.
    header: &'static str,
    /// Our library of that name.
    pub interposer: &'static str,
    /// The fake machine's library of that name.
    pub fake: &'static str,
}

/// libcuda.
pub const CUDA: Library = Library {
    soname: "libcuda.so.1",
    variable: "SUBLET_DRIVER_CUDA",
    prefix: "cu",
    declarations: "cuda_declarations.h",
    header: "cuda.h",
    interposer: "libsublet_cuda.so",
    fake: "libsublet_fakecuda.so",
};

/// libnvidia-ml.
pub const NVML: Library = Library {
    soname: "libnvidia-ml.so.1",
    variable: "SUBLET_DRIVER_NVML",
    prefix: "nvml",
    declarations: "nvml_declarations.h",
    header: "nvml.h",
    interposer: "libsublet_nvml.so",
    fake: "libsublet_fakenvml.so",
};

/// Folders with NVIDIA's headers.
#[derive(Debug)]
pub struct Headers {
    /// The package's folder first, then folders with headers that it includes but does not hold.
    folders: Vec<PathBuf>,
}

impl fmt::Display for Headers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.folders.first().map(|folder| folder.display());
        first.map_or(Ok(()), |first| write!(out, "the headers in {first}"))
    }
}

impl Headers {
    /// The packages that have a library's headers, from the list of folders in `SUBLET_HEADERS`. If
    /// that is not set, prints why the test is skipped and returns none.
    #[must_use]
    pub fn of(library: &Library) -> Vec<Headers> {
        let Some(list) = env::var_os("SUBLET_HEADERS").filter(|list| !list.is_empty()) else {
            let reason = env::var("SUBLET_HEADERS_SKIP");
            let reason = reason.as_deref();
            let reason = reason.unwrap_or("SUBLET_HEADERS is not set; run `cargo xtask test`");
            println!("skipped: {reason}");
            return Vec::new();
        };
        let folders: Vec<PathBuf> = env::split_paths(&list).collect();
        let is_package = |folder: &Path| {
            [&CUDA, &NVML]
                .iter()
                .any(|one| folder.join(one.header).is_file())
        };
        let others = folders.iter().filter(|folder| !is_package(folder));
        let own = folders
            .iter()
            .filter(|folder| folder.join(library.header).is_file());
        own.map(|folder| Headers {
            folders: [folder]
                .into_iter()
                .chain(others.clone())
                .cloned()
                .collect(),
        })
        .collect()
    }

    /// The C compiler, with these folders to include from.
    #[must_use]
    pub fn compiler(&self) -> Command {
        let mut compiler = Command::new("cc");
        compiler.arg("-I").arg(sources());
        for folder in &self.folders {
            compiler.arg("-I").arg(folder);
        }
        compiler
    }

    /// All functions of a library that the headers declare.
    ///
    /// # Errors
    /// The compiler refuses the headers, or one of their declarations cannot be parsed.
    pub fn prototypes(&self, library: &Library) -> Result<Vec<Prototype>> {
        let source = sources().join(library.declarations);
        let text = output(self.compiler().args(["-E", "-P"]).arg(source))?;
        prototypes(&text, library.prefix)
    }
}

/// The C files of these tests.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c")
}

/// A library that was built into the folder of the product's binary (`SUBLET_BIN`).
///
/// # Errors
/// It is not there.
pub fn built(name: &str) -> Result<PathBuf> {
    let program = env::var_os("SUBLET_BIN").context("SUBLET_BIN is not set")?;
    let path = Path::new(&program).with_file_name(name);
    let path = path.canonicalize();
    path.with_context(|| {
        format!("find {name} beside SUBLET_BIN; `cargo build --workspace` builds it")
    })
}

/// The functions that a shared library exports under a library's prefix.
///
/// # Errors
/// `nm` cannot read it.
pub fn exports(path: &Path, library: &Library) -> Result<BTreeSet<String>> {
    let all = symbols(path, library)?.into_iter();
    let code = all.filter(|(_, is_code)| *is_code);
    Ok(code.map(|(name, _)| name).collect())
}

/// All that a shared library exports under a library's prefix; true for a function.
///
/// # Errors
/// `nm` cannot read it.
pub fn symbols(path: &Path, library: &Library) -> Result<BTreeMap<String, bool>> {
    let listed = output(
        Command::new("nm")
            .args(["-D", "--defined-only", "-P"])
            .arg(path),
    )?;
    // A line has name, kind and address. The kind `T` is code.
    let all = listed.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()? == "T"))
    });
    Ok(all
        .filter(|(name, _)| name.starts_with(library.prefix))
        .collect())
}

/// Runs a program; returns what it printed, or an error with that text.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_owned();
    let done = command
        .output()
        .with_context(|| format!("run {}", name.display()))?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr);
    ensure!(
        done.status.success(),
        "{} failed ({}):\n{text}{errors}",
        name.display(),
        done.status
    );
    Ok(text)
}
