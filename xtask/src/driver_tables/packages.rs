//! The packages with the headers that the tables are made from, pinned by version and
//! checksum.
//!
//! They come through the user's own `pip`, which finds them and compares the checksum. Only
//! names and signatures of theirs are committed.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use anyhow::{Context, Result};
use sublet_testbed::default_cache;

use crate::setup::run;

/// A wheel that holds headers.
pub(super) struct Package {
    name: &'static str,
    version: &'static str,
    sha256: &'static str,
    /// The CUDA version that its headers describe, as CUDA counts: 13.5 is 13050.
    pub(super) since: u32,
}

/// The functions in the toolkit of our target, driver R580.
pub(super) const CUDA_OLD: Package = Package {
    name: "nvidia-cuda-runtime",
    version: "13.0.96",
    sha256: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    since: 13000,
};

/// The newest toolkit: its additional functions are forwarded too.
pub(super) const CUDA_NEW: Package = Package {
    name: "nvidia-cuda-runtime",
    version: "13.5.37",
    sha256: "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
    since: 13050,
};

/// The newest NVML, which declares all older functions too.
pub(super) const NVML: Package = Package {
    name: "nvidia-nvml-dev",
    version: "13.5.37",
    sha256: "7394fcbefa9ba537e8238cbb1caa4cd2db6bbfbff208d217a8a884947113ae6d",
    since: 13050,
};

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

impl Package {
    /// The folder with the package's headers; fetched when the cache does not have it.
    pub(super) fn folder(&self) -> Result<PathBuf> {
        let cache = default_cache()?.join("driver-headers");
        let place = cache.join(format!("{}-{}", self.version, self.sha256));
        let headers = place.join("nvidia/cu13/include");
        if headers.is_dir() {
            return Ok(headers);
        }
        println!("downloading {self}");
        let work = cache.join(format!("work-{}", process::id()));
        fs::create_dir_all(&work).with_context(|| format!("make {}", work.display()))?;
        let done = self.fetch(&work, &place);
        fs::remove_dir_all(&work)?;
        done.map(|()| headers)
    }

    /// Fetches and unpacks the package in one folder, and moves it to its place when complete:
    /// a place that exists is whole.
    fn fetch(&self, work: &Path, place: &Path) -> Result<()> {
        let wanted = work.join("wanted.txt");
        let Package {
            name,
            version,
            sha256,
            ..
        } = self;
        fs::write(
            &wanted,
            format!("{name}=={version} --hash=sha256:{sha256}\n"),
        )?;
        // The wheel of one platform, whatever this machine is: the headers are the same, the
        // checksum is not.
        run(Command::new("python3")
            .args(["-m", "pip", "download", "--quiet", "--no-deps"])
            .args(["--disable-pip-version-check", "--only-binary=:all:"])
            .args(["--platform", "manylinux2014_x86_64", "--require-hashes"])
            .args([OsStr::new("--requirement"), wanted.as_os_str()])
            .args([OsStr::new("--dest"), work.as_os_str()]))?;
        let wheel = fs::read_dir(work)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|kind| kind == "whl"))
            .context("pip left no wheel")?;
        let unpacked = work.join("unpacked");
        run(Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .args([&wheel, &unpacked]))?;
        fs::rename(&unpacked, place).with_context(|| format!("make {}", place.display()))
    }
}
