//! A client that sends nonsense, too much, or nothing loses its own connection and no other.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use proptest::prelude::*;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use sublet_abi::message::RefusedCode;
use sublet_abi::{ArbiterMessage, Hello, OLDEST, ProcessMessage, VERSION};
use sublet_arbiter::ContainerCard;
use sublet_arbiter::admin::{Reply, Request};
use sublet_model::MiB;

use crate::child::Process;
use crate::containers::container;
use crate::world::{PATIENCE, World, reason, until, uuid};

fn connect(path: &Path) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// Sends each message and takes the answers until the arbiter closes.
fn say(path: &Path, messages: &[Vec<u8>]) {
    let socket = connect(path);
    for message in messages {
        let _ = rustix::net::send(&socket, message, SendFlags::NOSIGNAL);
    }
    rustix::net::shutdown(&socket, rustix::net::Shutdown::Write).unwrap();
    let mut bytes = [0; 1024];
    while matches!(rustix::net::recv(&socket, &mut bytes, RecvFlags::empty()), Ok((_, n)) if n > 0)
    {
    }
}

#[test]
fn a_process_that_is_nobodys_gets_nothing() {
    let world = World::new(&[1024]);
    let _job = world.placed("100MiB", 1);
    let mut stranger = Process::start_orphan(&world.socket());
    let said = stranger.tell("hello");
    assert!(said.starts_with("refused Stranger"), "{said}");
    assert!(said.contains("not started below a `sublet run`"), "{said}");
    assert_eq!(world.snapshot().counters.sent_away, 1);
}

#[test]
fn a_program_inside_a_job_cannot_change_limits_or_start_jobs() {
    let world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    let socket = world.folder.admin_socket();
    // A shell of its own: it descends from this process, which is the job's root.
    let ask = |request: &str| {
        let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                      s.sendall(sys.argv[2].encode()+b'\\n')\nprint(s.makefile().readline())";
        let output = std::process::Command::new("python3")
            .args(["-c", script, socket.to_str().unwrap(), request])
            .output()
            .unwrap();
        let reply: Reply = serde_json::from_slice(&output.stdout).unwrap();
        reply
    };
    let id = placed.id;
    for request in [
        format!(r#"{{"kind":"limit","id":{id},"memory":"1GiB"}}"#),
        r#"{"kind":"submit","name":"x","memory":"1MiB","wait":false}"#.to_owned(),
        r#"{"kind":"shutdown"}"#.to_owned(),
    ] {
        let reply = ask(&request);
        assert_eq!(
            reason(&reply),
            format!("a program inside job {id} cannot ask this")
        );
        let Reply::Refused { hint, .. } = reply else {
            panic!("{reply:?}")
        };
        assert!(hint.unwrap_or_default().contains("outside of the job"));
    }
    assert!(matches!(ask(r#"{"kind":"list"}"#), Reply::Snapshot(_)));
}

#[test]
fn lines_that_are_no_requests_close_their_own_connection() {
    let world = World::new(&[1024]);
    let mut bystander = world.admin();
    for bad in [
        "\n".to_owned(),
        "{}\n".to_owned(),
        "{\"kind\":\"dance\"}\n".to_owned(),
        "{\"kind\":\"limit\",\"id\":-1,\"memory\":\"1GiB\"}\n".to_owned(),
        format!("{}\n", "[".repeat(60_000)),
        "x".repeat(200_000),
    ] {
        let mut stream = UnixStream::connect(world.folder.admin_socket()).unwrap();
        let _ = stream.write_all(bad.as_bytes());
        let mut text = String::new();
        let _ = std::io::Read::read_to_string(&mut stream, &mut text);
        if let Some(line) = text.lines().next() {
            let reply: Reply = serde_json::from_str(line).unwrap();
            assert!(reason(&reply).starts_with("this is no request"), "{line}");
        }
    }
    assert_eq!(world.snapshot().counters.garbage, 6);
    assert!(matches!(
        bystander.call(&Request::Hello, PATIENCE).unwrap(),
        Reply::Hello { .. }
    ));
}

#[test]
fn who_does_not_read_is_given_up() {
    let world = World::new(&[1024]);
    let mut deaf = UnixStream::connect(world.folder.admin_socket()).unwrap();
    deaf.set_nonblocking(true).unwrap();
    // Each asks for a snapshot that nobody takes away.
    let requests = "{\"kind\":\"list\"}\n".repeat(4096);
    let mut written = 0;
    until(
        || {
            match deaf.write(&requests.as_bytes()[written % requests.len()..]) {
                Ok(n) => written += n,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return true,
            }
            // Others are served meanwhile.
            assert_eq!(world.snapshot().gpus.len(), 1);
            false
        },
        |gone| *gone,
    );
}

#[test]
fn a_watch_that_never_comes_again_ends_nobody() {
    let world = World::new(&[1024]);
    let mut line = world.admin();
    let interval_ms = u64::MAX;
    let seen = line.call(&Request::Watch { interval_ms }, PATIENCE);
    assert!(matches!(seen, Ok(Reply::Snapshot(_))), "{seen:?}");
    assert_eq!(world.snapshot().gpus.len(), 1);
}

#[test]
fn connections_that_say_nothing_make_room() {
    let world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    // One process may have four; that they are closed is seen by the arbiter's side.
    let idle: Vec<OwnedFd> = (0..40).map(|_| connect(&world.socket())).collect();
    let mut one = Process::start(&world.socket());
    assert_eq!(
        one.tell("hello"),
        format!("slot 1 generation 1 tenant {}", placed.id)
    );
    let garbage = until(|| world.snapshot().counters.garbage, |n| *n == 40);
    assert_eq!(garbage, 40);
    drop(idle);
}

/// Says hello, and returns the answer.
fn hello(path: &Path, min_version: u16, max_version: u16) -> ArbiterMessage {
    let socket = connect(path);
    let hello = Hello {
        min_version,
        max_version,
        held: None,
    };
    let bytes = ProcessMessage::Hello(hello).encode();
    rustix::net::send(&socket, &bytes, SendFlags::NOSIGNAL).unwrap();
    let mut bytes = [0; 1024];
    let (_, n) = rustix::net::recv(&socket, &mut bytes, RecvFlags::empty()).unwrap();
    ArbiterMessage::parse(&bytes[..n]).unwrap()
}

#[test]
fn of_the_versions_of_a_hello_the_newest_that_both_speak_is_served() {
    let world = World::new(&[1024]);
    let dir = tempfile::tempdir().unwrap();
    let card = ContainerCard {
        uuid: uuid(0),
        limit: MiB::from(10),
    };
    let pod = container("pod", dir.path(), vec![card]);
    world.handle.add_container(pod).unwrap();
    let socket = dir.path().join("tenant.sock");
    for (min_version, max_version) in [(OLDEST - 1, VERSION), (VERSION, VERSION + 1), (0, 100)] {
        let answer = hello(&socket, min_version, max_version);
        let ArbiterMessage::Welcome(welcome) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(welcome.version, VERSION);
    }
}

#[test]
fn a_hello_of_another_version_is_told_so() {
    let world = World::new(&[1024]);
    let (before, after) = (OLDEST - 1, VERSION + 1);
    for (min_version, max_version) in [(before, before), (after, after), (after, 100)] {
        let answer = hello(&world.socket(), min_version, max_version);
        let ArbiterMessage::Refused(refused) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(refused.code, RefusedCode::Version);
        let said = format!(
            "the library speaks versions {min_version} to {max_version}, the arbiter {OLDEST} to \
             {VERSION}: install both from one release"
        );
        assert_eq!(refused.text.as_str(), said);
    }
    assert_eq!(world.snapshot().counters.sent_away, 3);
}

fn message() -> impl Strategy<Value = Vec<u8>> {
    let hello = ProcessMessage::Hello(Hello {
        min_version: OLDEST,
        max_version: VERSION,
        held: None,
    })
    .encode()
    .to_vec();
    let len = hello.len();
    prop_oneof![
        2 => prop::collection::vec(any::<u8>(), 1..1500),
        1 => Just(hello.clone()),
        3 => (0..len, any::<u8>()).prop_map(move |(at, byte)| {
            let mut changed = hello.clone();
            changed[at] = byte;
            changed
        }),
        1 => Just(ProcessMessage::Bye.encode().to_vec()),
    ]
}

#[test]
fn no_bytes_on_the_tenants_socket_end_the_arbiter() {
    let world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    let mut one = Process::start(&world.socket());
    one.tell("hello");
    // By this socket, this process is a container's: it has slots to lose.
    let dir = tempfile::tempdir().unwrap();
    let card = ContainerCard {
        uuid: uuid(0),
        limit: MiB::from(10),
    };
    let added = world
        .handle
        .add_container(container("pod", dir.path(), vec![card]));
    let sockets = [world.socket(), dir.path().join("tenant.sock")];
    let config = ProptestConfig::with_cases(400);
    let messages = prop::collection::vec(message(), 1..6);
    proptest!(config, |(messages in messages, at in 0..2usize)| {
        say(&sockets[at], &messages);
        prop_assert_eq!(world.snapshot().gpus.len(), 1);
    });
    assert_eq!(one.tell("reserve 0 100"), "reserved");
    assert_eq!(world.job(placed.id).unwrap().memory_used_mib, 100);
    let left = until(
        || world.snapshot().counters,
        |counters| counters.connections == 1,
    );
    // This process may have a slot of the container's, or may have said goodbye.
    assert!(left.processes <= 2 && left.joined > 10, "{left:?}");
    assert!(world.job(added.unwrap()).unwrap().pids.len() <= 1);
}

#[test]
fn no_bytes_on_the_commands_socket_end_the_arbiter() {
    let world = World::new(&[1024]);
    let config = ProptestConfig::with_cases(300);
    let line = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        "[{\\[]{0,20}\"kind\":\"(list|submit|resume|limit|watch|hello)\"[a-z0-9:,\"{}]{0,60}"
            .prop_map(String::into_bytes),
    ];
    proptest!(config, |(lines in prop::collection::vec(line, 1..5))| {
        let mut stream = UnixStream::connect(world.folder.admin_socket()).unwrap();
        for line in &lines {
            let _ = stream.write_all(line);
            let _ = stream.write_all(b"\n");
        }
        prop_assert_eq!(world.snapshot().gpus.len(), 1);
    });
}
