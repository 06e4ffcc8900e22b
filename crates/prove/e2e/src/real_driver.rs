//! NVIDIA's own driver, which `cargo xtask test --all` unpacks from Debian's packages: libraries
//! and programs that run on a machine without a card.
//!
//! Its libraries, run by root, make the file `/dev/nvidiactl` where it is missing, and leave it.
//! Whatever takes that file for a driver is then fooled. So tests take from them the right to make
//! device files, and look at the end whether there is one.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::interposer::Library;

/// The folders of the unpacked drivers, and the reasons why others are missing.
const LIST: &str = "SUBLET_REAL_DRIVERS";
const REASONS: &str = "SUBLET_REAL_DRIVERS_SKIP";

/// One version of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RealDriver {
    folder: PathBuf,
}

impl RealDriver {
    /// All that there are. Prints why a test is skipped, for each that is missing.
    #[must_use]
    pub fn all() -> Vec<RealDriver> {
        if env::var_os(LIST).is_none() && env::var_os(REASONS).is_none() {
            println!("skipped: {LIST} is not set; run `cargo xtask test --all`");
        }
        RealDriver::beside_a_stand_in()
    }

    /// The same for a test that has run with a stand-in: if nobody looked for drivers, there are
    /// none, and nothing is said.
    #[must_use]
    pub fn beside_a_stand_in() -> Vec<RealDriver> {
        if let Ok(reasons) = env::var(REASONS) {
            println!("skipped: {reasons}");
        }
        let list = env::var_os(LIST).unwrap_or_default();
        let folders = env::split_paths(&list).filter(|folder| folder.is_absolute());
        folders.map(|folder| RealDriver { folder }).collect()
    }

    /// Debian's version of it, such as `535.261.03-1`.
    #[must_use]
    pub fn version(&self) -> String {
        let name = self.folder.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// The folder of its libraries.
    #[must_use]
    pub fn libraries(&self) -> PathBuf {
        self.folder.join("usr/lib/x86_64-linux-gnu/nvidia/current")
    }

    /// One of its libraries.
    #[must_use]
    pub fn library(&self, library: &Library) -> PathBuf {
        self.libraries().join(library.soname)
    }

    /// `nvidia-smi`.
    #[must_use]
    pub fn smi(&self) -> PathBuf {
        self.folder.join("usr/lib/nvidia/current/nvidia-smi")
    }

    /// `nvidia-cuda-mps-control`.
    #[must_use]
    pub fn mps_control(&self) -> PathBuf {
        self.folder.join("usr/bin/nvidia-cuda-mps-control")
    }
}

/// The words before a command by which it cannot make device files. Only root could.
#[must_use]
pub fn without_device_files() -> &'static [&'static str] {
    match rustix::process::geteuid().is_root() {
        true => &["setpriv", "--bounding-set=-mknod", "--inh-caps=-mknod"],
        false => &[],
    }
}

/// The file that NVIDIA's libraries make, as it was before a test.
#[derive(Debug)]
pub struct DeviceFile {
    was_there: bool,
}

impl DeviceFile {
    /// As it is now.
    #[must_use]
    pub fn as_it_is() -> DeviceFile {
        DeviceFile {
            was_there: DeviceFile::is_there(),
        }
    }

    fn is_there() -> bool {
        Path::new("/dev/nvidiactl").exists()
    }

    /// Checks that it is as it was.
    ///
    /// # Errors
    /// A test has made it.
    pub fn is_untouched(&self) -> Result<()> {
        ensure!(
            DeviceFile::is_there() == self.was_there,
            "the driver has made /dev/nvidiactl: remove it"
        );
        Ok(())
    }
}
