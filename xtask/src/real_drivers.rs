//! NVIDIA's own driver libraries and programs, of three versions, for tests that hold ours to
//! them. They run without a card. Debian's component `non-free` has them; the user's own apt
//! fetches them from its own mirror, whose signatures it checks. They are unpacked into folders of
//! the cache. NVIDIA's licence lets nobody hand them out: they are installed nowhere, and are in no
//! repository, image or release.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cache;
use crate::screen::heading;
use crate::setup::run as run_command;

/// A version of the driver, as Debian packs it.
struct Driver {
    /// The suite that has it.
    suite: &'static str,
    /// The version of all its packages.
    version: &'static str,
    /// SHA-256 of each of [`PACKAGES`].
    sha256: [&'static str; 4],
}

/// The packages of a driver: libcuda, NVML, `nvidia-smi`, and MPS's control program.
const PACKAGES: [&str; 4] = ["libcuda1", "libnvidia-ml1", "nvidia-smi", "nvidia-cuda-mps"];

/// The drivers of CUDA 12.2, 12.4 and 12.5.
const DRIVERS: [Driver; 3] = [
    Driver {
        suite: "bookworm",
        version: "535.261.03-1",
        sha256: [
            "de1e9ca34164a5983b3f752e6699cf1ad924790f1a843b7d582bab6f99206e1e",
            "c729da6ab729309dc3f481fe4d38f04ea03b0793154b0962b60117d2f37d082e",
            "9b4392fa97957603d96f3cf1141fe78d871f5bcdd2e6bf810bce278cc14cb6d4",
            "1341544805aa9c839af45bac5a4bd697cb3eb43105eec439bfba60a8e13ba35a",
        ],
    },
    Driver {
        suite: "trixie",
        version: "550.163.01-2",
        sha256: [
            "8feff97aac61d6f27ded96a3c25b9e68025a680476e6072ff7eaf10623509135",
            "01c1b67d511d7f52c6aa60e14ed56a8eb725d5dc85784a08214d6cb0f4fd1f89",
            "547978bd189284911beace21d83834866026e4d5b2026d8bcb74f6cd147c8be9",
            "7da3f29e5ad3390d9fddab7042fa6e9a76df85a69d69efc40401df2f83874764",
        ],
    },
    Driver {
        suite: "experimental",
        version: "555.58.02-4",
        sha256: [
            "3f2c5cb91c88b5f6ce05c81de553ce3ff72e0772dcd07c7e0a85b8cd408b4457",
            "b731d4ae7f68bd940e6f4c7f072a17b58f38685f875087e61f29c1f23dc7972b",
            "f7bc9064215ccec053701d95c527a69fac760574358067e088689e1366113ba4",
            "7f68f5de74d4ab4fa3182e23bcb7eaa8fd86e54cb8f406f4bebdee963cd4b725",
        ],
    },
];

/// Debian's keys: older releases do without a file of their own.
const KEYS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];

/// The drivers that can be had, and why others cannot.
pub(crate) struct RealDrivers {
    folders: Vec<PathBuf>,
    pub(crate) reasons: Vec<String>,
}

impl RealDrivers {
    /// Finds them in the cache, or fetches them.
    pub(crate) fn find() -> RealDrivers {
        heading("NVIDIA's own drivers: Debian packages (3 times 4 MB once, then nothing)");
        let mut found = RealDrivers {
            folders: Vec::new(),
            reasons: Vec::new(),
        };
        for driver in &DRIVERS {
            match driver.folder() {
                Ok(folder) => found.folders.push(folder),
                Err(why) => {
                    let reason = format!("no driver {} of NVIDIA's: {why:#}", driver.version);
                    eprintln!("tests with it will be skipped: {reason}");
                    found.reasons.push(reason);
                }
            }
        }
        found
    }

    /// Tells a program of tests about them.
    pub(crate) fn tell(&self, command: &mut Command) -> Result<()> {
        if !self.folders.is_empty() {
            let list = env::join_paths(&self.folders);
            let list = list.context("the cache folder's name cannot stand in a list")?;
            command.env("SUBLET_REAL_DRIVERS", list);
        }
        if !self.reasons.is_empty() {
            command.env("SUBLET_REAL_DRIVERS_SKIP", self.reasons.join("; "));
        }
        Ok(())
    }
}

impl Driver {
    /// The folder that it is unpacked in; fetched when the cache does not have it.
    fn folder(&self) -> Result<PathBuf> {
        let what = format!("NVIDIA's driver {} of {}, by apt", self.version, self.suite);
        cache::folder("real-drivers", self.version, &what, |into| {
            let work = into.parent().context("the cache has no folder")?;
            let sources = format!(
                "Types: deb\nURIs: {}\nSuites: {}\nComponents: non-free\nArchitectures: amd64\n{}",
                mirror()?,
                self.suite,
                signed_by(),
            );
            fs::write(work.join("debian.sources"), sources).context("write apt's sources")?;
            run_command(apt(work)?.arg("update"))?;
            for (name, sha256) in PACKAGES.iter().zip(self.sha256) {
                self.unpack(name, sha256, work, into)?;
            }
            Ok(())
        })
    }

    /// Fetches one package into the folder `work`, compares it, and unpacks it.
    fn unpack(&self, name: &str, sha256: &str, work: &Path, into: &Path) -> Result<()> {
        let version = self.version;
        run_command(apt(work)?.arg("download").arg(format!("{name}={version}")))?;
        let file = format!("{name}_{version}_amd64.deb");
        fs::write(work.join("sums"), format!("{sha256}  {file}\n")).context("write the sums")?;
        let mut check = Command::new("sha256sum");
        check.args(["--check", "--quiet", "--strict", "sums"]);
        run_command(check.current_dir(work))?;
        let mut unpack = Command::new("dpkg");
        run_command(unpack.arg("--extract").arg(work.join(file)).arg(into))
    }
}

/// The mirror of Debian that this machine's apt is set up with: the one that has its own release.
fn mirror() -> Result<String> {
    let about = fs::read_to_string("/etc/os-release").context("read /etc/os-release")?;
    let says = |key: &str| about.lines().find_map(|line| line.strip_prefix(key));
    let (id, release) = (says("ID="), says("VERSION_CODENAME="));
    ensure!(
        id == Some("debian"),
        "this is not Debian, whose packages they are"
    );
    let release = release.context("this Debian has no name")?;
    let mut apt = Command::new("apt-get");
    apt.args(["indextargets", "--format", "$(REPO_URI)"]);
    apt.args(["Created-By: Packages", "Component: main"]);
    let said = apt.arg(format!("Release: {release}")).output();
    let said = said.context("apt-get")?;
    let mirrors = String::from_utf8(said.stdout).context("what apt-get says")?;
    let mirror = mirrors.lines().next();
    let mirror = mirror.with_context(|| format!("apt knows no mirror of Debian {release}"))?;
    Ok(mirror.to_owned())
}

/// The line that names Debian's keys, where there is such a file.
fn signed_by() -> String {
    let keys = KEYS.iter().find(|file| Path::new(file).is_file());
    keys.map_or_else(String::new, |file| format!("Signed-By: {file}\n"))
}

/// `apt-get` with that folder's sources alone, which keeps all it learns in the folder.
fn apt(work: &Path) -> Result<Command> {
    let (lists, cache) = (work.join("lists"), work.join("archives"));
    for folder in [&lists, &cache] {
        let partial = folder.join("partial");
        fs::create_dir_all(&partial).with_context(|| format!("make {}", partial.display()))?;
    }
    let mut apt = Command::new("apt-get");
    let mut option = |name: &str, value: &Path| {
        apt.arg("--option")
            .arg(format!("{name}={}", value.display()));
    };
    option("Dir::Etc::SourceList", &work.join("debian.sources"));
    option("Dir::Etc::SourceParts", Path::new("-"));
    option("Dir::State::Lists", &lists);
    option("Dir::Cache", work);
    option("Dir::Cache::Archives", &cache);
    option("Acquire::Languages", Path::new("none"));
    // Another user could not write into the folder.
    option("APT::Sandbox::User", Path::new("root"));
    option("APT::Update::Error-Mode", Path::new("any"));
    apt.arg("-qq").current_dir(work);
    Ok(apt)
}
