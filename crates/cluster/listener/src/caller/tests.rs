//! The user that the kernel names, by both queries, and the conditions for believing it.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use proptest::prelude::*;
use tokio::net::TcpListener;

use super::*;

const THERE: Described = Described {
    state: ESTABLISHED,
    user: 1000,
    inode: 7,
};

#[test]
fn only_two_ends_that_are_both_there_are_believed() {
    let with = |state, inode| {
        Some(Described {
            state,
            inode,
            ..THERE
        })
    };
    for (caller, own, wanted) in [
        (Some(THERE), Some(THERE), Some(1000)),
        // It was closed: nobody's socket, whoever the kernel says that it belongs to.
        (with(ESTABLISHED, 0), Some(THERE), None),
        (with(4, 7), Some(THERE), None),
        (with(6, 0), Some(THERE), None),
        // It begins to connect, while ours is another's.
        (with(2, 9), Some(THERE), None),
        (None, Some(THERE), None),
        // Ours was left meanwhile, or is not the one that was found.
        (Some(THERE), with(7, 7), None),
        (Some(THERE), with(8, 7), None),
        (Some(THERE), with(ESTABLISHED, 8), None),
        (Some(THERE), None, None),
    ] {
        assert_eq!(trusted(caller, own, 7), wanted, "{caller:?} {own:?}");
    }
}

/// Both ways of asking, about both ends of a connection.
async fn ask_both(address: &str) {
    let listener = TcpListener::bind(address).await.unwrap();
    let to = listener.local_addr().unwrap();
    let caller = TcpStream::connect(to).await.unwrap();
    let (stream, from) = listener.accept().await.unwrap();
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(user_of_peer(&stream).unwrap(), Some(own));
    let inode = u32::try_from(rustix::fs::fstat(&caller).unwrap().st_ino).unwrap();
    let wanted = Some(Described {
        state: ESTABLISHED,
        user: own,
        inode,
    });
    let diag = Diag::open().unwrap();
    assert_eq!(diag.ask(from, to).unwrap(), wanted);
    assert_eq!(listed(from, to).unwrap(), wanted);
    // A listener is no caller, and an end that is not there is nobody.
    assert_eq!(diag.ask(to, SocketAddr::new(from.ip(), 1)).unwrap(), None);
    assert_eq!(listed(to, SocketAddr::new(from.ip(), 1)).unwrap(), None);
    drop(caller);
    // It has gone, though we have not closed.
    assert_eq!(user_of_peer(&stream).unwrap(), None);
}

#[tokio::test]
async fn the_kernel_says_whose_the_other_end_is_in_both_ways() {
    ask_both("127.0.0.1:0").await;
    if TcpListener::bind("[::1]:0").await.is_ok() {
        ask_both("[::1]:0").await;
    }
    Callers::root_and_own(&[]).check_kernel().await.unwrap();
}

#[tokio::test]
async fn ipv4_on_a_socket_for_ipv6_is_known_too() {
    let Ok(listener) = TcpListener::bind("[::]:0").await else {
        return println!("skipped: no IPv6 here");
    };
    let port = listener.local_addr().unwrap().port();
    let _caller = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (stream, from) = listener.accept().await.unwrap();
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(user_of_peer(&stream).unwrap(), Some(own));
    let to = stream.local_addr().unwrap();
    let found = listed(plain(from), plain(to)).unwrap();
    assert_eq!(found.map(|found| found.user), Some(own));
}

#[tokio::test]
async fn another_user_is_known_as_another() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can be somebody else");
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // bash connects by itself, and stays until we close.
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3");
    let mut other = Command::new("bash")
        .args(["-c", &script])
        .uid(65_533)
        .gid(65_533)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    assert_eq!(user_of_peer(&stream).unwrap(), Some(65_533));
    let refused = Callers::root_and_own(&[]).judge(&stream).unwrap_err();
    assert_eq!(refused.to_string(), "user 65533 may not call");
    Callers::root_and_own(&[65_533]).judge(&stream).unwrap();
    drop(stream);
    other.wait().unwrap();
}

/// Its cost stands in docs/decisions/0008.
#[tokio::test]
async fn a_look_is_short() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = listener.local_addr().unwrap();
    let _caller = TcpStream::connect(to).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let begun = Instant::now();
    for _ in 0..1_000 {
        assert!(user_of_peer(&stream).unwrap().is_some());
    }
    let each = begun.elapsed() / 1_000;
    println!("{each:?} for each connection");
    assert!(each.as_millis() < 5, "{each:?}");
}

proptest! {
    #[test]
    fn any_answer_is_a_socket_or_none_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let at = SocketAddr::from(([127, 0, 0, 1], 1));
        if let Ok(Some(_)) = described(&bytes, at, at) {
            prop_assert!(bytes.len() >= ANSWER);
        }
    }

    #[test]
    fn any_line_is_a_row_or_none(line in "[ 0-9A-F:]{0,120}") {
        let at = SocketAddr::from(([127, 0, 0, 1], 1));
        if let Some(found) = row(&line, at, at) {
            prop_assert!(line.contains(&found.inode.to_string()));
        }
    }
}
