//! An arbiter that is killed and started again, while jobs run.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use sublet_arbiter::admin::{Client, Placed, Reply, Request, Snapshot};
use sublet_arbiter::{Arbiter, Folder, Options};

use crate::child::Process;
use crate::world::{PATIENCE, View, reason, submit, until};

const BASE: &str = "SUBLET_TEST_ARBITER";

/// An arbiter that can be killed.
pub(crate) struct Killable {
    child: Child,
    /// Open for as long as it lives: the test harness ends a process that cannot say that its test runs
    /// for a minute.
    _said: BufReader<ChildStdout>,
    pub(crate) folder: Folder,
}

impl Killable {
    pub(crate) fn start(base: &Path) -> Killable {
        Killable::start_with(base, 4096)
    }

    pub(crate) fn start_with(base: &Path, descriptors: u32) -> Killable {
        let limited = format!("ulimit -n {descriptors}; exec \"$0\" \"$@\"");
        let mut child = Command::new("sh")
            .args(["-c", &limited])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "restart::an_arbiter_of_its_own", "--nocapture"])
            .env(BASE, base)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut up = said.by_ref().lines().map_while(Result::ok);
        assert!(
            up.any(|line| line.contains("arbiter: up")),
            "it did not start"
        );
        Killable {
            child,
            _said: said,
            folder: Folder::within(base, "gpu"),
        }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Processor time that it has had, in milliseconds.
    pub(crate) fn processor_ms(&self) -> u64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let of = threads.map(|thread| {
            let file = thread.unwrap().path().join("schedstat");
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let first = text.split_whitespace().next().map(str::parse::<u64>);
            first.map_or(0, Result::unwrap)
        });
        of.sum::<u64>() / 1_000_000
    }

    pub(crate) fn admin(&self) -> Client {
        Client::connect(&self.folder.admin_socket()).unwrap()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        match self.admin().call(&Request::List, PATIENCE).unwrap() {
            Reply::Snapshot(snapshot) => *snapshot,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn used(&self, id: u64) -> Option<u64> {
        let rows = self.snapshot().tenants;
        let row = rows.into_iter().find(|row| row.id == Some(id));
        row.map(|row| row.memory_used_mib)
    }

    pub(crate) fn place(&self, memory: &str) -> (Client, Placed) {
        let (mut line, mut reply) = submit(self.admin(), memory, 1, true);
        loop {
            match reply {
                Reply::Placed(placed) => return (line, placed),
                Reply::Waiting { .. } => reply = line.receive(Some(PATIENCE)).unwrap(),
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn resume(&self, id: u64) -> (Client, Reply) {
        let mut line = self.admin();
        let reply = line.call(&Request::Resume { id }, PATIENCE).unwrap();
        (line, reply)
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_arbiter_of_its_own() {
    let Some(base) = std::env::var_os(BASE) else {
        let base = tempfile::tempdir().unwrap();
        let mut arbiter = Killable::start(base.path());
        assert_eq!(arbiter.snapshot().gpus.len(), 1);
        arbiter.kill();
        assert!(arbiter.folder.lock_file().exists());
        return;
    };
    let (view, _) = View::new(&[1024]);
    let folder = Folder::within(&PathBuf::from(base), "gpu");
    let arbiter = Arbiter::start(Options::new(folder), Box::new(view)).unwrap();
    println!("arbiter: up");
    arbiter.run().unwrap();
}

#[test]
fn limits_hold_and_jobs_go_on() {
    let base = tempfile::tempdir().unwrap();
    let mut before = Killable::start(base.path());
    let (line, placed) = before.place("100MiB");
    let mut one = Process::start(&before.folder.tenant_socket());
    let mut two = Process::start(&before.folder.tenant_socket());
    let mut dead = Process::start(&before.folder.tenant_socket());
    let slots = [one.tell("hello"), two.tell("hello"), dead.tell("hello")];
    for process in [&mut one, &mut two, &mut dead] {
        assert_eq!(process.tell("reserve 0 20"), "reserved");
    }
    before.kill();
    assert_eq!(one.tell("lost"), "lost 0");
    // Nobody is there, and the limit holds.
    assert!(one.tell("reserve 0 41").starts_with("not reserved"));
    assert_eq!(one.tell("reserve 0 40"), "reserved");
    dead.kill();
    drop(line);
    let after = Killable::start(base.path());
    let id = placed.id;
    let (_line, reply) = after.resume(placed.id);
    assert_eq!(reply, Reply::Placed(placed.clone()));
    assert_eq!(one.tell("again"), slots[0]);
    // What the dead one had is back; what the other has is known, though it is not back.
    assert_eq!(after.used(id), Some(80));
    assert!(one.tell("reserve 0 21").starts_with("not reserved"));
    two.kill();
    until(|| after.used(id), |used| *used == Some(60));
    assert_eq!(one.tell("reserve 0 40"), "reserved");
    let mut new = Process::start(&after.folder.tenant_socket());
    assert!(new.tell("hello").contains(&format!("tenant {id}")));
    assert!(new.tell("reserve 0 1").starts_with("not reserved"));
    let (_line, other) = after.place("100MiB");
    assert!(other.id > id, "a number is not used twice");
}

#[test]
fn what_is_pinned_and_its_limit_are_known_to_the_next() {
    let base = tempfile::tempdir().unwrap();
    let mut before = Killable::start(base.path());
    let (line, placed) = before.place("100MiB");
    let limit = Request::LimitPinned {
        id: placed.id,
        memory: "64MiB".to_owned(),
    };
    let Reply::Limited(placed) = before.admin().call(&limit, PATIENCE).unwrap() else {
        panic!("not limited")
    };
    let mut one = Process::start(&before.folder.tenant_socket());
    let mut dead = Process::start(&before.folder.tenant_socket());
    let slot = one.tell("hello");
    dead.tell("hello");
    assert_eq!(one.tell("pin 30"), "pinned");
    assert_eq!(dead.tell("pin 30"), "pinned");
    before.kill();
    assert_eq!(one.tell("lost"), "lost 0");
    assert!(one.tell("pin 5").starts_with("not pinned"));
    dead.kill();
    drop(line);
    let after = Killable::start(base.path());
    let (_line, reply) = after.resume(placed.id);
    assert_eq!(reply, Reply::Placed(placed.clone()));
    assert_eq!(one.tell("again"), slot);
    let row = after.snapshot().tenants.remove(0);
    assert_eq!(
        (row.pinned_limit_mib, row.pinned_used_mib),
        (Some(64), Some(30))
    );
    assert!(one.tell("pin 35").starts_with("not pinned"));
    assert_eq!(one.tell("pin 34"), "pinned");
}

#[test]
fn nobody_takes_the_place_of_a_job_that_may_come_back() {
    let base = tempfile::tempdir().unwrap();
    let mut before = Killable::start(base.path());
    let (line, placed) = before.place("1GiB");
    before.kill();
    drop(line);
    let after = Killable::start(base.path());
    let (_waits, reply) = submit(after.admin(), "1MiB", 1, true);
    assert!(reason(&reply).contains("was just restarted"), "{reply:?}");
    let (_line, reply) = after.resume(placed.id);
    assert_eq!(reply, Reply::Placed(placed.clone()));
    let (_, reply) = after.resume(placed.id);
    assert_eq!(
        reason(&reply),
        format!("there is a job {} already", placed.id)
    );
}

#[test]
fn one_that_comes_back_too_late_is_charged_with_what_it_has() {
    let base = tempfile::tempdir().unwrap();
    let mut before = Killable::start(base.path());
    let (line, placed) = before.place("100MiB");
    let mut one = Process::start(&before.folder.tenant_socket());
    one.tell("hello");
    one.tell("reserve 0 70");
    one.tell("pin 7");
    before.kill();
    drop(line);
    let after = Killable::start(base.path());
    let (_line, reply) = after.resume(placed.id);
    assert!(matches!(reply, Reply::Placed(_)));
    let row = after.snapshot().tenants[0].clone();
    let why = row.reason.unwrap_or_default();
    assert!(why.contains("programs are not back yet"), "{why}");
    // A new process waits for the ledger, and gets a new one when nobody brings it.
    let mut new = Process::start(&after.folder.tenant_socket());
    assert!(new.tell("hello").starts_with("slot 1 "));
    assert_eq!(new.tell("reserve 0 20"), "reserved");
    assert!(one.tell("again").starts_with("slot 2 "));
    assert_eq!(after.used(placed.id), Some(90));
    assert_eq!(after.snapshot().tenants[0].reason, None);
    assert_eq!(after.snapshot().tenants[0].pinned_used_mib, Some(7));
    assert!(new.tell("reserve 0 11").starts_with("not reserved"));
    assert_eq!(one.tell("release 0 70"), "released");
    assert_eq!(new.tell("reserve 0 80"), "reserved");
}

#[test]
fn with_few_descriptors_it_serves_those_who_ask() {
    let base = tempfile::tempdir().unwrap();
    let arbiter = Killable::start_with(base.path(), 48);
    let (_line, placed) = arbiter.place("100MiB");
    let mut one = Process::start(&arbiter.folder.tenant_socket());
    one.tell("hello");
    let socket = arbiter.folder.admin_socket();
    let mut crowd: Vec<_> = (0..100)
        .map(|_| Client::connect(&socket).unwrap())
        .collect();
    // They are let in as they came, and those before it made room for the last.
    let last = crowd.last_mut().unwrap();
    let said = last.call(&Request::Hello, PATIENCE);
    assert!(matches!(said, Ok(Reply::Hello { .. })), "{said:?}");
    let mut late = Process::start(&arbiter.folder.tenant_socket());
    let said = late.tell("hello");
    assert_eq!(said, format!("slot 2 generation 1 tenant {}", placed.id));
    assert_eq!(one.tell("reserve 0 100"), "reserved");
    assert_eq!(arbiter.used(placed.id), Some(100));
}
