//! Processes by name. Each writes a log; they are ended in reverse order.
//!
//! Each process has its own process group, so that Ctrl-C reaches only the harness, and the
//! process's children end with it. A zombie counts as gone: in a container, perhaps nobody reaps
//! it. This module never restarts anything by itself; a component that died stays dead until a
//! test starts it again.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::guard::{Guard, Kind};

/// The time between two checks while we wait for something.
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// Longest time that a process may take to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(10);

/// Linux counts process times in hundredths of a second for user space, on every architecture
/// (`USER_HZ`, proc_pid_stat(5)).
const TICKS_PER_SECOND: f64 = 100.0;

/// Announces itself to the guard, closes the guard's pipe, then becomes the program (see `guard`).
const LAUNCH: &str = r#"echo "+ $$" && exec >>"$0" 2>&1 && exec "$@""#;

/// A directory of processes. Dropping it ends them all.
#[derive(Debug)]
pub(crate) struct Supervisor {
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    guard: Guard,
    running: Vec<Process>,
    recipes: BTreeMap<String, Recipe>,
}

#[derive(Debug)]
struct Process {
    name: String,
    child: Child,
}

/// Data to start a process again.
#[derive(Debug, Clone)]
struct Recipe {
    program: OsString,
    args: Vec<OsString>,
    envs: Vec<(OsString, Option<OsString>)>,
    dir: Option<PathBuf>,
}

impl Supervisor {
    /// Takes over `dir`, which is removed at the end.
    pub(crate) fn new(kind: Kind<'_>, dir: &Path, lock: Option<File>) -> Result<Supervisor> {
        std::fs::create_dir_all(dir.join("log"))
            .with_context(|| format!("create {}/log", dir.display()))?;
        let mut guard = Guard::start(kind, dir, lock)?;
        if keeps_files() {
            guard.keep();
            eprintln!("keeping {}", dir.display());
        }
        let state = State {
            guard,
            running: Vec::new(),
            recipes: BTreeMap::new(),
        };
        Ok(Supervisor {
            dir: dir.to_owned(),
            state: Mutex::new(state),
        })
    }

    /// Starts a process under a name that no running process has.
    pub(crate) fn spawn(&self, name: &str, command: &Command) -> Result<()> {
        let recipe = Recipe {
            program: command.get_program().to_owned(),
            args: command.get_args().map(ToOwned::to_owned).collect(),
            envs: command
                .get_envs()
                .map(|(key, value)| (key.to_owned(), value.map(ToOwned::to_owned)))
                .collect(),
            dir: command.get_current_dir().map(Path::to_owned),
        };
        self.lock().recipes.insert(name.to_owned(), recipe);
        self.start(name)
    }

    /// Starts a process that was spawned before and has ended, exactly as it was.
    pub(crate) fn start(&self, name: &str) -> Result<()> {
        self.reap_if_dead(name);
        let mut state = self.lock();
        if state.running.iter().any(|process| process.name == name) {
            bail!("`{name}` runs already");
        }
        let recipe = state
            .recipes
            .get(name)
            .with_context(|| format!("no process `{name}`"))?;
        let mut command = Command::new("sh");
        command
            .args(["-c", LAUNCH])
            .arg(self.log(name))
            .arg(&recipe.program)
            .args(&recipe.args);
        for (key, value) in &recipe.envs {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        if let Some(dir) = &recipe.dir {
            command.current_dir(dir);
        }
        let (mut complaint, stderr) = std::io::pipe()?;
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(state.guard.announce()?)
            .stderr(stderr)
            .spawn()
            .with_context(|| format!("start `{name}` ({})", recipe.program.display()))?;
        drop(command); // it has ends of both pipes
        let mut words = String::new();
        // Ends when the shell has closed both pipes. Without this wait, a child that a test stops
        // at once would still hold the guard's pipe open after our own end.
        complaint.read_to_string(&mut words)?;
        state.running.push(Process {
            name: name.to_owned(),
            child,
        });
        ensure!(words.is_empty(), "start `{name}`: {}", words.trim());
        Ok(())
    }

    /// Ends a process: by SIGTERM, and by SIGKILL if that takes too long. It may have ended
    /// already.
    pub(crate) fn stop(&self, name: &str) {
        // Do not hold the lock while waiting: others may want to read a log in the meantime.
        let Some(process) = self.take(name) else {
            return;
        };
        end(&process.child, Signal::TERM);
        self.reap(process);
    }

    /// Sends a signal to a running process; SIGKILL also waits until it is gone.
    pub(crate) fn kill(&self, name: &str, signal: Signal) -> Result<()> {
        if signal == Signal::KILL {
            let process = self
                .take(name)
                .with_context(|| format!("`{name}` does not run"))?;
            end(&process.child, signal);
            self.reap(process);
            return Ok(());
        }
        let pid = self.pid(name)?;
        kill_process(pid_of(pid)?, signal).with_context(|| format!("send {signal:?} to `{name}`"))
    }

    /// The process id of a running process.
    pub(crate) fn pid(&self, name: &str) -> Result<u32> {
        let state = self.lock();
        let process = state.running.iter().find(|process| process.name == name);
        let pid = process
            .map(|process| process.child.id())
            .filter(|pid| is_alive(*pid));
        pid.with_context(|| format!("`{name}` does not run"))
    }

    /// CPU time that the running process has used, user and system, in seconds.
    pub(crate) fn cpu_seconds(&self, name: &str) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid(name)?))?;
        let fields: Vec<&str> = after_name(&stat).split_whitespace().collect();
        // utime and stime are fields 14 and 15; the state is field 3.
        let ticks = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
        Ok(ticks / TICKS_PER_SECOND)
    }

    /// Resident memory of the running process, in MiB.
    pub(crate) fn rss_mib(&self, name: &str) -> Result<u64> {
        self.memory_mib(name, "VmRSS:")
    }

    /// Memory of the running process that belongs to no file, in MiB.
    pub(crate) fn anonymous_mib(&self, name: &str) -> Result<u64> {
        self.memory_mib(name, "RssAnon:")
    }

    fn memory_mib(&self, name: &str, line: &str) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid(name)?))?;
        let line = status.lines().find_map(|text| text.strip_prefix(line));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kib.with_context(|| format!("`{name}` has no resident memory"))? / 1024)
    }

    /// File to which a process writes its output.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.dir.join("log").join(format!("{name}.log"))
    }

    /// The last lines of a log, for an error message.
    pub(crate) fn log_tail(&self, name: &str, lines: usize) -> String {
        let log = std::fs::read(self.log(name)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Waits until `ready` succeeds; fails early if the process ends.
    pub(crate) fn wait(
        &self,
        name: &str,
        limit: Duration,
        mut ready: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let why = match ready() {
                Ok(()) => return Ok(()),
                Err(why) => why,
            };
            let failure = if self.pid(name).is_err() {
                "has ended".to_owned()
            } else if Instant::now() > deadline {
                format!("is not ready after {} s: {why:#}", limit.as_secs())
            } else {
                sleep(POLL);
                continue;
            };
            bail!(
                "`{name}` {failure}; the end of its log:\n{}",
                self.log_tail(name, 20)
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere must not keep us from ending processes.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, name: &str) -> Option<Process> {
        let mut state = self.lock();
        let at = state
            .running
            .iter()
            .position(|process| process.name == name)?;
        Some(state.running.remove(at))
    }

    fn reap_if_dead(&self, name: &str) {
        if self.pid(name).is_err()
            && let Some(process) = self.take(name)
        {
            self.reap(process);
        }
    }

    fn reap(&self, mut process: Process) {
        let pid = process.child.id();
        if let Ok(group) = pid_of(pid) {
            // Kills children that outlived their parent; usually there are none.
            let _ = kill_process_group(group, Signal::KILL);
        }
        self.lock().guard.forget(pid);
        let _ = process.child.wait();
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        loop {
            let last = self.lock().running.pop();
            let Some(process) = last else { break };
            end(&process.child, Signal::TERM);
            self.reap(process);
        }
    }
}

/// Asks a process to end, and kills it if that takes too long.
fn end(child: &Child, signal: Signal) {
    let Ok(pid) = pid_of(child.id()) else { return };
    // The process may be gone already. A stopped process gets SIGTERM only when it continues.
    let _ = kill_process(pid, signal);
    let _ = kill_process(pid, Signal::CONT);
    let deadline = Instant::now() + PATIENCE;
    while is_alive(child.id()) {
        if Instant::now() > deadline {
            let _ = kill_process(pid, Signal::KILL);
        }
        sleep(Duration::from_millis(10));
    }
}

fn pid_of(pid: u32) -> Result<Pid> {
    Pid::from_raw(i32::try_from(pid)?).context("process id 0")
}

/// Whether a process runs. A zombie, which its parent has not reaped yet, does not.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    after_name(&stat)
        .trim_start()
        .starts_with(|state| state != 'Z' && state != 'X')
}

/// The part of /proc/PID/stat after the name, which may contain blanks and brackets.
fn after_name(stat: &str) -> &str {
    stat.rsplit_once(')').map_or("", |(_, rest)| rest)
}

/// Whether directories of clusters and nodes are kept, so that their logs can be read
/// (`SUBLET_KEEP=1`). All processes end all the same. The directories of all runs are kept, not
/// only those of failed ones: from here, a test that returns an error looks like one that passes.
#[must_use]
pub fn keeps_files() -> bool {
    std::env::var_os("SUBLET_KEEP").is_some_and(|value| value == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supervisor() -> (PathBuf, Supervisor) {
        let dir = tempfile::tempdir().unwrap().keep();
        let supervisor = Supervisor::new(Kind::Cluster, &dir, None).unwrap();
        (dir, supervisor)
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_process_is_started_watched_and_ended() {
        let (dir, processes) = supervisor();
        processes
            .spawn(
                "talker",
                shell("echo hello $WHO; exec sleep 100").env("WHO", "you"),
            )
            .unwrap();
        let pid = processes.pid("talker").unwrap();
        let said = || match processes.log_tail("talker", 5).as_str() {
            "hello you" => Ok(()),
            other => bail!("said {other:?}"),
        };
        processes
            .wait("talker", Duration::from_secs(10), said)
            .unwrap();
        assert!(processes.cpu_seconds("talker").unwrap() < 1.0);
        assert!(
            processes.spawn("talker", &shell("exit")).is_err(),
            "one name, one process"
        );
        drop(processes);
        assert!(!is_alive(pid));
        assert!(!dir.exists());
    }

    #[test]
    fn a_process_that_dies_is_reported_with_its_log_and_can_start_again() {
        let (_, processes) = supervisor();
        processes
            .spawn("short", &shell("echo no such luck >&2; exit 3"))
            .unwrap();
        let never = || bail!("not ready");
        let error = processes
            .wait("short", Duration::from_secs(10), never)
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "`short` has ended; the end of its log:\nno such luck"
        );
        processes.start("short").unwrap();
        processes.stop("short");
        assert!(processes.pid("short").is_err());
    }

    #[test]
    fn one_that_ignores_sigterm_and_its_child_go_all_the_same() {
        let (_, processes) = supervisor();
        processes
            .spawn("deaf", &shell("trap '' TERM; sleep 100 & echo $!; wait"))
            .unwrap();
        let mut child = 0;
        let started = || {
            child = processes.log_tail("deaf", 1).parse()?;
            Ok(())
        };
        processes
            .wait("deaf", Duration::from_secs(10), started)
            .unwrap();
        assert!(is_alive(child));
        processes.kill("deaf", Signal::KILL).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while is_alive(child) && Instant::now() < deadline {
            sleep(POLL);
        }
        assert!(!is_alive(child));
    }
}
