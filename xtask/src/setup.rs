//! The first needs of every task: the repository, the folder of built programs, and the stock
//! components.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sublet_testbed::{Binaries, Helm, Operators, Progress, Prometheus, control_plane, debian};

/// The repository this was compiled in.
pub(crate) fn repository() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lies in no repository")
}

/// A program of the workspace, as `cargo build` leaves it: ours lies in the same tree.
pub(crate) fn program(profile: &str, name: &str) -> Result<PathBuf> {
    let this = env::current_exe().context("find the running program")?;
    let target = this
        .parent()
        .and_then(Path::parent)
        .context("this program lies in no folder")?;
    Ok(target.join(profile).join(name))
}

/// Packages of the product, with the libraries that `sublet run` looks for beside it and the programs
/// that tests and demonstrations run on a GPU.
pub(crate) const PRODUCT: [&str; 8] = [
    "sublet",
    "sublet-dataset-server",
    "sublet-libcuda",
    "sublet-libnvml",
    "sublet-preload",
    "sublet-fakecuda",
    "sublet-fakenvml",
    "sublet-workload",
];

/// Arguments of `cargo build` for the product.
pub(crate) fn product() -> Vec<&'static str> {
    PRODUCT
        .iter()
        .flat_map(|name| ["--package", name])
        .collect()
}

/// `cargo` with arguments, at the root of the repository.
pub(crate) fn cargo(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.args(args).current_dir(repository()?);
    // A build script that watches one of these (ring's does) would be built anew each time.
    for (name, _) in env::vars_os().filter(|(name, _)| describes_this_package(name)) {
        command.env_remove(name);
    }
    Ok(command)
}

/// True for a variable that the outer `cargo run` sets to describe xtask, and no user sets.
/// Source: "Environment variables Cargo sets for crates" in the Cargo book.
fn describes_this_package(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    matches!(
        name,
        "CARGO_MANIFEST_DIR" | "CARGO_MANIFEST_PATH" | "CARGO_PRIMARY_PACKAGE"
    ) || ["CARGO_PKG_", "CARGO_BIN_", "CARGO_CRATE_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Runs a command to its end; its output goes to ours.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let what: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    let what = what.join(" ");
    let status = command.status().with_context(|| format!("run {what}"))?;
    ensure!(status.success(), "failed ({status}): {what}");
    Ok(())
}

/// All files below a folder.
pub(crate) fn list(folder: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        match path.is_dir() {
            true => list(&path, into)?,
            false => into.push(path),
        }
    }
    Ok(())
}

/// Places by which the kernel shows a loaded GPU driver: NVIDIA's, or that of WSL. A device file
/// such as `/dev/nvidiactl` shows none: NVIDIA's libraries make it where they find no driver.
const DRIVER: [&str; 2] = ["/proc/driver/nvidia/version", "/dev/dxg"];

/// True on a machine with a GPU's driver.
pub(crate) fn has_driver() -> bool {
    DRIVER.iter().any(|place| Path::new(place).exists())
}

/// The stock components, and why there is no real node, if so.
#[derive(Debug)]
pub(crate) struct Components {
    pub(crate) binaries: Binaries,
    pub(crate) no_node: Option<String>,
    /// Present if it was asked for.
    helm: Option<Helm>,
    /// Present for long tests.
    prometheus: Option<Prometheus>,
    operators: Option<Operators>,
}

impl Components {
    /// Builds or finds the control plane alone.
    pub(crate) fn without_node() -> Result<Components> {
        let binaries = control_plane(repository()?, false, &mut Progress::new())?;
        Ok(Components {
            binaries,
            no_node: Some("not asked for".to_owned()),
            helm: None,
            prometheus: None,
            operators: None,
        })
    }

    /// Builds or finds everything, installing Debian packages if possible.
    pub(crate) fn with_node() -> Result<Components> {
        let mut progress = Progress::new();
        let no_node = debian::prepare(&mut progress).err();
        if let Some(reason) = &no_node {
            progress.say(&format!("tests on a real node will be skipped: {reason}"));
        }
        progress.restart();
        let binaries = control_plane(repository()?, no_node.is_none(), &mut progress)?;
        Ok(Components {
            binaries,
            no_node,
            helm: None,
            prometheus: None,
            operators: None,
        })
    }

    /// The same with helm, and the operators that cost little.
    pub(crate) fn for_tests() -> Result<Components> {
        let mut components = Components::with_node()?;
        components.helm = Some(Helm::build(repository()?, &mut Progress::new())?);
        let operators = Operators::build(repository()?, false, &mut Progress::new())?;
        components.operators = Some(operators);
        Ok(components)
    }

    /// Adds the components of long tests, each in a cache entry of its own.
    pub(crate) fn add_long(&mut self) -> Result<()> {
        self.prometheus = Some(Prometheus::build(repository()?, &mut Progress::new())?);
        self.operators = Some(Operators::build(repository()?, true, &mut Progress::new())?);
        Ok(())
    }

    /// Tells a program about them, by the variables that `sublet-testbed` reads.
    pub(crate) fn tell(&self, command: &mut Command) {
        command.env("SUBLET_CONTROL_PLANE", self.binaries.root());
        if let Some(reason) = &self.no_node {
            command.env("SUBLET_NODE_SKIP", reason);
        }
        if let Some(helm) = &self.helm {
            command.env("SUBLET_HELM", helm.program());
        }
        if let Some(prometheus) = &self.prometheus {
            command.env("SUBLET_PROMETHEUS", prometheus.folder());
        }
        if let Some(operators) = &self.operators {
            command.env("SUBLET_OPERATORS", operators.folder());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    /// The environment of the process that started us; that is cargo.
    fn cargos_own() -> BTreeMap<OsString, OsString> {
        let path = format!("/proc/{}/environ", std::os::unix::process::parent_id());
        let text = fs::read(path).unwrap();
        let variables = text.split(|byte| *byte == 0).filter_map(|variable| {
            let at = variable.iter().position(|byte| *byte == b'=')?;
            let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
            Some((text(&variable[..at]), text(&variable[at + 1..])))
        });
        variables.collect()
    }

    /// Ring's build script watches `CARGO_MANIFEST_DIR`, and so 17 crates were compiled anew whenever
    /// `cargo xtask` followed a plain `cargo build`, and the other way round.
    #[test]
    fn what_cargo_tells_this_program_it_does_not_tell_the_cargo_that_it_starts() {
        // Which cargo it is, and where libraries are: no build script asks for these.
        const MAY_STAY: [&str; 2] = ["CARGO", "LD_LIBRARY_PATH"];
        if env::var_os("CARGO_MANIFEST_DIR").is_none() {
            println!("skipped: cargo did not start this test");
            return;
        }
        let before = cargos_own();
        let command = cargo(&["build"]).unwrap();
        let removed: BTreeSet<&OsStr> = command
            .get_envs()
            .filter_map(|(name, value)| value.is_none().then_some(name))
            .collect();
        let told: Vec<OsString> = env::vars_os()
            .filter(|(name, value)| before.get(name) != Some(value))
            .map(|(name, _)| name)
            .collect();
        assert!(told.contains(&"CARGO_MANIFEST_DIR".into()), "{told:?}");
        for name in told {
            let stays = MAY_STAY.iter().any(|stays| name == *stays);
            assert!(
                stays || removed.contains(name.as_os_str()),
                "{name:?} reaches the builds that xtask starts"
            );
        }
        for users in ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_BUILD_JOBS", "PATH"] {
            assert!(
                !describes_this_package(users.as_ref()),
                "{users} is the user's"
            );
        }
    }

    /// Each package with its features, as cargo would compile it for these.
    fn compiled_for(selection: &[&str], edges: &str) -> BTreeSet<String> {
        let tree = ["tree", "--offline", "--prefix", "none", "--edges", edges];
        let format = ["--format", "{p} {f}"];
        let mut command = cargo(&[&tree[..], &format, selection].concat()).unwrap();
        let listed = command.output().unwrap();
        assert!(
            listed.status.success(),
            "{}",
            String::from_utf8_lossy(&listed.stderr)
        );
        let text = String::from_utf8(listed.stdout).unwrap();
        let lines = text.lines().filter(|line| !line.is_empty());
        lines
            .map(|line| line.trim_end_matches(" (*)").to_owned())
            .collect()
    }

    /// One feature that only a test's crate wanted of rustix had 18 crates compiled twice, `sublet`
    /// and the arbiter among them: a minute of each `cargo xtask test`.
    #[test]
    fn the_product_is_made_of_what_the_tests_have_built() {
        let tests = compiled_for(&["--workspace"], "normal,build,dev");
        let product = compiled_for(&product(), "normal,build");
        assert!(product.len() > 100, "{product:?}");
        let twice: Vec<&String> = product.difference(&tests).collect();
        assert!(
            twice.is_empty(),
            "compiled again, because the tests want other features of them: {twice:?}"
        );
    }
}
