//! `cargo xtask libraries`: the libraries that go into strangers' containers.
//!
//! A library built here asks for the glibc of this machine, and an image with an older one
//! refuses to load it. So these are linked by zig, which knows the symbols of every glibc, for
//! the oldest that current CUDA images have. What came out is checked, not what was asked for.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use anyhow::{Context, Result, bail, ensure};
use sublet_testbed::default_cache;

use crate::screen::heading;
use crate::setup::{repository, run as run_command};
use crate::test::Step;

/// The oldest glibc that must be able to load them: that of RHEL 8, the base of the oldest images
/// that CUDA 12 still comes for.
const GLIBC: (u32, u32) = (2, 28);

/// What links them, as pip's list of wanted packages.
const LINKER: &str = "\
cargo-zigbuild==0.24.0 --hash=sha256:484412e39e4c6039474535ce97ee75a22bab22d58233056f8ec8a8f9034bb957
ziglang==0.17.1 --hash=sha256:ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54
";

/// Our packages, the files they become, and the names under which programs look for those.
const LIBRARIES: [(&str, &str, Option<&str>); 3] = [
    ("sublet-libcuda", "libsublet_cuda.so", Some("libcuda.so.1")),
    (
        "sublet-libnvml",
        "libsublet_nvml.so",
        Some("libnvidia-ml.so.1"),
    ),
    ("sublet-preload", "libsublet_preload.so", None),
];

/// What each may need at run time: parts of glibc itself, old and new.
const MAY_NEED: [&str; 4] = [
    "libc.so.6",
    "ld-linux-x86-64.so.2",
    "libpthread.so.0",
    "libdl.so.2",
];

/// Builds and checks them, and says where they are.
pub(crate) fn run() -> Result<()> {
    let folder = build()?;
    println!("{}", folder.display());
    Ok(())
}

/// Building and checking them, as a step of the tests.
pub(crate) fn step() -> Result<Step> {
    let mut command = Command::new(env::current_exe().context("find the running program")?);
    command.arg("libraries");
    Ok(Step {
        what: "libraries for old containers",
        usual: "15 s, and 100 MB once",
        command,
    })
}

/// Why they cannot be built here, if so.
pub(crate) fn missing() -> Option<String> {
    let pip = Command::new("python3")
        .args(["-m", "pip", "--version"])
        .output();
    match pip {
        Ok(output) if output.status.success() => None,
        Ok(_) => Some("python3 has no pip, which brings the linker".to_owned()),
        Err(error) => Some(format!("python3, whose pip brings the linker: {error}")),
    }
}

/// Builds and checks them; the folder they are in.
fn build() -> Result<PathBuf> {
    let linker = linker()?;
    let target = repository()?.join("target/portable");
    let mut command = Command::new(linker.join("bin/cargo-zigbuild"));
    command
        .args(["zigbuild", "--release", "--target"])
        .arg(format!("x86_64-unknown-linux-gnu.{}.{}", GLIBC.0, GLIBC.1))
        .env("CARGO_ZIGBUILD_ZIG_PATH", linker.join("ziglang/zig"))
        .env("CARGO_TARGET_DIR", &target)
        .current_dir(repository()?);
    for (package, ..) in LIBRARIES {
        command.args(["--package", package]);
    }
    run_command(&mut command)?;
    let folder = target.join("x86_64-unknown-linux-gnu/release");
    for (_, file, soname) in LIBRARIES {
        check(&folder.join(file), soname)?;
    }
    Ok(folder)
}

/// The linker's folder, fetched once into the cache.
fn linker() -> Result<PathBuf> {
    let cache = default_cache()?.join("linker");
    // Named by what is in it: another version is another folder.
    let versions = LINKER.lines().filter_map(|line| line.split(' ').next());
    let place = cache.join(versions.collect::<Vec<_>>().join("-").replace("==", "-"));
    if place.is_dir() {
        return Ok(place);
    }
    heading("a linker for old containers, by pip (100 MB, once)");
    let work = cache.join(format!("work-{}", process::id()));
    fs::create_dir_all(&work).with_context(|| format!("make {}", work.display()))?;
    let fetched = fetch(&work, &place);
    fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
    fetched.map(|()| place)
}

/// Installs the linker in one folder, and moves it to its place when complete.
fn fetch(work: &Path, place: &Path) -> Result<()> {
    let wanted = work.join("wanted.txt");
    fs::write(&wanted, LINKER)?;
    let unpacked = work.join("unpacked");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps"])
        .args(["--disable-pip-version-check", "--only-binary=:all:"])
        .args(["--require-hashes", "--requirement"])
        .arg(&wanted)
        .arg("--target")
        .arg(&unpacked);
    run_command(&mut pip)?;
    fs::rename(&unpacked, place).with_context(|| format!("make {}", place.display()))
}

/// Checks one library by what its file says.
fn check(library: &Path, soname: Option<&str>) -> Result<()> {
    let symbols = said("objdump", "-T", library)?;
    let newest = newest_glibc(&symbols);
    ensure!(
        newest.is_some_and(|newest| newest <= GLIBC),
        "{} wants glibc {newest:?}, and must do with {GLIBC:?}",
        library.display()
    );
    let dynamic = said("readelf", "-d", library)?;
    let named = |kind: &str| -> Vec<String> {
        let lines = dynamic.lines().filter(|line| line.contains(kind));
        let names = lines.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0));
        names.map(str::to_owned).collect()
    };
    if let Some(other) = named("(NEEDED)")
        .iter()
        .find(|name| !MAY_NEED.contains(&name.as_str()))
    {
        bail!(
            "{} needs {other}, which an image may lack",
            library.display()
        );
    }
    ensure!(
        named("(SONAME)") == soname.map(str::to_owned).into_iter().collect::<Vec<_>>(),
        "{} is called {:?}, and must be {soname:?}",
        library.display(),
        named("(SONAME)")
    );
    Ok(())
}

/// The newest glibc that a symbol table asks for.
fn newest_glibc(symbols: &str) -> Option<(u32, u32)> {
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let version = rest
            .split(|c: char| c != '.' && !c.is_ascii_digit())
            .next()?;
        let mut parts = version.split('.').map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    });
    versions.max()
}

/// What a tool of the C compiler's says of a file.
fn said(tool: &str, option: &str, file: &Path) -> Result<String> {
    let output = Command::new(tool)
        .arg(option)
        .arg(file)
        .output()
        .with_context(|| format!("run {tool}, which comes with the C compiler"))?;
    ensure!(
        output.status.success(),
        "{tool} {}: {}",
        file.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let table = "0 DF *UND* 0 (GLIBC_2.2.5) malloc\n0 DF *UND* 0 (GLIBC_2.28) fcntl64\n\
                     0 DF *UND* 0 (GLIBC_2.3.4) a\n0 DF *UND* 0 (GLIBC_PRIVATE) b\n";
        assert_eq!(newest_glibc(table), Some((2, 28)));
        assert_eq!(newest_glibc("no symbol at all"), None);
        assert!(newest_glibc("(GLIBC_2.34) dlopen") > Some(GLIBC));
    }
}
