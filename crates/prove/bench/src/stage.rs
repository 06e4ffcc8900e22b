//! One machine to measure on: the product's own files, an arbiter of its own, and programs that
//! run with us and without us. All of them are started as a user starts them.
//!
//! The machine is the tests' own ([`sublet_testbed::Machine`]). Figures come from outside the
//! product: from the programs' output, the arbiter's snapshot and the kernel.

mod shell;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Pid;
use rustix::time::ClockId;
use serde_json::Value;
use sublet_arbiter::admin::{Client, Reply, Request, Snapshot, TenantRow};
use sublet_testbed::Machine;

pub(crate) use shell::{PATIENCE, Shell};

/// Machines of the same kind, for figures that need a new one for each row. Two at a time are only
/// possible where cards are fake.
pub(crate) struct Stages {
    bin: PathBuf,
    spec: Option<String>,
}

impl Stages {
    /// Fake machines that `spec` describes, or this machine if there is no `spec`.
    pub(crate) fn new(bin: &Path, spec: Option<&str>) -> Stages {
        Stages {
            bin: bin.to_owned(),
            spec: spec.map(str::to_owned),
        }
    }

    /// A new one.
    pub(crate) fn open(&self) -> Result<Stage> {
        Stage::new(&self.bin, self.spec.as_deref())
    }

    /// A fake machine of another kind.
    pub(crate) fn fake(&self, spec: &str) -> Result<Stage> {
        Stage::new(&self.bin, Some(spec))
    }

    /// True if their cards are fake.
    pub(crate) fn are_fake(&self) -> bool {
        self.spec.is_some()
    }
}

/// A machine whose arbiter starts with its first job.
pub(crate) struct Stage {
    machine: Machine,
}

impl Stage {
    /// The fake machine that `spec` describes, or this machine if there is no `spec`.
    pub(crate) fn new(bin: &Path, spec: Option<&str>) -> Result<Stage> {
        let machine = Machine::new(bin, spec)?;
        Ok(Stage { machine })
    }

    /// The folder of the executable and the libraries: the chosen one, or the folder of what
    /// `SUBLET_BIN` names, or this program's own.
    pub(crate) fn bin_dir(chosen: Option<&Path>) -> Result<PathBuf> {
        if let Some(chosen) = chosen {
            return Ok(chosen.to_owned());
        }
        let file = match std::env::var_os("SUBLET_BIN") {
            Some(file) => PathBuf::from(file),
            None => std::env::current_exe()?,
        };
        let folder = file.parent().context("the program lies in no folder")?;
        Ok(folder.to_owned())
    }

    /// A folder for files; it is deleted with the stage.
    pub(crate) fn path(&self) -> &Path {
        self.machine.path()
    }

    /// A file of the product.
    pub(crate) fn built(&self, name: &str) -> PathBuf {
        self.machine.built(name)
    }

    /// A program in a clean environment that describes the machine.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.machine.command(program);
        if let Some(spec) = self.machine.spec() {
            command.env("SUBLET_FAKE_GPU", spec);
        }
        command.env("BENCH_WORKLOAD", self.built("sublet-workload"));
        command
    }

    /// A program as a job of its own, with these flags of `sublet run`.
    pub(crate) fn job(&self, flags: &[&str], program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command(self.built("sublet"));
        command
            .arg("run")
            .args(flags)
            .arg("--")
            .arg(program)
            .env("BENCH_REACH", "linked")
            .env("BENCH_NVML", "libnvidia-ml.so.1");
        command
    }

    /// A program straight on the driver.
    pub(crate) fn bare(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command(program);
        command
            .env("BENCH_REACH", self.bare_reach())
            .env("BENCH_NVML", self.bare_nvml());
        command
    }

    /// The argument that makes `sublet-workload` load the driver directly.
    pub(crate) fn bare_reach(&self) -> String {
        match self.is_fake() {
            true => format!("linked={}", self.built("libsublet_fakecuda.so").display()),
            false => "linked".to_owned(),
        }
    }

    /// The management library of the same driver.
    pub(crate) fn bare_nvml(&self) -> String {
        match self.is_fake() {
            true => self.built("libsublet_fakenvml.so").display().to_string(),
            false => "libnvidia-ml.so.1".to_owned(),
        }
    }

    /// True if its cards are fake.
    pub(crate) fn is_fake(&self) -> bool {
        self.machine.spec().is_some()
    }

    /// The program as a job, if there are flags; else straight on the driver.
    pub(crate) fn way(&self, with: Option<&[&str]>, program: impl AsRef<OsStr>) -> Command {
        match with {
            Some(flags) => self.job(flags, program),
            None => self.bare(program),
        }
    }

    /// Starts a shell as a job, if there are flags; else straight on the driver.
    pub(crate) fn shell(&self, with: Option<&[&str]>) -> Result<Shell> {
        Shell::start(&mut self.way(with, "/bin/sh"))
    }

    /// The snapshot that the arbiter reports.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        match self.ask(&Request::List)? {
            Reply::Snapshot(snapshot) => Ok(*snapshot),
            other => bail!("the arbiter answered {other:?}"),
        }
    }

    /// The row of one job in the snapshot.
    pub(crate) fn tenant(&self, name: &str) -> Result<TenantRow> {
        let mut rows = self.snapshot()?.tenants.into_iter();
        let row = rows.find(|row| row.name == name);
        row.with_context(|| format!("the arbiter shows no job {name}"))
    }

    /// The arbiter's process.
    pub(crate) fn arbiter(&self) -> Result<Pid> {
        self.machine.arbiter()
    }

    fn ask(&self, request: &Request) -> Result<Reply> {
        let socket = self.machine.folder()?.join("admin.sock");
        let mut client = Client::connect(&socket)?;
        Ok(client.call(request, PATIENCE)?)
    }
}

/// The time `after` from now, on CLOCK_MONOTONIC.
pub(crate) fn soon(after: Duration) -> Duration {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32) + after
}

/// The number at a path of a report.
pub(crate) fn number(report: &Value, path: &str) -> Result<f64> {
    let found = report.pointer(path).and_then(Value::as_f64);
    found.with_context(|| format!("no number at {path} of {report}"))
}

/// Calls `look` again and again until it succeeds; returns its last error if it never does.
pub(crate) fn until<T>(
    what: &str,
    pause: Duration,
    mut look: impl FnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match look() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(pause),
            last => return last.with_context(|| format!("waited for {what}")),
        }
    }
}

/// The unit of CPU times in `/proc`, USER_HZ: on x86-64 the kernel uses it for every program,
/// whatever the rate of its own clock.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time of all threads of a process, in seconds.
pub(crate) fn cpu_seconds(pid: Pid) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
    // The name may hold blanks; after it, fields 14 and 15 of proc(5) are the 12th and 13th.
    let rest = text.rsplit_once(") ").map(|(_, rest)| rest);
    let mut fields = rest.unwrap_or_default().split(' ').skip(11);
    let mut ticks = || fields.next().and_then(|ticks| ticks.parse::<f64>().ok());
    let (user, system) = (ticks(), ticks());
    let sum = user.zip(system).map(|(user, system)| user + system);
    Ok(sum.context("no times in its stat")? / TICKS_PER_SECOND)
}
