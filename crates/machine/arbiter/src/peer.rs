//! The other end of a socket: the process as the kernel names it, a descriptor that means this
//! process even when its number is used again, and its parents. A message can say anything, so
//! none of this comes from a message.

mod stat;

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags};
use rustix::process::PidfdFlags;
use rustix::time::ClockId;
use sublet_share::{Pid, UserId};

pub(crate) use self::stat::stat;
pub use self::stat::{Image, Stat};
use crate::pages::LEDGER_NAME;

/// `SO_PEERPIDFD` (Linux 6.5, include/uapi/asm-generic/socket.h); the `libc` crate has it
/// only for some targets.
const SO_PEERPIDFD: i32 = 77;

/// The kernel's `USER_HZ` (include/asm-generic/param.h), which is the same on every machine.
const TICKS_A_SECOND: u64 = 100;

/// Maximum number of parents looked at. Real trees are some twenty deep; a loop cannot be, but
/// a tree of thousands would cost the arbiter time.
const ANCESTORS_MAX: usize = 256;

/// Maximum number of repeats of reading a tree that changed while it was read.
const READ_AGAIN_MAX: usize = 4;

/// A process that connected.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) pid: Pid,
    /// The process's user.
    pub(crate) user: UserId,
    /// Readable when the process is gone.
    pub(crate) pidfd: OwnedFd,
}

impl Peer {
    /// The process that made a connection, which had come by then.
    pub(crate) fn of(socket: impl AsFd, came: Moment) -> io::Result<Peer> {
        let credentials = raw_credentials(&socket)?;
        let Ok(raw) = u32::try_from(credentials.pid) else {
            return Err(out_of_sight());
        };
        let Some(pid) = rustix::process::Pid::from_raw(credentials.pid) else {
            return Err(out_of_sight());
        };
        let pidfd = match peer_pidfd(&socket) {
            Ok(pidfd) => pidfd,
            // An older kernel.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
                has_begun_by(Pid(raw), &pidfd, came)?;
                pidfd
            }
            Err(error) => return Err(error),
        };
        Ok(Peer {
            pid: Pid(raw),
            user: UserId(credentials.uid),
            pidfd,
        })
    }
}

/// A moment, in the clock and the ticks in which `/proc` says when a process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) fn now() -> Moment {
        let now = rustix::time::clock_gettime(ClockId::Boottime);
        let [seconds, nanoseconds] =
            [now.tv_sec, now.tv_nsec].map(|n| u64::try_from(n).unwrap_or(0));
        Moment(seconds * TICKS_A_SECOND + nanoseconds * TICKS_A_SECOND / 1_000_000_000)
    }
}

/// Checks that the process of a pidfd, which was opened by its number, had that number when the
/// connection was accepted: a process that took the number since then has begun since then. The
/// kernel does not say when a connection was made.
fn has_begun_by(pid: Pid, pidfd: &OwnedFd, came: Moment) -> io::Result<()> {
    let gone = || {
        io::Error::new(
            io::ErrorKind::NotFound,
            "the process that connected is gone",
        )
    };
    let began = stat(pid).ok_or_else(gone)?.began;
    // It lives after the look at its number: the number was its own.
    match Moment(began) > came || is_gone(pidfd) {
        true => Err(gone()),
        false => Ok(()),
    }
}

fn out_of_sight() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "the process is in a PID namespace that the arbiter cannot see into; run the arbiter with the host's PID namespace",
    )
}

/// A descriptor for a process that is known by its number alone.
pub(crate) fn open(pid: Pid) -> io::Result<OwnedFd> {
    let raw = i32::try_from(pid.0).ok();
    let raw = raw.and_then(rustix::process::Pid::from_raw);
    let raw = raw.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    Ok(rustix::process::pidfd_open(raw, PidfdFlags::empty())?)
}

/// True once the process of a pidfd has ended.
pub(crate) fn is_gone(pidfd: &OwnedFd) -> bool {
    let mut one = [PollFd::new(pidfd, PollFlags::IN)];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(rustix::event::poll(&mut one, Some(&now)), Ok(n) if n > 0)
}

/// Process and user at the other end of a socket; process 0 if it has no number here.
///
/// # Errors
/// The descriptor is no connected socket.
pub fn holder_of(socket: &impl AsFd) -> io::Result<(u32, u32)> {
    let credentials = raw_credentials(socket)?;
    let pid = u32::try_from(credentials.pid).unwrap_or(0);
    Ok((pid, credentials.uid))
}

/// User of the process that made the connection; no user if the kernel does not say.
pub(crate) fn user(socket: &impl AsFd) -> UserId {
    UserId(raw_credentials(socket).map_or(u32::MAX, |credentials| credentials.uid))
}

/// The credentials as numbers: the PID is 0 for a process in a PID namespace that is not
/// below ours, which the crates' type for them cannot hold.
fn raw_credentials(socket: &impl AsFd) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes into a plain
    // struct of that size.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if done == 0 {
        Ok(credentials)
    } else {
        Err(io::Error::last_os_error())
    }
}

fn peer_pidfd(socket: &impl AsFd) -> io::Result<OwnedFd> {
    let mut fd: i32 = -1;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes one `int`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so this is a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The nearest parent of a process that `known` knows, as `known` calls it; nothing if it knows
/// none up to the first process. `None` if the parents cannot be seen up to there, which must not
/// be taken for having none of these.
///
/// Processes end during the reading. A reused number shows: a child that is older than its
/// parent is no child.
pub(crate) fn nearest_parent<T>(pid: Pid, known: impl Fn(Pid) -> Option<T>) -> Option<Option<T>> {
    (0..READ_AGAIN_MAX).find_map(|_| nearest_parent_now(pid, &known))
}

fn nearest_parent_now<T>(pid: Pid, known: impl Fn(Pid) -> Option<T>) -> Option<Option<T>> {
    let mut here = stat(pid)?;
    for _ in 0..ANCESTORS_MAX {
        if here.parent.0 <= 1 {
            return Some(None);
        }
        let above = stat(here.parent)?;
        if above.began > here.began {
            return None;
        }
        // What is above a parent that is known does not matter, and each look costs some
        // microseconds.
        if let Some(found) = known(here.parent) {
            return Some(Some(found));
        }
        here = above;
    }
    None
}

/// The user of a process as sockets name it: the effective one. The owner of its folder in `/proc`
/// may be root in its place.
pub(crate) fn effective_user(pid: Pid) -> Option<UserId> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let user = line.split_ascii_whitespace().nth(1)?;
    Some(UserId(user.parse().ok()?))
}

/// A process's name, for people.
pub(crate) fn name(pid: Pid) -> String {
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&comm).trim_end().to_owned()
}

/// Returns true if two processes are in one container, as far as we may see: in the same control
/// groups. Every process may read those, and none can leave its container's. Containers of a pod
/// can share their PID namespace, but never their control groups.
pub(crate) fn share_container(one: Pid, other: Pid) -> bool {
    let groups = |pid: Pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        Some(text.lines().map(|line| group_of(line).to_owned()).collect())
    };
    let own: Option<Vec<String>> = groups(one);
    own.is_some_and(|own| Some(own) == groups(other))
}

/// The control group in a line of `/proc/PID/cgroup`, down to the one that the runtime has made
/// for the container. The container makes the groups below it and moves its processes among
/// them.
fn group_of(line: &str) -> &str {
    let mut end = 0;
    for part in line.split_inclusive('/') {
        end += part.len();
        if has_container_id(part) {
            return line[..end].trim_end_matches('/');
        }
    }
    line
}

/// Runtimes call a container by 64 hexadecimal digits: `cri-containerd-….scope`, or nothing else.
fn has_container_id(name: &str) -> bool {
    let mut digits = name.split(|c: char| !c.is_ascii_hexdigit());
    digits.any(|run| run.len() == 64)
}

/// The interposer's name for its thread.
const THREAD_NAME: &[u8] = b"sublet\n";

/// Maximum number of threads of a process looked at. One that has more may have ours too.
const THREADS_MAX: usize = 256;

/// Returns true if the interposer's thread lives, or may live, in a process; it lives until
/// the process calls exec. A process can hide it or fake the name; that changes only the
/// charges of its own job until the driver is read again.
pub(crate) fn may_have_our_thread(pid: Pid) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    let mut n_seen = 0;
    for thread in threads.flatten() {
        n_seen += 1;
        let name = fs::read(thread.path().join("comm"));
        if n_seen > THREADS_MAX || name.is_ok_and(|name| name == THREAD_NAME) {
            return true;
        }
    }
    false
}

/// Maximum number of descriptors of a process looked at. One that has more may have ours too.
const DESCRIPTORS_MAX: usize = 1024;

/// Returns true if a process has a ledger page of an arbiter open, as every process with a slot
/// has. If its descriptors cannot be seen, the interposer's thread decides: a process without it
/// never comes back. A stranger can fake either, and is only reported later.
pub(crate) fn may_hold_ledger(pid: Pid) -> bool {
    match has_ledger_open(pid) {
        Ok(has) => has,
        Err(_) => !is_another_users(pid) && may_have_our_thread(pid),
    }
}

fn has_ledger_open(pid: Pid) -> io::Result<bool> {
    let name = format!("/memfd:{LEDGER_NAME} (deleted)");
    let mut n_seen = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        n_seen += 1;
        let is_ledger = match fs::read_link(entry.path()) {
            Ok(target) => target == Path::new(&name),
            // Closed meanwhile; or the numbers may be seen, and what is behind them may not.
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if is_ledger || n_seen == DESCRIPTORS_MAX {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Checks whether a process is another user's: the folder of the sockets belongs to one user,
/// so such a process is in no job. A process that hides its memory looks like root's, whatever
/// its user.
fn is_another_users(pid: Pid) -> bool {
    let own = rustix::process::geteuid();
    let owner = fs::metadata(format!("/proc/{pid}")).map(|about| about.uid());
    !own.is_root() && owner.is_ok_and(|uid| uid != 0 && uid != own.as_raw())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_is_who_the_kernel_says() {
        let (here, _there) = UnixStream::pair().unwrap();
        let peer = Peer::of(&here, Moment::now()).unwrap();
        assert_eq!(peer.pid, Pid(std::process::id()));
        assert!(!is_gone(&peer.pidfd));
        let parent = Pid(std::os::unix::process::parent_id());
        assert_eq!(nearest_parent(peer.pid, Some), Some(Some(parent)));
        let is_above = |one: Pid| (one != parent).then_some(one);
        let above = stat(parent).unwrap().parent;
        assert_eq!(
            nearest_parent(peer.pid, is_above),
            Some((above.0 > 1).then_some(above))
        );
        assert_eq!(nearest_parent(peer.pid, |_| None::<Pid>), Some(None));
        assert!(share_container(peer.pid, peer.pid));
        assert!(!share_container(Pid(u32::MAX), Pid(u32::MAX)));
        assert_eq!(name(Pid(u32::MAX)), "");
        assert_eq!(nearest_parent(Pid(u32::MAX), Some), None);
    }

    #[test]
    fn who_began_after_a_connection_came_did_not_make_it() {
        let own = Pid(std::process::id());
        let pidfd = open(own).unwrap();
        let began = stat(own).unwrap().began;
        assert!(Moment(began) <= Moment::now());
        assert!(has_begun_by(own, &pidfd, Moment::now()).is_ok());
        assert!(has_begun_by(own, &pidfd, Moment(began)).is_ok());
        // It took the number after the connection had come.
        assert!(has_begun_by(own, &pidfd, Moment(began - 1)).is_err());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pidfd = open(Pid(child.id())).unwrap();
        child.wait().unwrap();
        assert!(has_begun_by(own, &pidfd, Moment::now()).is_err());
    }

    #[test]
    fn who_has_a_ledger_open_may_come_back_with_it() {
        let me = Pid(std::process::id());
        // Other tests of this process make ledgers, and a fresh program has none of them.
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert!(!may_hold_ledger(Pid(child.id())));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!may_hold_ledger(Pid(child.id())), "it is gone");
        let _ledger = crate::pages::LedgerMemory::new(1).unwrap();
        assert!(may_hold_ledger(me));
    }

    #[test]
    fn a_container_is_told_by_the_group_that_its_runtime_made() {
        let id = "0123456789abcdef".repeat(4);
        let other = "f".repeat(64);
        for (line, expected) in [
            ("0::/".to_owned(), None),
            ("0::/user.slice/session-1.scope".to_owned(), None),
            (format!("3:pids:/kubepods/burstable/pod7/{id}"), None),
            (
                format!("0::/../../kubepods.slice/cri-containerd-{id}.scope/init"),
                Some(format!(
                    "0::/../../kubepods.slice/cri-containerd-{id}.scope"
                )),
            ),
            // Whoever names a group after another container is in its own all the same.
            (
                format!("0::/docker/{id}/docker/{other}"),
                Some(format!("0::/docker/{id}")),
            ),
            (format!("0::/{id}0/x"), None),
        ] {
            assert_eq!(group_of(&line), expected.as_deref().unwrap_or(&line));
        }
    }

    #[test]
    fn the_interposers_thread_is_found() {
        let me = Pid(std::process::id());
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let name = String::from_utf8(THREAD_NAME.to_vec()).unwrap();
        let thread = std::thread::Builder::new().name(name.trim_end().to_owned());
        let thread = thread.spawn(move || wait.recv()).unwrap();
        // The name is set by the new thread itself.
        while !may_have_our_thread(me) {
            std::thread::yield_now();
        }
        drop(end);
        let _ = thread.join().unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert!(!may_have_our_thread(Pid(child.id())));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!may_have_our_thread(Pid(u32::MAX)), "no such process");
    }

    #[test]
    fn a_dead_process_is_gone_for_its_descriptor() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pidfd = open(Pid(child.id())).unwrap();
        child.wait().unwrap();
        assert!(is_gone(&pidfd));
        assert!(open(Pid(0)).is_err());
    }
}
