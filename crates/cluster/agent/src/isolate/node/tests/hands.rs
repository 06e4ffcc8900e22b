//! While one thread works on a container, the others can work on other containers.

use super::*;
use crate::checkpoint::KubeletCheckpoint;

/// As a thread has it that waits for the arbiter, or for the disk.
#[test]
fn who_waits_for_the_arbiter_keeps_nobody_from_other_containers() {
    let node = Node::new();
    let isolation = node.start();
    let [a, b] = ["a", "b"].map(|pod| handed(pod, "main", Role::Main, 0, 300));
    isolation.admit(&a).unwrap();
    let pods = || now(vec![pod("a"), pod("b")]);
    let in_hand = isolation.tracked.take(|_| true);
    isolation.admit(&b).unwrap();
    assert!(!isolation.settle(&pods()));
    assert_eq!(isolation.look().1.len(), 2);
    assert_eq!(isolation.holders().len(), 2);
    assert!(!isolation.is_in_doubt());
    assert_eq!(isolation.recognise(&KubeletCheckpoint::default()), 0);
    isolation.clear_libraries();
    // The container itself is waited for, and not for ever.
    let why = isolation.admit(&a).unwrap_err().to_string();
    assert_eq!(why, "the agent is still busy with this container");
    drop(in_hand);
    isolation.admit(&a).unwrap();
    assert_eq!(jobs(&isolation), "1:ns/a/main=300 2:ns/b/main=300");
    // A list without the pod, while somebody has its container in hand: it goes at the next look.
    let in_hand = isolation.tracked.take(|one| one.record.pod == "a");
    assert!(!isolation.settle(&now(vec![pod("b")])));
    assert_eq!(isolation.look().1.len(), 2);
    drop(in_hand);
    assert!(!isolation.settle(&now(vec![pod("b")])));
    assert_eq!(jobs(&isolation), "2:ns/b/main=300");
    isolation.stop();
}
