//! NVIDIA's program `nvidia-cuda-mps-control`. Run in the foreground as a child of this process it
//! is the daemon of MPS, and its end is seen at once. With commands on its standard input it
//! carries them to the daemon. This module knows no turns, jobs or times: these are
//! `sublet-share`'s.
//!
//! Clients, servers and commands come to the daemon by one socket, `control`; what only its operator
//! may say (`quit`, defaults) it takes by `control_privileged` beside it, from everybody who can
//! connect: root in a container can. So that one is moved away from the clients' folder.
//!
//! A server connects to `control` like a client, as the user of its clients, and keeps the daemon's
//! group: the daemon calls only `setuid` (seen with 535, 550 and 555). So the folder above lets the
//! daemon's group pass where the daemon is root's, and no other user: users of the host have no way
//! to the sockets, and containers have the folder below mounted.
//!
//! The daemon is a process group of its own, so a terminal's Ctrl-C reaches only us, and servers
//! that it leaves behind can be ended. It is killed when the thread that started it ends, so a
//! killed arbiter leaves no unwatched daemon behind.

mod served;

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use sublet_share::{Pid, UserId};

use crate::error::{ArbiterError, at};
use crate::machine_folder::Folder;
use crate::peer;

/// The program's usual name; the driver brings it.
pub const MPS_CONTROL: &str = "nvidia-cuda-mps-control";

/// The daemon's environment ("Environment Variables" of NVIDIA's MPS documentation).
const PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";
const LOG: &str = "CUDA_MPS_LOG_DIRECTORY";

/// These would change what every client gets, the daemon's numbering of cards, or the words that it
/// understands; the daemon is no program of a job.
const NOT_ITS_OWN: [&str; 8] = [
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_CLIENT_PRIORITY",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_PROTOCOL_VERSION",
    "LD_AUDIT",
    "LD_PRELOAD",
];

/// The socket for the operator's words. Seen with the drivers 535, 550 and 555: clients and servers
/// do not use it, and the program itself looks for it in the pipe folder that it is told.
const PRIVILEGED: &str = "control_privileged";

/// A question that only a daemon which serves answers.
const IS_THERE: &str = "get_server_list";

/// Ends the daemon and its servers.
const QUIT: &str = "quit";

/// Longest time for a daemon to end in order. With clients at work it waits for them.
const QUIT_WITHIN: Duration = Duration::from_secs(2);

/// The program, and the folders of its daemon.
#[derive(Debug, Clone)]
pub(crate) struct MpsControl {
    program: PathBuf,
    folder: PathBuf,
    pipe: PathBuf,
    /// The folder of [`PRIVILEGED`] once it is moved; no container has it.
    own: PathBuf,
}

impl MpsControl {
    /// With its folders in the arbiter's.
    pub(crate) fn new(program: &Path, folder: &Folder) -> MpsControl {
        MpsControl {
            program: program.to_owned(),
            folder: folder.mps(),
            pipe: folder.mps_pipe(),
            own: folder.mps().join("own"),
        }
    }

    /// The folder of the daemon's sockets. A process with access to it can be the daemon's client:
    /// only this user's, because the folder above is closed to others, and those of containers that
    /// have it mounted, with any user.
    pub(crate) fn pipe(&self) -> &Path {
        &self.pipe
    }

    /// Makes the folders, and empties them of an earlier daemon's files. The folders
    /// themselves stay: containers may have them mounted.
    fn make_folders(&self) -> Result<(), ArbiterError> {
        let (pipe, log) = (&self.pipe, self.folder.join("log"));
        let made = |folder: &Path| {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
        };
        for folder in [pipe, &log, &self.own] {
            made(folder).map_err(at("making", folder.display()))?;
        }
        let opened = fs::set_permissions(pipe, fs::Permissions::from_mode(0o755));
        opened.map_err(at("opening to clients", pipe.display()))?;
        if rustix::process::geteuid().is_root() {
            let group = rustix::process::getegid().as_raw();
            let opened = chown(&self.folder, None, Some(group)).and_then(|()| {
                fs::set_permissions(&self.folder, fs::Permissions::from_mode(0o710))
            });
            opened.map_err(at("opening to servers", self.folder.display()))?;
        }
        for folder in [pipe, &self.own] {
            for left in fs::read_dir(folder).map_err(at("reading", folder.display()))? {
                let left = left.map_err(at("reading", folder.display()))?.path();
                fs::remove_file(&left).map_err(at("removing", left.display()))?;
            }
        }
        Ok(())
    }

    /// Removes the folders, which no process will use any more.
    pub(crate) fn remove_folders(&self) {
        let _absent = fs::remove_dir_all(&self.folder);
    }

    fn command(&self, pipe: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env(PIPE, pipe)
            .env(LOG, self.folder.join("log"))
            .process_group(0)
            .stdout(Stdio::null());
        for name in NOT_ITS_OWN {
            command.env_remove(name);
        }
        command
    }

    /// Starts the daemon, in folders emptied of an earlier one's files: a killed daemon leaves a
    /// socket without a listener. Or returns the reason why it cannot be started.
    pub(crate) fn start(&self) -> Result<DaemonProcess, String> {
        self.make_folders().map_err(|error| error.to_string())?;
        self.spawn().map_err(|error| error.to_string())
    }

    fn spawn(&self) -> io::Result<DaemonProcess> {
        let mut command = self.command(&self.pipe);
        command.arg("-f").stdin(Stdio::null());
        end_with_this_thread(&mut command);
        let mut child = command.spawn()?;
        match peer::open(Pid(child.id())) {
            Ok(pidfd) => Ok(DaemonProcess {
                child,
                pidfd,
                is_over: false,
            }),
            Err(error) => {
                let _gone = child.kill();
                let _gone = child.wait();
                Err(error)
            }
        }
    }

    /// Asks the daemon whether it serves.
    pub(crate) fn ask(&self) -> io::Result<Question> {
        self.say(IS_THERE, &self.pipe)
    }

    /// Moves the socket for the operator's words away from its clients. A program that makes none has
    /// none.
    pub(crate) fn hide_privileged(&self) -> io::Result<()> {
        let moved = fs::rename(self.pipe.join(PRIVILEGED), self.own.join(PRIVILEGED));
        match moved {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            moved => moved,
        }
    }

    /// Ends the daemon in order, and by force if that takes long.
    pub(crate) fn quit(&self, daemon: DaemonProcess) {
        let pipe = match self.own.join(PRIVILEGED).exists() {
            true => &self.own,
            false => &self.pipe,
        };
        if let Ok(_said) = self.say(QUIT, pipe) {
            daemon.wait(QUIT_WITHIN);
        }
        drop(daemon);
    }

    /// Has the daemon told something, by its sockets in that folder.
    fn say(&self, words: &str, pipe: &Path) -> io::Result<Question> {
        let mut command = self.command(pipe);
        command.stdin(Stdio::piped()).stderr(Stdio::null());
        end_with_this_thread(&mut command);
        let mut question = Question(command.spawn()?);
        if let Some(mut input) = question.0.stdin.take() {
            // One that does not listen says by its end what is wrong.
            let _deaf = input.write_all(format!("{words}\n").as_bytes());
        }
        Ok(question)
    }

    /// The program, for people.
    pub(crate) fn name(&self) -> String {
        self.program.display().to_string()
    }
}

/// The daemon, a child of ours. Dropped, it is killed with all that it has started.
#[derive(Debug)]
pub(crate) struct DaemonProcess {
    child: Child,
    /// Readable when it has ended.
    pidfd: OwnedFd,
    is_over: bool,
}

impl DaemonProcess {
    pub(crate) fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// The user whose programs its server serves.
    pub(crate) fn served(&self) -> Option<UserId> {
        served::user(self.pid())
    }

    /// Text about its end, if it has ended; its servers end with it.
    pub(crate) fn take_end(&mut self) -> Option<String> {
        (!self.is_over && peer::is_gone(&self.pidfd)).then(|| self.end())
    }

    /// Waits for its end for no longer than that.
    pub(crate) fn wait(&self, limit: Duration) {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let _woken = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&limit));
    }

    /// Kills its group, and says how it ended itself. Until it is waited for, no other process can
    /// have its number, nor its group's.
    fn end(&mut self) -> String {
        self.is_over = true;
        let group = rustix::process::Pid::from_child(&self.child);
        let _none_left = rustix::process::kill_process_group(group, Signal::KILL);
        match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => format!("nobody knows how it ended: {error}"),
        }
    }
}

impl AsFd for DaemonProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        if !self.is_over {
            self.end();
        }
    }
}

/// A process that carries words to the daemon.
#[derive(Debug)]
pub(crate) struct Question(Child);

impl Question {
    /// Once it has ended: was there a daemon that answered?
    pub(crate) fn answer(&mut self) -> Option<bool> {
        match self.0.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.success()),
            Err(_) => Some(false),
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// The kernel kills the child when the thread that starts it ends, however it ends.
fn end_with_this_thread(command: &mut Command) {
    let die = || {
        // SAFETY: the call takes two numbers and touches no memory.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec only that one system call is made.
    unsafe { command.pre_exec(die) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::time::Instant;

    use super::*;

    /// Makes a control with a script as its program. Another process writes the script: while
    /// this one has it open, a child of another test may have it open too, and then no process
    /// can run it.
    fn control(base: &Path, script: &str) -> MpsControl {
        let program = base.join("control");
        let write = "printf '#!/bin/sh\n%s\n' \"$2\" > \"$1\" && chmod 755 \"$1\"";
        let mut writer = Command::new("sh");
        writer.args(["-c", write, "sh"]).arg(&program).arg(script);
        assert!(writer.status().unwrap().success());
        MpsControl::new(&program, &Folder::within(base, "gpu"))
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn folders_are_closed_above_and_open_to_clients_below() {
        let base = tempfile::tempdir().unwrap();
        let control = control(base.path(), "");
        control.make_folders().unwrap();
        fs::write(control.pipe().join("control"), "left").unwrap();
        control.make_folders().unwrap();
        assert_eq!(fs::read_dir(control.pipe()).unwrap().count(), 0);
        // Servers, which keep the group of root's daemon, pass; nobody else does, or lists it.
        let is_root = rustix::process::geteuid().is_root();
        let above = fs::metadata(base.path().join("gpu/mps")).unwrap();
        let passes = if is_root { 0o710 } else { 0o700 };
        assert_eq!(above.permissions().mode() & 0o7777, passes);
        assert_eq!(above.gid(), rustix::process::getegid().as_raw());
        assert_eq!(mode(control.pipe()), 0o755);
        for closed in ["gpu/mps/own", "gpu/mps/log"] {
            assert_eq!(mode(&base.path().join(closed)), 0o700);
        }
        control.remove_folders();
        control.remove_folders();
        assert!(!base.path().join("gpu/mps").exists());
    }

    #[test]
    fn the_end_of_the_daemon_is_seen_and_its_children_end_too() {
        let base = tempfile::tempdir().unwrap();
        let script = "sleep 60 & echo $! > \"$CUDA_MPS_PIPE_DIRECTORY/child\"; exit 3";
        let control = control(base.path(), script);
        let mut daemon = control.start().unwrap();
        daemon.wait(Duration::from_secs(20));
        assert_eq!(daemon.take_end().as_deref(), Some("exit status: 3"));
        assert_eq!(daemon.take_end(), None);
        let child = fs::read_to_string(control.pipe().join("child")).unwrap();
        let child = peer::open(Pid(child.trim().parse().unwrap()));
        // It may be gone to the last, or still be waiting to be collected by whoever has it now.
        if let Ok(child) = child {
            let mut one = [PollFd::new(&child, PollFlags::IN)];
            let limit = Timespec {
                tv_sec: 20,
                tv_nsec: 0,
            };
            assert_eq!(poll(&mut one, Some(&limit)), Ok(1));
        }
    }

    #[test]
    fn who_is_told_to_quit_and_does_not_is_ended() {
        let base = tempfile::tempdir().unwrap();
        // It ignores what it is told, and SIGTERM.
        let control = control(base.path(), "trap '' TERM; [ \"$1\" != -f ] || sleep 60");
        let daemon = control.start().unwrap();
        let pidfd = peer::open(daemon.pid()).unwrap();
        let began = Instant::now();
        control.quit(daemon);
        assert!(began.elapsed() >= QUIT_WITHIN);
        assert!(peer::is_gone(&pidfd));
    }

    #[test]
    fn the_operators_socket_is_moved_away_from_clients_and_quit_goes_by_it() {
        let base = tempfile::tempdir().unwrap();
        // Told something, it writes down by which folder.
        let script =
            "[ \"$1\" = -f ] && exec sleep 60; echo \"$CUDA_MPS_PIPE_DIRECTORY\" > \"$0.told\"";
        let control = control(base.path(), script);
        control.hide_privileged().unwrap();
        let daemon = control.start().unwrap();
        fs::write(control.pipe().join("control"), "").unwrap();
        fs::write(control.pipe().join(PRIVILEGED), "").unwrap();
        control.hide_privileged().unwrap();
        assert_eq!(fs::read_dir(control.pipe()).unwrap().count(), 1);
        assert_eq!(mode(&control.own), 0o700);
        control.quit(daemon);
        let told = fs::read_to_string(base.path().join("control.told")).unwrap();
        assert_eq!(told.trim(), control.own.display().to_string());
        // The next daemon makes its own.
        control.make_folders().unwrap();
        assert_eq!(fs::read_dir(&control.own).unwrap().count(), 0);
    }

    #[test]
    fn an_answer_is_a_success() {
        let base = tempfile::tempdir().unwrap();
        let ask = |script: &str| {
            let mut question = control(base.path(), script).ask().unwrap();
            loop {
                if let Some(answer) = question.answer() {
                    return answer;
                }
                std::thread::yield_now();
            }
        };
        assert!(ask("read word; [ $word = get_server_list ]"));
        assert!(!ask("exit 1"));
        let folder = Folder::within(base.path(), "gpu");
        let absent = MpsControl::new(&base.path().join("absent"), &folder);
        assert_eq!(
            absent.ask().err().map(|e| e.kind()),
            Some(io::ErrorKind::NotFound)
        );
        let error = absent.start().err();
        assert_eq!(
            error.as_deref(),
            Some("No such file or directory (os error 2)")
        );
    }
}
