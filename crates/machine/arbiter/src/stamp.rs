//! A process as a file can name it, so that another program, later, knows whether it is still
//! there. A number alone is used again; with the time at which the process began it is not.

use std::fs;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use sublet_share::Pid;

use crate::peer;

/// One process of this machine, of all that there ever were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessStamp {
    /// Its number, in the PID namespace of the writer.
    pub(crate) pid: u32,
    /// When it began, in clock ticks since the machine did.
    began: u64,
    /// Since when ticks are counted: the kernel's name for its own start.
    boot: String,
}

impl ProcessStamp {
    /// The stamp of a process; `None` if it is gone or cannot be seen.
    #[must_use]
    pub fn of(pid: Pid) -> Option<ProcessStamp> {
        Some(ProcessStamp {
            pid: pid.0,
            began: peer::stat(pid)?.began,
            boot: boot().to_owned(),
        })
    }

    /// Checks whether the process lives. If its begin is hidden (`hidepid`), it counts as the
    /// same process as long as its number is in use.
    #[must_use]
    pub fn lives(&self) -> bool {
        let pid = Pid(self.pid);
        let is_it = || peer::stat(pid).is_none_or(|stat| stat.began == self.began);
        let pidfd = peer::open(pid).ok().filter(|_| self.boot == boot());
        pidfd.is_some_and(|pidfd| is_it() && !peer::is_gone(&pidfd))
    }
}

/// The kernel's name for its own start; empty if `/proc` does not show it, and then only times
/// tell processes apart.
fn boot() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        text.unwrap_or_default().trim().to_owned()
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let own = ProcessStamp::of(Pid(std::process::id())).unwrap();
        assert!(own.lives());
        assert_eq!(ProcessStamp::of(Pid(own.pid)), Some(own.clone()));
        let reused = ProcessStamp {
            began: own.began + 1,
            ..own.clone()
        };
        assert!(!reused.lives());
        let of_another_boot = ProcessStamp {
            boot: "0".to_owned(),
            ..own.clone()
        };
        assert!(!of_another_boot.lives());
        for pid in [0, u32::MAX] {
            assert!(!ProcessStamp { pid, ..own.clone() }.lives());
        }
    }

    #[test]
    fn a_process_that_ended_is_gone_before_anybody_has_waited_for_it() {
        let mut child = Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let stamp = ProcessStamp::of(Pid(child.id())).unwrap();
        assert!(stamp.lives());
        drop(child.stdin.take());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while stamp.lives() {
            assert!(std::time::Instant::now() < deadline, "it is still there");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!stamp.lives());
    }
}
