//! The node agent's way in: containers with a folder each.

use sublet_abi::Mode;
use sublet_arbiter::{ContainerCard, HandleError};
use sublet_model::MiB;

use crate::child::Process;
use crate::world::{World, reason, until, uuid};

fn card(card: usize, mib: u32) -> ContainerCard {
    ContainerCard {
        uuid: uuid(card),
        limit: MiB::from(mib),
    }
}

#[test]
fn who_comes_by_a_containers_socket_is_its_process() {
    let mut world = World::new(&[1024, 1024]);
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let add = |at: usize, cards: Vec<ContainerCard>| {
        let name = format!("pod-{at}");
        let dir = dirs[at].path();
        world
            .handle
            .add_container(None, &name, dir, cards, Mode::Strict)
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
    let refused = add(0, vec![card(0, 1000)]).unwrap_err().to_string();
    assert!(refused.contains("less room"), "{refused}");
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
