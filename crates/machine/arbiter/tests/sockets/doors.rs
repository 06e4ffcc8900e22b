//! Each user's processes have a socket of their own if all users are served.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use sublet_arbiter::admin::{Reply, Request};

use crate::child::Process;
use crate::world::{PATIENCE, World, until};

#[test]
fn where_everybody_is_served_each_users_processes_have_a_socket_of_their_own() {
    let mut world = World::with(&[1024], |options| options.shared = true);
    let (_line, placed) = world.placed("100MiB", 1);
    let me = rustix::process::geteuid().as_raw();
    let dir = Path::new(&placed.dir);
    assert_eq!(dir, world.folder.path().join(format!("users/{me}")));
    let socket = dir.join("tenant.sock");
    let about = fs::symlink_metadata(&socket).unwrap();
    let mode = |about: &fs::Metadata| about.permissions().mode() & 0o777;
    // The kernel keeps everybody else from it, and the user can put nothing in its place.
    assert_eq!((about.uid(), mode(&about)), (me, 0o600));
    assert_eq!(mode(&fs::symlink_metadata(dir).unwrap()), 0o755);
    let mut process = Process::start(&socket);
    let slot = process.tell("hello");
    assert!(slot.ends_with(&format!("tenant {}", placed.id)), "{slot}");
    // A process of the job that has become another user's finds the way to the one that all share.
    let others = dir.join("others.sock");
    assert_eq!(fs::canonicalize(&others).unwrap(), world.socket());
    let said = Process::start(&others).tell("hello");
    assert!(said.starts_with("slot "), "{said}");
    // After a restart it is there before anybody comes back.
    world.restart(|options| {
        options.shared = true;
        options.settle = Duration::from_secs(3600);
    });
    assert!(socket.exists());
    let mut line = world.admin();
    let reply = line.call(&Request::Resume { id: placed.id }, PATIENCE);
    let Ok(Reply::Placed(again)) = reply else {
        panic!("{reply:?}")
    };
    assert_eq!(again.dir, placed.dir);
    assert_eq!(process.tell("again"), slot);
}

/// Nobody else reaches the socket of its processes where root alone is served.
#[test]
fn a_process_of_roots_job_that_is_another_users_now_has_a_socket_of_its_own() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: it takes root");
        return;
    }
    let mut world = World::new(&[1024]);
    let (_line, placed) = world.placed("100MiB", 1);
    let dir = Path::new(&placed.dir);
    let mode = |name: &str| fs::symlink_metadata(dir.join(name)).unwrap().mode() & 0o777;
    assert_eq!(mode("."), 0o711);
    assert_eq!(
        ["admin.sock", "tenant.sock", "others.sock"].map(mode),
        [0o600, 0o600, 0o666]
    );
    let mut process = Process::start(&dir.join("others.sock"));
    let slot = process.tell("hello");
    assert!(slot.ends_with(&format!("tenant {}", placed.id)), "{slot}");
    world.end();
    assert!(!dir.join("others.sock").exists());
    // A cluster's node has no jobs of users.
    let world = World::with(&[1024], |options| options.local_jobs = false);
    assert!(!world.folder.path().join("others.sock").exists());
}

#[test]
fn with_a_users_last_job_the_socket_goes() {
    let mut world = World::with(&[1024], |options| options.shared = true);
    let (one, placed) = world.placed("100MiB", 1);
    let (other, _) = world.placed("100MiB", 1);
    let dir = Path::new(&placed.dir);
    drop(one);
    until(|| world.snapshot().tenants.len(), |n| *n == 1);
    assert!(dir.exists());
    drop(other);
    until(|| dir.exists(), |is_there| !is_there);
    let (_line, placed) = world.placed("100MiB", 1);
    assert!(Path::new(&placed.dir).join("tenant.sock").exists());
    // If it ends in order with jobs, no socket stays.
    world.end();
    assert!(!dir.exists());
}
