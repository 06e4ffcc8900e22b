//! An arbiter that may not look into other programs, as that of the node agent: its container has
//! no right to trace, and the kernel then hides namespaces, descriptors and the place of code.

use std::fs;
use std::thread;
use std::time::Duration;

use rustix::thread::CapabilitySet;

use crate::child::Process;
use crate::containers::{card, container};
use crate::world::{World, until};

/// Runs a test and its threads without the right to trace: they see of other programs only
/// what every process sees. Programs that it starts have their user's rights again.
fn without_tracing(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(|| {
        let mut own = rustix::thread::capabilities(None).unwrap();
        own.effective.remove(CapabilitySet::SYS_PTRACE);
        own.permitted.remove(CapabilitySet::SYS_PTRACE);
        rustix::thread::set_capabilities(None, own).unwrap();
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Checks that the kernel hides these facts about a program. Programs of a user without rights
/// are all alike, and may look into each other: then nothing is hidden, and nothing differs.
fn check_hidden(process: &Process) {
    let namespace = fs::read_link(format!("/proc/{}/ns/pid", process.pid()));
    assert!(namespace.is_err() || !rustix::process::geteuid().is_root());
}

#[test]
fn exec_is_told_by_what_it_ends() {
    without_tracing(|| {
        let dir = tempfile::tempdir().unwrap();
        let world = World::new(&[1024]);
        let own = container("pod", dir.path(), vec![card(0, 100)]);
        let id = world.handle.add_container(own).unwrap();
        let used = || world.job(id).unwrap().memory_used_mib;
        let mut one = Process::start_orphan(&dir.path().join("tenant.sock"));
        let slot = one.tell("hello");
        check_hidden(&one);
        assert_eq!(one.tell("thread"), "started");
        assert_eq!(one.tell("reserve 0 80"), "reserved");
        // A program that closes descriptors which are not its own, and asks once more.
        assert_eq!(one.tell("close"), "closed");
        assert_eq!(one.tell("hello"), slot);
        assert_eq!(used(), 80);
        assert_eq!(one.tell("exec"), "up");
        let said = format!("slot 1 generation 2 tenant {id}");
        assert_eq!(one.tell("hello"), said);
        assert_eq!(used(), 0);
        assert_eq!(one.tell("reserve 0 100"), "reserved");
    });
}

#[test]
fn after_a_restart_a_containers_programs_are_its_own() {
    without_tracing(|| {
        let dir = tempfile::tempdir().unwrap();
        let mut world = World::new(&[1024]);
        let mut own = container("pod", dir.path(), vec![card(0, 100)]);
        let id = world.handle.add_container(own.clone()).unwrap();
        let socket = dir.path().join("tenant.sock");
        let mut one = Process::start_orphan(&socket);
        let mut two = Process::start(&socket);
        let slot = one.tell("hello");
        two.tell("hello");
        assert_eq!(one.tell("reserve 0 20"), "reserved");
        assert_eq!(two.tell("reserve 0 30"), "reserved");
        world.restart(|options| options.settle = Duration::from_secs(3600));
        own.id = Some(id);
        assert_eq!(world.handle.add_container(own), Ok(id));
        assert_eq!(one.tell("again"), slot);
        // The other one is known though it has not come back, and its end is noticed.
        let used = || world.job(id).unwrap().memory_used_mib;
        assert_eq!(used(), 50);
        two.kill();
        until(used, |used| *used == 20);
    });
}

#[test]
fn after_a_restart_strangers_are_reported_at_once() {
    without_tracing(|| {
        let mut world = World::new(&[1024]);
        let (_line, _placed) = world.placed("100MiB", 1);
        let mut may_return = Process::start(&world.socket());
        assert_eq!(may_return.tell("thread"), "started");
        let stranger = Process::start(&world.socket());
        let on_card = [(may_return.pid(), 50), (stranger.pid(), 300)];
        world.cards.set(0, &on_card);
        // Jobs of before may come back for as long as this test lasts.
        world.restart(|options| options.settle = Duration::from_secs(3600));
        let seen = until(
            || world.snapshot().tenants,
            |rows| rows.iter().any(|row| row.state == "unmanaged"),
        );
        let pids = seen.iter().flat_map(|row| row.pids.clone());
        assert_eq!(pids.collect::<Vec<_>>(), [stranger.pid()]);
    });
}
