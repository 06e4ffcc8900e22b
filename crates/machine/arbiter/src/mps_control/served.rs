//! The server that a daemon of MPS has started, found among the daemon's children. This module asks
//! the daemon nothing: an answer takes a process, and this is looked at with every tick. Nor does
//! it read a file of the server's for which it could have to wait (see `peer/stat.rs`).

use std::fs;

use sublet_share::{Pid, UserId};

use crate::peer;

/// The name that the kernel has for NVIDIA's daemon, and for its server: both end beyond its room.
const NAME: &str = "nvidia-cuda-mps";

/// Option of a daemon with one server, root's, for all users. R555 has it, R535 and R550 do not.
const MULTI_USER: &[u8] = b"-multiuser-server";

/// The user whose programs the daemon's server serves; none while it has no server, or one for all
/// users. None either where the kernel lists no children (`CONFIG_PROC_CHILDREN`).
pub(super) fn user(daemon: Pid) -> Option<UserId> {
    let is_nvidia_s = |pid: &Pid| peer::name(*pid) == NAME;
    let server = children(daemon).into_iter().find(is_nvidia_s)?;
    let is_for_one = is_nvidia_s(&daemon) && !is_for_all(daemon);
    is_for_one.then(|| peer::effective_user(server)).flatten()
}

/// The children of all threads: any of them may have started the server.
fn children(daemon: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{daemon}/task"));
    let files = threads
        .into_iter()
        .flatten()
        .filter_map(|thread| Some(thread.ok()?.path().join("children")));
    let lists: String = files
        .filter_map(|file| fs::read_to_string(file).ok())
        .collect();
    let numbers = lists.split_whitespace();
    numbers
        .filter_map(|number| Some(Pid(number.parse().ok()?)))
        .collect()
}

fn is_for_all(daemon: Pid) -> bool {
    let words = fs::read(format!("/proc/{daemon}/cmdline")).unwrap_or_default();
    let mut words = words.split(|byte| *byte == 0);
    words.any(|word| word == MULTI_USER)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use rustix::process::{Signal, geteuid, kill_process_group};

    use super::*;

    /// Processes that call themselves by a name, and stop.
    #[test]
    fn the_user_of_the_server_is_the_one_who_is_served() {
        let own = UserId(geteuid().as_raw());
        for (daemon, server, option, expected) in [
            (NAME, NAME, "-f", Some(own)),
            // A process of another name is no server, and what starts a daemon is none.
            (NAME, "another", "-f", None),
            ("a-script", NAME, "-f", None),
            // One server for all serves nobody alone.
            (NAME, NAME, "-multiuser-server", None),
        ] {
            let named = |name: &str| format!("printf {name} > /proc/$$/comm");
            let child = format!("sh -c '{}; kill -STOP $$' & wait", named(server));
            let script = format!("{}; {child}", named(daemon));
            let mut process = Command::new("sh");
            process.args(["-c", &script, "sh", option]).process_group(0);
            let mut process = process.spawn().unwrap();
            let pid = Pid(process.id());
            let is_ready = || {
                let mut children = children(pid).into_iter();
                peer::name(pid) == daemon && children.any(|child| peer::name(child) == server)
            };
            while !is_ready() {
                std::thread::yield_now();
            }
            let found = user(pid);
            let group = rustix::process::Pid::from_child(&process);
            kill_process_group(group, Signal::KILL).unwrap();
            process.wait().unwrap();
            assert_eq!(found, expected, "{daemon} {server} {option}");
            assert_eq!(user(pid), None, "{pid} is gone");
        }
    }
}
