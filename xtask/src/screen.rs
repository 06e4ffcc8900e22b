//! Output of a task while it runs: bold headings on a terminal, plain text elsewhere.

use std::fmt;
use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::time::{Duration, Instant};

/// Announces a step.
pub(crate) fn heading(text: &str) {
    if stderr().is_terminal() {
        eprintln!("\x1b[1m==> {text}\x1b[0m");
    } else {
        eprintln!("==> {text}");
    }
}

/// A time as people say it.
pub(crate) fn time(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

/// Says how much space the file system of a folder has. A full disk fails a run in ways that do not
/// name it, so less than what a run `needs` is a warning.
pub(crate) fn tell_free_space(folder: &Path, needs_gib: u64) {
    let free = match rustix::fs::statvfs(folder) {
        Ok(all) => (all.f_bavail * all.f_frsize) >> 20,
        Err(error) => return eprintln!("disk of this repository: unknown: {error}"),
    };
    eprintln!("disk of this repository: {free} MiB free");
    if free < needs_gib << 10 {
        eprintln!(
            "warning: this run needs up to {needs_gib} GiB, and fails where the disk is full; \
             `target/debug/incremental` is the first that can go"
        );
    }
}

/// Cost of work since it began: time, and time of the cores.
pub(crate) struct Cost {
    begun: Instant,
    cores: Option<Duration>,
}

impl Cost {
    /// Begins to count.
    pub(crate) fn begin() -> Cost {
        Cost {
            begun: Instant::now(),
            cores: cores_of_ended_children(),
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&time(self.begun.elapsed()))?;
        match (self.cores, cores_of_ended_children()) {
            (Some(before), Some(now)) => {
                write!(f, " ({} of the cores)", time(now.saturating_sub(before)))
            }
            _ => Ok(()),
        }
    }
}

/// The processor time of all processes that this one has waited for, and of theirs.
fn cores_of_ended_children() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    in_ticks(&text).map(|ticks| Duration::from_millis(ticks * 1_000 / TICKS))
}

/// The unit of times in /proc: USER_HZ, 100 on every architecture of today.
const TICKS: u64 = 100;

/// cutime and cstime, fields 16 and 17 of `/proc/PID/stat` (proc_pid_stat(5)). The second field
/// is the program's name in brackets, and may have blanks and brackets in it.
fn in_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(16 - 3);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_children_are_read_after_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 1 2 3 4 50 60 700 80 20 0 1 0 99 1 2";
        assert_eq!(in_ticks(stat), Some(780));
        assert_eq!(in_ticks("7 (a) S 1 2"), None);
        assert_eq!(in_ticks(""), None);
    }
}
