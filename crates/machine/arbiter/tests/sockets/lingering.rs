//! Files that take long to close: a client that sends one to the arbiter, in any way, delays no
//! other.
//!
//! The file here is a TCP connection with a full send queue. Its other end does not read, and
//! it is to be kept until all is sent: `close` waits for that in the process that calls it
//! last.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use sublet_abi::message::SlotClaim;
use sublet_abi::{Hello, OLDEST, ProcessMessage, SlotIndex, VERSION};
use sublet_arbiter::HostPlace;

use crate::child::Process;
use crate::containers::{card, container};
use crate::world::{World, until};

/// Time that `close` of such a file would take: longer than a test takes.
const LINGER: Duration = Duration::from_secs(20);

/// The longest that the arbiter may give no answer meanwhile: half of what one such file would
/// take, and far more than it waits for a processor of a machine with much to do.
const STANDSTILL_MAX: Duration = Duration::from_secs(10);

/// Maximum number of descriptors in one message: `SCM_MAX_FD` of the kernel.
const MESSAGE_DESCRIPTORS_MAX: usize = 253;

/// A file that takes [`LINGER`] to close.
struct Lingering {
    file: OwnedFd,
    /// When this end is gone, nothing lingers any more.
    _reader: TcpStream,
}

impl Lingering {
    fn new() -> Lingering {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (reader, _) = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_linger(&writer, Some(LINGER)).unwrap();
        writer.set_nonblocking(true).unwrap();
        while writer.write(&[0; 65536]).is_ok() {}
        Lingering {
            file: writer.into(),
            _reader: reader,
        }
    }

    /// Gives the file away; the returned end keeps it lingering.
    fn send(self, socket: &OwnedFd, bytes: &[u8], flags: SendFlags) -> (TcpStream, bool) {
        let is_sent = send(socket, bytes, &[self.file.as_fd()], flags);
        if !is_sent {
            // The kernel or the arbiter refused it, and this thread shall not wait for it either.
            rustix::net::sockopt::set_socket_linger(&self.file, None).unwrap();
        }
        // If the arbiter is faster, this one is closed last, and this thread shall not wait for it.
        let Lingering { file, _reader } = self;
        std::thread::spawn(move || drop(file));
        (_reader, is_sent)
    }
}

/// True if the kernel took the message.
fn send(socket: &OwnedFd, bytes: &[u8], files: &[BorrowedFd<'_>], flags: SendFlags) -> bool {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_DESCRIPTORS_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    assert!(beside.push(SendAncillaryMessage::ScmRights(files)));
    let flags = flags | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut beside, flags).is_ok()
}

fn connect(kind: SocketType, address: &SocketAddrUnix) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
    rustix::net::connect(&socket, address)
        .is_ok()
        .then_some(socket)
}

fn connect_to(kind: SocketType, path: &Path) -> OwnedFd {
    connect(kind, &SocketAddrUnix::new(path).unwrap()).unwrap()
}

/// A hello of a process that was there before, and so brings a ledger.
fn hello_of_before() -> Vec<u8> {
    let slot = SlotIndex::of_process(1).unwrap();
    let held = SlotClaim {
        slot,
        generation: 1,
        claims: Default::default(),
        host_bytes: 0,
    };
    let hello = Hello {
        min_version: OLDEST,
        max_version: VERSION,
        held: Some(held),
    };
    ProcessMessage::Hello(hello).encode().to_vec()
}

const ALONE: &str = "SUBLET_TEST_ALONE";

/// Runs a test of this file in a process of its own, as the product's arbiter has one: processes that
/// other tests start meanwhile would have copies of these files for a moment, and close them last.
/// False in that process itself.
fn is_run_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("lingering::{test}"), "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}{errors}");
    assert!(said.contains("1 passed"), "{said}");
    true
}

/// Asks the arbiter again and again, and says how long it gave no answer at most. A question itself
/// waits for a second and no longer.
fn longest_silence(world: &World) -> Duration {
    let begun = Instant::now();
    let (mut answered, mut longest) = (begun, Duration::ZERO);
    loop {
        let is_answered = world.handle.snapshot().is_ok();
        longest = longest.max(answered.elapsed());
        if is_answered {
            answered = Instant::now();
        }
        let is_over = is_answered && begun.elapsed() > Duration::from_millis(600);
        if is_over || longest > STANDSTILL_MAX {
            return longest;
        }
        std::thread::yield_now();
    }
}

/// Checks that the arbiter goes on and serves other clients.
fn assert_goes_on(world: &World, what: &str) {
    let longest = longest_silence(world);
    assert!(longest < STANDSTILL_MAX, "{what}: {longest:?}");
    let begun = Instant::now();
    let (_line, placed) = world.placed("1MiB", 1);
    let mut process = Process::start(&world.socket());
    let said = process.tell("hello");
    assert!(said.starts_with("slot "), "{what}: {said}");
    assert!(
        world.job(placed.id).is_some() && begun.elapsed() < STANDSTILL_MAX,
        "{what}"
    );
}

#[test]
fn a_file_that_lingers_stops_nobody_on_tenant_sock() {
    if is_run_alone("a_file_that_lingers_stops_nobody_on_tenant_sock") {
        return;
    }
    let world = World::new(&[1024]);
    let (_line, _placed) = world.placed("100MiB", 1);
    let empty = SendFlags::empty();
    let connect = || connect_to(SocketType::SEQPACKET, &world.socket());
    let mut kept = Vec::new();
    let mut give = |what: &str, words: &[&[u8]], closes: bool| {
        let socket = connect();
        for words in words {
            kept.push(Lingering::new().send(&socket, words, empty).0);
        }
        let open = (!closes).then_some(socket);
        assert_goes_on(&world, what);
        drop(open);
    };
    let hello = hello_of_before();
    give("nonsense", &[b"nonsense"], false);
    give("an empty message", &[b""], false);
    give("a hello", &[&hello], false);
    give(
        "more messages than are read",
        &[b"one", b"two", b"three"],
        false,
    );
    give("a connection that is gone", &[b"one", b"two"], true);
    // More than any message of ours has: the last one is what lingers.
    let socket = connect();
    let lingering = Lingering::new();
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut files = vec![null.as_fd(); MESSAGE_DESCRIPTORS_MAX - 1];
    files.push(lingering.file.as_fd());
    assert!(send(&socket, &hello, &files, empty));
    drop(files);
    let Lingering { file, _reader } = lingering;
    std::thread::spawn(move || drop(file));
    assert_goes_on(&world, "all that a message can carry");
}

#[test]
fn a_file_that_lingers_stops_nobody_on_admin_sock() {
    if is_run_alone("a_file_that_lingers_stops_nobody_on_admin_sock") {
        return;
    }
    let world = World::new(&[1024]);
    let mut kept = Vec::new();
    for (words, flags) in [
        (&b"nonsense\n"[..], SendFlags::empty()),
        (b"{\"kind\":", SendFlags::empty()),
        (b"{\"kind\":\"list\"}\n", SendFlags::empty()),
        (b"x", SendFlags::OOB),
        (b"{}\n", SendFlags::OOB),
    ] {
        for closes in [false, true] {
            let socket = connect_to(SocketType::STREAM, &world.folder.admin_socket());
            let lingering = Lingering::new();
            kept.push(lingering.send(&socket, words, flags).0);
            let open = (!closes).then_some(socket);
            assert_goes_on(&world, &String::from_utf8_lossy(words));
            drop(open);
        }
    }
}

#[test]
fn a_file_that_lingers_stops_nobody_at_the_hosts_name() {
    if is_run_alone("a_file_that_lingers_stops_nobody_at_the_hosts_name") {
        return;
    }
    let name = format!("sublet-test-lingering-{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let place = HostPlace {
        name: name.clone(),
        folder: Some(folder.path().to_owned()),
        cards: "/nowhere".into(),
    };
    let world = World::with(&[1024], |options| options.host = Some(place));
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let mut kept = Vec::new();
    for _ in 0..3 {
        let socket = connect(SocketType::SEQPACKET, &address).unwrap();
        kept.push(Lingering::new().send(&socket, b"who?", SendFlags::empty()));
        drop(socket);
        assert_goes_on(&world, "the name");
    }
}

/// The arbiter's ends of connections at that socket, which are in this process.
fn ends_at(socket: &Path) -> Vec<OwnedFd> {
    let address = SocketAddrUnix::new(socket).unwrap();
    let mut ends = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let number = entry.file_name().to_string_lossy().parse().unwrap();
        // SAFETY: it was there just now, and whatever has the number now is only asked and copied.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        let name = rustix::net::getsockname(file).and_then(SocketAddrUnix::try_from);
        let listens = rustix::net::sockopt::socket_acceptconn(file);
        if name.as_ref() == Ok(&address) && listens == Ok(false) {
            ends.push(file.try_clone_to_owned().unwrap());
        }
    }
    ends
}

/// Does any epoll instance of this process wait for that file? The kernel names each by its inode.
fn is_waited_for(file: &OwnedFd) -> bool {
    let inode = format!(" ino:{:x} ", rustix::fs::fstat(file).unwrap().st_ino);
    let instances = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let mut said = instances.map(|entry| std::fs::read_to_string(entry.path()));
    said.any(|text| text.is_ok_and(|text| text.contains(&inode)))
}

/// While the kernel looks for news of a connection, it holds the connection for the waiting
/// thread; the last holder of a file closes it. So the arbiter's thread waits for none that others
/// close. Here a second descriptor keeps it, as one does in any process that is started meanwhile.
#[test]
fn a_connection_that_is_closed_elsewhere_is_waited_for_no_more() {
    if is_run_alone("a_connection_that_is_closed_elsewhere_is_waited_for_no_more") {
        return;
    }
    let world = World::new(&[1024]);
    for (kind, path) in [
        (SocketType::SEQPACKET, world.socket()),
        (SocketType::STREAM, world.folder.admin_socket()),
    ] {
        let socket = connect_to(kind, &path);
        let ends = until(|| ends_at(&path), |ends| ends.len() == 1);
        until(|| is_waited_for(&ends[0]), |is_so| *is_so);
        // It loses its connection by that.
        assert!(rustix::net::send(&socket, b"nonsense\n", SendFlags::NOSIGNAL).is_ok());
        until(|| is_waited_for(&ends[0]), |is_so| !is_so);
        until(|| ends_at(&path).len(), |n| *n == 1);
    }
}

#[test]
fn a_container_whose_files_linger_stops_nobody_else() {
    if is_run_alone("a_container_whose_files_linger_stops_nobody_else") {
        return;
    }
    let mut world = World::new(&[1024, 1024]);
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [bad, good] = [0, 1].map(|at| {
        let job = container(&format!("pod-{at}"), dirs[at].path(), vec![card(at, 100)]);
        world.handle.add_container(job).unwrap()
    });
    let socket = dirs[0].path().join("tenant.sock");
    let mut kept = Vec::new();
    // More than it has closers and places to wait for one.
    for _ in 0..100 {
        let address = SocketAddrUnix::new(&socket).unwrap();
        if let Some(connection) = connect(SocketType::SEQPACKET, &address) {
            let lingering = Lingering::new();
            kept.push(lingering.send(&connection, b"nonsense", SendFlags::empty()));
        }
    }
    assert_goes_on(&world, "a flood");
    // Its own programs wait for nothing but their own pod.
    let mut other = Process::start_orphan(&dirs[1].path().join("tenant.sock"));
    let said = other.tell("hello");
    assert_eq!(said, format!("slot 1 generation 1 tenant {good}"));
    // It goes, with connections that nobody has accepted.
    world.handle.remove_container(bad).unwrap();
    assert_goes_on(&world, "its end");
    let begun = Instant::now();
    world.end();
    assert!(begun.elapsed() < STANDSTILL_MAX, "{:?}", begun.elapsed());
}
