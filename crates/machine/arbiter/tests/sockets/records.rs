//! Jobs come back after a restart if the arbiter itself has recorded them. They come back with
//! their records, for the process that was their root. A client's claims about a job count for
//! nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sublet_arbiter::admin::{Class, Client, Placed, Reply, Request, Submit};

use crate::world::{PATIENCE, World, ask, reason, submit, until, uuid};

/// Tells a client of its own the socket.
const SOCKET: &str = "SUBLET_TEST_CLIENT";
const SAID: &str = "client: ";

/// A user without rights and without processes.
const NOBODY: u32 = 65_534;

/// Sends a line and takes one; the connection stays open as long as it is kept.
fn call(socket: &Path, request: &Value) -> (UnixStream, Value) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    writeln!(stream, "{request}").unwrap();
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    let reply = serde_json::from_str(&line).unwrap_or(Value::Null);
    (stream, reply)
}

#[test]
fn a_client_of_its_own() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let mut request = String::new();
    std::io::stdin().read_to_string(&mut request).unwrap();
    let request = serde_json::from_str(&request).unwrap();
    let (_line, reply) = call(Path::new(&socket), &request);
    println!("{SAID}{reply}");
}

/// The same from another process, of another user if one is named.
fn call_as(user: Option<u32>, socket: &Path, request: &Value) -> Value {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "records::a_client_of_its_own", "--nocapture"])
        .env(SOCKET, socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    write!(input, "{request}").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said = text.lines().find_map(|line| line.split_once(SAID));
    serde_json::from_str(said.expect(&text).1).unwrap()
}

/// A request to bring a job back, with arbitrary claims about it.
fn claim(id: u64, mib: u64) -> Value {
    json!({
        "kind": "resume",
        "id": id,
        "placed": {"id": id, "gpus": [{"index": 0, "uuid": uuid(0), "limitMiB": mib}], "dir": ""},
        "submit": {"name": "test", "memory": format!("{mib}MiB"), "wait": true},
    })
}

fn memory(reply: &Value) -> &Value {
    assert_eq!(reply["kind"], "placed", "{reply}");
    &reply["gpus"][0]["limitMiB"]
}

fn said(reply: &Value) -> &str {
    assert_eq!(reply["kind"], "refused", "{reply}");
    reply["reason"].as_str().unwrap()
}

#[test]
fn nobody_else_brings_a_job_back_and_nobody_with_more_than_it_had() {
    let users = match rustix::process::geteuid().is_root() {
        true => vec![Some(NOBODY), None],
        false => {
            println!("skipped: that of another user, because it takes root");
            vec![None]
        }
    };
    let mut world = World::with(&[32 * 1024], |options| options.shared = true);
    let (_line, placed) = world.placed("1GiB", 1);
    world.restart(|options| options.shared = true);
    let socket = world.folder.admin_socket();
    for user in users {
        let reply = call_as(user, &socket, &claim(placed.id, 16 * 1024));
        assert!(said(&reply).contains("is another process's"), "{reply}");
        assert!(world.job(placed.id).is_none());
    }
    // Its owner asks for more than it had, and gets what it had.
    let (_line, reply) = call(&socket, &claim(placed.id, 16 * 1024));
    assert_eq!(memory(&reply), 1024, "{reply}");
    let back: Placed = serde_json::from_value(reply).unwrap();
    assert_eq!(back, placed);
    assert_eq!(world.job(placed.id).unwrap().memory_limit_mib, Some(1024));
}

#[test]
fn a_number_that_no_job_had_cannot_be_brought_back_nor_wrap_the_counter() {
    let mut world = World::new(&[1024]);
    let (_first, victim) = world.placed("100MiB", 1);
    assert_eq!(victim.id, 1);
    world.restart(|_| {});
    let socket = world.folder.admin_socket();
    let (_back, reply) = call(&socket, &claim(victim.id, 100));
    assert_eq!(memory(&reply), 100);
    for id in [0, 2, 77, u64::MAX - 1, u64::MAX] {
        let (_line, reply) = call(&socket, &claim(id, 1));
        assert!(said(&reply).contains("no record"), "{id}: {reply}");
    }
    let (_second, other) = placed_later(&world, "100MiB", 1);
    assert_eq!(other.id, 2);
    assert_eq!(world.job(victim.id).unwrap().state, "running");
}

/// A new job, as soon as the earlier ones have had their chance.
fn placed_later(world: &World, memory: &str, gpus: u32) -> (Client, Placed) {
    let (mut line, mut reply) = world.submit(memory, gpus, true);
    loop {
        match reply {
            Reply::Placed(placed) => return (line, placed),
            Reply::Waiting { .. } => reply = line.receive(Some(PATIENCE)).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

/// A job of that world, brought back.
fn back(world: &World, id: u64) -> (UnixStream, Placed) {
    let (line, reply) = call(&world.folder.admin_socket(), &claim(id, 1));
    assert_eq!(reply["kind"], "placed", "{reply}");
    (line, serde_json::from_value(reply).unwrap())
}

#[test]
fn what_was_changed_comes_back_as_it_was_changed() {
    let mut world = World::new(&[1024, 1024, 1024]);
    let asked = Submit {
        name: "name \"of\" a job".to_owned(),
        memory: None,
        pinned_memory: Some("64MiB".to_owned()),
        compute: Some("30%".to_owned()),
        class: Class::Guaranteed,
        slice: Some("3ms".to_owned()),
        cards: Some(vec!["1".to_owned(), "2".to_owned()]),
        priority: -3,
        ..ask("1MiB", 2, true)
    };
    let mut line = world.admin();
    let reply = line.call(&Request::Submit(asked), PATIENCE).unwrap();
    let Reply::Placed(placed) = reply else {
        panic!("{reply:?}")
    };
    let id = placed.id;
    // Whole cards become a part, and one that is larger than it was first.
    world.limit(id, "100MiB");
    world.limit(id, "200MiB");
    world.limit_pinned(id, "32MiB");
    let compute = "40%..60%".to_owned();
    let Reply::Limited(limited) = world.call(&Request::LimitCompute { id, compute }) else {
        panic!("not changed")
    };
    let row = world.job(id).unwrap();
    world.restart(|_| {});
    let (_line, placed) = back(&world, id);
    assert_eq!(placed, limited);
    assert_eq!(placed.gpus[0].limit_mib, 200);
    let now = world.job(id).unwrap();
    assert_eq!(
        (now.name, now.priority, now.allowed_gpus, now.class),
        (row.name, row.priority, row.allowed_gpus, row.class)
    );
    // The new limit is not what it asked for: whole cards.
    assert_eq!((row.request_mib, row.request_percent), (None, None));
    assert_eq!((now.request_mib, now.request_percent), (None, None));
    assert_eq!(now.memory_limit_mib, Some(200));
    assert_eq!(now.pinned_limit_mib, Some(32));
    // The rest of its cards is nobody's.
    placed_later(&world, "824MiB", 3);
    // And once more, from what the second one wrote.
    world.restart(|_| {});
    let (_line, placed) = back(&world, id);
    assert_eq!(placed, limited);
}

#[test]
fn a_job_that_was_not_recorded_does_not_come_back_and_hurts_nobody() {
    let mut world = World::new(&[1024]);
    let (_one, lost) = world.placed("100MiB", 1);
    let (_two, kept) = world.placed("100MiB", 1);
    world.restart(|options| {
        let file = options.folder.path().join(format!("jobs/{}.json", lost.id));
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    });
    let socket = world.folder.admin_socket();
    let (_line, reply) = call(&socket, &claim(lost.id, 100));
    assert!(said(&reply).contains("no record of job 1"), "{reply}");
    back(&world, kept.id);
    let (_three, new) = placed_later(&world, "100MiB", 1);
    assert_eq!(new.id, 3);
}

#[test]
fn a_record_that_the_disk_had_no_room_for_is_written_when_it_has() {
    let mut world = World::new(&[1024]);
    // In the way of the folder, as a full disk would be.
    let folder = world.folder.path().join("jobs");
    std::fs::write(&folder, "").unwrap();
    let (_line, placed) = world.placed("100MiB", 1);
    std::fs::remove_file(&folder).unwrap();
    let file = folder.join(format!("{}.json", placed.id));
    until(|| file.exists(), |is_there| *is_there);
    world.restart(|_| {});
    assert_eq!(back(&world, placed.id).1, placed);
}

#[test]
fn the_last_number_is_given_once_and_nobody_loses_a_job_over_it() {
    let mut world = World::new(&[1024]);
    let (_line, victim) = world.placed("100MiB", 1);
    world.restart(|options| {
        let file = options.folder.lock_file();
        let text = std::fs::read_to_string(&file).unwrap();
        let mut record: Value = serde_json::from_str(&text).unwrap();
        record["lastJob"] = json!(u64::MAX - 1);
        std::fs::write(&file, record.to_string()).unwrap();
    });
    let (_back, _) = back(&world, victim.id);
    let (_last, last) = placed_later(&world, "100MiB", 1);
    assert_eq!(last.id, u64::MAX);
    let (_, reply) = world.submit("1MiB", 1, true);
    assert!(reason(&reply).contains("is used up"), "{reply:?}");
    let numbers = world.snapshot().tenants;
    let numbers: Vec<_> = numbers.iter().map(|row| row.id).collect();
    assert_eq!(numbers, [Some(victim.id), Some(u64::MAX)]);
}

#[test]
fn nothing_is_left_of_a_job_that_ended() {
    let mut world = World::new(&[1024]);
    let (line, placed) = world.placed("100MiB", 1);
    let (waits, reply) = submit(world.admin(), "1GiB", 1, true);
    assert!(matches!(reply, Reply::Waiting { .. }), "{reply:?}");
    let folder = world.folder.path().join("jobs");
    let files = || {
        let files = std::fs::read_dir(&folder).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.collect::<Vec<_>>()
    };
    // Who waits has nothing that would have to come back.
    assert_eq!(files(), ["1.json"]);
    drop(line);
    until(|| world.job(placed.id).is_none(), |is_gone| *is_gone);
    until(files, |names| names == &["2.json"]);
    drop(waits);
    until(|| world.snapshot().tenants.len(), |n| *n == 0);
    until(files, Vec::is_empty);
    world.end();
    assert!(!world.folder.path().exists());
}
