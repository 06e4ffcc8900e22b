//! The guard: a small shell process that ends what this process started, if this process cannot.
//!
//! `Drop` does not run when a test process is killed, and the kernel's parent-death signal is
//! tied to the *thread* that forked, which in a test run ends long before the process. So each
//! directory of processes has a guard that reads a pipe. Only this process, and children that have
//! not yet called `exec`, hold the other end. When it closes, the guard kills and removes all that
//! it knows of. A child announces itself before it becomes its program. So at no moment can a kill
//! of the harness leave a process that the guard does not know.
//!
//! The guard never ends a process in an orderly way; `supervisor` does that.

use std::fs::File;
use std::io::{PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

const SCRIPT: &str = include_str!("guard.sh");

/// Things that a guard removes besides the processes and their directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind<'a> {
    /// Nothing more.
    Cluster,
    /// A node's containers, mounts and control groups, and its kubelet's folder.
    Node(&'a Path),
}

/// A running guard. When it is dropped it does its work, and the drop waits until that is done.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
    pipe: Option<PipeWriter>,
}

impl Guard {
    /// Starts the guard of `dir`. A `lock` is held until the guard has cleaned up, however this
    /// process ends.
    pub(crate) fn start(kind: Kind<'_>, dir: &Path, lock: Option<File>) -> Result<Guard> {
        let (reader, writer) = std::io::pipe().context("make the guard's pipe")?;
        let mut script = Command::new("sh");
        script.args(["-c", SCRIPT, "guard.sh"]);
        match kind {
            Kind::Cluster => script.arg("cluster").arg(dir),
            Kind::Node(kubelet) => script.arg("node").args([dir, kubelet]),
        };
        let child = script
            .process_group(0)
            .stdin(reader)
            // A lock belongs to the open file. The guard has the file as its output, and so keeps
            // it open.
            .stdout(lock.map_or_else(Stdio::null, Stdio::from))
            .stderr(Stdio::null())
            .spawn()
            .context("start the guard (sh)")?;
        Ok(Guard {
            child,
            pipe: Some(writer),
        })
    }

    /// The end of the pipe on which a child announces itself.
    pub(crate) fn announce(&self) -> Result<Stdio> {
        let pipe = self.pipe.as_ref().context("the guard is gone")?;
        Ok(pipe.try_clone().context("clone the guard's pipe")?.into())
    }

    /// Tells the guard that a process group is gone. Call this before the leader is reaped, because
    /// then another process may get the number.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.tell(&format!("- {pid}\n"));
    }

    /// Tells the guard to keep the directory.
    pub(crate) fn keep(&mut self) {
        self.tell("keep\n");
    }

    fn tell(&mut self, line: &str) {
        if let Some(pipe) = &mut self.pipe {
            // If somebody killed the guard, nobody reads this.
            let _ = pipe.write_all(line.as_bytes());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.pipe = None;
        let _ = self.child.wait();
    }
}

/// Removes the remains of an earlier run's node in `dir`, and its kubelet's folder. If that folder
/// cannot be emptied, the mark stays in it and names its owner.
pub(crate) fn clean_node(dir: &Path, kubelet: &Path) -> Result<()> {
    let status = Command::new("sh")
        .args(["-c", SCRIPT, "guard.sh", "clean-node"])
        .args([dir, kubelet])
        .stdin(Stdio::null())
        .status()
        .context("clean up an earlier node (sh)")?;
    ensure!(
        status.success(),
        "clean up the earlier node of {}: {status}",
        dir.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    /// An agent that still runs makes its socket again as soon as it is gone.
    #[test]
    fn a_kubelet_s_folder_that_is_written_to_meanwhile_stays_ours_until_it_is_gone() {
        let node = tempfile::tempdir().unwrap();
        let parent = tempfile::tempdir().unwrap();
        let kubelet = parent.path().join("kubelet");
        let sockets = kubelet.join("device-plugins");
        fs::create_dir_all(&sockets).unwrap();
        let mark = kubelet.join(".sublet-testbed");
        fs::write(&mark, node.path().to_string_lossy().as_bytes()).unwrap();

        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // Unlike an agent, this thread also makes the folder, so that no try succeeds.
                    let _ = fs::create_dir(&sockets);
                    let _ = fs::write(sockets.join("sublet.sock"), "");
                }
            });
            clean_node(node.path(), &kubelet).unwrap();
            stop.store(true, Ordering::Relaxed);
        });
        let is_ours = mark.exists() || !kubelet.exists();
        assert!(is_ours, "a folder without our mark is left");
        clean_node(node.path(), &kubelet).unwrap();
        assert!(!kubelet.exists(), "the folder is still there");
    }

    #[test]
    fn another_kubelet_s_folder_is_left_alone() {
        let node = tempfile::tempdir().unwrap();
        let kubelet = tempfile::tempdir().unwrap();
        let pods = kubelet.path().join("pods");
        fs::create_dir(&pods).unwrap();
        clean_node(node.path(), kubelet.path()).unwrap();
        assert!(pods.exists());
    }
}
