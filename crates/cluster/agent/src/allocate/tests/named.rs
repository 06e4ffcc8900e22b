//! Containers that are known by their pod's UID and their own name.

use super::*;
use crate::allocate::named::decide_for;

/// The devices of a container: its cards and the memory of each, or the refusal, or `-`.
fn check(picture: &str, uid: &str, container: &str) -> String {
    let pods = pods(picture, keys::ALIYUN_GPU_MEM);
    let handed = decide_for(&pods, &site(), uid, container);
    match handed {
        Ok(handed) => {
            assert!(handed.annotations.is_empty() && handed.twins.is_empty());
            let visible = &handed.environment[keys::NVIDIA_VISIBLE_DEVICES];
            let memory = handed.cards.iter().map(|card| card.memory.to_string());
            format!("{visible} {}", memory.collect::<Vec<_>>().join(" "))
        }
        Err(AllocateError::NotAsked) => "-".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn equal_pods_of_every_shape_are_told_apart() {
    let picture = "
        a @0 one=2 two=2
        b @1 one=2 two=2
        c @0 init:warm=3 one=1
        host @-";
    assert_eq!(check(picture, "uid-a", "two"), "GPU-0 2 MiB");
    assert_eq!(check(picture, "uid-b", "one"), "GPU-1 2 MiB");
    assert_eq!(check(picture, "uid-c", "warm"), "GPU-0 3 MiB");
    // It starts again: what it was given before does not matter.
    assert_eq!(
        check(&format!("{picture}\nd @1 one=3 ; done:one"), "uid-d", "one"),
        "GPU-1 3 MiB"
    );
    for (uid, container) in [("uid-a", "three"), ("uid-x", "one"), ("uid-host", "one")] {
        assert_eq!(check(picture, uid, container), "-", "{uid} {container}");
    }
}

#[test]
fn the_last_referee_is_asked_here_too() {
    let why = check("a @0 one=60\nb @0 one=60", "uid-b", "one");
    assert!(why.contains("ns/b") && why.contains("GPU 0"), "{why}");
    let why = check("a @- one=6", "uid-a", "one");
    assert_eq!(
        why,
        "pod ns/a has no card: it was bound by somebody who chose no card; delete the pod so that it \
         is placed anew"
    );
    let why = check("a @0 one=6 ; junk", "uid-a", "one");
    assert!(why.starts_with("pod ns/a has no card: "), "{why}");
    let why = check("a @7 one=6", "uid-a", "one");
    assert!(why.contains("GPU-7 is not on node n1"), "{why}");
}

/// Kubelet makes its mirror again if it is deleted.
#[test]
fn a_static_pod_is_to_lose_its_gpu_and_not_to_be_deleted() {
    let advice = "it is a static pod: take the GPU out of its file on the node";
    for uid in ["uid-a", "x"] {
        let why = check("a @- one=6; static:x", uid, "one");
        let start = "pod ns/a has no card: ";
        assert!(why.starts_with(start) && why.ends_with(advice), "{why}");
    }
    // Whoever writes the UID of another pod is not taken for it.
    let forged = "b @- one=6; static:uid-a\n a @1 one=6";
    assert_eq!(check(forged, "uid-a", "one"), "GPU-1 6 MiB");
    // Its file says a card, which nobody keeps for it.
    let why = check("a @0 one=6; static:x", "x", "one");
    assert!(why.ends_with(advice), "{why}");
    for card in ["2", "7"] {
        let picture = format!("a @{card} main=3; static:x");
        let why = super::check(&picture, MEM, 3);
        assert!(why.ends_with(advice), "{why}");
    }
    let two = super::check("a @0 main=3; static:x\n b @1 main=3", MEM, 3);
    let both = "delete all but one, and take the GPU out of a static pod's file on the node";
    assert!(two.ends_with(both), "{two}");
}
