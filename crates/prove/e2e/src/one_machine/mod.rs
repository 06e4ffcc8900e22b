//! One machine without a cluster: `sublet run` and its arbiter on a fake machine of a test's own.
//!
//! No test meets another's arbiter or cards ([`sublet_testbed::Machine`]). Tests look at what a
//! user can see: the commands' output, and the fake driver's own count of memory.

mod calls;
mod card;
mod heard;
mod terminal;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sublet_script::cc;
use sublet_testbed::Machine as Base;

pub use card::{Card, number};
pub use sublet_script::{Calls, Ended, PATIENCE, Running, until};
pub use terminal::Terminal;

/// The user `nobody`, for tests of a user without rights.
pub const NOBODY: u32 = 65_534;

const MIB: u64 = 1 << 20;

/// A fake machine whose arbiter starts with its first job.
pub struct Machine {
    base: Base,
    /// The folder of the executable and the libraries, if they were copied from the build folder.
    own: Option<PathBuf>,
    /// The product's executable.
    sublet: PathBuf,
    user: Option<u32>,
}

impl Machine {
    /// The machine that `spec` describes. If nothing is built, prints why and returns `None`.
    ///
    /// # Errors
    /// A file that belongs beside the executable is missing.
    pub fn new(spec: &str) -> Result<Option<Machine>> {
        let Some(sublet) = std::env::var_os("SUBLET_BIN").map(PathBuf::from) else {
            println!("skipped: SUBLET_BIN is not set; run `cargo xtask test`");
            return Ok(None);
        };
        let bin = sublet.parent().context("SUBLET_BIN has no folder")?;
        heard::by_programs()?;
        Ok(Some(Machine {
            base: Base::new(bin, Some(spec))?,
            own: None,
            sublet,
            user: None,
        }))
    }

    /// The same with the one file that `cargo xtask release` makes. The file is alone in the folder
    /// `alone` of this machine.
    ///
    /// # Errors
    /// As [`Machine::new`].
    pub fn of_one_file(spec: &str) -> Result<Option<Machine>> {
        let Some(file) = std::env::var_os("SUBLET_ONE_FILE") else {
            println!("skipped: SUBLET_ONE_FILE is not set; run `cargo xtask test`");
            return Ok(None);
        };
        let Some(mut machine) = Machine::new(spec)? else {
            return Ok(None);
        };
        let folder = machine.path().join("alone");
        fs::create_dir(&folder)?;
        machine.sublet = folder.join("sublet");
        fs::copy(&file, &machine.sublet).with_context(|| format!("copy {}", file.display()))?;
        Ok(Some(machine))
    }

    /// The same, but all its processes run as a user without rights. Needs root.
    ///
    /// # Errors
    /// As [`Machine::new`].
    pub fn of_nobody(spec: &str) -> Result<Option<Machine>> {
        let Some(mut machine) = Machine::with_own_files(spec)? else {
            return Ok(None);
        };
        machine.user = Some(NOBODY);
        std::os::unix::fs::chown(machine.path(), machine.user, machine.user)?;
        Ok(Some(machine))
    }

    /// The same, and every user may use its folder. Needs root; the arbiter is root's.
    ///
    /// # Errors
    /// As [`Machine::new`].
    pub fn of_everybody(spec: &str) -> Result<Option<Machine>> {
        let Some(machine) = Machine::with_own_files(spec)? else {
            return Ok(None);
        };
        fs::set_permissions(machine.path(), fs::Permissions::from_mode(0o1777))?;
        Ok(Some(machine))
    }

    /// The same with the product's files in its own folder: other users than root may have no
    /// access to the build folder.
    fn with_own_files(spec: &str) -> Result<Option<Machine>> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can become another user");
            return Ok(None);
        }
        let Some(mut machine) = Machine::new(spec)? else {
            return Ok(None);
        };
        let own = machine.path().join("bin");
        fs::create_dir(&own)?;
        for name in machine.base.files() {
            let (from, to) = (machine.base.built(name), own.join(name));
            if fs::hard_link(&from, &to).is_err() {
                fs::copy(&from, &to)?;
            }
        }
        machine.sublet = own.join("sublet");
        machine.own = Some(own);
        Ok(Some(machine))
    }

    /// The description of the machine.
    #[must_use]
    pub fn spec(&self) -> &str {
        self.base.spec().unwrap_or_default()
    }

    /// The folder that holds everything.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.base.path()
    }

    /// A file beside the executable.
    #[must_use]
    pub fn built(&self, name: &str) -> PathBuf {
        match &self.own {
            Some(own) => own.join(name),
            None => self.base.built(name),
        }
    }

    /// The folder with the arbiter's sockets and log; it exists after the first job.
    ///
    /// # Errors
    /// There was no job.
    pub fn folder(&self) -> Result<PathBuf> {
        self.base.folder()
    }

    /// The folder with the fake machine's state.
    ///
    /// # Errors
    /// There was no job.
    pub fn state(&self) -> Result<PathBuf> {
        child(self.path(), "sublet-fake-")
    }

    /// A program with this machine's environment, and nothing of an outer job.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.base.command(program);
        for name in ["LD_LIBRARY_PATH", "XDG_CACHE_HOME", "HOME"] {
            command.env_remove(name);
        }
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// The product with these arguments, in this machine's environment.
    #[must_use]
    pub fn sublet(&self, words: &str) -> Command {
        let mut command = self.command(&self.sublet);
        command.env("SUBLET_FAKE_GPU", self.spec());
        command.args(words.split_whitespace());
        command
    }

    /// `sublet run` with these flags; the caller adds the program and its arguments.
    #[must_use]
    pub fn run(&self, flags: &str) -> Command {
        let mut command = self.command(&self.sublet);
        command.args(["run", "--fake-gpu", self.spec()]);
        command.args(flags.split_whitespace()).arg("--");
        command
    }

    /// The same for a program with a setting in a variable of ours (`NAME=value`). If root's file
    /// of settings goes before all variables, as on a machine with a driver, it is taken away.
    #[must_use]
    pub fn run_told(&self, flags: &str, variable: &str) -> Command {
        let mut command = self.run(flags);
        let script = r#"umount /run/sublet-job 2>/dev/null; exec env "$@""#;
        command.args(["sh", "-c", script, "sh", variable]);
        command
    }

    /// `sublet run` of a workload.
    #[must_use]
    pub fn job(&self, flags: &str, workload: &str) -> Command {
        let mut command = self.run(flags);
        command.arg(self.built("sublet-workload"));
        command.args(workload.split_whitespace());
        command
    }

    /// A workload straight on the fake driver, without the product, unless its arguments say
    /// otherwise.
    #[must_use]
    pub fn direct(&self, workload: &str) -> Command {
        let mut command = self.command(self.built("sublet-workload"));
        command.env("SUBLET_FAKE_GPU", self.spec());
        command.args(workload.split_whitespace());
        if !workload.contains("--reach") {
            let driver = self.built("libsublet_fakecuda.so");
            command.arg("--reach").arg(driver);
        }
        command
    }

    /// Runs a job to its end, and requires success.
    ///
    /// # Errors
    /// It failed, or printed no report.
    pub fn report(&self, flags: &str, workload: &str) -> Result<Value> {
        let ended = Running::start(&mut self.job(flags, workload))?.end()?;
        ended
            .report()
            .with_context(|| format!("{flags}: {workload}"))
    }

    /// The output of `sublet top --once -o json`.
    ///
    /// # Errors
    /// No arbiter answers.
    pub fn top(&self) -> Result<Value> {
        Running::start(&mut self.sublet("top --once -o json"))?
            .end()?
            .document()
    }

    /// A job's row in that output, by name.
    ///
    /// # Errors
    /// There is no such row now.
    pub fn tenant(&self, name: &str) -> Result<Value> {
        let top = self.top()?;
        let rows = top["jobs"].as_array().context("no tenants")?;
        let row = rows.iter().find(|row| row["name"] == name);
        row.cloned().with_context(|| format!("no {name} in {top}"))
    }

    /// The fake driver's own count of a card, from its NVML twin.
    ///
    /// # Errors
    /// The twin does not answer.
    pub fn card(&self, index: usize) -> Result<Card> {
        let mut command = self.direct("info");
        let twin = self.built("libsublet_fakenvml.so");
        command.arg(format!("--nvml={}", twin.display()));
        let report = Running::start(&mut command)?.end()?.report()?;
        Card::of(&report["nvml"]["devices"][index])
    }

    /// The arbiter's process.
    ///
    /// # Errors
    /// There is no file with its process number.
    pub fn arbiter(&self) -> Result<Pid> {
        self.base.arbiter()
    }

    /// Kills the arbiter and waits until it is gone.
    ///
    /// # Errors
    /// There is none, or it does not go.
    pub fn kill_arbiter(&self) -> Result<()> {
        let pid = self.arbiter()?;
        kill_process(pid, Signal::KILL)?;
        until("the arbiter to be gone", || {
            ensure!(!is_alive(pid), "{pid:?} is there");
            Ok(())
        })
    }

    /// The arbiter's log.
    #[must_use]
    pub fn log(&self) -> String {
        let file = self.folder().map(|folder| folder.join("arbiter.log"));
        file.ok()
            .and_then(|file| fs::read_to_string(file).ok())
            .unwrap_or_default()
    }

    /// Compiles a program of this crate's folder `c`.
    ///
    /// # Errors
    /// There is no C compiler, or it refused.
    pub fn compile(&self, source: &str, arguments: &[&str]) -> Result<PathBuf> {
        self.compile_as(&source.replace('.', "-"), source, arguments)
    }

    /// The same, into a file of that name: one source can be several programs.
    ///
    /// # Errors
    /// As [`Machine::compile`].
    pub fn compile_as(&self, name: &str, source: &str, arguments: &[&str]) -> Result<PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
        let program = self.path().join(name);
        cc(&folder.join(source), &program, arguments)?;
        Ok(program)
    }

    /// Makes a file that everybody may run.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn script(&self, name: &str, text: &str) -> Result<PathBuf> {
        let file = self.path().join(name);
        fs::write(&file, text)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        Ok(file)
    }
}

/// True while the process is neither gone nor a zombie.
#[must_use]
pub fn is_alive(pid: Pid) -> bool {
    let file = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let stat = fs::read_to_string(file).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// A process's number as the kernel's calls take it.
///
/// # Errors
/// It is no number of a process.
pub fn pid_of(value: &Value) -> Result<Pid> {
    let raw = value.as_i64().and_then(|pid| i32::try_from(pid).ok());
    raw.and_then(Pid::from_raw)
        .with_context(|| format!("{value} is no process"))
}

/// MiB as bytes.
#[must_use]
pub const fn mib(n: u64) -> u64 {
    n * MIB
}

fn child(folder: &Path, start: &str) -> Result<PathBuf> {
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(start) {
            return Ok(entry.path());
        }
    }
    bail!("no {start}* in {}", folder.display())
}
