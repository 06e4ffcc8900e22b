//! Sockets on a kernel that cannot refuse descriptors: here no test asks it to.

use std::os::fd::FromRawFd;

use super::*;
use crate::closers::tests::lingering;
use crate::pages::LedgerMemory;
use sublet_share::{JobId, UserId};

fn pair(kind: SocketType) -> (Connection, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (own, other) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    let guarded = Guarded {
        socket: Some(own),
        owner: Owner::User(UserId(1)),
        holds_none: false,
        closers: Closers::default(),
    };
    (Connection(guarded, Moment::now()), other)
}

fn null() -> OwnedFd {
    fs::File::open("/dev/null").unwrap().into()
}

fn give(socket: &OwnedFd, bytes: &[u8], files: &[&OwnedFd], flags: SendFlags) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let files: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
    if !files.is_empty() {
        assert!(beside.push(SendAncillaryMessage::ScmRights(&files)));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut beside, flags).is_ok()
}

#[test]
fn only_a_ledger_comes_with_a_message() {
    let ledger = LedgerMemory::new(7).unwrap();
    let ledger = ledger.memory().try_clone_to_owned().unwrap();
    let (null, empty) = (null(), SendFlags::empty());
    let crowd = vec![&null; 253];
    for (files, bytes, expected) in [
        (&[][..], &b"x"[..], "message 0"),
        (&[&ledger], b"x", "message 1"),
        (&[&null], b"x", "foreign"),
        (&[&null], b"", "foreign"),
        (&[&ledger, &null], b"x", "foreign"),
        (&[&ledger, &ledger], b"x", "foreign"),
        (&[&ledger, &ledger, &ledger], b"x", "foreign"),
        (&crowd, b"x", "foreign"),
    ] {
        let (own, other) = pair(SocketType::SEQPACKET);
        assert!(matches!(own.receive(), Received::Nothing));
        assert!(give(&other, bytes, files, empty));
        let said = match own.receive() {
            Received::Message(text, files) => {
                assert_eq!(text, bytes);
                format!("message {}", files.len())
            }
            Received::Foreign => "foreign".to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!(said, expected, "{} descriptors", files.len());
    }
}

#[test]
fn a_stream_is_read_up_to_the_first_descriptor() {
    let null = null();
    let flags = [SendFlags::empty(), SendFlags::OOB];
    for flags in flags {
        let (own, other) = pair(SocketType::STREAM);
        assert_eq!(own.read(&mut [0; 8]), Read::Nothing);
        assert!(give(&other, b"before", &[], SendFlags::empty()));
        let mut part = [0; 8];
        assert_eq!(own.read(&mut part), Read::Bytes(6));
        assert_eq!(&part[..6], b"before");
        assert!(give(&other, b"x", &[&null], flags));
        assert_eq!(own.read(&mut part), Read::Foreign, "{flags:?}");
        drop(other);
        assert_eq!(own.read(&mut part), Read::Foreign, "{flags:?}");
    }
    let (own, other) = pair(SocketType::STREAM);
    drop(other);
    assert_eq!(own.read(&mut [0; 8]), Read::Ended);
}

#[test]
fn the_kernel_refuses_descriptors_where_it_can() {
    let (mut own, other) = pair(SocketType::SEQPACKET);
    own.refuse_descriptors();
    if !own.0.holds_none {
        println!("skipped: this kernel has no SO_PASSRIGHTS (Linux 6.16)");
        return;
    }
    assert!(!give(&other, b"x", &[&null()], SendFlags::empty()));
    assert!(give(&other, b"x", &[], SendFlags::empty()));
    assert!(matches!(own.receive(), Received::Message(..)));
    // What came before it refuses must be looked at all the same.
    let (mut own, other) = pair(SocketType::SEQPACKET);
    assert!(give(&other, b"x", &[&null()], SendFlags::empty()));
    own.refuse_descriptors();
    assert!(matches!(own.receive(), Received::Foreign));
}

#[test]
fn a_crowd_shuts_the_door_that_all_share_and_no_other() {
    // A crowd is 8 files that wait, and 32 are too many for everybody.
    let closers = Closers::among(64);
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str, kind, owner| {
        let path = folder.path().join(name);
        Listener::open(&path, kind, Access::Own, owner, &closers).unwrap()
    };
    let container = Some(Owner::Job(JobId(1)));
    let shared = open("shared", SocketType::SEQPACKET, None);
    let container = open("container", SocketType::SEQPACKET, container);
    let commands = open("commands", SocketType::STREAM, None);
    let doors = || [&shared, &container].map(Listener::is_stuck);
    assert_eq!(doors(), [false, false]);
    let bad = Owner::User(UserId(7));
    let (files, _readers): (Vec<_>, Vec<_>) = (0..2).map(|_| lingering()).unzip();
    closers.close(bad, files);
    // Its threads hang, and these wait; two of them stand for those that the threads have not taken.
    closers.close(bad, (0..10).map(|_| null()));
    assert_eq!(doors(), [true, false]);
    // Nothing of those who come there waits, where the kernel lets no descriptor in.
    assert_eq!(commands.is_stuck(), !commands.socket.holds_none);
    closers.close(bad, (0..24).map(|_| null()));
    assert_eq!(doors(), [true, true]);
}

#[test]
fn a_sockets_mode_is_right_and_nothing_elses_is_changed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let mode_of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let me = UserId(rustix::process::geteuid().as_raw());
    for (access, mode) in [
        (Access::Own, 0o600),
        (Access::User(me), 0o600),
        (Access::Everybody, 0o666),
    ] {
        let path = folder.path().join(format!("{access:?}"));
        let closers = Closers::default();
        let listener = Listener::open(&path, SocketType::STREAM, access, None, &closers);
        assert_eq!(mode_of(&path), mode, "{listener:?}");
    }
    // Somebody else is there first with a link to a file of ours: the kernel does not bind there.
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    symlink(&file, &link).unwrap();
    let address = SocketAddrUnix::new(&link).unwrap();
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    assert!(bind(&socket, &link, &address, Access::Everybody).is_err());
    // It is bound elsewhere, and what is at the path now is a link.
    let elsewhere = SocketAddrUnix::new(folder.path().join("socket")).unwrap();
    assert!(bind(&socket, &link, &elsewhere, Access::Everybody).is_err());
    assert_eq!(mode_of(&file), 0o600);
}

#[test]
fn what_lay_unread_is_closed_with_its_connection() {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two numbers.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(made, 0);
    // SAFETY: just made, and nobody else has them.
    let [read, write] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    let (own, other) = pair(SocketType::SEQPACKET);
    assert!(give(&other, b"x", &[&write], SendFlags::empty()));
    drop(write);
    assert!(matches!(own.receive(), Received::Foreign));
    let is_closed = || has(&read, PollFlags::HUP);
    assert!(!is_closed(), "it lies unread in the connection");
    // Another thread closes both.
    drop((own, other));
    let begun = std::time::Instant::now();
    while !is_closed() {
        assert!(begun.elapsed().as_secs() < 20);
        std::thread::yield_now();
    }
}
