//! Callers that stall, flood and lie, beside one that does neither.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream as Stream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use proptest::prelude::*;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};
use sublet_telemetry::metrics::{Refused, RefusedLabels};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::lines::{Lines, Stage};
use crate::{Callers, Door, Ending, Limits, listen};

/// Short, so that a test sees every limit at work.
const SHORT: Limits = Limits {
    name: "test",
    connections: 40,
    handshake: Duration::from_millis(600),
    head: Duration::from_millis(600),
    body: Duration::from_millis(1200),
    body_size: 8 << 20,
    answer: Duration::from_millis(800),
    idle: Duration::from_secs(30),
    held: 32 << 20,
    grace: Duration::from_millis(100),
    work: Duration::from_secs(20),
    ..Limits::PAGES
};

const AT_ONCE: Ending = Ending {
    farewell: Duration::ZERO,
    drain: Duration::from_secs(1),
};

/// A listener and its refusals.
struct World {
    address: SocketAddr,
    refused: Refused,
    lines: Arc<Lines>,
}

impl World {
    fn of(limits: Limits) -> World {
        World::with(limits, |door| door)
    }

    fn with(limits: Limits, rules: impl FnOnce(Door) -> Door) -> World {
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let refused = Refused::default();
        let door = rules(Door::new(listener, limits, &refused));
        let lines = door.lines.clone();
        let router = Router::new()
            .route("/", post(async |body: Bytes| body.len().to_string()))
            .route("/wait", get(std::future::pending::<()>))
            .route("/long", get(async || vec![b'x'; 24 << 20]))
            .layer(DefaultBodyLimit::disable());
        tokio::spawn(door.serve(router, AT_ONCE, std::future::pending()));
        World {
            address,
            refused,
            lines,
        }
    }

    /// A connection that has sent this, from that address of the loopback.
    fn sends(&self, from: u8, bytes: &[u8]) -> Stream {
        let mut stream = connect(from, self.address);
        stream.write_all(bytes).unwrap();
        stream
    }

    fn refused(&self, reason: &'static str) -> u64 {
        let labels = RefusedLabels {
            listener: "test",
            reason,
        };
        self.refused.get_or_create(&labels).get()
    }

    /// Waits until this number of calls were refused for that reason, and no more.
    fn comes_to_refuse(&self, reason: &'static str, count: u64) {
        let begun = Instant::now();
        while self.refused(reason) < count {
            assert!(begun.elapsed() < Duration::from_secs(10), "{reason}");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.refused(reason), count, "{reason}");
    }

    /// A short call over a connection of its own, from an address of its own.
    fn is_served(&self) -> Duration {
        let begun = Instant::now();
        let body = [b'x'; 20_000];
        let mut good = self.sends(200, &call(body.len()));
        good.write_all(&body).unwrap();
        let answer = heard(&mut good);
        assert!(answer.ends_with("\r\n\r\n20000"), "{answer}");
        begun.elapsed()
    }
}

/// A connection that comes from 127.0.0.`from`.
fn connect(from: u8, to: SocketAddr) -> Stream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, from], 0))).unwrap();
    connect(&socket, &to).unwrap();
    let stream = Stream::from(socket);
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

fn call(length: usize) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n").into_bytes()
}

/// Reads until the end of the stream or of the answer.
fn heard(stream: &mut Stream) -> String {
    let mut text = Vec::new();
    let mut some = [0; 4096];
    loop {
        match stream.read(&mut some) {
            Ok(0) | Err(_) => break,
            Ok(n) => text.extend_from_slice(&some[..n]),
        }
        let so_far = String::from_utf8_lossy(&text);
        let length = so_far.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.lines().next()?.parse::<usize>().ok());
        let body = so_far.split_once("\r\n\r\n").map(|(_, body)| body.len());
        if length.is_some() && length == body {
            break;
        }
    }
    String::from_utf8(text).unwrap()
}

/// Until the other side ends the connection.
fn ends(stream: &mut Stream) -> Duration {
    let begun = Instant::now();
    let mut some = [0; 4096];
    while !matches!(stream.read(&mut some), Ok(0) | Err(_)) {}
    begun.elapsed()
}

/// Runs blocking work beside the listener.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test]
async fn whoever_stalls_is_cut_and_others_are_served() {
    let world = World::of(SHORT);
    beside(move || {
        for (reason, said) in [
            ("head_time", b"".to_vec()),
            ("head_time", b"POST / HTTP/1.1\r\nHo".to_vec()),
            ("body_time", call(1000)),
            ("body_time", [call(1000), vec![b'x'; 999]].concat()),
        ] {
            let before = world.refused(reason);
            let mut stalled = world.sends(1, &said);
            assert!(world.is_served() < Duration::from_secs(3));
            let took = ends(&mut stalled);
            assert!(took < Duration::from_secs(5), "{reason}: {took:?}");
            assert_eq!(world.refused(reason), before + 1);
        }
        // Who sends byte after byte is no better.
        let mut slow = world.sends(1, &call(1000));
        let begun = Instant::now();
        while slow.write_all(b"x").is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(20));
        }
        // Who does not read the answer goes too.
        let mut deaf = world.sends(1, b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n");
        world.comes_to_refuse("answer_time", 1);
        ends(&mut deaf);
        // Who has asked and waits may ask again, for longer than any of that.
        let mut kept = world.sends(1, &[call(1), b"x".to_vec()].concat());
        assert!(heard(&mut kept).ends_with("\r\n\r\n1"));
        kept.set_read_timeout(Some(Duration::from_millis(1500)))
            .unwrap();
        let silence = kept.read(&mut [0]).unwrap_err().kind();
        assert_eq!(silence, std::io::ErrorKind::WouldBlock, "it was cut");
        kept.write_all(&[call(2), b"xx".to_vec()].concat()).unwrap();
        assert!(heard(&mut kept).ends_with("\r\n\r\n2"));
    })
    .await;
}

/// A side with a certificate, and one that accepts it.
fn tls() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key);
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server.unwrap()), Arc::new(client))
}

#[tokio::test]
async fn whoever_stalls_while_tls_begins_is_cut_and_others_are_served() {
    let (server, client) = tls();
    let (_keeps, certificates) = watch::channel(Some(server));
    // The good caller has as long for a handshake, on a machine that does other things too.
    let limits = Limits {
        handshake: Duration::from_secs(3),
        head: Duration::from_secs(20),
        ..SHORT
    };
    let world = World::with(limits, |door| door.with_tls(certificates));
    let hello = move || {
        let name = ServerName::try_from("localhost").unwrap();
        ClientConnection::new(Arc::clone(&client), name).unwrap()
    };
    let mut first = Vec::new();
    hello().write_tls(&mut first).unwrap();
    let half = first[..first.len() / 2].to_vec();
    beside(move || {
        let is_served = || {
            let mut caller = hello();
            let mut stream = connect(200, world.address);
            let mut stream = rustls::Stream::new(&mut caller, &mut stream);
            stream
                .write_all(&[call(1), b"x".to_vec()].concat())
                .unwrap();
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200");
        };
        // The last has the whole first message, and no answer to ours.
        let stalled = [&[], &half[..], &first[..]].map(|said| world.sends(1, said));
        is_served();
        for mut stalled in stalled {
            assert!(ends(&mut stalled) < Duration::from_secs(15));
        }
        world.comes_to_refuse("handshake_time", 3);
        // What is no TLS is refused at once. It is counted after the caller was told.
        ends(&mut world.sends(1, &call(1)));
        world.comes_to_refuse("handshake", 1);
        // More of them than there is room for.
        let stalled: Vec<_> = (0..60).map(|n| world.sends(1 + n % 3, &half)).collect();
        is_served();
        assert!(world.refused("crowd") > 0);
        drop(stalled);
    })
    .await;
}

#[tokio::test]
async fn thirty_stalled_bodies_of_eight_mebibytes_hold_no_more_than_they_may() {
    let world = World::of(Limits {
        body: Duration::from_secs(20),
        ..SHORT
    });
    beside(move || {
        let before = resident();
        let body = vec![b'x'; (8 << 20) - 1];
        let stalled: Vec<_> = (0..30)
            .map(|n| {
                let mut stream = world.sends(1 + n % 3, &call(8 << 20));
                stream
                    .set_write_timeout(Some(Duration::from_millis(300)))
                    .unwrap();
                // It may be cut while it sends, or be told to wait.
                let _sent = stream.write_all(&body);
                assert!(world.lines.held() <= SHORT.held);
                stream
            })
            .collect();
        assert!(world.is_served() < Duration::from_secs(2));
        let grown = resident().saturating_sub(before);
        // The test's own body, and what the allocator keeps, beside what may be held.
        assert!(grown < (SHORT.held + (40 << 20)), "{} MiB", grown >> 20);
        assert!(world.refused("memory") > 0);
        drop(stalled);
    })
    .await;
}

/// The bytes of this process in memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_it_comes() {
    let world = World::of(SHORT);
    beside(move || {
        let announced = heard(&mut world.sends(1, &call((8 << 20) + 1)));
        assert!(announced.starts_with("HTTP/1.1 413"), "{announced}");
        // In chunks it is not announced.
        let head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut chunks = world.sends(1, head);
        let chunk = [
            b"100000\r\n".to_vec(),
            vec![b'x'; 1 << 20],
            b"\r\n".to_vec(),
        ]
        .concat();
        let sent = (0..64)
            .take_while(|_| chunks.write_all(&chunk).is_ok())
            .count();
        assert!(sent < 64, "all of it was read");
        assert_eq!(world.refused("size"), 2);
        // A head that is too large is none.
        let long = [b"POST / HTTP/1.1\r\nx: ".to_vec(), vec![b'x'; 100_000]].concat();
        let mut stream = connect(1, world.address);
        let _sent = stream.write_all(&long);
        assert!(!heard(&mut stream).contains("200 OK"));
        world.is_served();
    })
    .await;
}

#[tokio::test]
async fn a_body_that_would_take_too_much_when_it_is_read_is_refused() {
    let limits = Limits {
        weigh: |body| body.len() * 100,
        ..SHORT
    };
    let world = World::of(limits);
    beside(move || {
        let heavy = [call(400_000), vec![b'x'; 400_000]].concat();
        let answer = heard(&mut world.sends(1, &heavy));
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        world.is_served();
    })
    .await;
}

#[tokio::test]
async fn a_crowd_of_one_address_makes_room_for_another() {
    let world = World::of(Limits {
        head: Duration::from_secs(30),
        ..SHORT
    });
    beside(move || {
        // One that asked first, and waits longest.
        let mut kept = world.sends(201, &[call(1), b"x".to_vec()].concat());
        assert!(heard(&mut kept).ends_with("\r\n\r\n1"));
        // Ten times as many as may be there.
        let crowd: Vec<_> = (0..400).map(|_| connect(1, world.address)).collect();
        for _ in 0..5 {
            assert!(world.is_served() < Duration::from_secs(10));
        }
        assert!(world.lines.count().0 <= SHORT.connections);
        assert!(world.refused("crowd") > 0);
        kept.write_all(&[call(2), b"xx".to_vec()].concat()).unwrap();
        assert!(
            heard(&mut kept).ends_with("\r\n\r\n2"),
            "the one with few was cut"
        );
        drop(crowd);
    })
    .await;
}

#[tokio::test]
async fn a_burst_beyond_the_limit_waits_and_is_served() {
    let grace = Duration::from_secs(20);
    let world = World::of(Limits { grace, ..SHORT });
    let calls = (0..300).map(|_| {
        let address = world.address;
        tokio::spawn(async move {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let mut stream = TcpStream::connect(address).await.unwrap();
            let head =
                "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx";
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        })
    });
    let calls: Vec<_> = calls.collect();
    for call in calls {
        let answer = call.await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert_eq!(world.refused("crowd"), 0);
}

#[tokio::test]
async fn calls_that_are_never_answered_make_room_too() {
    let work = Duration::from_millis(300);
    let world = World::of(Limits { work, ..SHORT });
    beside(move || {
        let ask = b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n";
        let waiting: Vec<_> = (0..60).map(|_| world.sends(1, ask)).collect();
        assert!(world.is_served() < Duration::from_secs(5));
        drop(waiting);
    })
    .await;
}

#[tokio::test]
async fn another_user_of_the_machine_is_refused_and_root_is_served() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can be somebody else");
    }
    let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let refused = Refused::default();
    let door = Door::new(listener, SHORT, &refused);
    let door = door.for_callers(Callers::root_and_own(&[])).await.unwrap();
    let router = Router::new().route("/", post(async |body: Bytes| body.len().to_string()));
    tokio::spawn(door.serve(router, AT_ONCE, std::future::pending()));
    beside(move || {
        let ask = |user: u32| {
            let script = format!(
                "exec 3<>/dev/tcp/127.0.0.1/{}; \
                 printf 'POST / HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 1\\r\\nConnection: close\\r\\n\\r\\nx' >&3; \
                 cat <&3",
                address.port()
            );
            let said = Command::new("bash").args(["-c", &script]).uid(user).gid(user).output();
            String::from_utf8(said.unwrap().stdout).unwrap()
        };
        let answer = ask(65_533);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 403"), "{answer}");
        assert!(!answer.contains("200 OK"), "{answer}");
        assert!(ask(0).starts_with("HTTP/1.1 200 OK"));
        let labels = RefusedLabels { listener: "test", reason: "stranger" };
        assert_eq!(refused.get_or_create(&labels).get(), 1);
        let (head, body) = std::str::from_utf8(crate::http::SORRY)
            .unwrap()
            .split_once("\r\n\r\n")
            .unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())));
    })
    .await;
}

proptest! {
    /// Whatever connections do, there are never more than allowed, the bytes held are the sum over
    /// all, and at the end nothing is held.
    #[test]
    fn the_books_are_right(steps in prop::collection::vec((0..8_u8, 0..6_usize, 0..40_usize), 1..120)) {
        let executor = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        executor.block_on(async {
            let grace = Duration::ZERO;
            let limits = Limits { connections: 5, held: 60, grace, ..SHORT };
            let lines = Lines::new(limits, Refused::default());
            let mut open = BTreeMap::new();
            let mut waits = 0;
            for (step, who, size) in steps {
                match step {
                    0 | 1 => {
                        let room = tokio::time::timeout(Duration::from_secs(1), lines.room()).await;
                        waits += usize::from(room.is_err());
                        if room.is_ok() {
                            let address = IpAddr::from([127, 0, 0, u8::try_from(who).unwrap()]);
                            open.insert(who, lines.open(address, Stage::Head));
                        }
                    }
                    2 => drop(open.remove(&who)),
                    3 => if let Some(line) = open.get(&who) { line.enter(Stage::Answer) },
                    4 => if let Some(line) = open.get(&who) { line.enter(Stage::Body) },
                    5 => if let Some(line) = open.get(&who) { line.enter(Stage::Idle) },
                    _ => if let Some(line) = open.get(&who) {
                        let _held = tokio::time::timeout(Duration::from_millis(1), line.hold(size)).await;
                    },
                }
                let (count, _) = lines.count();
                assert!(count <= 5 && lines.held() <= 60);
                assert_eq!(lines.held(), lines.sum());
            }
            // With all of them waiting for their callers, room was always made.
            assert_eq!(waits, 0);
            open.clear();
            assert_eq!((lines.count().0, lines.held()), (0, 0));
        });
    }
}
