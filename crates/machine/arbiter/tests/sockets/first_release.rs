//! Processes with the library of release 0.1.0, `frozen`: those of a container that was started
//! before the node's arbiter was replaced. A `Process` of the other tests has today's library.

mod frozen;

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sublet_arbiter::admin::{Reply, Request};

use crate::child::Process;
use crate::containers::{card, container};
use crate::restart::Killable;
use crate::world::{World, until};

/// A process of the job that is below this test.
fn old(socket: &std::path::Path) -> Process {
    Process::start_as(socket, frozen::TEST)
}

/// Its message when it has its slot. The sizes are those of the received memory.
fn welcome(slot: u32, generation: u32, tenant: u64) -> String {
    format!(
        "version 2 slot {slot} generation {generation} tenant {tenant} strict, \
         control 1216 ledger 657472"
    )
}

/// Units of 512 bytes.
const fn units(mib: u64) -> u64 {
    (mib << 20) / 512
}

/// Reads each line, and writes it as it was.
fn check_lines<T: Serialize + DeserializeOwned + Debug>(lines: &str) -> Vec<T> {
    let read = lines.lines().map(|line| {
        let read: T = serde_json::from_str(line).expect(line);
        assert_eq!(serde_json::to_string(&read).unwrap(), line);
        read
    });
    read.collect()
}

#[test]
fn its_commands_are_understood_and_answered_as_they_expect() {
    let requests = include_str!("../../../../../fixtures/0.1.0/arbiter/requests.jsonl");
    let requests: Vec<Request> = check_lines(requests);
    assert!(matches!(requests.last(), Some(Request::Shutdown)));
    let replies = include_str!("../../../../../fixtures/0.1.0/arbiter/replies.jsonl");
    let replies: Vec<Reply> = check_lines(replies);
    assert!(matches!(replies.last(), Some(Reply::Ending)));
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
    // Two cards of 1024 MiB, in order; of each 100 MiB.
    let cards = "1024 of 100 as 0, 1024 of 100 as 1";
    assert_eq!(one.tell("cards"), cards);
    let all = units(100);
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
    assert_eq!(two.tell("give 1 10"), format!("given, {} in all", all - 10));
    assert_eq!(one.tell("take 1 10"), format!("taken, {all} in all"));
    // It is back when its process is dead.
    two.kill();
    let free = format!("take 1 {}", all - 70);
    until(|| one.tell(&free), |said| said.starts_with("taken"));
}

#[test]
fn its_limits_are_changed_while_it_runs() {
    let world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    let id = placed.id;
    let mut one = old(&world.socket());
    one.tell("hello");
    let taken = |mib| format!("taken, {} in all", units(mib));
    assert_eq!(one.tell(&format!("take 0 {}", units(80))), taken(80));
    assert!(matches!(world.limit(id, "50MiB"), Reply::Limited(_)));
    assert_eq!(one.tell("cards"), "1024 of 50 as 0");
    assert_eq!(one.tell("take 0 1"), "refused");
    assert_eq!(world.job(id).unwrap().state, "over");
    one.tell(&format!("give 0 {}", units(40)));
    until(|| world.job(id).unwrap().state, |state| state == "running");
    assert_eq!(one.tell(&format!("take 0 {}", units(10))), taken(50));

    assert_eq!(one.tell(&format!("pin {}", units(60))), taken(60));
    assert!(matches!(world.limit_pinned(id, "64MiB"), Reply::Limited(_)));
    assert_eq!(one.tell(&format!("pin {}", units(4) + 1)), "refused");
    assert_eq!(one.tell(&format!("pin {}", units(4))), taken(64));
    let row = world.job(id).unwrap();
    assert_eq!(
        (row.pinned_limit_mib, row.pinned_used_mib),
        (Some(64), Some(64))
    );
    // The arbiter is seen to live, and the process's last word is understood.
    let first: u64 = one.tell("heartbeat").parse().unwrap();
    until(
        || one.tell("heartbeat").parse::<u64>().unwrap(),
        |beat| *beat > first,
    );
    assert_eq!(one.tell("bye"), "closed");
}

#[test]
fn it_counts_on_one_page_with_a_process_of_today() {
    let world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    let id = placed.id;
    let mut first = old(&world.socket());
    first.tell("hello");
    let mut second = Process::start(&world.socket());
    let slot = format!("slot 2 generation 1 tenant {id}");
    assert_eq!(second.tell("hello"), slot);
    assert_eq!(second.tell("reserve 0 60"), "reserved");
    let more = units(40) + 1;
    assert_eq!(first.tell(&format!("take 0 {more}")), "refused");
    assert_eq!(second.tell("pin 5"), "pinned");
    let pinned = format!("taken, {} in all", units(7));
    assert_eq!(first.tell(&format!("pin {}", units(2))), pinned);
    let row = world.job(id).unwrap();
    assert_eq!((row.memory_used_mib, row.pinned_used_mib), (60, Some(7)));
}

#[test]
fn a_successor_takes_over_its_ledger() {
    let base = tempfile::tempdir().unwrap();
    let mut before = Killable::start(base.path());
    let (line, placed) = before.place("100MiB");
    let id = placed.id;
    let mut one = old(&before.folder.tenant_socket());
    let mut dead = old(&before.folder.tenant_socket());
    let mut now = Process::start(&before.folder.tenant_socket());
    assert_eq!(one.tell("hello"), welcome(1, 1, id));
    assert_eq!(dead.tell("hello"), welcome(2, 1, id));
    let slot = now.tell("hello");
    one.tell(&format!("take 0 {}", units(20)));
    one.tell(&format!("pin {}", units(3)));
    dead.tell(&format!("take 0 {}", units(20)));
    assert_eq!(now.tell("reserve 0 20"), "reserved");
    before.kill();
    assert_eq!(one.tell("lost"), "lost");
    // Nobody is there, and the limit holds.
    assert_eq!(one.tell(&format!("take 0 {}", units(40) + 1)), "refused");
    dead.kill();
    drop(line);
    let after = Killable::start(base.path());
    let (_line, reply) = after.resume(placed.id);
    assert_eq!(reply, Reply::Placed(placed.clone()));
    assert_eq!(one.tell("again"), welcome(1, 1, id));
    assert_eq!(after.used(id), Some(40), "what the dead one had is back");
    assert_eq!(now.tell("again"), slot);
    assert_eq!(one.tell(&format!("take 0 {}", units(60) + 1)), "refused");
    let all = format!("taken, {} in all", units(100));
    assert_eq!(one.tell(&format!("take 0 {}", units(60))), all);
    assert_eq!(after.snapshot().tenants[0].pinned_used_mib, Some(3));
    // One that comes only now has the same pages.
    let mut late = old(&after.folder.tenant_socket());
    assert_eq!(late.tell("hello"), welcome(2, 1, id));
    assert_eq!(late.tell("take 0 1"), "refused");
}

/// Beside a process of today's library, on one card: each has it while the other stands at its gate.
#[test]
fn it_takes_turns() {
    let world = World::new(&[1024]);
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for (name, dir) in ["a", "b"].into_iter().zip(&dirs) {
        let job = container(name, dir.path(), vec![card(0, 100)]);
        world.handle.add_container(job).unwrap();
    }
    let mut frozen = old(&dirs[0].path().join("tenant.sock"));
    frozen.tell("hello");
    assert_eq!(frozen.tell("rest"), "told");
    until(|| frozen.tell("gate"), |gate| gate != "closed");
    assert_eq!(frozen.tell("work"), "told");
    let mut today = Process::start(&dirs[1].path().join("tenant.sock"));
    today.tell("hello");
    assert_eq!(today.tell("turns obey"), "at work");
    for _turn in 0..5 {
        until(|| frozen.tell("gate"), |gate| gate == "closed");
        assert_eq!(frozen.tell("rest"), "told");
        // Its answer was read: the other one has the card.
        until(|| today.tell("gate"), |gate| gate != "Closed");
        until(|| frozen.tell("gate"), |gate| gate != "closed");
        assert_eq!(today.tell("gate"), "Closed");
        assert_eq!(frozen.tell("work"), "told");
    }
}
