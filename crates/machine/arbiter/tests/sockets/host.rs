//! The machine's cards have one arbiter, and another user cannot keep root's from being it.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::Uid;
use sublet_arbiter::HostPlace;

use crate::world::{World, reason, until};

/// A user without rights.
const NOBODY: u32 = 65_534;

/// The name, taken by a user other than root.
fn squat(name: &str) -> OwnedFd {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let user = Uid::from_raw(NOBODY);
    let thread = std::thread::spawn(move || {
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
        let socket = socket.unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 1).unwrap();
        socket
    });
    thread.join().unwrap()
}

/// A place as root would have it, or nothing if these tests are another user's.
fn place(test: &str) -> Option<(tempfile::TempDir, HostPlace)> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: it takes root");
        return None;
    }
    let base = tempfile::tempdir().unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(base.path(), open).unwrap();
    let name = format!("sublet-test-{test}-{}", std::process::id());
    let place = HostPlace {
        name,
        folder: Some(base.path().join("sublet")),
        cards: base.path().to_owned(),
    };
    Some((base, place))
}

#[test]
fn who_takes_the_name_first_does_not_keep_root_out() {
    let Some((_base, place)) = place("host") else {
        return;
    };
    let _squatter = squat(&place.name);
    let mut world = World::with(&[1024], |options| options.host = Some(place.clone()));
    world.placed("100MiB", 1);
    let files = || std::fs::read_dir(folder(&place)).unwrap().count();
    assert_eq!(files(), 2, "its lock and its record");
    world.end();
    assert_eq!(files(), 0);
}

fn folder(place: &HostPlace) -> &Path {
    place.folder.as_deref().unwrap()
}

/// The file that an arbiter of root's leaves in a place.
fn record(place: &HostPlace) -> PathBuf {
    folder(place).join(format!("{}.json", place.name))
}

#[test]
fn a_user_s_arbiter_promises_nothing_once_root_s_is_there() {
    let Some((_base, place)) = place("later") else {
        return;
    };
    // One that cannot have the lock is as a user's: the place is another's at first.
    std::fs::create_dir(folder(&place)).unwrap();
    std::os::unix::fs::chown(folder(&place), Some(NOBODY), None).unwrap();
    let users = World::with(&[1024], |options| options.host = Some(place.clone()));
    let (_line, placed) = users.placed("1GiB", 1);
    let (mut waits, _) = users.submit("100MiB", 1, true);
    let (mut later, _) = users.submit("100MiB", 1, true);
    std::os::unix::fs::chown(folder(&place), Some(0), None).unwrap();
    let roots = World::with(&[1024], |options| options.host = Some(place.clone()));
    assert!(record(&place).exists());
    for line in [&mut waits, &mut later] {
        let refused = until(
            || line.receive(Some(crate::world::PATIENCE)).unwrap(),
            |reply| matches!(reply, sublet_arbiter::admin::Reply::Refused { .. }),
        );
        assert!(reason(&refused).contains("root's arbiter"), "{refused:?}");
    }
    let (_, refused) = users.submit("100MiB", 1, true);
    assert!(reason(&refused).contains("root's arbiter"), "{refused:?}");
    // What it has promised goes on.
    assert_eq!(users.job(placed.id).unwrap().state, "running");
    roots.placed("100MiB", 1);
    // Root's is gone, and the cards are the user's again.
    drop(roots);
    let (_waits, reply) = users.submit("100MiB", 1, true);
    assert!(reason(&reply).contains("GPU 0 lacks"), "{reply:?}");
}
