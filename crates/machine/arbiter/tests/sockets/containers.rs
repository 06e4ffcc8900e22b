//! The node agent's way in: containers with a folder each.

use std::path::Path;

use sublet_abi::Mode;
use sublet_arbiter::{ContainerCard, ContainerJob, HandleError};
use sublet_model::{Class, MiB, Role};
use sublet_share::{ComputeRange, Promise};

use crate::child::Process;
use crate::world::{World, reason, until, uuid};

pub(crate) fn card(card: usize, mib: u32) -> ContainerCard {
    ContainerCard {
        uuid: uuid(card),
        limit: MiB::from(mib),
    }
}

/// The main container of a pod of that name.
pub(crate) fn container(name: &str, dir: &Path, cards: Vec<ContainerCard>) -> ContainerJob {
    ContainerJob {
        id: None,
        name: name.to_owned(),
        dir: dir.to_owned(),
        cards,
        pinned_limit: None,
        compute: ComputeRange::ANY,
        slice: None,
        class: Class::Guaranteed,
        mode: Mode::Strict,
        mps: false,
        promise: Promise {
            pod: name.into(),
            role: Role::Main,
            position: 0,
        },
    }
}

#[test]
fn a_container_takes_the_place_of_the_one_before_it_at_once() {
    let world = World::new(&[1024]);
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let all = vec![card(0, 1024)];
    let mut prepare = container("prepare", dirs[0].path(), all.clone());
    let mut main = container("main", dirs[1].path(), all);
    (prepare.promise.role, prepare.promise.pod) = (Role::Init, "pod".into());
    main.promise.pod = "pod".into();
    let prepare = world.handle.add_container(prepare).unwrap();
    let mut one = Process::start_orphan(&dirs[0].path().join("tenant.sock"));
    one.tell("hello");
    assert_eq!(one.tell("reserve 0 1024"), "reserved");
    // The first one's process is still there, with all of the card.
    let main = world.handle.add_container(main).unwrap();
    let mut two = Process::start_orphan(&dirs[1].path().join("tenant.sock"));
    let said = format!("slot 1 generation 1 tenant {main}");
    assert_eq!(two.tell("hello"), said);
    assert_eq!(two.tell("reserve 0 1024"), "reserved");
    drop(one);
    until(|| world.job(prepare).unwrap().pids, Vec::is_empty);
    assert_eq!(world.snapshot().gpus[0].granted_mib, 1024);
    // It is started again, by the same folder.
    let mut one = Process::start_orphan(&dirs[0].path().join("tenant.sock"));
    let said = format!("slot 1 generation 2 tenant {prepare}");
    assert_eq!(one.tell("hello"), said);
}

#[test]
fn who_comes_by_a_containers_socket_is_its_process() {
    let mut world = World::new(&[1024, 1024]);
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let add = |at: usize, cards: Vec<ContainerCard>| {
        let name = format!("pod-{at}");
        let dir = dirs[at].path();
        let container = container(&name, dir, cards);
        world.handle.add_container(container)
    };
    let first = add(0, vec![card(1, 200)]).unwrap();
    let second = add(1, vec![card(1, 300), card(0, 50)]).unwrap();
    // By the socket alone: these have no parent that anybody knows.
    let mut one = Process::start_orphan(&dirs[0].path().join("tenant.sock"));
    let mut two = Process::start_orphan(&dirs[1].path().join("tenant.sock"));
    assert_eq!(
        one.tell("hello"),
        format!("slot 1 generation 1 tenant {first}")
    );
    assert_eq!(
        two.tell("hello"),
        format!("slot 1 generation 1 tenant {second}")
    );
    assert_eq!(one.tell("reserve 0 200"), "reserved");
    assert!(one.tell("reserve 0 1").starts_with("not reserved"));
    // Devices are in order of the card's number.
    assert_eq!(two.tell("reserve 0 50"), "reserved");
    assert_eq!(two.tell("reserve 1 300"), "reserved");
    let snapshot = world.handle.snapshot().unwrap();
    assert_eq!(snapshot.tenants[0].name, "pod-0");
    assert_eq!(
        (snapshot.gpus[1].granted_mib, snapshot.gpus[0].granted_mib),
        (500, 50)
    );
    let (_, reply) = world.submit("600MiB", 2, false);
    assert!(reason(&reply).contains("GPU 1 lacks 76 MiB"), "{reply:?}");
    let refused = add(0, vec![card(7, 1)]).unwrap_err().to_string();
    assert!(refused.contains("has no GPU GPU-"), "{refused}");
    world.handle.remove_container(second).unwrap();
    let state = || world.job(second).map(|row| row.state);
    until(state, |state| state.as_deref() == Some("ending"));
    drop(two);
    until(state, Option::is_none);
    assert!(world.handle.remove_container(second).is_err());
    let handle = world.handle.clone();
    world.end();
    assert_eq!(handle.snapshot(), Err(HandleError::Ended));
}
