//! Processes with a library that speaks only version 1 of the pages: those of a container that
//! was started before the node's arbiter was replaced.
//!
//! `frozen` has such a library. A `Process` has a current one, which speaks both.

mod frozen;

use sublet_arbiter::admin::Reply;

use crate::child::Process;
use crate::restart::Killable;
use crate::world::{World, reason, until};

const TEST: &str = "version_one::frozen::a_library_of_version_1";

/// A process of the job that is below this test.
fn old(socket: &std::path::Path) -> Process {
    Process::start_as(socket, TEST)
}

/// Its message when it has its slot. The sizes are those of the received memory.
fn welcome(slot: u32, generation: u32, tenant: u64) -> String {
    format!(
        "version 1 slot {slot} generation {generation} tenant {tenant} strict, \
         control 1152 ledger 591744"
    )
}

#[test]
fn it_is_held_to_its_limit_to_the_byte() {
    let world = World::new(&[1024, 1024]);
    let (_line, placed) = world.placed("100MiB", 2);
    let id = placed.id;
    let mut one = old(&world.socket());
    let mut two = old(&world.socket());
    assert_eq!(one.tell("hello"), welcome(1, 1, id));
    assert_eq!(two.tell("hello"), welcome(2, 1, id));
    // Two cards of 1024 MiB, in order; of each 100 MiB in units of 512 bytes.
    let cards = "1024 of 100 as 0, 1024 of 100 as 1";
    assert_eq!(one.tell("cards"), cards);
    let all = (100 << 20) / 512;
    assert_eq!(one.tell("take 1 60"), "taken, 60 in all");
    let rest = all - 60;
    assert_eq!(two.tell(&format!("take 1 {}", rest + 1)), "refused");
    assert_eq!(
        two.tell(&format!("take 1 {rest}")),
        format!("taken, {all} in all")
    );
    assert_eq!(one.tell("take 1 1"), "refused");
    let row = world.job(id).unwrap();
    assert_eq!((row.memory_used_mib, row.state.as_str()), (100, "running"));
    assert_eq!(row.per_gpu[1].used_mib, 100);
    assert_eq!(row.per_gpu[1].last_refusal.as_ref().unwrap().bytes, 512);
    assert_eq!(row.pids, [one.pid(), two.pid()]);
    assert_eq!(row.pinned_used_mib, None, "nobody counts what it pins");
    assert_eq!(two.tell("give 1 10"), format!("given, {} in all", all - 10));
    assert_eq!(one.tell("take 1 10"), format!("taken, {all} in all"));
    // It is back when its process is dead.
    two.kill();
    let free = format!("take 1 {}", all - 70);
    until(|| one.tell(&free), |said| said.starts_with("taken"));
}

#[test]
fn its_limit_is_changed_while_it_runs() {
    let world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    let id = placed.id;
    let mut one = old(&world.socket());
    one.tell("hello");
    let mib = |n: u64| (n << 20) / 512;
    assert_eq!(
        one.tell(&format!("take 0 {}", mib(80))),
        format!("taken, {} in all", mib(80))
    );
    assert!(matches!(world.limit(id, "50MiB"), Reply::Limited(_)));
    assert_eq!(one.tell("cards"), "1024 of 50 as 0");
    assert_eq!(one.tell("take 0 1"), "refused");
    assert_eq!(world.job(id).unwrap().state, "over");
    one.tell(&format!("give 0 {}", mib(40)));
    until(|| world.job(id).unwrap().state, |state| state == "running");
    assert_eq!(
        one.tell(&format!("take 0 {}", mib(10))),
        format!("taken, {} in all", mib(50))
    );
    // A limit that nobody would keep is not promised.
    let reply = world.limit_pinned(id, "1GiB");
    assert_eq!(
        reason(&reply),
        format!(
            "job {id} has pages of version 1, as its first process had them: nobody counts what \
             it pins"
        )
    );
    // The arbiter is seen to live, and the process's last word is understood.
    let first: u64 = one.tell("heartbeat").parse().unwrap();
    until(
        || one.tell("heartbeat").parse::<u64>().unwrap(),
        |beat| *beat > first,
    );
    assert_eq!(one.tell("bye"), "closed");
    assert_eq!(one.tell("hello"), welcome(1, 1, id));
}

#[test]
fn a_process_of_both_versions_works_with_pages_of_version_1() {
    let world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    let id = placed.id;
    let mut first = old(&world.socket());
    first.tell("hello");
    let mut second = Process::start(&world.socket());
    assert_eq!(
        second.tell("hello"),
        format!("slot 2 generation 1 tenant {id}")
    );
    assert_eq!(second.tell("reserve 0 60"), "reserved");
    assert_eq!(
        first.tell(&format!("take 0 {}", (40 << 20) / 512 + 1)),
        "refused"
    );
    assert_eq!(second.tell("pin 5"), "nobody counts");
    let row = world.job(id).unwrap();
    assert_eq!((row.memory_used_mib, row.pinned_used_mib), (60, None));
}

#[test]
fn in_a_job_with_pages_of_version_2_it_is_told_why_it_has_no_slot() {
    let world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    let mut first = Process::start(&world.socket());
    first.tell("hello");
    assert_eq!(first.tell("pin 5"), "pinned");
    let mut second = old(&world.socket());
    assert_eq!(
        second.tell("hello"),
        "refused 1: the library speaks versions 1 to 1, and the job's pages are of version 2, as \
         its first process had them: give all its programs libraries of one release"
    );
    let row = world.job(placed.id).unwrap();
    assert_eq!((row.pids.len(), row.pinned_used_mib), (1, Some(5)));
}

#[test]
fn a_successor_takes_over_a_ledger_of_version_1() {
    let base = tempfile::tempdir().unwrap();
    let mut before = Killable::start(base.path());
    let (line, placed) = before.place("100MiB");
    let id = placed.id;
    let mut one = old(&before.folder.tenant_socket());
    let mut dead = old(&before.folder.tenant_socket());
    let mut both = Process::start(&before.folder.tenant_socket());
    assert_eq!(one.tell("hello"), welcome(1, 1, id));
    assert_eq!(dead.tell("hello"), welcome(2, 1, id));
    let slot = both.tell("hello");
    let mib = |n: u64| (n << 20) / 512;
    one.tell(&format!("take 0 {}", mib(20)));
    dead.tell(&format!("take 0 {}", mib(20)));
    assert_eq!(both.tell("reserve 0 20"), "reserved");
    before.kill();
    assert_eq!(one.tell("lost"), "lost");
    // Nobody is there, and the limit holds.
    assert_eq!(one.tell(&format!("take 0 {}", mib(40) + 1)), "refused");
    dead.kill();
    drop(line);
    let after = Killable::start(base.path());
    let (_line, reply) = after.resume(placed.id);
    assert_eq!(reply, Reply::Placed(placed.clone()));
    assert_eq!(one.tell("again"), welcome(1, 1, id));
    assert_eq!(after.used(id), Some(40), "what the dead one had is back");
    assert_eq!(both.tell("again"), slot);
    assert_eq!(one.tell(&format!("take 0 {}", mib(60) + 1)), "refused");
    assert_eq!(
        one.tell(&format!("take 0 {}", mib(60))),
        format!("taken, {} in all", mib(100))
    );
    assert_eq!(after.snapshot().tenants[0].pinned_used_mib, None);
    // One that comes only now has the same pages.
    let mut late = old(&after.folder.tenant_socket());
    assert_eq!(late.tell("hello"), welcome(2, 1, id));
    assert_eq!(late.tell("take 0 1"), "refused");
}
