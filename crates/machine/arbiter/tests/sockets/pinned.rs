//! Memory of the host: one budget per job, for any cards.

use sublet_arbiter::admin::{Reply, Request};

use crate::child::Process;
use crate::containers::container;
use crate::world::{PATIENCE, World, ask, reason, until, uuid};
use sublet_arbiter::ContainerCard;
use sublet_model::MiB;

/// A job with this limit of pinned memory; nothing for no limit.
fn placed(world: &World, pinned: Option<&str>) -> (sublet_arbiter::admin::Client, u64) {
    let mut submit = ask("100MiB", 1, false);
    submit.pinned_memory = pinned.map(str::to_owned);
    let mut line = world.admin();
    match line.call(&Request::Submit(submit), PATIENCE).unwrap() {
        Reply::Placed(placed) => {
            let limit = pinned.map(|text| text.trim_end_matches("MiB").parse().unwrap());
            assert_eq!(placed.pinned_limit_mib, limit);
            (line, placed.id)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_pins_so_much_and_not_a_byte_more() {
    let world = World::new(&[1024]);
    let (_line, id) = placed(&world, Some("64MiB"));
    let mut one = Process::start(&world.socket());
    let mut two = Process::start(&world.socket());
    one.tell("hello");
    two.tell("hello");
    assert_eq!(one.tell("pin 40"), "pinned");
    assert_eq!(
        two.tell("pin 25"),
        format!(
            "not pinned: {} bytes are taken of a limit of {}",
            40 << 20,
            64 << 20
        )
    );
    assert_eq!(two.tell("pin 24"), "pinned");
    // The card's memory is another matter.
    assert_eq!(one.tell("reserve 0 100"), "reserved");
    let row = world.job(id).unwrap();
    assert_eq!(
        (row.pinned_limit_mib, row.pinned_used_mib),
        (Some(64), Some(64))
    );
    assert_eq!((row.memory_used_mib, row.state.as_str()), (100, "running"));
    assert_eq!(row.pinned_last_refusal.unwrap().bytes, 25 << 20);
    assert_eq!(row.per_gpu[0].last_refusal, None);
    assert_eq!(two.tell("unpin 24"), "unpinned");
    assert_eq!(one.tell("pin 24"), "pinned");
    // A dead process has pinned nothing.
    one.kill();
    until(|| two.tell("pin 64"), |said| said == "pinned");
}

#[test]
fn without_a_limit_it_is_counted_all_the_same() {
    let world = World::new(&[1024]);
    let (_line, id) = placed(&world, None);
    assert_eq!(
        world.job(id).unwrap().pinned_used_mib,
        Some(0),
        "no process yet"
    );
    let mut one = Process::start(&world.socket());
    one.tell("hello");
    assert_eq!(one.tell("pin 1000000"), "pinned");
    let row = world.job(id).unwrap();
    assert_eq!(
        (row.pinned_limit_mib, row.pinned_used_mib),
        (None, Some(1_000_000))
    );
}

#[test]
fn once_a_limit_is_told_nothing_is_pinned_against_the_old_one() {
    let world = World::new(&[1024]);
    let (mut line, id) = placed(&world, None);
    // Before its first process there is no page to write it on, and it holds.
    assert!(matches!(world.limit_pinned(id, "64MiB"), Reply::Limited(_)));
    line.receive(Some(PATIENCE)).unwrap();
    let mut one = Process::start(&world.socket());
    one.tell("hello");
    assert!(one.tell("pin 65").starts_with("not pinned"));
    assert_eq!(one.tell("pin 60"), "pinned");
    let Reply::Limited(now) = world.limit_pinned(id, "50MiB") else {
        panic!("not limited")
    };
    assert_eq!(
        (now.pinned_limit_mib, now.gpus[0].limit_mib),
        (Some(50), 100)
    );
    assert_eq!(line.receive(Some(PATIENCE)).unwrap(), Reply::Limited(now));
    assert!(one.tell("pin 1").starts_with("not pinned"));
    let row = world.job(id).unwrap();
    assert_eq!(row.state, "over");
    assert_eq!(row.reason.unwrap(), "10 MiB more pinned than its limit");
    one.tell("unpin 20");
    assert_eq!(world.job(id).unwrap().state, "running");
    assert_eq!(one.tell("pin 10"), "pinned");
    assert!(matches!(world.limit_pinned(id, "1GiB"), Reply::Limited(_)));
    assert_eq!(one.tell("pin 974"), "pinned");
    // The card's limit is changed by itself, and leaves this one alone.
    let Reply::Limited(now) = world.limit(id, "200MiB") else {
        panic!("not limited")
    };
    assert_eq!(
        (now.pinned_limit_mib, now.gpus[0].limit_mib),
        (Some(1024), 200)
    );
    assert!(one.tell("pin 1").starts_with("not pinned"));
}

#[test]
fn nonsense_is_refused_with_a_reason() {
    let world = World::new(&[1024]);
    let (_line, id) = placed(&world, None);
    assert!(reason(&world.limit_pinned(id, "50%")).contains("`50%` is not a size"));
    assert!(reason(&world.limit_pinned(id, "0MiB")).contains("more than zero"));
    assert_eq!(
        reason(&world.limit_pinned(77, "1MiB")),
        "there is no job 77"
    );
    let mut submit = ask("1MiB", 1, false);
    submit.pinned_memory = Some("half".to_owned());
    let reply = world.call(&Request::Submit(submit));
    assert!(reason(&reply).contains("`half` is not a size"), "{reply:?}");
    assert_eq!(world.snapshot().tenants.len(), 1);
}

#[test]
fn a_container_has_the_limit_that_the_agent_says() {
    let world = World::new(&[1024]);
    let dir = tempfile::tempdir().unwrap();
    let card = ContainerCard {
        uuid: uuid(0),
        limit: MiB::from(100),
    };
    let mut limited = container("pod", dir.path(), vec![card]);
    limited.pinned_limit = Some(MiB::from(32));
    let id = world.handle.add_container(limited).unwrap();
    assert_eq!(world.job(id).unwrap().pinned_limit_mib, Some(32));
    let mut one = Process::start_orphan(&dir.path().join("tenant.sock"));
    one.tell("hello");
    assert!(one.tell("pin 33").starts_with("not pinned"));
    assert_eq!(one.tell("pin 32"), "pinned");
}
