//! A crowd on `admin.sock`: idle connections make room for active ones, and no job is dropped for
//! another client. And a flood: a user who connects without end keeps no other user out.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::net::{SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit};
use sublet_arbiter::admin::{Reply, Request};

use crate::child::Process;
use crate::restart::Killable;
use crate::storm::attacker::{be_nobody, is_alone};
use crate::storm::door::connect;
use crate::world::{PATIENCE, World, reason, submit, until};

/// More than an arbiter ever lets be connected.
const CROWD: usize = 2_500;

/// Longest time of a command beside them. It takes milliseconds; a test machine is busy.
const SOON: Duration = Duration::from_secs(5);

/// The test's own ends of the connections want descriptors too.
fn raise_limit() {
    let limits = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limits.maximum,
        maximum: limits.maximum,
    };
    rustix::process::setrlimit(Resource::Nofile, raised).unwrap();
}

/// Connections that each say `words`, and no more.
fn crowd(socket: &std::path::Path, words: &str) -> Vec<UnixStream> {
    let one = || {
        let mut stream = UnixStream::connect(socket).unwrap();
        // It may have had to make room before it spoke.
        let _dropped = stream.write_all(words.as_bytes());
        stream
    };
    (0..CROWD).map(|_| one()).collect()
}

#[test]
fn a_crowd_that_says_nothing_shuts_nobody_out() {
    raise_limit();
    for words in [
        "",
        "{\"kind\":",
        "{\"kind\":\"hello\"}\n",
        "{\"kind\":\"watch\",\"intervalMs\":1000}\n",
    ] {
        let world = World::new(&[1024]);
        let (mut running, placed) = world.placed("600MiB", 1);
        let (mut waiting, reply) = world.submit("600MiB", 1, true);
        assert!(matches!(reply, Reply::Waiting { .. }), "{reply:?}");
        let crowd = crowd(&world.folder.admin_socket(), words);
        let begun = Instant::now();
        assert_eq!(world.snapshot().tenants.len(), 2, "{words:?}");
        let (line, reply) = world.submit("1MiB", 1, true);
        assert!(matches!(reply, Reply::Waiting { .. }), "{reply:?}");
        assert_eq!(world.snapshot().tenants.len(), 3, "{words:?}");
        let time = begun.elapsed();
        assert!(time < SOON, "{words:?}: {time:?}");
        drop(line);
        // Those who wait and those who run were never asked to make room.
        assert!(matches!(
            world.limit(placed.id, "100MiB"),
            Reply::Limited(_)
        ));
        let told = running.receive(Some(PATIENCE)).unwrap();
        assert!(matches!(told, Reply::Limited(_)), "{words:?}: {told:?}");
        drop(running);
        let told = waiting.receive(Some(PATIENCE)).unwrap();
        assert!(matches!(told, Reply::Placed(_)), "{words:?}: {told:?}");
        drop(crowd);
    }
}

#[test]
fn a_crowd_does_not_take_the_descriptors_of_jobs() {
    raise_limit();
    let base = tempfile::tempdir().unwrap();
    let arbiter = Killable::start_with(base.path(), 1024);
    let crowd = crowd(&arbiter.folder.admin_socket(), "");
    // Three descriptors for each job, and two for its process.
    let mut jobs = Vec::new();
    for _ in 0..64 {
        let (line, placed) = arbiter.place("1MiB");
        jobs.push((line, placed));
    }
    let mut process = Process::start(&arbiter.folder.tenant_socket());
    let said = process.tell("hello");
    assert!(said.starts_with("slot 1 "), "{said}");
    assert_eq!(arbiter.snapshot().tenants.len(), jobs.len());
    drop(crowd);
}

#[test]
fn who_says_nothing_for_long_is_dropped() {
    let mut world = World::with(&[1024], |options| {
        options.idle_exit = Some(Duration::from_millis(300));
    });
    let silent = UnixStream::connect(world.folder.admin_socket()).unwrap();
    let mut half = UnixStream::connect(world.folder.admin_socket()).unwrap();
    half.write_all(b"{\"kind\"").unwrap();
    // Nobody has a job, and they keep the arbiter from its end no longer.
    world.wait_for_end();
    drop((silent, half));
}

/// Returns the answer to the next command when jobs have taken all descriptors.
fn after_the_last_job(descriptors: u32) -> String {
    let base = tempfile::tempdir().unwrap();
    let arbiter = Killable::start_with(base.path(), descriptors);
    let mut jobs = Vec::new();
    let next = || match arbiter.admin().call(&Request::Hello, PATIENCE).unwrap() {
        Reply::Hello { .. } => {
            let (line, reply) = submit(arbiter.admin(), "1MiB", 1, true);
            jobs.push(line);
            reply
        }
        other => other,
    };
    let refused = until(next, |reply| matches!(reply, Reply::Refused { .. }));
    assert!(jobs.len() >= 8, "{}", jobs.len());
    // Who goes makes room.
    drop(jobs);
    until(
        || submit(arbiter.admin(), "1MiB", 1, false).1,
        |reply| matches!(reply, Reply::Placed(_)),
    );
    reason(&refused).to_owned()
}

#[test]
fn where_only_jobs_are_connected_the_next_command_is_told_so() {
    // A job takes three descriptors. Where one is left, it is too few to look at a process.
    let said: Vec<String> = (48..51).map(after_the_last_job).collect();
    let told = |part: &str| said.iter().any(|said| said.contains(part));
    assert!(told("no room for one more connection"), "{said:?}");
}

#[test]
fn the_line_of_one_user_has_an_end() {
    raise_limit();
    let world = World::new(&[1024]);
    let (_running, _placed) = world.placed("1024MiB", 1);
    let mut line = Vec::new();
    let last = loop {
        match world.submit("1MiB", 1, true) {
            (waits, Reply::Waiting { .. }) => line.push(waits),
            (_, other) => break other,
        }
        assert!(line.len() <= 512, "there is no end");
    };
    assert!(reason(&last).contains("512 jobs of user"), "{last:?}");
    let begun = Instant::now();
    assert_eq!(world.snapshot().tenants.len(), 513);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    // Who goes makes room.
    line.pop();
    until(
        || world.submit("1MiB", 1, true).1,
        |reply| matches!(reply, Reply::Waiting { .. }),
    );
}

const FLOOD: &str = "SUBLET_TEST_FLOOD";

/// The number of processes that flood.
const FLOODERS: usize = 4;

/// Connects as another user again and again, as fast as it can, until its starter is gone.
#[test]
fn a_flooder() {
    let Some(socket) = std::env::var_os(FLOOD) else {
        // Nobody is to be flooded, and nobody is there.
        let nowhere = SocketAddrUnix::new("/nowhere").unwrap();
        assert!(connect(SocketType::STREAM, &nowhere, SocketFlags::NONBLOCK).is_none());
        return;
    };
    be_nobody();
    let address = SocketAddrUnix::new(&*socket).unwrap();
    while !is_alone(Some(Duration::ZERO)) {
        for _ in 0..200 {
            drop(connect(SocketType::STREAM, &address, SocketFlags::NONBLOCK));
        }
    }
}

#[test]
fn who_connects_without_end_keeps_no_other_user_waiting() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be two users");
        return;
    }
    let world = World::with(&[1024], |options| options.shared = true);
    let socket = world.folder.admin_socket();
    let flooder = || {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crowd::a_flooder"])
            .env(FLOOD, &socket)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut flooders: Vec<Child> = (0..FLOODERS).map(|_| flooder()).collect();
    // One who is let in as that user is closed again, and that is counted by nobody: so this one
    // looks whether they are at work.
    let nobody = |child: &Child| {
        let about = std::fs::metadata(format!("/proc/{}", child.id()));
        about.is_ok_and(|about| about.uid() != 0)
    };
    until(
        || flooders.iter().filter(|child| nobody(child)).count(),
        |n| *n == FLOODERS,
    );
    for _ in 0..50 {
        let (line, reply) = world.submit("1MiB", 1, true);
        assert!(matches!(reply, Reply::Placed(_)), "{reply:?}");
        assert_eq!(world.snapshot().tenants.len(), 1);
        drop(line);
        until(|| world.snapshot().tenants.len(), |n| *n == 0);
    }
    for flooder in &mut flooders {
        assert!(flooder.try_wait().unwrap().is_none(), "it has ended early");
        drop(flooder.stdin.take());
        flooder.wait().unwrap();
    }
}
