//! A crowd on `admin.sock`: whoever holds connections and has nothing to say makes room for
//! whoever has, and no job is dropped for anybody.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};
use sublet_arbiter::admin::{Reply, Request};

use crate::child::Process;
use crate::restart::Killable;
use crate::world::{PATIENCE, World, reason, submit, until};

/// More than an arbiter ever lets be connected.
const CROWD: usize = 2_500;

/// How long a command may take beside them. It takes milliseconds; a test machine is busy.
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

/// What the next command hears when as many jobs are connected as there are descriptors for.
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
