//! One machine without a cluster, for tests and benchmarks. It has the product's files, a folder of
//! its own for everything that is made at run time, and a fake driver or this machine's driver.
//!
//! No machine meets another's arbiter or cards. At the end, every process with the folder's name
//! in its environment is killed by its number.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tempfile::TempDir;

/// The folder of everything that the product makes at run time.
const RUN_FOLDER: &str = "SUBLET_RUNTIME_DIR";

/// The executable, and the files that must lie beside it.
const FILES: [&str; 5] = [
    "sublet",
    "sublet-workload",
    "libsublet_cuda.so",
    "libsublet_nvml.so",
    "libsublet_preload.so",
];

/// The files that a fake machine needs too.
const FAKE_FILES: [&str; 2] = ["libsublet_fakecuda.so", "libsublet_fakenvml.so"];

/// Variables that an outer job or a user's shell may have set. Programs here must not see them.
const FOREIGN: [&str; 11] = [
    "SUBLET_DIR",
    "SUBLET_MODE",
    "SUBLET_DRIVER_CUDA",
    "SUBLET_DRIVER_NVML",
    "SUBLET_FAKE_GPU",
    "SUBLET_FAKE_FAULT",
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_LAUNCH_BLOCKING",
];

/// A machine whose arbiter starts with its first job.
#[derive(Debug)]
pub struct Machine {
    base: TempDir,
    bin: PathBuf,
    spec: Option<String>,
}

impl Machine {
    /// The fake machine that `spec` describes, or this machine if there is no `spec`. `bin` is the
    /// folder of the executable and the libraries.
    ///
    /// # Errors
    /// A file is missing in that folder, or temporary files cannot be made.
    pub fn new(bin: &Path, spec: Option<&str>) -> Result<Machine> {
        let machine = Machine {
            base: tempfile::tempdir()?,
            bin: std::path::absolute(bin)?,
            spec: spec.map(str::to_owned),
        };
        for name in machine.files() {
            let file = machine.built(name);
            ensure!(
                file.is_file(),
                "{} is missing; `cargo build --workspace` makes it",
                file.display()
            );
        }
        Ok(machine)
    }

    /// The executable and the files that must lie beside it.
    pub fn files(&self) -> impl Iterator<Item = &'static str> {
        let fake = FAKE_FILES.into_iter().filter(|_| self.spec.is_some());
        FILES.into_iter().chain(fake)
    }

    /// The description of the fake machine; `None` for this machine.
    #[must_use]
    pub fn spec(&self) -> Option<&str> {
        self.spec.as_deref()
    }

    /// The folder that holds everything.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.base.path()
    }

    /// A file of the product.
    #[must_use]
    pub fn built(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// A program with this machine's environment, and nothing of an outer job.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for name in FOREIGN {
            command.env_remove(name);
        }
        command
            .env(RUN_FOLDER, self.run_folder())
            .env("SUBLET_FAKE_ROOT", self.path())
            .current_dir(self.path());
        command
    }

    /// The folder with the arbiter's sockets and log; it exists after the first job.
    ///
    /// # Errors
    /// There was no job.
    pub fn folder(&self) -> Result<PathBuf> {
        let run_folder = self.run_folder();
        let entries = fs::read_dir(&run_folder).context("no job has been there")?;
        let mut folders = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let found = folders.find(|folder| folder.join(LOCK).exists());
        found.with_context(|| format!("no arbiter has been in {}", run_folder.display()))
    }

    /// The arbiter's process.
    ///
    /// # Errors
    /// There is no file with its process number.
    pub fn arbiter(&self) -> Result<Pid> {
        let text = fs::read_to_string(self.folder()?.join(LOCK))?;
        let lock: serde_json::Value = serde_json::from_str(&text)?;
        let pid = lock["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        pid.and_then(Pid::from_raw).context("no process number")
    }

    fn run_folder(&self) -> PathBuf {
        self.path().join("run")
    }
}

/// A process that was killed is gone after so long, if it does not hang in the kernel.
const GONE: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// The file beside the arbiter's sockets that names its process.
const LOCK: &str = "arbiter.lock";

impl Drop for Machine {
    fn drop(&mut self) {
        let mark = format!("{RUN_FOLDER}={}", self.run_folder().display());
        let mut pids: Vec<Pid> = self.arbiter().into_iter().collect();
        pids.retain(|pid| name_of(*pid) == "sublet");
        // A process that is killed may just have started another, so look again.
        for _ in 0..3 {
            pids.extend(marked(mark.as_bytes()));
            let running = pids.iter().filter_map(|pid| {
                let running = pidfd_open(*pid, PidfdFlags::empty()).ok();
                let _gone = kill_process(*pid, Signal::KILL);
                running
            });
            // The next machine may have the same cards, and they have one arbiter at a time.
            for process in running.collect::<Vec<OwnedFd>>() {
                let _late = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&GONE));
            }
            pids.clear();
        }
    }
}

/// Processes with this entry in their environment.
fn marked(mark: &[u8]) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let own = rustix::process::getpid();
    pids.filter_map(Pid::from_raw)
        .filter(|pid| *pid != own)
        .filter(|pid| {
            let file = format!("/proc/{}/environ", pid.as_raw_nonzero());
            let all = fs::read(file).unwrap_or_default();
            all.split(|byte| *byte == 0).any(|entry| entry == mark)
        })
        .collect()
}

fn name_of(pid: Pid) -> String {
    let file = format!("/proc/{}/comm", pid.as_raw_nonzero());
    fs::read_to_string(file)
        .unwrap_or_default()
        .trim()
        .to_owned()
}
