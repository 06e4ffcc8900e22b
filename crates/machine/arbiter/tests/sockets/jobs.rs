//! The life of a job, as people and programs see it.

use std::time::{Duration, Instant};

use sublet_arbiter::admin::{Reply, Request};
use sublet_arbiter::{Arbiter, Options};

use crate::child::Process;
use crate::world::{PATIENCE, View, World, ask, reason, until};

#[test]
fn a_job_gets_so_much_and_not_a_byte_more() {
    let world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    assert_eq!((placed.gpus[0].index, placed.gpus[0].limit_mib), (0, 100));
    let mut one = Process::start(&world.socket());
    let mut two = Process::start(&world.socket());
    let id = placed.id;
    assert_eq!(
        one.tell("hello"),
        format!("slot 1 generation 1 tenant {id}")
    );
    assert_eq!(
        two.tell("hello"),
        format!("slot 2 generation 1 tenant {id}")
    );
    assert_eq!(one.tell("reserve 0 60"), "reserved");
    assert!(two.tell("reserve 0 41").starts_with("not reserved"));
    assert_eq!(two.tell("reserve 0 40"), "reserved");
    let row = world.job(id).unwrap();
    assert_eq!(
        (row.memory_used_mib, row.memory_limit_mib),
        (100, Some(100))
    );
    assert_eq!(row.pids, [one.pid(), two.pid()]);
    assert_eq!((row.state.as_str(), &row.gpus[..]), ("running", &[0][..]));
    let refusal = row.per_gpu[0].last_refusal.clone().unwrap();
    assert_eq!(refusal.bytes, 41 << 20);
    assert_eq!(one.tell("control"), "ways to write: []");
}

#[test]
fn what_a_killed_process_had_is_back_at_once() {
    let world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    let mut one = Process::start(&world.socket());
    let mut two = Process::start(&world.socket());
    one.tell("hello");
    two.tell("hello");
    let mut best = Duration::MAX;
    for _ in 0..5 {
        assert_eq!(one.tell("reserve 0 90"), "reserved");
        assert!(two.tell("reserve 0 90").starts_with("not reserved"));
        let killed = Instant::now();
        one.kill();
        until(|| two.tell("reserve 0 90"), |said| said == "reserved");
        best = best.min(killed.elapsed());
        assert_eq!(two.tell("release 0 90"), "released");
        one = Process::start(&world.socket());
        assert!(one.tell("hello").starts_with("slot 1 generation"));
    }
    // From SIGKILL to the other's success, the kernel's and both processes' work included.
    assert!(best < Duration::from_millis(50), "{best:?}");
    let counters = world.snapshot().counters;
    assert_eq!((counters.reclaimed, counters.joined), (5, 7));
    assert!(counters.reclaim_us_max < 50_000, "{counters:?}");
    drop(placed);
}

#[test]
fn jobs_wait_in_order_and_get_their_turn() {
    let world = World::new(&[1024, 1024]);
    let (first, _) = world.placed("1GiB", 2);
    let (mut second, reply) = world.submit("50%", 1, true);
    assert_eq!(
        reason(&reply),
        "GPU 0 lacks 512 MiB: 512 MiB asked, and 0 MiB are free there"
    );
    let (mut third, reply) = world.submit("1MiB", 1, true);
    assert_eq!(reason(&reply), "1 job waits before it");
    let (_, reply) = world.submit("1MiB", 1, false);
    assert_eq!(reason(&reply), "2 jobs wait before it");
    let (_, reply) = world.submit("2GiB", 1, true);
    let Reply::Refused {
        is_final, reason, ..
    } = reply
    else {
        panic!("{reply:?}")
    };
    assert!(
        is_final && reason.contains("GPU 0 has 1024 MiB in all"),
        "{reason}"
    );
    drop(first);
    let placed = |reply: Reply| match reply {
        Reply::Placed(placed) => (placed.gpus[0].index, placed.gpus[0].limit_mib),
        other => panic!("{other:?}"),
    };
    assert_eq!(placed(second.receive(Some(PATIENCE)).unwrap()), (0, 512));
    assert_eq!(placed(third.receive(Some(PATIENCE)).unwrap()), (0, 1));
    assert_eq!(world.snapshot().gpus[0].free_mib, 511);
}

#[test]
fn once_a_limit_is_told_no_reservation_against_the_old_one_succeeds() {
    let world = World::new(&[1024]);
    let (mut line, placed) = world.placed("100MiB", 1);
    let mut one = Process::start(&world.socket());
    one.tell("hello");
    one.tell("reserve 0 80");
    let id = placed.id;
    let Reply::Limited(now) = world.limit(id, "50MiB") else {
        panic!("not limited")
    };
    assert_eq!(now.gpus[0].limit_mib, 50);
    assert_eq!(line.receive(Some(PATIENCE)).unwrap(), Reply::Limited(now));
    assert!(one.tell("reserve 0 1").starts_with("not reserved"));
    let row = world.job(id).unwrap();
    assert_eq!(row.state, "over");
    assert_eq!(
        (row.request_mib, row.memory_limit_mib),
        (Some(100), Some(50))
    );
    assert_eq!(
        row.reason.unwrap(),
        "GPU 0: 30 MiB more than its limit in use"
    );
    one.tell("release 0 40");
    until(|| world.job(id).unwrap().state, |state| state == "running");
    assert_eq!(one.tell("reserve 0 10"), "reserved");
    assert_eq!(
        reason(&world.limit(id, "1025MiB")),
        "1025 MiB asked, but GPU 0 has 1024 MiB in all (1 MiB too few)"
    );
    assert!(reason(&world.limit(id, "zero")).contains("is not an amount"));
    assert_eq!(reason(&world.limit(77, "1MiB")), "there is no job 77");
    assert!(matches!(world.limit(id, "1GiB"), Reply::Limited(_)));
    assert_eq!(one.tell("reserve 0 900"), "reserved");
}

#[test]
fn another_program_in_the_same_process_begins_with_nothing() {
    let world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    let mut one = Process::start(&world.socket());
    one.tell("hello");
    one.tell("reserve 0 80");
    assert_eq!(one.tell("exec"), "up");
    assert_eq!(
        one.tell("hello"),
        format!("slot 1 generation 2 tenant {}", placed.id)
    );
    assert_eq!(world.job(placed.id).unwrap().memory_used_mib, 0);
    assert_eq!(one.tell("reserve 0 100"), "reserved");
}

#[test]
fn a_second_library_of_one_process_has_the_same_slot() {
    let world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    let mut one = Process::start(&world.socket());
    let slot = one.tell("hello");
    one.tell("reserve 0 80");
    // The first connection is closed by the second; the slot is the process's.
    assert_eq!(one.tell("hello"), slot);
    assert_eq!(world.job(placed.id).unwrap().memory_used_mib, 80);
    one.tell("close");
    assert!(one.tell("reserve 0 30").starts_with("not reserved"));
    assert_eq!(one.tell("hello"), slot);
    // A goodbye ends the connection; what a living process holds stays charged.
    assert_eq!(one.tell("bye"), "true");
    assert_eq!(one.tell("hello"), slot);
    assert_eq!(world.job(placed.id).unwrap().memory_used_mib, 80);
    one.kill();
    until(
        || world.job(placed.id).unwrap().memory_used_mib,
        |used| *used == 0,
    );
}

#[test]
fn a_job_ends_with_its_last_process() {
    let world = World::new(&[1024]);
    let (line, placed) = world.placed("1GiB", 1);
    let mut one = Process::start(&world.socket());
    one.tell("hello");
    drop(line);
    until(
        || world.job(placed.id).unwrap().state,
        |state| state == "ending",
    );
    let mut late = Process::start(&world.socket());
    assert!(late.tell("hello").starts_with("refused Closing"));
    one.kill();
    until(|| world.job(placed.id), Option::is_none);
    world.placed("1GiB", 1);
}

#[test]
fn there_is_one_arbiter_and_it_leaves_no_trace() {
    let mut world = World::with(&[1024], |options| {
        options.idle_exit = Some(Duration::from_millis(300));
    });
    let (view, _) = View::new(&[1024]);
    let error = Arbiter::start(Options::new(world.folder.clone()), Box::new(view));
    let error = error.err().unwrap().to_string();
    let me = format!("process {}", std::process::id());
    assert!(error.contains(&me), "{error}");
    let (line, _) = world.placed("1MiB", 1);
    assert!(reason(&world.call(&Request::Shutdown)).contains("1 jobs"));
    drop(line);
    world.wait_for_end();
    assert!(!world.folder.path().exists());
}

#[test]
fn a_watcher_sees_it_happen() {
    let world = World::new(&[1024]);
    let mut watcher = world.admin();
    watcher.send(&Request::Watch { interval_ms: 0 }).unwrap();
    let mut look = || match watcher.receive(Some(PATIENCE)).unwrap() {
        Reply::Snapshot(snapshot) => snapshot.tenants.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(look(), 0);
    let _job = world.placed("1MiB", 1);
    until(look, |n| *n == 1);
}

#[test]
fn what_one_look_shows_belongs_together() {
    let world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    let mut one = Process::start(&world.socket());
    one.tell("hello");
    one.tell("reserve 0 80");
    one.tell("reserve 0 30");
    // A look by `List`, and the first by `Watch`, which comes at once.
    let looks = || {
        let mut watcher = world.admin();
        watcher.send(&Request::Watch { interval_ms: 0 }).unwrap();
        let watched = match watcher.receive(Some(PATIENCE)).unwrap() {
            Reply::Snapshot(snapshot) => snapshot.tenants[0].clone(),
            other => panic!("{other:?}"),
        };
        [watched, world.job(placed.id).unwrap()]
    };
    let check = |state: &str, limit: u64, used: u64| {
        for row in looks() {
            assert_eq!(row.state, state, "{row:?}");
            let card = &row.per_gpu[0];
            assert_eq!((row.memory_limit_mib, card.limit_mib), (Some(limit), limit));
            assert_eq!((row.memory_used_mib, card.used_mib), (used, used));
            assert_eq!(row.reason.is_some(), state == "over", "{row:?}");
            let refusal = card.last_refusal.as_ref().unwrap();
            assert_eq!(refusal.bytes, 30 << 20);
            assert!(refusal.ago_ms < 60_000, "{refusal:?}");
        }
    };
    check("running", 100, 80);
    world.limit(placed.id, "50MiB");
    check("over", 50, 80);
    // Nobody tells the arbiter of this.
    one.tell("release 0 40");
    check("running", 50, 40);
    world.limit(placed.id, "40MiB");
    check("running", 40, 40);
    world.limit(placed.id, "39MiB");
    check("over", 39, 40);
    world.limit(placed.id, "200MiB");
    check("running", 200, 40);
    one.kill();
    until(looks, |rows| {
        rows.iter().all(|row| row.memory_used_mib == 0)
    });
    check("running", 200, 0);
    // Waiting: no card yet, and so nothing of any.
    let (_waits, _) = world.submit("900MiB", 1, true);
    let rows = world.snapshot().tenants;
    let row = rows.iter().find(|row| row.state == "waiting").unwrap();
    assert_eq!((row.memory_limit_mib, row.memory_used_mib), (None, 0));
    assert_eq!((row.position, &row.gpus[..]), (Some(1), &[][..]));
    assert!(row.per_gpu.is_empty() && row.reason.as_ref().unwrap().contains("GPU 0 lacks 76 MiB"));
}

#[test]
fn nonsense_is_refused_with_a_reason() {
    let world = World::new(&[1024]);
    let check = |change: &dyn Fn(&mut sublet_arbiter::admin::Submit), want: &str| {
        let mut submit = ask("1MiB", 1, false);
        change(&mut submit);
        let reply = world.call(&Request::Submit(submit));
        assert!(reason(&reply).contains(want), "{reply:?}");
    };
    check(
        &|submit| submit.memory = Some("0GiB".into()),
        "more than zero",
    );
    check(
        &|submit| submit.memory = Some("-1GiB".into()),
        "less than nothing",
    );
    check(
        &|submit| submit.memory = Some("5 bananas".into()),
        "not an amount",
    );
    check(&|submit| submit.gpus = 0, "ask for some");
    check(&|submit| submit.gpus = 2, "this machine has 1 GPU");
    check(&|submit| submit.gpus = 17, "at most 16 GPUs");
    check(
        &|submit| submit.name = "\x1b[2J".into(),
        "a terminal acts on",
    );
    check(&|submit| submit.name = "x".repeat(500), "at most 128");
    assert_eq!(world.snapshot().tenants.len(), 0);
    let (_line, placed) = match world.call(&Request::Hello) {
        Reply::Hello {
            protocol, epoch, ..
        } => (protocol, epoch),
        other => panic!("{other:?}"),
    };
    assert_eq!(placed, 1);
}
