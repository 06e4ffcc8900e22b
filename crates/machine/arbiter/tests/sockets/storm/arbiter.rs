//! The arbiter under attack, in a process of its own: its thread's clock is the kernel's count for
//! that thread, and a file that it closes last is really closed.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::thread;

use sublet_arbiter::admin::Client;
use sublet_arbiter::{Arbiter, Folder, HostPlace, Options};

use super::fuse::Fuse;
use crate::containers::{card, container};
use crate::world::View;

const BASE: &str = "SUBLET_TEST_STORM";

/// The file of its last message when it panics.
const LAST_WORDS: &str = "last-words";

/// Containers of the arbiter: folders in the base folder.
const CONTAINERS: [&str; 2] = ["honest", "hostile"];

/// An arbiter that serves all users, and two containers.
pub(super) struct Struck {
    child: Mutex<Child>,
    /// Its thread, as the kernel counts.
    pub(super) thread: u32,
    pub(super) folder: Folder,
    /// Files that close at an unknown time, if this machine has such files.
    fuse: Mutex<Option<Fuse>>,
    /// Open for as long as it lives: the test harness says after a minute that the test still runs,
    /// and ends the process if its output is closed.
    _said: BufReader<ChildStdout>,
    base: tempfile::TempDir,
}

impl Struck {
    pub(super) fn start() -> Struck {
        let base = tempfile::tempdir().unwrap();
        for name in CONTAINERS {
            std::fs::create_dir(base.path().join(name)).unwrap();
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "storm::arbiter::an_arbiter_in_a_storm"])
            .arg("--nocapture")
            .env(BASE, base.path())
            .stdout(Stdio::piped())
            .stderr(File::create(base.path().join(LAST_WORDS)).unwrap())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let lines = said.by_ref().lines();
        let mut up = lines.map_while(Result::ok).filter_map(|line| {
            let (_, thread) = line.split_once("arbiter: up ")?;
            thread.parse().ok()
        });
        let thread = up.next().expect("it did not start");
        Struck {
            thread,
            folder: Folder::within(base.path(), "gpu"),
            fuse: Mutex::new(Fuse::new(&base.path().join("fuse"), child.id())),
            child: Mutex::new(child),
            _said: said,
            base,
        }
    }

    pub(super) fn base(&self) -> &Path {
        self.base.path()
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.lock().unwrap().id()
    }

    pub(super) fn admin(&self) -> Client {
        Client::connect(&self.folder.admin_socket()).unwrap()
    }

    /// Reason of its end, if it has ended.
    pub(super) fn end(&self) -> Option<String> {
        let status = self.child.lock().unwrap().try_wait().unwrap()?;
        Some(format!("{status}: {}", self.last_words()))
    }

    /// Its own words about its end. It may have begun to end, and wait for a file before it has.
    pub(super) fn last_words(&self) -> String {
        let said = std::fs::read_to_string(self.base().join(LAST_WORDS));
        said.unwrap_or_default().trim().to_owned()
    }

    /// The folder of such files, if there are any.
    pub(super) fn fuse(&self) -> Option<String> {
        self.fuse.lock().unwrap().as_ref().map(Fuse::place)
    }

    pub(super) fn kill(&self) {
        // Who waits for a file there cannot even be killed before that is gone.
        drop(self.fuse.lock().unwrap().take());
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Struck {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A name of the host, as root's arbiter has one.
pub(super) fn host_name(base: &Path) -> String {
    let own = base.file_name().unwrap_or_default().to_string_lossy();
    format!("sublet-storm-{own}")
}

/// Socket for a container's processes.
pub(super) fn socket_of(base: &Path, container: &str) -> PathBuf {
    base.join(container).join("tenant.sock")
}

#[test]
fn an_arbiter_in_a_storm() {
    let Some(base) = std::env::var_os(BASE).map(PathBuf::from) else {
        let struck = Struck::start();
        assert!(struck.end().is_none());
        assert!(socket_of(struck.base(), "hostile").exists());
        return;
    };
    let (view, _) = View::new(&[4096]);
    let mut options = Options::new(Folder::within(&base, "gpu"));
    options.shared = true;
    options.host = Some(HostPlace {
        name: host_name(&base),
        folder: Some(base.join("host")),
        cards: base.join("cards"),
    });
    let arbiter = Arbiter::start(options, Box::new(view)).unwrap();
    let handle = arbiter.handle();
    let own = rustix::thread::gettid().as_raw_nonzero();
    let added = thread::spawn(move || {
        for name in CONTAINERS {
            let dir = base.join(name);
            let container = container(name, &dir, vec![card(0, 256)]);
            handle.add_container(container).unwrap();
        }
        println!("arbiter: up {own}");
    });
    arbiter.run().unwrap();
    added.join().unwrap();
}
