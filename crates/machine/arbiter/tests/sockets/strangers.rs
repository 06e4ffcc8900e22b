//! Processes that use a card outside any job, and the effects of the driver's numbers.

use std::time::{Duration, Instant};

use sublet_arbiter::admin::{Reply, Request, Snapshot};

use crate::child::Process;
use crate::world::{PATIENCE, World, reason, until};

#[test]
fn a_process_without_a_slot_is_reported_within_a_second() {
    let world = World::new(&[1024]);
    let stranger = Process::start(&world.socket());
    let began = Instant::now();
    world.cards.set(0, &[(stranger.pid(), 300)]);
    let seen = until(|| world.snapshot(), |seen| !seen.tenants.is_empty());
    let took = began.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    let row = &seen.tenants[0];
    assert_eq!((row.id, row.state.as_str()), (None, "unmanaged"));
    assert_eq!(
        (&row.pids[..], row.memory_used_mib),
        (&[stranger.pid()][..], 300)
    );
    assert!(!row.name.is_empty());
    assert_eq!((seen.gpus[0].kept_mib, seen.gpus[0].free_mib), (300, 724));
    assert_eq!(seen.gpus[0].used_mib, 300);
    world.cards.set(0, &[]);
    until(|| world.snapshot().gpus[0].free_mib, |free| *free == 1024);
    assert_eq!(world.snapshot().tenants, []);
}

#[test]
fn after_a_restart_only_those_who_had_a_slot_are_waited_for() {
    let mut world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    let mut back = Process::start(&world.socket());
    let slot = back.tell("hello");
    let [first, second] = [(); 2].map(|()| Process::start(&world.socket()));
    let (back_use, first_use) = ((back.pid(), 50), (first.pid(), 300));
    world.cards.set(0, &[back_use, first_use]);
    // Jobs of before may come back for as long as this test lasts.
    world.restart(|options| options.settle = Duration::from_secs(3600));
    let pids = |seen: &Snapshot| -> Vec<u32> {
        let rows = seen.tenants.iter().filter(|row| row.state == "unmanaged");
        rows.flat_map(|row| row.pids.clone()).collect()
    };
    until(|| pids(&world.snapshot()), |pids| *pids == [first.pid()]);
    // When another one has been there for long enough, it has been there for longer.
    world
        .cards
        .set(0, &[back_use, first_use, (second.pid(), 1)]);
    let seen = until(|| pids(&world.snapshot()), |pids| pids.len() > 1);
    assert!(
        seen.contains(&first.pid()) && seen.contains(&second.pid()),
        "{seen:?}"
    );
    assert_eq!(seen.len(), 2);
    let id = placed.id;
    let mut line = world.admin();
    let reply = line.call(&Request::Resume { id }, PATIENCE).unwrap();
    assert!(matches!(reply, Reply::Placed(_)), "{reply:?}");
    assert_eq!(back.tell("again"), slot);
    assert_eq!(world.job(id).unwrap().pids, [back.pid()]);
}

#[test]
fn what_a_first_context_takes_is_known_before_the_next_regular_reading() {
    let world = World::new(&[1024]);
    let (_line, placed) = world.placed("1GiB", 1);
    let overhead = || world.job(placed.id).unwrap().per_gpu[0].overhead_mib;
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let mut one = Process::start(&world.socket());
        let began = Instant::now();
        one.tell("hello");
        world.cards.set(0, &[(one.pid(), 300)]);
        until(overhead, |mib| *mib == 300);
        best = best.min(began.elapsed());
        one.kill();
        world.cards.set(0, &[]);
        until(overhead, |mib| *mib == 0);
        if best < Duration::from_millis(200) {
            break;
        }
    }
    // It takes two readings, and the regular ones are so far apart.
    assert!(best < Duration::from_millis(200), "{best:?}");
}

#[test]
fn what_a_process_waits_for_is_charged_at_the_first_reading_and_soon() {
    let world = World::new(&[4096, 4096]);
    let (_line, placed) = world.placed("1GiB", 2);
    let mut one = Process::start(&world.socket());
    let mut other = Process::start(&world.socket());
    one.tell("hello");
    other.tell("hello");
    one.tell("reserve 0 100");
    let mut best = Duration::MAX;
    for round in 1..=20 {
        let loaded = 20 * round;
        world.cards.set(0, &[(one.pid(), 100 + loaded)]);
        let began = Instant::now();
        assert_eq!(one.tell("read 0"), "read");
        best = best.min(began.elapsed());
        let row = world.job(placed.id).unwrap().per_gpu[0].clone();
        assert_eq!((row.overhead_mib, row.used_mib), (loaded, 100 + loaded));
    }
    // The regular readings are 200 ms apart.
    assert!(best < Duration::from_millis(100), "{best:?}");
    assert!(other.tell("reserve 0 525").starts_with("not reserved"));
    // What it unloads is given back, and another process of the job can have it.
    world.cards.set(0, &[(one.pid(), 100)]);
    assert_eq!(one.tell("read 0"), "read");
    assert_eq!(other.tell("reserve 0 924"), "reserved");
    // A card that cannot be read keeps nobody waiting.
    world.cards.fail(1);
    assert_eq!(one.tell("read 1"), "read");
}

#[test]
fn by_policy_it_is_ended() {
    let world = World::with(&[1024], |options| options.evict = true);
    let mut stranger = Process::start(&world.socket());
    world.cards.set(0, &[(stranger.pid(), 300), (1, 5), (0, 5)]);
    // Its output ends with it.
    stranger.say("lost");
    until(|| world.snapshot().counters.evicted, |n| *n == 1);
    stranger.kill();
    world.cards.set(0, &[]);
    until(|| world.snapshot().tenants.len(), |n| *n == 0);
}

#[test]
fn what_no_slot_accounts_for_is_charged_to_its_job_alone() {
    let world = World::new(&[4096]);
    let (_line, placed) = world.placed("1GiB", 1);
    let mut one = Process::start(&world.socket());
    one.tell("hello");
    one.tell("reserve 0 100");
    world.cards.set(0, &[(one.pid(), 400)]);
    let row = until(
        || world.job(placed.id).unwrap().per_gpu[0].clone(),
        |row| row.overhead_mib == 300,
    );
    assert_eq!(row.used_mib, 400);
    assert!(one.tell("reserve 0 625").starts_with("not reserved"));
    assert_eq!(one.tell("reserve 0 624"), "reserved");
    assert_eq!(world.snapshot().gpus[0].context_mib, None);
    // More than the limit by contexts alone: over, and nothing new.
    world.cards.set(0, &[(one.pid(), 1200)]);
    until(
        || world.job(placed.id).unwrap().state,
        |state| state == "over",
    );
    one.kill();
    world.cards.set(0, &[]);
    until(
        || world.job(placed.id).unwrap().memory_used_mib,
        |used| *used == 0,
    );
}

#[test]
fn a_card_that_cannot_be_read_gets_no_new_work() {
    let world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    world.cards.fail(0);
    let sick = until(|| world.snapshot().gpus[0].sick.clone(), Option::is_some);
    assert_eq!(sick.unwrap(), "the driver cannot read it");
    let (_, reply) = world.submit("100MiB", 1, false);
    assert!(reason(&reply).contains("1 GPU is unhealthy"), "{reply:?}");
    // What runs there goes on, and so does what it may have.
    let mut one = Process::start(&world.socket());
    assert!(one.tell("hello").starts_with("slot 1 "));
    assert_eq!(one.tell("reserve 0 100"), "reserved");
    assert_eq!(world.job(placed.id).unwrap().state, "running");
    world.cards.set(0, &[]);
    until(|| world.snapshot().gpus[0].sick.clone(), Option::is_none);
    world.placed("100MiB", 1);
}
